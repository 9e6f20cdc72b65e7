"""XIDs, the driver's own reports of errors, from the kernel's log.

The log is read and nothing is asked of the driver, so it tells of a GPU also while the driver hangs. A record is
``<facility and level>,<number>,<microseconds>,<flags>;<text>`` (Linux Documentation/ABI/testing/dev-kmsg); only the
kernel's own have facility 0, so no process can pretend. XIDs: NVIDIA "XID Errors".
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from dradriver.node.health.faults import Fault

logger = logging.getLogger(__name__)

# A program's own fault: graphics exception, page fault, stopped channel, preemptive cleanup, video processor, context
# switch time-out.
OF_PROGRAMS: Final = frozenset({13, 31, 43, 45, 68, 109})
SOUND_S: Final = 60.0  # after an XID, before the driver's word that all is well is about the time after it
_RECORD: Final = re.compile(rb"(\d{1,4}),\d{1,20},(\d{1,20}),[^;]*;(.*)", re.DOTALL)
_XID: Final = re.compile(
    r"NVRM: Xid \(PCI:([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})[^)]{0,32}\): (\d{1,5})\b"
)
_LOADED: Final = "NVRM: loading NVIDIA UNIX"
_MOST_BYTES: Final = 8192  # of one record, kernel/printk
_MOST_AT_ONCE: Final = 20_000
_MOST_GPUS: Final = 1024


class Xid(msgspec.Struct, frozen=True):
    """The first XID of a GPU that is not over, and when the last came, seconds of the monotonic clock."""

    number: int
    last_s: float


class KernelLog:
    """The kernel's log since the node started, as far as it goes back."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Keep what is needed.

        Args:
            path: ``/dev/kmsg``.
            clock: The kernel log's: seconds since the start, without the time asleep.
        """
        self._path = path
        self._clock = clock
        self._file: int | None = None
        self._told = False
        self._xids: dict[str, Xid] = {}

    def read(self) -> None:
        """Take in what is new; where the log cannot be read that is said once."""
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            for _ in range(_MOST_AT_ONCE):
                try:
                    record = os.read(self._file, _MOST_BYTES)
                except BrokenPipeError:  # overwritten before it was read
                    continue
                except BlockingIOError:
                    return
                if not record:
                    return
                self._take(record)
        except OSError as error:
            if not self._told and error.errno != errno.EINVAL:
                logger.warning("%s cannot be read, XIDs are not seen: %s", self._path, error)
                self._told = True

    def close(self) -> None:
        """Let go of it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def sound(self, busids: Collection[str]) -> None:
        """Forget old XIDs of GPUs of which the driver says that nothing needs to be done."""
        for busid in busids:
            xid = self._xids.get(busid)
            if xid is not None and self._clock() - xid.last_s >= SOUND_S:
                del self._xids[busid]

    def faults(self, uuids: Mapping[str, str]) -> dict[str, tuple[Fault, ...]]:
        """Return the faults that the log tells of.

        Args:
            uuids: The GPUs' uuids by bus id (``0000:06:00.0``).
        """
        return {
            uuids[busid]: (Fault("xid", str(xid.number), f"XID {xid.number} in the kernel's log"),)
            for busid, xid in self._xids.items()
            if busid in uuids
        }

    def _take(self, record: bytes) -> None:
        found = _RECORD.match(record)
        if found is None or int(found[1]) >> 3:
            return
        text = found[3].decode("utf-8", "replace")
        if text.startswith(_LOADED):
            self._xids.clear()  # another driver, or the same one started anew
            return
        xid = _XID.match(text)
        if xid is None or int(xid[4]) in OF_PROGRAMS:
            return
        busid = f"{int(xid[1], 16):04x}:{xid[2].lower()}:{xid[3].lower()}.0"
        before = self._xids.get(busid)
        if before is not None or len(self._xids) < _MOST_GPUS:
            self._xids[busid] = Xid(before.number if before else int(xid[4]), int(found[2]) / 1e6)
