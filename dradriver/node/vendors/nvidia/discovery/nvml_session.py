"""One NVML session, kept while the driver lives.

Without persistence mode the driver gives an idle GPU up when the last process that has it open ends: the next one waits
1-3 s for each GPU, and what was set is gone (compute mode, power limit, volatile ECC counters). So a session is not
begun for every reading. But a driver with an open session cannot be unloaded, nor one of its GPUs reset: it ends when
the driver is about to be replaced, and when it has proved to be of no use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dradriver.node.discovery import sysfs
from dradriver.node.vendors.nvidia.discovery import binding, library_sessions
from dradriver.node.vendors.nvidia.discovery.nvml_interface import Nvml
from dradriver.topology.identifiers import is_bus_id

_BOUND: Final = "sys/bus/pci/drivers/nvidia"
_LATEST: Final = 32  # readings between two tries to see lost GPUs again


class Session:
    """The session, begun when it is first needed."""

    def __init__(self, *, driver_root: Path | None, host_root: Path) -> None:
        self._driver_root = driver_root
        self._host_root = host_root
        self._nvml: Nvml | None = None  # the open session; None while there is none
        self._seen: tuple[str, ...] = ()  # bus ids of the driver's GPUs when the session began
        self._stale = False  # whether the next call of ``nvml`` must begin another session
        self._wait = 1  # readings with lost GPUs after which another session begins
        self._waited = 0  # readings with lost GPUs since the last such session

    @property
    def open(self) -> bool:
        """Return whether the NVML session is open."""
        return self._nvml is not None

    def nvml(self) -> Nvml:
        """Return the NVML session; a new one if GPUs came or went, because an old one never notices.

        Raises:
            NvmlError: There is no library, no driver behind it, or no permission.
        """
        there = self._gpus()
        if there != self._seen or self._stale:
            self.end()
        if self._nvml is None:
            shared = bool(library_sessions.sessions())  # somebody's question: then this one sees what that one saw
            self._nvml = binding.begin(driver_root=self._driver_root)
            self._seen, self._stale = there, shared
        return self._nvml

    def lost(self, count: int) -> None:
        """Note how many GPUs the last reading found lost: they stay so for an NVML session.

        So another begins after that reading, after two more, four more, …
        """
        if not count:
            self._wait = 1
            self._waited = 0
            return
        self._waited += 1
        if self._waited >= self._wait:
            self._wait, self._waited = min(2 * self._wait, _LATEST), 0
            self._stale = True  # till then it keeps the others from falling asleep

    def end(self) -> None:
        """Close the NVML session; the next ``nvml`` opens another."""
        if self._nvml is not None:
            binding.end(self._nvml)
            self._nvml = None

    def _gpus(self) -> tuple[str, ...]:
        """Return the bus ids of the driver's devices, as /sys has them without asking the driver."""
        return tuple(filter(is_bus_id, sysfs.entries(self._host_root / _BOUND)))
