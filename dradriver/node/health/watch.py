"""Bringing together what readings and the kernel's log say of the GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from dradriver.api import lost_gpus
from dradriver.api.lost_gpus import LostGpu
from dradriver.node.discovery import Discovery
from dradriver.node.faults import Fault, Faults, of_all
from dradriver.node.health.kmsg import KernelLog
from dradriver.node.health.record import Record
from dradriver.topology.amd import packages
from dradriver.topology.machine import Machine

INTERVAL_S: Final = 5.0
_LOST: Final = Fault("lost", "", "it is not on the node any more")


class HealthWatch:
    """Tells the record what is wrong; the kernel's log is looked at also while the driver hangs."""

    def __init__(
        self, record: Record, discovery: Discovery, log: KernelLog | None, *, interval_s: float = INTERVAL_S
    ) -> None:
        """Look at nothing yet.

        Args:
            record: Is told.
            discovery: Says what the last reading found wrong.
            log: The kernel's; None for GPUs that it knows nothing of.
            interval_s: How often to look at it.
        """
        self._record = record
        self._discovery = discovery
        self._log = log
        self._interval_s = interval_s
        self._known: set[str] = set()
        self._there: set[str] | None = None  # at the last reading; None before the first
        self._places: dict[str, LostGpu] = {}  # of each GPU that was ever seen, by uuid
        self._uuids: dict[str, str] = {}  # by bus id; of a GPU that is lost too
        self._own: dict[str, Faults] = {}  # GPUs' own faults, by source
        self._pairs: set[tuple[str, str]] = set()  # GPUs of one package

    def looked(self, machine: Machine | None, trouble: str | None) -> None:
        """Take in a reading, or that there was none.

        Args:
            machine: As it was last read, or published by an agent before; None where nobody knows.
            trouble: What keeps it from being read; None while it can be.
        """
        self._record.tell("driver", of_all(machine, trouble, kind="driver"))
        self._tell("gpus", self._discovery.faults)
        if machine is not None:
            self._uuids |= {gpu.pci: gpu.uuid for gpu in machine.gpus if gpu.pci}
            # Of a GPU that was read and cannot be handed out the log says why.
            there = {gpu.uuid for gpu in machine.gpus} | self._discovery.faults.keys()
            self._known |= there
            self._there = there
            self._places |= {gpu.uuid: lost_gpus.of(gpu) for gpu in machine.gpus}
            self._pairs |= set(packages.pairs(machine))
            self._tell_lost()
        if self._log is not None:  # what was read of it before is over
            self._log.reports.reset([busid for busid, uuid in self._uuids.items() if uuid in self._discovery.reset])
        self._kernel()

    def adopt(self, published: Collection[LostGpu]) -> None:
        """Take in the GPUs that an earlier agent published as lost: this one never saw them.

        A GPU in whose place on the PCI bus another one is was replaced: it is not lost any more.
        """
        taken = self._taken()
        strange = [gpu for gpu in published if gpu.uuid not in self._known and gpu.pci not in taken]
        for gpu in strange:
            self._known.add(gpu.uuid)
            self._places[gpu.uuid] = gpu
        if strange:
            self._tell_lost()

    def lost(self) -> tuple[LostGpu, ...]:
        """Return the GPUs that the node lost and whose place is empty, by index; none before the first reading."""
        if self._there is None:
            return ()
        taken = self._taken()
        gone = (self._places[uuid] for uuid in self._known - self._there if uuid in self._places)
        return tuple(sorted(gpu for gpu in gone if gpu.pci not in taken))

    def _taken(self) -> set[str]:
        """Return the PCI addresses of the GPUs that are there."""
        return {self._places[uuid].pci for uuid in self._there or () if uuid in self._places} - {""}

    def place(self, uuid: str) -> LostGpu | None:
        """Return index and PCI address of a GPU as they were last seen; None of one that was never seen."""
        return self._places.get(uuid)

    def _tell_lost(self) -> None:
        if self._there is not None:
            self._tell("lost", dict.fromkeys(self._known - self._there, (_LOST,)))

    async def run(self) -> None:
        """Look at the kernel's log until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                self._kernel()
        finally:
            if self._log is not None:
                self._log.close()

    def _kernel(self) -> None:
        if self._log is None or not self._uuids:
            return
        self._log.read()
        sound = [busid for busid, uuid in self._uuids.items() if uuid in self._discovery.sound]
        self._log.reports.sound(sound, self._discovery.read_s)
        self._tell("kernel", self._log.reports.faults(self._uuids))

    def _tell(self, source: str, faults: Faults) -> None:
        """Tell the record of faults, and of those that the other GPU of a package has for them."""
        self._record.tell(source, faults)
        self._own[source] = faults
        if not self._pairs:
            return
        keeps_off = {
            uuid: fault
            for own in self._own.values()
            for uuid, some in own.items()
            for fault in some
            if fault.effect == "NoSchedule" and fault.kind != "driver"  # which both have
        }
        both = (*self._pairs, *((b, a) for a, b in self._pairs))
        beside = {b: (_beside(a, keeps_off[a]),) for a, b in both if a in keeps_off}
        self._record.tell("package", beside)


def _beside(uuid: str, fault: Fault) -> Fault:
    return Fault("package", "", f"GPU {uuid} of its package: {fault.said}")
