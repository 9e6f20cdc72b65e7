"""The kernel's log: reads its records and passes them to the code that knows a vendor's driver.

This works even while the driver hangs, because the driver is not called. A record is ``<facility and
level>,<number>,<microseconds>,<flags>;<text>`` (Linux Documentation/ABI/testing/dev-kmsg). Only the kernel's own
records have facility 0, so a process cannot forge a record.
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
    """The reports of a vendor's driver in the kernel's log.

    The driver names GPUs by PCI bus id (``0000:06:00.0``). If a GPU is not at its bus id any more, its reports are
    stored under its uuid.
    """

    def take(self, text: str, at_s: float) -> None:
        """Process one record of the kernel's log.

        Args:
            text: The record's text.
            at_s: The record's time, in seconds of the log's clock.
        """

    def sound(self, busids: Collection[str], said_s: float) -> None:
        """Forget old reports about GPUs that need no action, according to the driver.

        Args:
            busids: Bus ids of these GPUs.
            said_s: When the driver said so, in seconds of the monotonic clock. Newer reports stay.
        """

    def reset(self, busids: Iterable[str]) -> None:
        """Forget all reports about these GPUs, because the GPUs were reset after the reports."""

    def move(self, name: str, to: str) -> None:
        """Move the reports about a GPU to another name.

        This is needed when a GPU has left its bus id.

        Args:
            name: The name under which the reports are stored: a bus id, or a uuid for a GPU without a known bus id.
            to: The new name.
        """

    def faults(self, uuids: Mapping[str, str], switched: Collection[str] = ()) -> dict[str, tuple[Fault, ...]]:
        """Return the faults that the kernel's log reported, by uuid.

        Args:
            uuids: The GPUs' uuids, by the names under which reports are stored.
            switched: Uuids of the GPUs that are connected to NVSwitches; empty if this is unknown.
        """


class KernelLog:
    """The kernel's log since the node started, as far as the kernel still has it.

    If the kernel finds a device on the bus, at boot or later, all earlier reports about the device are forgotten.

    Attributes:
        found: Bus ids at which the kernel found a device, at boot or later. ``HealthWatch`` empties the set after each
            reading of the machine.
    """

    def __init__(self, path: Path, reports: Reports) -> None:
        """Store the arguments; read nothing yet.

        Args:
            path: ``/dev/kmsg``.
            reports: Receives each record.
        """
        self._path = path
        self._file: int | None = None
        self._told = False
        self.reports = reports
        self.found: set[str] = set()

    def read(self) -> None:
        """Read the new records of the kernel's log and process each with ``take``.

        If the kernel's log cannot be read, the agent writes this once to its own log.
        """
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
                logger.warning(
                    "%s cannot be read, so faults that GPU drivers report there are not seen: %s",
                    self._path,
                    error,
                )
                self._told = True

    def take(self, record: bytes) -> None:
        """Process one record of the kernel's log; records of other programs are ignored."""
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
