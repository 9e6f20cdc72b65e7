"""The kernel's log: its records, given to whoever knows what a vendor's driver reports there.

The log is read and nothing is asked of the driver, so it tells of a GPU also while the driver hangs. A record is
``<facility and level>,<number>,<microseconds>,<flags>;<text>`` (Linux Documentation/ABI/testing/dev-kmsg); only the
kernel's own have facility 0, so no process can pretend.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from dradriver.node.faults import Fault

logger = logging.getLogger(__name__)

_RECORD: Final = re.compile(rb"(\d{1,4}),\d{1,20},(\d{1,20}),[^;]*;(.*)", re.DOTALL)
_FOUND: Final = re.compile(r"pci ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): \[[0-9a-f]{4}:[0-9a-f]{4}\] type ")
_MOST_BYTES: Final = 8192  # of one record, kernel/printk
_MOST_AT_ONCE: Final = 20_000


class Reports(Protocol):
    """What a vendor's driver reports in the kernel's log.

    It names GPUs by bus id (``0000:06:00.0``). What was reported of a GPU that is not at its bus id any more is kept
    under its uuid.
    """

    def take(self, text: str, at_s: float) -> None:
        """Take one record of the kernel's log: its text, and when it came, seconds of the log's clock."""

    def sound(self, busids: Collection[str], said_s: float) -> None:
        """Forget old reports of the kernel's log about GPUs whose driver said later that they need no action."""

    def reset(self, busids: Iterable[str]) -> None:
        """Forget all reports of the kernel's log about GPUs that were reset since."""

    def move(self, name: str, to: str) -> None:
        """Keep the reports of the kernel's log about a GPU under another name, too."""

    def faults(self, uuids: Mapping[str, str], switched: Collection[str] = ()) -> dict[str, tuple[Fault, ...]]:
        """Return the faults that the kernel's log reported, by uuid.

        Args:
            uuids: The GPUs' uuids by the names under which reports are kept.
            switched: Uuids of those that switches join; empty where nobody knows.
        """


class KernelLog:
    """The kernel's log since the node started, as far as it goes back.

    A device that the kernel finds on the bus, at the start or later, begins without reports.

    Attributes:
        found: Bus ids at which it found a device since this was emptied.
    """

    def __init__(self, path: Path, reports: Reports) -> None:
        """Read nothing yet.

        Args:
            path: ``/dev/kmsg``.
            reports: Is given each record.
        """
        self._path = path
        self._file: int | None = None
        self._told = False
        self.reports = reports
        self.found: set[str] = set()

    def read(self) -> None:
        """Read the new records of the kernel's log; if it cannot be read that is logged once."""
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
                self.take(record)
        except OSError as error:
            if not self._told and error.errno != errno.EINVAL:
                logger.warning("%s cannot be read, what drivers report there is not seen: %s", self._path, error)
                self._told = True

    def take(self, record: bytes) -> None:
        """Take one record of the kernel's log; whatever is none of the kernel's own is passed over."""
        match = _RECORD.match(record)
        if match is not None and not int(match[1]) >> 3:
            text = match[3].decode("utf-8", "replace")
            if (device := _FOUND.match(text)) is not None:
                self.found.add(device[1])
                self.reports.reset([device[1]])
            self.reports.take(text, int(match[2]) / 1e6)

    def close(self) -> None:
        """Close the kernel's log; the next ``read`` opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
