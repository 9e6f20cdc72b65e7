"""Combines the faults from readings and from the kernel's log into the GPUs' health.

A reading is the machine as the agent found it at one time. ``Record`` (``faults_in_force``) collects the faults from
all sources.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from dradriver.api.slices import lost_gpus
from dradriver.api.slices.lost_gpus import LostGpu
from dradriver.node.discovery import Discovery
from dradriver.node.faults import Fault, Faults, of_all
from dradriver.node.health.faults_in_force import Record
from dradriver.node.health.kernel_log import KernelLog
from dradriver.topology.amd import packages
from dradriver.topology.machine import Machine

INTERVAL_S: Final = 5.0
REMEMBERED_S: Final = 7 * 24 * 3600  # how long a GPU is told of as lost
_LOST: Final = Fault("lost", "", "the GPU is not on the node any more")


class HealthWatch:
    """Finds the faults of GPUs in each reading and in the kernel's log, and reports them to ``Record``.

    ``Record`` decides when a fault comes into force. The kernel's log is read even while the driver hangs.
    """

    def __init__(
        self,
        record: Record,
        discovery: Discovery,
        log: KernelLog | None,
        *,
        interval_s: float = INTERVAL_S,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Store the arguments; read nothing yet.

        Args:
            record: Receives the faults.
            discovery: Provides the faults that the last reading found.
            log: The kernel log; None for simulated GPUs.
            interval_s: Seconds between two readings of the log.
            wall: Returns seconds since 1970.
        """
        self._record = record
        self._discovery = discovery
        self._log = log
        self._interval_s = interval_s
        self._wall = wall
        # Sets of GPUs have their uuids.
        self._known: set[str] = set()  # present, or reported as lost
        self._present: set[str] | None = None  # at the last reading; None before the first
        self._places: dict[str, LostGpu] = {}  # index and PCI address of each GPU that was ever seen, by uuid
        self._lost_since: dict[str, int] = {}  # when a GPU was first found lost, seconds since 1970, by uuid
        self._replaced: set[str] = set()  # lost, and a new GPU is at their address: reported, but not published
        self._forgotten: set[str] = set()  # lost, and not reported any more
        self._waiting: tuple[Collection[LostGpu], Machine | None] = (), None  # arguments of an early ``adopt``
        # By the name of its reports: the bus id, also of a lost GPU; the uuid once another GPU is in its place.
        self._uuids: dict[str, str] = {}
        self._own: dict[str, Faults] = {}  # GPUs' own faults, by source
        self._pairs: set[tuple[str, str]] = set()  # GPUs of one package
        self._switched: set[str] = set()  # GPUs that switches join

    def looked(self, machine: Machine | None, trouble: str | None) -> None:
        """Update the GPUs' health after the machine was read, or could not be read.

        Args:
            machine: The machine as it was last read, or as an earlier agent published it; None if it is unknown.
            trouble: The reason why the machine cannot be read; None if it can be read.
        """
        self._record.tell("driver", of_all(machine, trouble, kind="driver"))
        self._tell("gpus", self._discovery.faults)
        if machine is not None:
            self._locate({gpu.pci: gpu.uuid for gpu in machine.gpus if gpu.pci})
            # GPUs with faults are there, too, although they cannot be handed out. Of a GPU that was read and cannot be
            # handed out the log says why.
            present = {gpu.uuid for gpu in machine.gpus} | self._discovery.faults.keys()
            self._take(machine, present)
            self._pairs |= set(packages.pairs(machine))
            self._switched |= {gpu.uuid for gpu in machine.gpus if gpu.switch_links}
        if self._log is not None:  # what was read of it before is over
            self._log.reports.reset([busid for busid, uuid in self._uuids.items() if uuid in self._discovery.reset])
        self._kernel()
        if self._log is not None:
            self._log.found.clear()

    def _locate(self, uuids: Mapping[str, str]) -> None:
        """Store which GPU is at which PCI bus id; ``uuids`` has the GPUs' uuids by bus id.

        If a GPU has a new bus id, the log's reports move with the GPU.
        """
        moved = {uuid for uuid in uuids.values() if uuid in self._uuids.values()}
        moved -= {uuid for name, uuid in self._uuids.items() if uuids.get(name) == uuid}
        replaced = {name for name, uuid in self._uuids.items() if uuids.get(name, uuid) != uuid}
        if self._log is not None and (moved or replaced):
            self._log.read()
            reports, found = self._log.reports, self._log.found
            for name, uuid in list(self._uuids.items()):
                if uuid not in moved and name not in replaced:
                    continue
                del self._uuids[name]
                self._uuids[uuid] = uuid
                if name not in found:  # else all that was reported since is of the device that was found there
                    reports.move(name, uuid)
            for busid, uuid in uuids.items():
                if self._uuids.pop(uuid, None) is not None:
                    reports.move(uuid, busid)
        self._uuids |= uuids

    def _take(self, machine: Machine, there: set[str]) -> None:
        """Store which GPUs are present, and find out which GPUs are lost or replaced.

        Args:
            machine: The machine.
            there: Uuids of the GPUs that are present, also of those that cannot be given to containers.
        """
        # On the first reading nobody knows which GPUs are new.
        came = {gpu.pci for gpu in machine.gpus if gpu.uuid not in self._places} if self._present is not None else set()
        self._known |= there
        self._present = there
        self._forgotten -= there
        self._places |= {gpu.uuid: lost_gpus.of(gpu) for gpu in machine.gpus}
        self._replaced |= {
            uuid for uuid in self._gone() if uuid in self._places and self._places[uuid].pci in came - {""}
        }
        self._replaced -= there
        waiting, self._waiting = self._waiting, ((), None)
        self.adopt(*waiting)
        self._tell_lost()

    def adopt(self, published: Collection[LostGpu], earlier: Machine | None = None) -> None:
        """Add lost GPUs that an earlier agent reported and that this agent never saw.

        A GPU is left out if a new GPU at its PCI address has replaced it. A GPU that was on the node before is not new:
        it may have got the address because the PCI bus was numbered again. If this method is called before the first
        reading, the arguments are stored and used after that reading.

        Args:
            published: The lost GPUs.
            earlier: The machine that the earlier agent published with them; None if it is not known.
        """
        if self._present is None:
            self._waiting = published, earlier
            return

        # ``_present`` and ``_known`` are uuids: of the last reading, and of all that were present or reported as lost.
        # 1. The PCI addresses of new GPUs. If the earlier machine is unknown, no GPU counts as new.
        old_uuids = self._present
        if earlier is not None:
            old_uuids = {gpu.uuid for gpu in earlier.gpus} | {gpu.uuid for gpu in published}
        new_uuids = self._present - old_uuids
        new_addresses = {self._places[uuid].pci for uuid in new_uuids if uuid in self._places} - {""}

        # 2. GPUs that this agent found lost, too: the earlier time counts.
        for gpu in published:
            if gpu.since and gpu.uuid in self._lost_since:
                self._lost_since[gpu.uuid] = min(gpu.since, self._lost_since[gpu.uuid])

        # 3. GPUs that only the earlier agent knew.
        unseen = [gpu for gpu in published if gpu.uuid not in self._known | self._forgotten]
        adopted = [gpu for gpu in unseen if gpu.pci not in new_addresses]
        now_s = int(self._wall())
        for gpu in adopted:
            self._known.add(gpu.uuid)
            self._places[gpu.uuid] = gpu
            # A time in the future, of a clock that was set back, would keep the GPU for too long.
            self._lost_since[gpu.uuid] = min(gpu.since or now_s, now_s)
        if adopted:
            self._tell_lost()

    def lost(self) -> tuple[LostGpu, ...]:
        """Return the GPUs that are lost and not replaced, sorted by index.

        The result is empty before the first reading of the machine.
        """
        gone = [self._places[uuid] for uuid in self._gone() - self._replaced if uuid in self._places]
        return tuple(sorted(msgspec.structs.replace(gpu, since=self._lost_since.get(gpu.uuid, 0)) for gpu in gone))

    def _gone(self) -> set[str]:
        """Return the uuids of the GPUs that are reported as lost."""
        return set() if self._present is None else self._known - self._present

    def place(self, uuid: str) -> LostGpu | None:
        """Return a GPU's last known index and PCI address; None if it was never seen."""
        return self._places.get(uuid)

    def _tell_lost(self) -> None:
        now_s = int(self._wall())
        self._lost_since = {uuid: self._lost_since.get(uuid, now_s) for uuid in self._gone()}
        old = {uuid for uuid, since in self._lost_since.items() if now_s - since >= REMEMBERED_S}
        self._known -= old
        self._forgotten |= old
        self._tell("lost", dict.fromkeys(self._gone(), (_LOST,)))

    async def run(self) -> None:
        """Watch the kernel's log for the GPUs' health until cancelled."""
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
        self._tell("kernel", self._log.reports.faults(self._uuids, self._switched & (self._present or set())))

    def _tell(self, source: str, faults: Faults) -> None:
        """Report a source's faults to the record; mark the other GPU of each package, too.

        A package, such as AMD's MI250, has two GPUs, which are reset together. So a fault that keeps pods off one GPU
        keeps them off the other GPU, too.
        """
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
    return Fault("package", "", f"GPU {uuid} of the same package has a fault: {fault.said}")
