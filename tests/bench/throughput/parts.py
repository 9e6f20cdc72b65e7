"""What pods get when GPUs are handed out in parts: how these are published, and how a pod asks for one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from dradriver.api import names
from dradriver.api.policies.modes import Mode


@dataclasses.dataclass(frozen=True)
class Parts:
    """One way of handing GPUs out in parts.

    Attributes:
        mode: What every GPU is handed out as.
        annotations: A pod's of ours that wants one part.
        request: The same for the scheduler alone, as a claim's request.
    """

    mode: Mode
    annotations: Mapping[str, str]
    request: Mapping[str, Any]


_PROFILE: Final = "1g.10gb"
_SLICES: Final = {names.CAPACITY_MEMORY_SLICES: "1", names.CAPACITY_COMPUTE_SLICES: "1"}
_OF_PROFILE: Final = f'device.attributes["{names.ATTRIBUTE_DOMAIN}"].?profile.orValue("") == "{_PROFILE}"'
KINDS: Final = {
    "shares": Parts(
        Mode(shared="time-slicing"),
        {names.SHARE: "0.25"},
        {
            "deviceClassName": names.SHARE_CLASS,
            "capacity": {"requests": {names.CAPACITY_CORES: "25", names.CAPACITY_MEMORY: "20000Mi"}},
        },
    ),
    "dynamic": Parts(
        Mode(mig="dynamic"),
        {names.MIG_PROFILE: _PROFILE},
        {"deviceClassName": names.MIG_CLASS, "capacity": {"requests": _SLICES}},
    ),
    "placements": Parts(
        Mode(mig="placements"),
        {names.MIG_PROFILE: _PROFILE},
        {
            "deviceClassName": names.MIG_CLASS,
            "capacity": {"requests": _SLICES},
            "selectors": [{"cel": {"expression": _OF_PROFILE}}],
        },
    ),
}
