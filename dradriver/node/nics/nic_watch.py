"""Reads the network cards' ports at an interval: sets metrics, and writes Events on the Node about changes.

A fault is reported once. It must last for several readings, or come again and again within an hour (``port_history``).
A port that goes down and up once is not reported, and neither is a port that a pod has taken. The published machine
does not contain these states.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.node import metrics
from dradriver.node.discovery import sysfs
from dradriver.node.nics import gpudirect, ports, troubles
from dradriver.node.nics.gpudirect import ANSWERS, Answer
from dradriver.node.nics.port_history import History
from dradriver.node.nics.ports import NicState
from dradriver.node.nics.troubles import SEVERE, At, Trouble
from dradriver.node.threads import beside
from dradriver.reason import capitalized, sentences
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 15.0
SAME: Final = 2  # readings in a row before a trouble has come, or gone
GPUDIRECT_EVERY: Final = 40  # readings: modules are loaded seldom
PATIENCE_S: Final = 60.0  # a card's firmware can hang; so long ago is no news
_GBIT: Final = 8.0  # in a GB/s
_REASONS: Final = {
    troubles.DOWN: "NICPortDown",
    troubles.SLOW: "NICPortSlow",
    troubles.FLAPPING: "NICPortFlapping",
    troubles.ERRORS: "NICPortErrors",
}


class AskGpuDirect(Protocol):
    """A function that tells whether network cards reach the GPUs' memory."""

    def __call__(self) -> Answer | None:
        """Return whether network cards reach the GPUs' memory; None if that is unknown."""


class NicWatch:
    """Keeps the last reading of the network cards' ports, and reports their faults.

    Attributes:
        nics: The last reading; None before the first.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[NicState]],
        *,
        node: str,
        gpudirect: AskGpuDirect = lambda: None,
        events: Recorder | None = None,
        about: Callable[[], Reference | None] = lambda: None,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the arguments; read nothing yet.

        Args:
            read: Reads the ports. It may hang, so it is called in a thread.
            node: The node's name.
            gpudirect: Returns whether GPUDirect RDMA works; called in a thread, too.
            events: Writes Events; None for no Events.
            about: Returns the Node; None while it is unknown, and then Events wait.
            interval_s: Seconds between two readings.
            clock: Returns seconds that never go back.
        """
        self._read = read
        self._node = node
        self._gpudirect = gpudirect
        self._events = events
        self._about = about
        self._interval_s = interval_s
        self._clock = clock
        self._history = History()
        self._readings = 0
        self._direct: Answer | None = None  # whether GPUDirect RDMA works, by the last answer
        self._last_error = ""  # logged once
        self._known_up: set[At] = set()  # ports that were active in some reading
        self._errors: dict[tuple[At, str], int] = {}  # the last value of each error counter, by port and name
        self._reported: dict[tuple[At, str], Trouble] = {}  # by port and kind
        self._differing: dict[tuple[At, str], int] = {}  # readings in a row that differ from what was reported
        self.nics: Sequence[NicState] | None = None

    def active(self) -> Mapping[str, tuple[int, ...]] | None:
        """Return the active ports that NCCL's verbs transport can use, by card; None before the first reading."""
        return None if self.nics is None else ports.active(self.nics)

    async def run(self) -> None:
        """Watch the network cards' ports until cancelled."""
        while True:
            try:
                await self.look()
            except Exception as error:  # what a host says may surprise; the agent's other parts go on
                if str(error) != self._last_error:
                    self._last_error = str(error)
                    logger.exception("The ports of the network cards cannot be read now.")
            await asyncio.sleep(self._interval_s)

    async def look(self) -> None:
        """Read and check the ports once.

        If the ports cannot be read, the error is raised and the last reading stays.
        """
        asks = self._direct is None or self._readings % GPUDIRECT_EVERY == 0
        self._readings += 1
        reading = beside(lambda: (tuple(self._read()), self._gpudirect() if asks else None))
        try:
            while not (await asyncio.wait({reading}, timeout=PATIENCE_S))[0]:
                logger.warning(
                    "The network cards have not answered for %.0f s. Their last known state stays in force.", PATIENCE_S
                )
            nics, direct = reading.result()
        finally:
            reading.cancel()
        self.nics = nics
        if asks:
            self._direct = direct
            for word in ANSWERS:
                metrics.GPUDIRECT.labels(word).set(bool(nics) and direct is not None and direct.word == word)
        found = (*troubles.troubles(nics, known_up=self._known_up), *self._history.add(nics, self._clock()))
        self._known_up |= {at for at, port in _ports(nics) if port.up}
        self._count(nics, found)
        await self._tell(nics, found)

    def _count(self, nics: Sequence[NicState], found: Sequence[Trouble]) -> None:
        own = _ports(nics)
        states = [troubles.state_of(port) for _, port in own]
        for state in troubles.STATES:
            metrics.NIC_PORTS.labels(state).set(states.count(state))
        metrics.NIC_RATE.set({(at.nic, str(at.port)): port.gbit / _GBIT for at, port in own})
        rows = [(one.at.nic, str(one.at.port), self._node, one.kind) for one in found]
        metrics.NIC_FAULT_INFO.set("", rows)
        for at, port in own:
            for counter, total in port.errors.items():
                before = self._errors.get((at, counter), total)  # since boot they say little
                self._errors[at, counter] = total
                metrics.NIC_ERRORS.add(max(0, total - before), at.nic, str(at.port), counter)

    async def _tell(self, nics: Sequence[NicState], found: Sequence[Trouble]) -> None:
        """Write Events for severe faults of ports that started or ended, if two readings in a row show it.

        The kinds ``SEVERE`` slow down jobs. The end of a fault is reported only if the port is up and has no other
        severe fault. ``nics`` is the last reading, ``found`` the faults in it.
        """
        about = self._about()
        if self._events is None or about is None:
            return
        by_port = dict(_ports(nics))
        now = {(one.at, one.kind): one for one in found if one.kind in SEVERE}
        for key in self._reported.keys() | now.keys():
            if (key in now) == (key in self._reported):
                self._differing.pop(key, None)
                continue
            self._differing[key] = self._differing.get(key, 0) + 1
            if self._differing[key] < SAME:
                continue
            del self._differing[key]
            if key in now:
                self._reported[key] = now[key]
                await self._record(about, now[key])
                continue
            told = self._reported.pop(key)
            port = by_port.get(told.at)
            if port is not None and port.up and not any(at == told.at for at, _ in now):
                await self._record(about, told, over=True)
        self._differing = {key: count for key, count in self._differing.items() if key in now or key in self._reported}

    async def _record(self, about: Reference, trouble: Trouble, *, over: bool = False) -> None:
        assert self._events is not None, "asked before"
        await self._events.record(
            about=about,
            type="Normal" if over else "Warning",
            reason="NICPortRecovered" if over else _REASONS[trouble.kind],
            message=f"The problem is over: {trouble.said}."
            if over
            else sentences(capitalized(trouble.said), capitalized(trouble.cure)),
            action="Watching",
        )


def of_host(
    root: Path,
    machine: Callable[[], Machine | None],
    *,
    node: str,
    events: Recorder | None = None,
    about: Callable[[], Reference | None] = lambda: None,
    interval_s: float = INTERVAL_S,
) -> NicWatch:
    """Return a ``NicWatch`` that reads the network cards of a real host.

    Args:
        root: Folder that contains the host's /sys, and its /proc if that exists.
        machine: Returns the machine; the vendor of its GPUs decides how GPUDirect is checked.
        node: The node's name.
        events: Writes Events; None for no Events.
        about: Returns the Node object that the Events are about; None while it is unknown.
        interval_s: Seconds between two readings.
    """

    def direct() -> Answer | None:
        current = machine()
        if current is None or not current.gpus:
            return None

        # A folder with the files of another host has a /proc, too. Without one, this process runs on the host itself,
        # and its own /proc is the host's.
        proc_root = root if (root / sysfs.CPUINFO).exists() else Path("/")
        return gpudirect.answer(root, current.vendor, proc_root=proc_root)

    return NicWatch(
        lambda: ports.read(root), node=node, gpudirect=direct, events=events, about=about, interval_s=interval_s
    )


def _ports(nics: Sequence[NicState]) -> list[tuple[At, ports.Port]]:
    """Return each port of all cards with its card and number, without virtual and scalable functions."""
    return [(At(nic.name, port.number), port) for nic in nics if not nic.function for port in nic.ports]
