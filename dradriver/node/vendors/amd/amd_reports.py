"""What amdgpu reports in the kernel's log: resets of GPUs, and errors that could not be corrected.

Lines begin ``amdgpu 0000:63:00.0: amdgpu: `` (kernel, amdgpu_device.c and amdgpu_ras.c): ``GPU reset begin!``, ``GPU
reset(3) succeeded!``, ``GPU reset(3) failed``, ``GPU reset end with ret = -5``, ``1 uncorrectable hardware errors
detected in umc block``. How a GPU is reset (``GPU mode1 reset``) is said of others, too: the driver begins with a reset
where another one was there before it, as in a guest that is rebooted, and ends with one. So a recovery alone counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from dradriver.node.faults import Fault

_LINE: Final = re.compile(r"amdgpu ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): (?:amdgpu: )?([^\n]{1,300})")
_BEGIN: Final = re.compile(r"GPU reset begin")
_DONE: Final = re.compile(r"GPU reset ?\([0-9]+\) succeeded")  # "succeeded, trying to resume" comes before its end
_FAILED: Final = re.compile(r"GPU reset ?\([0-9]+\) failed|GPU reset end with ret = -")
_ERRORS: Final = re.compile(
    r"([0-9]{1,12}) (?:new )?uncorrectable hardware errors detected in (?:total in )?([A-Za-z0-9_]{1,32}) block"
)
_LOADED: Final = "[drm] amdgpu kernel modesetting enabled"
_TAKEN: Final = re.compile(
    r"(?:amdgpu [0-9a-f:.]{12,16}: )?\[drm\] Initialized amdgpu [^\n]{1,64}? for ([0-9a-f:.]{12,16}) on minor"
)
_MOST_GPUS: Final = 1024


class AmdReports:
    """What the log says of each GPU now."""

    def __init__(self) -> None:
        """Know of nothing yet."""
        self._faults: dict[str, dict[str, Fault]] = {}  # by bus id or uuid, and kind

    def take(self, text: str, at_s: float) -> None:  # noqa: ARG002  # the signature: what is over the log says itself
        """Take one record of the kernel's log, which may be a report of amdgpu."""
        if text.startswith(_LOADED):
            self._faults.clear()
            return
        if (taken := _TAKEN.match(text)) is not None:  # bound anew, with or without the module
            self._faults.get(taken[1], {}).pop("gpu-reset", None)
            return
        line = _LINE.match(text)
        if line is None or (line[1] not in self._faults and len(self._faults) >= _MOST_GPUS):
            return
        busid, said = line[1], line[2]
        if _DONE.search(said):
            self._faults.pop(busid, None)  # bad pages are retired then
        elif _FAILED.search(said):
            self._note(busid, Fault("gpu-reset", "failed", "its reset failed, the kernel's log says"))
        elif _BEGIN.search(said):
            self._note(busid, Fault("gpu-reset", "", "the driver began to reset it, the kernel's log says"))
        elif (errors := _ERRORS.search(said)) is not None and int(errors[1]):
            text = f"{errors[1]} errors of {errors[2]} that could not be corrected, the kernel's log says"
            self._note(busid, Fault("ras", errors[2].lower(), text))

    def _note(self, busid: str, fault: Fault) -> None:
        self._faults.setdefault(busid, {})[fault.kind] = fault

    def sound(self, busids: Collection[str], said_s: float) -> None:
        """Do nothing: amdgpu reports only in the log that a GPU is well."""

    def reset(self, busids: Iterable[str]) -> None:
        """Forget all amdgpu reports about GPUs that were reset since."""
        for busid in busids:
            self._faults.pop(busid, None)

    def move(self, name: str, to: str) -> None:
        """Keep amdgpu's reports about a GPU under another name, too."""
        if (some := self._faults.pop(name, None)) is not None:
            self._faults[to] = some | self._faults.get(to, {})

    def faults(
        self,
        uuids: Mapping[str, str],
        switched: Collection[str] = (),  # noqa: ARG002  # no switches report in the log
    ) -> dict[str, tuple[Fault, ...]]:
        """Return the faults that amdgpu reported, by uuid; ``uuids`` has these by the names of reports."""
        return {uuids[busid]: tuple(some.values()) for busid, some in self._faults.items() if some and busid in uuids}
