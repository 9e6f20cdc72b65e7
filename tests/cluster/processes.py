"""Processes named by their id and start time, so that a reused id is never mistaken."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class ProcessId(NamedTuple):
    """A process: its id and when it started, in clock ticks since the machine's start."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int, proc: Path = Path("/proc")) -> ProcessId | None:
        """Returns the process that has this id now; a zombie counts as none."""
        try:
            # The name in parentheses may hold anything, so read what follows its end.
            fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @classmethod
    def read(cls, file: Path) -> ProcessId | None:
        """Returns the process recorded in a file, None if there is no record."""
        try:
            pid, started = file.read_text().split()
        except (OSError, ValueError):
            return None
        return cls(int(pid), int(started))

    def alive(self, proc: Path = Path("/proc")) -> bool:
        """Whether this very process still runs."""
        return ProcessId.of(self.pid, proc) == self
