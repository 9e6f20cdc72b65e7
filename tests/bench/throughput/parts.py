"""What pods get when GPUs are handed out in parts: how these are published, and how a pod asks for one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from dradriver.api.base import names
from dradriver.api.policies.gpu_modes import Mode


@dataclasses.dataclass(frozen=True)
class Parts:
    """One way of handing GPUs out in parts.

    Attributes:
        mode: What every GPU is handed out as.
        annotations: A pod's of ours that wants one part.
        request: The same for the scheduler alone, as a claim's request.
        pin: CEL that holds of one GPU's part alone; with `<gpu>` for its uuid and `<start>` for its place there.
    """

    mode: Mode
    annotations: Mapping[str, str]
    request: Mapping[str, Any]
    pin: str

    def pinned(self, uuid: str, number: int) -> dict[str, Any]:
        """Return the request for a part of one GPU, the first, second, … of it."""
        expression = self.pin.replace("<gpu>", uuid).replace("<start>", str(_LAST_START - number))
        return {**self.request, "selectors": [{"cel": {"expression": expression}}]}


_PROFILE: Final = "1g.10gb"
_SLICES: Final = {names.CAPACITY_MEMORY_SLICES: "1", names.CAPACITY_COMPUTE_SLICES: "1"}
_LAST_START: Final = 6  # of that profile
_HAS: Final = f'device.attributes["{names.ATTRIBUTE_DOMAIN}"].'
_OF_PROFILE: Final = f'{_HAS}?profile.orValue("") == "{_PROFILE}"'
_OF_GPU: Final = f'{_HAS}?uuid.orValue("") == "<gpu>"'
_OF_PARENT: Final = f'{_HAS}?parentUUID.orValue("") == "<gpu>"'
KINDS: Final = {
    "shares": Parts(
        Mode(shared="time-slicing"),
        {names.SHARE: "0.25"},
        {
            "deviceClassName": names.SHARE_CLASS,
            "capacity": {"requests": {names.CAPACITY_CORES: "25", names.CAPACITY_MEMORY: "20000Mi"}},
        },
        _OF_GPU,
    ),
    "dynamic": Parts(
        Mode(mig="dynamic"),
        {names.MIG_PROFILE: _PROFILE},
        {"deviceClassName": names.MIG_CLASS, "capacity": {"requests": _SLICES}},
        _OF_GPU,
    ),
    "placements": Parts(
        Mode(mig="placements"),
        {names.MIG_PROFILE: _PROFILE},
        {
            "deviceClassName": names.MIG_CLASS,
            "capacity": {"requests": _SLICES},
            "selectors": [{"cel": {"expression": _OF_PROFILE}}],
        },
        f"{_OF_PARENT} && {_OF_PROFILE} && {_HAS}?placement.orValue(-1) == <start>",
    ),
}
