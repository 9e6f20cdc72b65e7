"""Errors that AMD's GPUs count, for example of their memory: files ``ras/<block>_err_count`` of the PCI device.

Each file has a line ``ue: N`` of uncorrected errors, and ``ce: N`` of corrected errors (kernel, amdgpu_ras.c). The
counters start when the driver is loaded, and a reset of the GPU does not set them back. So an old error may be repaired
already. Only a growing counter shows that the GPU has a fault now.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dradriver.node.discovery import sysfs
from dradriver.node.faults import Fault

GROWING_S: Final = 3600.0  # after the last error that could not be corrected
_FILE: Final = re.compile(r"([a-z0-9_]{1,32})_err_count")
_UNCORRECTED: Final = re.compile(r"^ue: ?([0-9]{1,18})$", re.MULTILINE)


class Ras:
    """The error counters of all GPUs, compared from one reading to the next."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Store the clock; no counter is known yet."""
        self._clock = clock
        self._counts: dict[tuple[str, str], int] = {}
        self._grew: dict[tuple[str, str], tuple[int, float]] = {}  # by how much, and when last

    def read(self, uuid: str, device: Path) -> tuple[Fault, ...]:
        """Return the faults that an AMD GPU's error counters show.

        If any counter is above 0, there is the fault ``ecc``, which only informs. If a counter has grown within the
        last hour, there is also the fault ``ras``, which keeps new pods off the GPU.

        Args:
            uuid: The GPU's uuid.
            device: The folder of its PCI device.
        """
        counts: dict[str, int] = {}
        for name in sysfs.entries(device / "ras"):
            if (match := _FILE.fullmatch(name)) and (
                said := _UNCORRECTED.search(sysfs.text(device / "ras" / name))
            ) is not None:
                counts[match[1]] = int(said[1])
        for block, count in counts.items():
            key = uuid, block
            before = self._counts.get(key, count)
            if count > before:
                self._grew[key] = self._grew.get(key, (0, 0.0))[0] + count - before, self._clock()
            elif count < before:  # the driver was loaded anew
                self._grew.pop(key, None)
            self._counts[key] = count
        return (*self._growing(uuid), *_standing(counts))

    def _growing(self, uuid: str) -> tuple[Fault, ...]:
        now = self._clock()
        some = {key[1]: by for key, (by, last_s) in self._grew.items() if key[0] == uuid and now - last_s < GROWING_S}
        if not some:
            return ()
        said = ", ".join(f"{by} of {block}" for block, by in sorted(some.items()))
        return (Fault("ras", min(some), f"new errors that could not be corrected: {said}"),)


def _standing(counts: dict[str, int]) -> tuple[Fault, ...]:
    total = sum(counts.values())
    return (Fault("ecc", "uncorrected", f"{total} uncorrected errors since the driver was loaded"),) if total else ()
