"""amdgpu's reports in the kernel's log: resets of GPUs, and errors that could not be corrected.

Lines begin ``amdgpu 0000:63:00.0: amdgpu: `` (kernel, amdgpu_device.c and amdgpu_ras.c): ``GPU reset begin!``, ``GPU
reset(3) succeeded!``, ``GPU reset(3) failed``, ``GPU reset end with ret = -5``, ``1 uncorrectable hardware errors
detected in umc block``.

The line with the kind of reset (``GPU mode1 reset``) does not count, because the driver also writes it for a healthy
GPU. The driver resets a GPU when the driver ends, and when it starts after another driver, for example in a guest that
is rebooted.
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
    """The faults that amdgpu reported about each GPU and that are not over."""

    def __init__(self) -> None:
        """Create an empty set of reports."""
        self._faults: dict[str, dict[str, Fault]] = {}  # by bus id or uuid, and kind

    def take(self, text: str, at_s: float) -> None:  # noqa: ARG002  # the signature: what is over the log says itself
        """Process one record of the kernel's log, which may be a report of amdgpu.

        ``text`` is the record's text. ``at_s`` is not used, because the log itself says when a fault is over.
        """
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
            self._note(busid, Fault("gpu-reset", "failed", "the kernel's log says that the reset of the GPU failed"))
        elif _BEGIN.search(said):
            self._note(busid, Fault("gpu-reset", "", "the kernel's log says that the driver began to reset the GPU"))
        elif (errors := _ERRORS.search(said)) is not None and int(errors[1]):
            text = f"the kernel's log has {errors[1]} errors of {errors[2]} that could not be corrected"
            self._note(busid, Fault("ras", errors[2].lower(), text))

    def _note(self, busid: str, fault: Fault) -> None:
        self._faults.setdefault(busid, {})[fault.kind] = fault

    def sound(self, busids: Collection[str], said_s: float) -> None:
        """Do nothing, because only the log says when a GPU of AMD is healthy again."""

    def reset(self, busids: Iterable[str]) -> None:
        """Forget all amdgpu reports about these GPUs, because the GPUs were reset after the reports."""
        for busid in busids:
            self._faults.pop(busid, None)

    def move(self, name: str, to: str) -> None:
        """Move amdgpu's reports about a GPU from ``name`` to another name.

        A name is the GPU's bus id, or its uuid while no bus id is known.
        """
        if (some := self._faults.pop(name, None)) is not None:
            self._faults[to] = some | self._faults.get(to, {})

    def faults(
        self,
        uuids: Mapping[str, str],
        switched: Collection[str] = (),  # noqa: ARG002  # no switches report in the log
    ) -> dict[str, tuple[Fault, ...]]:
        """Return the faults that amdgpu reported, by uuid.

        Args:
            uuids: The GPUs' uuids, by the names under which reports are stored.
            switched: Not used.
        """
        return {uuids[busid]: tuple(some.values()) for busid, some in self._faults.items() if some and busid in uuids}
