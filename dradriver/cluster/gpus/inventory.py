"""Keeps the GPUs of every node, the claims that use them, and what is free.

The cluster cache updates the inventory. What is free is kept in the allocator's arrays, which are called a *fleet*.
``Fleets`` derives the tenants' fleets from them. A *pool* is all ResourceSlices of a node, and has the node's name. A
*pin* is the devices that the controller chose for a claim.

A *tentative placement* is the node and GPUs that are chosen for a pod whose claim the scheduler has not allocated yet.
The *tables* have the bandwidth of each set of a machine's GPUs; the allocator needs them.
"""

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
    """All GPUs of the cluster with their allocations, and the allocator's fleet that is derived from them.

    A GPU is not free while any claim uses it or a fraction of it, even if no slice lists the GPU. If a GPU can be
    divided, its unused part can be allocated as shares or MIG slices.

    Attributes:
        holds: The allocations and tentative placements of claims.
        kinds: The products of GPUs in the cluster.
        nccl_version: The NCCL version for bandwidth predictions, on machines that do not name one.
        tables: Computes the bandwidths of all GPU sets (the allocator's tables) for each kind of machine.
        located: The node labels from which the network locations in the fleet were made; None if they must be set
            again.
        marked: Is called with a node whose entry in the fleet is out of date. The second argument is True if the node
            may have other GPUs than before.
        reserved: GPUs that are reserved for waiting workloads.
        generation: A counter that grows with every change.
        aside: Nodes for whose machine there are no tables (bandwidths of GPU sets) yet. No pod is placed there
            meanwhile, but the allocations there count.
        unplaced: Nodes that publish GPUs, but on which no pod can be placed, for example because the machine is too
            large.
        unhealthy: Nodes with GPUs that no pod gets, because a taint says that they have a fault.
    """

    def __init__(self, nodes: NodeTable, tables: AtOnce | None = None) -> None:
        """Make an inventory without GPUs.

        Args:
            nodes: The table of nodes. The inventory tells it which nodes offer GPUs, and when GPUs become free.
            tables: Computes the bandwidths of all GPU sets for each kind of machine. If None, they are computed at
                their first use.
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
        """Return the allocator's number for a namespace with fractions of exclusive GPUs; else 0.

        An exclusive GPU is divided for one namespace at a time. The allocator compares these numbers.
        """
        self.catch_up(lambda: False)
        return self._tenants.number(namespace)

    @property
    def fleet(self) -> Fleet:
        """Return the fleet of all GPUs, up to date: the arrays that the allocator searches."""
        self.catch_up(lambda: False)
        return self._fleet

    def catch_up(self, late: Callable[[], bool]) -> bool:
        """Bring the allocator's arrays up to date, node by node, until ``late`` returns True.

        ``late`` says that the caller has no more time.

        A single node can take milliseconds, if its machine is of a new kind.

        Returns:
            Whether nodes remain that are not up to date.
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
        """Return the number of free GPUs of each node, reserved GPUs included.

        The shape is (rows,); a row is the index of a node.
        """
        _ = self.fleet
        return self._free

    def set_slice(self, old: SliceRecord | None, new: SliceRecord | None) -> set[str]:
        """Update the inventory with a changed ResourceSlice of GPUs, from its old and new state.

        ``old`` is None for a new slice, ``new`` for a deleted one.

        Returns:
            The pools (one for each node) that the change concerns.
        """
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
        """Set the NCCL version for bandwidth predictions on machines that name none; empty for the newest known."""
        if version == self.nccl_version:
            return
        self.nccl_version = version
        for name, pool in self._pools.items():
            pool.row = None  # so that the fleet is told of the machine again
            self._mark(name)
            self._nodes.helped(name)

    def follow(self, policies: Policies) -> None:
        """Apply the policies in force: they say which GPUs are divided for one namespace at a time.

        Node agents publish the same, but may read new policies later. A GPU is exclusive if the policies or its agent
        says so.
        """
        if policies.known and policies.gpus != self._policies.gpus:
            self._policies = policies
            for name in self._pools:
                self.set_exclusive(name)

    def set_exclusive(self, name: str) -> None:
        """Determine again which GPUs of a node are exclusive, after its labels changed.

        Exclusive GPUs are divided for one namespace at a time. The policies select them by the labels of nodes.
        ``name`` is the node's.
        """
        pool = self._pools.get(name)
        if pool is None:
            return
        devices = self._exclusive(name, pool)
        if devices != pool.exclusive:
            pool.exclusive = devices
            self._mark(name)
            self._nodes.helped(name)

    def set_tables(self, name: str) -> None:
        """Make a node available for placement, because the bandwidths of its GPU sets are computed.

        They are in the allocator's tables for the node's kind of machine. ``name`` is the node's.
        """
        self.aside.discard(name)
        self._mark(name)
        self._nodes.helped(name)

    def set_node(self, name: str) -> None:
        """Update the inventory after a node was added or removed.

        A node without a row (index) in the node table is left out of the allocator's arrays.
        """
        self.set_exclusive(name)
        self._offer(name)

    def hold(self, claim: Key, devices: Mapping[Device, Usage]) -> set[Device]:
        """Replace the devices that a claim uses by ``devices``, with the fraction of each.

        Returns:
            The devices whose usage changed.
        """
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
        """Replace the devices of a claim whose records were found wrong.

        The audit of the cluster cache calls this. All records of the claim are removed first, even inconsistent ones.
        """
        for pool, _ in self.holds.forget(claim):
            self._mark(pool)
        self.hold(claim, devices)

    def slices(self) -> dict[str, SliceRecord]:
        """Return the ResourceSlices that the inventory was made from, by name."""
        return {name: piece for pieces in self._slices.values() for name, piece in pieces.items()}

    def has_slices(self, pool: str) -> bool:
        """Return whether the inventory has any ResourceSlice of a pool, complete or not."""
        return bool(self._slices.get(pool))

    def slice_of(self, pool: str, name: str) -> SliceRecord | None:
        """Return a pool's ResourceSlice by its name; None if there is none."""
        return self._slices.get(pool, {}).get(name)

    def pool(self, name: str) -> Pool | None:
        """Return a node's pool: its ResourceSlices, read as one machine.

        None if the slices are not complete, or do not describe a machine that can be used. ``name`` is the node's.
        """
        return self._pools.get(name)

    def pool_of(self, name: str) -> Pool | None:
        """Return a node's pool (its slices) if the allocator's arrays have the node; else None.

        The arrays do not have the node while they are not up to date, for example after the node got another row.
        """
        pool = self._pools.get(name)
        return None if pool is None or pool.row is None or pool.row != self._nodes.find(name) else pool

    def pools(self) -> tuple[str, ...]:
        """Return the nodes whose ResourceSlices are complete in the inventory."""
        return tuple(self._pools)

    def is_counted_right(self, name: str) -> bool:
        """Return whether the count of a node's free GPUs is right.

        It is right if it equals the number of usable GPUs without a claim. The audit of the cluster cache asks this.
        While the arrays do not have the node, the result is True.
        """
        pool, row = self._pools.get(name), self._nodes.find(name)
        if pool is None or row is None or name in self._dirty or name in self.aside:
            return True
        every = ((name, device) for device, _ in pool.devices.values())
        return int(self._free[row]) == sum(bool(self.usable(gpu, None)) and not self.holders(gpu) for gpu in every)

    def reserve(self, gpus: Mapping[Device, str]) -> None:
        """Replace all reservations of GPUs. ``gpus`` has the waiting workload of each reserved GPU."""
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
        """Return what is left of a node's GPUs without some claims, for the workloads that ask.

        GPUs that are reserved for other workloads are not left.

        Args:
            name: The node.
            pool: Its pool.
            leaving: The claims that count as gone.
            whose: The waiting workloads that ask. GPUs reserved for them count as left.
            are_own: Whether the gone claims belong to the workloads that ask. Then the claims' devices count as left
                even if they are reserved for others.
        """
        left = self.left(name, pool, leaving)
        if name not in self.reserved.by_node:
            return left
        held = {device for claim in leaving for device in self.holds.of(claim)} if are_own else ()
        return self.reserved.left(name, pool, left, whose=whose, held=held)

    def set_left(self, fleet: Fleet, name: str, left: Remaining) -> None:
        """Write into a fleet (the allocator's arrays) what is left of a node's GPUs.

        The fleet must contain the node. ``name`` is the node's, ``left`` what is left.
        """
        offer = left.offer
        if left.tenants:
            offer = msgspec.structs.replace(offer, tenants=self._tenants.tenants(left.tenants))
        fleet.set_free(name, left.free)
        fleet.set_offer(name, offer)
        fleet.set_parts(name, left.parts)

    def uuids(self, pool: str) -> dict[int, str]:
        """Return the uuids of a node's GPUs by GPU number.

        The result is empty while the ResourceSlices of the node's pool are not complete.
        """
        known = self._pools.get(pool)
        return {} if known is None else {number: uuid for number, (_, uuid) in known.devices.items()}

    def addresses(self, pool: str) -> dict[str, str]:
        """Return the PCI addresses of a node's GPUs by uuid.

        The result is empty if the driver that allocates GPUs does not name them by address, or if the node's pool is
        not complete.
        """
        known = self._pools.get(pool) if current_ledger().by_address else None
        return {} if known is None else {gpu.uuid: gpu.pci for gpu in known.machine.gpus if gpu.pci}

    def usable(self, device: Device, taken: Usage) -> bool | None:
        """Return whether a GPU, or fractions of it, can be allocated and are not tainted.

        Since a placement was chosen, its GPU may have begun to be offered in another form: whole, as shares or as MIG
        slices. Then the result is False.

        Args:
            device: The GPU.
            taken: The fractions of the GPU that are to be used; None for the whole GPU.

        Returns:
            None if the slices of the node's pool are not complete.
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
        """Return whether all devices of a pin are still offered in the same form, untainted.

        A pin has the devices that the controller chose for a claim. The result is also True while the slices of the
        node's pool are not complete. A MIG slice is pinned as a device of its own or as a fraction of its GPU. If that
        form has changed, no device matches the pin any more.
        """
        if any(self.usable(*pinned) is False for pinned in pin.taken.items()):
            return False
        pool = self._pools.get(pin.choice.node)
        sliced = {
            device for device, taken in pin.taken.items() if any(isinstance(part, MigSlice) for part in taken or ())
        }
        return pool is None or {device for device in sliced if device[1] in pool.placed} == pin.apart

    def holders(self, device: Device) -> Mapping[Key, Usage]:
        """Return the claims that use a GPU or a fraction of it."""
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
        """Return the uuids of a node's GPUs whose MIG slices are published as own devices."""
        known = self._pools.get(pool)
        if known is None:
            return frozenset()
        return frozenset(uuid for device, uuid in known.devices.values() if device in known.placed)

    def counted(self, pool: str) -> bool:
        """Return whether a node publishes possible MIG placements as devices that share counters.

        The counters say which of these placements can be allocated together. The scheduler needs much time for such a
        node. ``pool`` is the node's pool of devices, which has the node's name.
        """
        known = self._pools.get(pool)
        return known is not None and known.counted

    def knows_seats(self, pool: str) -> bool:
        """Return whether a node's agent can prepare claims with gang barrier devices.

        Such a device keeps a pod unbound until its whole gang can start.
        """
        known = self._pools.get(pool)
        return known is not None and known.seats

    def compute(self, pool: str) -> dict[str, int]:
        """Return how many compute slices each MIG profile of a node has, by profile name."""
        known = self._pools.get(pool)
        return {} if known is None else {p.name: p.compute for gpu in known.machine.gpus for p in gpu.profiles}

    def lacks(self) -> frozenset[str]:
        """Return the features of ResourceSlices that the API server does not support.

        Empty if it supports all. Node agents write into their slices which fields the API server dropped.
        """
        return frozenset(+self._lacks)

    def fits(self, claim: Key, device: Device, taken: Usage, others: Collection[Key]) -> bool:
        """Return whether a claim fits on a device next to the other claims.

        Args:
            claim: The claim.
            device: The device.
            taken: The fractions that the claim needs; None for the whole device.
            others: The claims to compare with. All other users of the device are ignored.
        """
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
        """Bring a node up to date in the allocator's arrays.

        ``name`` is the node's. A node on which no pod can be placed is removed from these arrays.
        """
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
            logger.warning("Node %s: %s. No pod is placed on its GPUs.", name, str(error).removesuffix("."))
            self._leave_out(name)
        except Exception:  # a bug in what one machine meets must not stop the other nodes
            logger.exception("Node %s: internal error. No pod is placed on its GPUs.", name)
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
        """Return what is left of a node's GPUs if the claims in ``leaving`` are gone.

        ``name`` is the node's, ``pool`` its devices. Reservations are ignored: reserved GPUs count as left, too.
        """
        held = {
            device: {claim: amount for claim, amount in self.holders((name, device)).items() if claim not in leaving}
            for device, _ in pool.devices.values()
        }
        return remaining(pool, held)

    def _assess(self, name: str, pool: Pool) -> bool:
        """Return whether pods can be placed on a node's machine now.

        If the allocator's tables of the machine do not exist yet, they are requested, and the node joins ``aside``.
        """
        try:
            ready = self.tables.ready(name, self.machine(pool))
        except Exception:  # a bug in what one machine meets must not stop the other nodes
            logger.exception("Node %s: internal error. No pod is placed on its GPUs.", name)
            ready = False
        if ready:
            self.aside.discard(name)
        else:
            self.aside.add(name)
        return ready

    def machine(self, pool: Pool) -> Machine:
        """Return the machine of a node's pool, in the form that the allocator needs.

        If the machine names no NCCL version, it gets the version that jobs use by default.
        """
        machine = pool.offered
        if machine.nccl_version or not self.nccl_version:
            return machine
        return msgspec.structs.replace(machine, nccl_version=self.nccl_version)
