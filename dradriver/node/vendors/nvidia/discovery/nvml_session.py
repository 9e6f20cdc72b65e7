"""One NVML session, which stays open while the driver is in use.

Without persistence mode, the driver deinitialises a GPU when the last process that has the GPU open ends. The next
process then waits 1-3 s for each GPU, and settings are lost (compute mode, power limit, volatile ECC counters). So all
readings use one session.

But while a session is open, the driver cannot be unloaded and no GPU can be reset. So the session ends when the driver
is about to be replaced, and when the driver has failed.
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
    """The NVML session, which begins when a caller first needs it."""

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
        """Return an open NVML session.

        If GPUs came or went since the session began, a new session begins, because the old one does not notice this.

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
        """Store how many GPUs the last reading found lost, to begin new sessions.

        Within one NVML session a lost GPU stays lost, even if it works again. So while GPUs are lost, a new session
        begins after the first such reading, after two more, after four more, and so on.
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
        """Return the bus ids of the driver's devices from /sys, without calling the driver."""
        return tuple(filter(is_bus_id, sysfs.entries(self._host_root / _BOUND)))
