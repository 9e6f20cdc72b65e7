"""Events on the Node about unhealthy GPUs.

A free GPU is used by no pod, so only the Node can carry its Event.

A fault is in force after it was seen for long enough (``faults_in_force``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.node.faults import Fault
from dradriver.node.health.faults_in_force import Record
from dradriver.node.health.pod_events import Place, ReportedGpu, tell


class NodeEvents:
    """Writes an Event on the Node when a fault that keeps pods off a GPU starts or ends."""

    def __init__(
        self,
        record: Record,
        events: Recorder,
        *,
        node: str,
        about: Callable[[], Reference | None],
        place: Place,
    ) -> None:
        """Store the arguments; write no Event yet.

        Args:
            record: Provides the faults that are in force.
            events: Writes the Events.
            node: The node's name.
            about: Returns the Node; None until it was read.
            place: Returns number and PCI address of a GPU by its UUID; None if they are unknown.
        """
        self._record = record
        self._events = events
        self._node = node
        self._about = about
        self._place = place
        self._told: frozenset[tuple[str, Fault]] = frozenset()
        self._changed = asyncio.Event()

    def poke(self) -> None:
        """Check again whether the Node needs an Event about a fault of a GPU."""
        self._changed.set()

    async def run(self) -> NoReturn:
        """Write Events on the Node about faults of GPUs until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if (about := self._about()) is None:
                continue
            standing = frozenset(
                (uuid, one.fault)
                for uuid, some in self._record.standing().items()
                for one in some
                if one.fault.effect == "NoSchedule"
            )
            told, self._told = self._told, standing
            for uuid, fault in sorted(standing - told):
                await self._write(about, uuid, fault, is_unhealthy=True)
            for uuid, fault in sorted(told - standing):
                await self._write(about, uuid, fault, is_unhealthy=False)

    async def _write(self, about: Reference, uuid: str, fault: Fault, *, is_unhealthy: bool) -> None:
        gpu = ReportedGpu(self._node, uuid, self._place(uuid))
        await tell(self._events, about, gpu, fault, is_unhealthy=is_unhealthy)
