"""Which GPUs every node has, who holds them, and the allocator's picture of what is free."""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Collection, Mapping, Set

import msgspec
import numpy as np
from numpy.typing import NDArray

from dradriver.allocator import Amount, Fleet
from dradriver.api.base.allocating_driver import current_ledger
from dradriver.api.claims.pins import Device, Key, MigSlice, Pin, Usage
from dradriver.api.policies.gpu_modes import mode_of
from dradriver.api.policies.policy_sections import DEFAULTS, Policies
from dradriver.api.slices import resource_slices
from dradriver.cluster.gpus import pools
from dradriver.cluster.gpus.device_holders import Holds
from dradriver.cluster.gpus.exclusive_namespaces import ExclusiveNamespaces
from dradriver.cluster.gpus.gpu_parts import GpuKinds
from dradriver.cluster.gpus.pools import Pool
from dradriver.cluster.gpus.remaining import Remaining, fits_beside, remaining
from dradriver.cluster.gpus.reserved import Reserved
from dradriver.cluster.gpus.tabulating import AtOnce
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.records.slice_records import SliceRecord
from dradriver.errors import DriverError
from dradriver.event import Event
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)


class Inventory:
    """All GPUs of the cluster with their allocations, and the allocator's fleet that follows from them.

    A GPU is not free while any claim has it or a part of it, even if no slice lists the GPU. If a GPU can be divided,
    what the claims leave of it can be allocated as shares or MIG slices.

    Attributes:
        holds: The allocations and tentative placements of claims.
        kinds: The products of GPUs in the cluster.
        nccl_version: The NCCL version to predict bandwidth for, on machines that name none.
        tables: Makes the tables of machines, and says which exist.
        located: The labels of nodes by which the fleet has its network locations; None if these must be set again.
        marked: Tells that a node may differ from the fleet; with True, that its GPUs may be other GPUs.
        reserved: GPUs that are reserved for waiting workloads.
        generation: Counts the changes.
        aside: Nodes on which nothing is placed until the tables of their machine exist; their allocations count.
        unplaced: Nodes that publish GPUs on which nothing is placed, because their machine is too large, for example.
        unhealthy: Nodes with GPUs that no pod gets, because a taint says that something is wrong with them.
    """

    def __init__(self, nodes: NodeTable, tables: AtOnce | None = None) -> None:
        """Begin without GPUs.

        Args:
            nodes: The table of nodes. It is told which nodes offer GPUs, and where GPUs are freed.
            tables: Makes the tables of machines; None to make them when they are needed.
        """
        self.holds = Holds()
        self.kinds = GpuKinds()
        self.reserved = Reserved()
        self.tables = AtOnce() if tables is None else tables
        self.aside: set[str] = set()
        self.unhealthy: set[str] = set()
        self.unplaced: set[str] = set()
        self.nccl_version = ""
        self.located: Mapping[str, Mapping[str, str]] | None = None
        self.generation = 0
        self.marked: Event[[str, bool]] = Event()
        self._nodes = nodes
        self._slices: dict[str, dict[str, SliceRecord]] = {}  # by pool and name
        self._pools: dict[str, Pool] = {}  # by node
        self._lacks: collections.Counter[str] = collections.Counter()  # features that the API server lacks
        self._fleet = Fleet()
        self._dirty: set[str] = set()  # nodes that may differ from the fleet
        self._free = np.zeros(64, dtype=np.int64)  # free GPUs by row
        self._tenants = ExclusiveNamespaces()
        self._policies = DEFAULTS

    def tenant(self, namespace: str) -> int:
        """Return the number that the inventory of GPUs gives a namespace for shares of one namespace at a time."""
        self.catch_up(lambda: False)
        return self._tenants.number(namespace)

    @property
    def fleet(self) -> Fleet:
        """Return the inventory of GPUs as the allocator's arrays, up to date."""
        self.catch_up(lambda: False)
        return self._fleet

    def catch_up(self, late: Callable[[], bool]) -> bool:
        """Bring the inventory's arrays up to date node by node, until it is late: a new kind takes milliseconds.

        Returns whether others are left.
        """
        if not self._dirty:  # a set that was large once takes long to look through, even if it is empty
            return False
        for pool in sorted(self._dirty):
            self._dirty.discard(pool)
            self._refresh(pool)
            if late():
                break
        return bool(self._dirty)

    def free(self) -> NDArray[np.int64]:
        """Return the number of free GPUs in the inventory of each node, by row."""
        _ = self.fleet
        return self._free

    def set_slice(self, old: SliceRecord | None, new: SliceRecord | None) -> set[str]:
        """Update the inventory by a change of a ResourceSlice of GPUs. Returns the pools that it concerns."""
        if old is not None:
            self._slices.get(old.pool, {}).pop(old.metadata.name, None)
            self._lacks.subtract(old.lacks)
        if new is not None:
            self._slices.setdefault(new.pool, {})[new.metadata.name] = new
            self._lacks.update(new.lacks)
        pools = {piece.pool for piece in (old, new) if piece is not None}
        for pool in pools:
            self._read(pool)
        return pools

    def set_nccl_version(self, version: str) -> None:
        """Have the inventory predict for this NCCL on machines that name none; empty: the newest known."""
        if version == self.nccl_version:
            return
        self.nccl_version = version
        for name, pool in self._pools.items():
            pool.row = None  # so that the fleet is told of the machine again
            self._mark(name)
            self._nodes.helped(name)

    def follow(self, policies: Policies) -> None:
        """Note in the inventory by the policies in force which GPUs have shares of one namespace at a time.

        Node agents publish it, too, but they read the policies later: a GPU is exclusive as soon as either says so.
        """
        if policies.known and policies.gpus != self._policies.gpus:
            self._policies = policies
            for name in self._pools:
                self.set_exclusive(name)

    def set_exclusive(self, name: str) -> None:
        """Note in the inventory that a node's labels, by which policies select its GPUs, may have changed."""
        pool = self._pools.get(name)
        if pool is None:
            return
        devices = self._exclusive(name, pool)
        if devices != pool.exclusive:
            pool.exclusive = devices
            self._mark(name)
            self._nodes.helped(name)

    def set_tables(self, name: str) -> None:
        """Note in the inventory that the tables of a node's machine are made."""
        self.aside.discard(name)
        self._mark(name)
        self._nodes.helped(name)

    def set_node(self, name: str) -> None:
        """Note in the inventory that a node came or went: without a row it has no place in the arrays."""
        self.set_exclusive(name)
        self._offer(name)

    def hold(self, claim: Key, devices: Mapping[Device, Usage]) -> set[Device]:
        """Note in the inventory all that a claim holds from now on. Returns the devices that it is news for."""
        before = dict(self.holds.of(claim))
        news = self.holds.hold(claim, devices)
        for pool, device in news:
            self._mark(pool)
            left = self.holds.holders((pool, device))
            less = claim not in left or before.get((pool, device), ()) is None  # or it is known now which part it is
            if less and None not in left.values():
                self._nodes.helped(pool)
        if self.reserved.by_node:
            self.reserved.seen(news)
        return news

    def hold_anew(self, claim: Key, devices: Mapping[Device, Usage]) -> None:
        """Note in the inventory all that a claim holds, whatever was noted of it."""
        for pool, _ in self.holds.forget(claim):
            self._mark(pool)
        self.hold(claim, devices)

    def slices(self) -> dict[str, SliceRecord]:
        """Return the names of the slices that the inventory was made from."""
        return {name: piece for pieces in self._slices.values() for name, piece in pieces.items()}

    def has_slices(self, pool: str) -> bool:
        """Return whether the inventory has any slice of a pool, complete or not."""
        return bool(self._slices.get(pool))

    def slice_of(self, pool: str, name: str) -> SliceRecord | None:
        """Return a pool's slice of that name as the inventory has it."""
        return self._slices.get(pool, {}).get(name)

    def pool(self, name: str) -> Pool | None:
        """Return a node's pool in the inventory as it is now; None if nothing can be placed there."""
        return self._pools.get(name)

    def pool_of(self, name: str) -> Pool | None:
        """Return a node's pool as the inventory's arrays have it; None if they, up to date, have none."""
        pool = self._pools.get(name)
        return None if pool is None or pool.row is None or pool.row != self._nodes.find(name) else pool

    def pools(self) -> tuple[str, ...]:
        """Return the nodes whose pools are complete in the inventory."""
        return tuple(self._pools)

    def is_counted_right(self, name: str) -> bool:
        """Return whether the inventory counts as many GPUs of a node as free as nobody holds."""
        pool, row = self._pools.get(name), self._nodes.find(name)
        if pool is None or row is None or name in self._dirty or name in self.aside:
            return True
        every = ((name, device) for device, _ in pool.devices.values())
        return int(self._free[row]) == sum(bool(self.usable(gpu, None)) and not self.holders(gpu) for gpu in every)

    def reserve(self, gpus: Mapping[Device, str]) -> None:
        """Reserve these GPUs of the inventory, and no others, each for a waiting workload."""
        for pool in self.reserved.keep(gpus):
            self._mark(pool)
            self._nodes.helped(pool)

    def open(
        self,
        name: str,
        pool: Pool,
        leaving: Set[Key] = frozenset(),
        *,
        whose: Collection[str] = (),
        are_own: bool = False,
    ) -> Remaining:
        """Return what the inventory has left on a node without some claims and without GPUs reserved for others.

        Args:
            name: The node.
            pool: Its pool.
            leaving: The claims that count as gone.
            whose: The workloads that ask: what is reserved for these counts as left.
            are_own: Whether the gone claims are those of the workloads that ask. What they hold then counts as left,
                whoever it is reserved for.
        """
        left = self.left(name, pool, leaving)
        if name not in self.reserved.by_node:
            return left
        held = {device for claim in leaving for device in self.holds.of(claim)} if are_own else ()
        return self.reserved.left(name, pool, left, whose=whose, held=held)

    def set_left(self, fleet: Fleet, name: str, left: Remaining) -> None:
        """Tell a fleet that has a node of the inventory what is left there."""
        offer = left.offer
        if left.tenants:
            offer = msgspec.structs.replace(offer, tenants=self._tenants.tenants(left.tenants))
        fleet.set_free(name, left.free)
        fleet.set_offer(name, offer)
        fleet.set_parts(name, left.parts)

    def uuids(self, pool: str) -> dict[int, str]:
        """Return the uuids of a node's GPUs in the inventory by their numbers; none while its pool is not complete."""
        known = self._pools.get(pool)
        return {} if known is None else {number: uuid for number, (_, uuid) in known.devices.items()}

    def addresses(self, pool: str) -> dict[str, str]:
        """Return the PCI addresses of a node's GPUs in the inventory by uuid; none where the uuid tells them apart."""
        known = self._pools.get(pool) if current_ledger().by_address else None
        return {} if known is None else {gpu.uuid: gpu.pci for gpu in known.machine.gpus if gpu.pci}

    def usable(self, device: Device, taken: Usage) -> bool | None:
        """Return whether the inventory offers a GPU, or these parts of it, untainted; None if its pool is incomplete.

        What a GPU is handed out as may have changed since it was promised.
        """
        pool = self._pools.get(device[0])
        if pool is None:
            return None
        how = pool.parts.get(device[1])
        if taken is None:
            return device[1] in pool.usable and not (how is not None and how.only)
        if (own := pool.placed.get(device[1])) is not None:
            return {own[name] for name in own.keys() & pool.usable}.issuperset(taken)
        return (
            device[1] in pool.usable
            and how is not None
            and all(how.shared if isinstance(part, Amount) else how.sliced for part in taken)
        )

    def keeps(self, pin: Pin) -> bool:
        """Return whether the inventory offers every device that a claim is pinned to, in the same form and untainted.

        Nothing says otherwise while its pool is not complete. A MIG slice is pinned as a device of its own or as a part
        of its GPU: which of the two it is may have changed, and then no device is what the pin says.
        """
        if any(self.usable(*pinned) is False for pinned in pin.taken.items()):
            return False
        pool = self._pools.get(pin.choice.node)
        sliced = {
            device for device, taken in pin.taken.items() if any(isinstance(part, MigSlice) for part in taken or ())
        }
        return pool is None or {device for device in sliced if device[1] in pool.placed} == pin.apart

    def holders(self, device: Device) -> Mapping[Key, Usage]:
        """Return the claims that by the inventory hold a GPU or a fraction of it."""
        pool = self._pools.get(device[0])
        if pool is None:
            return self.holds.holders(device)
        gpu = device[1]
        if pool.placed:
            gpu = next((gpu for gpu, placed in pool.placed.items() if device[1] in placed), gpu)
        own = self.holds.holders((device[0], gpu))
        if gpu not in pool.placed:
            return pools.believed(pool.machine, gpu, own) if own else own  # asked of every GPU, again and again
        held = dict(pools.believed(pool.machine, gpu, own))
        for name, part in pool.placed[gpu].items():
            for claim in self.holds.holders((device[0], name)):
                before = held.get(claim, ())
                held[claim] = None if before is None else (*before, part)
        return held

    def placed(self, pool: str) -> frozenset[str]:
        """Return the uuids of a node's GPUs in the inventory whose MIG slices are devices of their own."""
        known = self._pools.get(pool)
        if known is None:
            return frozenset()
        return frozenset(uuid for device, uuid in known.devices.values() if device in known.placed)

    def counted(self, pool: str) -> bool:
        """Return whether a node has MIG placements that share counters: such a node costs the scheduler long."""
        known = self._pools.get(pool)
        return known is not None and known.counted

    def knows_seats(self, pool: str) -> bool:
        """Return whether the agent of a node in the inventory prepares claims with seats."""
        known = self._pools.get(pool)
        return known is not None and known.seats

    def compute(self, pool: str) -> dict[str, int]:
        """Return from the inventory how many compute slices the MIG profiles of a node's GPUs have, by profile."""
        known = self._pools.get(pool)
        return {} if known is None else {p.name: p.compute for gpu in known.machine.gpus for p in gpu.profiles}

    def lacks(self) -> frozenset[str]:
        """Return the names of slice features that by the inventory's slices the API server lacks."""
        return frozenset(+self._lacks)

    def fits(self, claim: Key, device: Device, taken: Usage, others: Collection[Key]) -> bool:
        """Return whether by the inventory a claim can have this of a device beside what other claims hold of it."""
        held = self.holders(device)
        loads = {other: held[other] for other in others if other != claim and other in held}
        return not loads or fits_beside(self._pools.get(device[0]), device[1], taken, loads, claim[0])

    def _read(self, name: str) -> None:
        self._pools.pop(name, None)
        self.unplaced.discard(name)
        self.unhealthy.discard(name)
        pieces = self._slices.get(name)
        if not pieces:
            self._slices.pop(name, None)
        elif (pool := pools.read(name, pieces.values())) is not None:
            self._pools[name] = pool
            if pool.ill:
                self.unhealthy.add(name)
            pool.exclusive = self._exclusive(name, pool)
            self._assess(name, pool)  # also in a standby, which may have to place pods soon
        self.kinds.set(name, self._pools.get(name))
        if name not in self._pools:
            self.tables.forget(name)
            self.aside.discard(name)
        self._offer(name)

    def _exclusive(self, name: str, pool: Pool) -> frozenset[str]:
        if not pool.parts or not any(rule.exclusive_to for rule in self._policies.gpus):
            return frozenset()
        labels = self._nodes.labels_of(name)
        modes = {
            resource_slices.device_name(gpu.uuid): mode_of(self._policies, node=name, labels=labels, gpu=gpu)
            for gpu in pool.machine.gpus
        }
        return frozenset(device for device, mode in modes.items() if mode is not None and mode.exclusive_to)

    def _mark(self, name: str, *, anew: bool = False) -> None:
        self.generation += 1
        self._dirty.add(name)
        self.marked(name, anew)

    def _offer(self, name: str) -> None:
        self._nodes.offer(name, name in self._pools)
        self._mark(name, anew=True)  # its row is known by now

    def _refresh(self, name: str) -> None:
        """Bring a node of the fleet up to date; remove it if nothing can be placed there."""
        pool, row = self._pools.get(name), self._nodes.find(name)
        if row is not None:
            if row >= len(self._free):
                self._free = np.append(self._free, np.zeros(max(row, len(self._free)), dtype=np.int64))
            self._free[row] = 0
        if pool is None or row is None or (pool.row is None and not self._assess(name, pool)):
            self._remove(name)
            return
        unused = self.left(name, pool)  # what no claim holds; the fleet gets no GPUs that are reserved
        is_reserved = name in self.reserved.by_node
        free, offer, fractions, namespaces = self.reserved.left(name, pool, unused) if is_reserved else unused
        if namespaces or name in self._tenants.of_node:  # its GPUs' fractions are for one namespace at a time
            offer = msgspec.structs.replace(offer, tenants=self._tenants.set(name, namespaces))
        try:
            if pool.row == row:
                self._fleet.set_free(name, free)
            else:  # the fleet does not have this machine yet
                self._fleet.set_node(name, self.machine(pool), free, row=row)
                pool.row = row
                self.located = None
            self._fleet.set_offer(name, offer)
            self._fleet.set_parts(name, fractions)
            # Reserved GPUs count as free here: those for whom they are reserved can have them.
            self._free[row] = len(set(unused.free) - unused.offer.parts_only)
        except DriverError as error:
            logger.warning("node %s: %s; its GPUs are not placed", name, error)
            self._leave_out(name)
        except Exception:  # a bug in what one machine meets must not stop the other nodes
            logger.exception("node %s: an error in this program; its GPUs are not placed", name)
            self._leave_out(name)

    def _remove(self, name: str) -> None:
        if name in self._tenants.of_node:
            self._tenants.set(name, {})
        self._fleet.remove(name)

    def _leave_out(self, name: str) -> None:
        self._remove(name)
        self.unplaced.add(name)
        del self._pools[name]
        self.kinds.set(name, None)
        self._nodes.offer(name, False)

    def left(self, name: str, pool: Pool, leaving: Set[Key] = frozenset()) -> Remaining:
        """Return what the inventory has left of a node's GPUs if some claims were not there."""
        held = {
            device: {claim: amount for claim, amount in self.holders((name, device)).items() if claim not in leaving}
            for device, _ in pool.devices.values()
        }
        return remaining(pool, held)

    def _assess(self, name: str, pool: Pool) -> bool:
        """Return whether a node's machine may be placed on now; else its tables are asked for, and it stands aside."""
        try:
            ready = self.tables.ready(name, self.machine(pool))
        except Exception:  # a bug in what one machine meets must not stop the other nodes
            logger.exception("node %s: an error in this program; its GPUs are not placed", name)
            ready = False
        if ready:
            self.aside.discard(name)
        else:
            self.aside.add(name)
        return ready

    def machine(self, pool: Pool) -> Machine:
        """Return a node's machine as the inventory's arrays have it, with the NCCL that jobs run."""
        machine = pool.offered
        if machine.nccl_version or not self.nccl_version:
            return machine
        return msgspec.structs.replace(machine, nccl_version=self.nccl_version)
