"""Which GPUs every node has, who holds them, and the allocator's picture of what is free."""

from __future__ import annotations

import collections
import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from dradriver.allocator import Amount, Fleet, MigPart, Offer, SharePart
from dradriver.allocator.parts.existing import with_instances
from dradriver.allocator.parts.offers import WHOLE, ShareRule
from dradriver.allocator.request import Part
from dradriver.api import slices
from dradriver.api.pins import ALL_CORES, Device, Key, Slice, Taken
from dradriver.controller.holds import Holds
from dradriver.controller.nodes.table import NodeTable
from dradriver.controller.records import OwnSlice, PartsOf, SliceRecord
from dradriver.controller.tenants import Tenants
from dradriver.errors import DriverError
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

_ANY_SIZE: Final = ShareRule()


class _Pool(msgspec.Struct):
    """One node's complete newest generation.

    Attributes:
        devices: Device name and uuid of each GPU by the machine's own number.
        usable: Names of the devices that may be given away.
        parts: How devices may be had in parts, by name.
        placed: What each device is that is a MIG slice, by the GPU's device name and its own.
        counted: Whether some of these are placements, which share counters.
        machine: The machine.
        offered: The same as slices can be had of it: instances that are there already are all that their GPU can have.
        row: The node's row that the fleet has it under; None while it has not.
    """

    devices: dict[int, tuple[str, str]]
    usable: frozenset[str]
    parts: dict[str, PartsOf]
    placed: dict[str, dict[str, Slice]]
    counted: bool
    machine: Machine
    offered: Machine
    row: int | None = None


class Inventory:
    """All GPUs by identity.

    A GPU is taken while any claim holds it or a part of it, listed or not; of one that may be had in parts, what the
    claims that hold parts of it leave may be had as parts.

    Attributes:
        holds: Who holds what.
        nccl_version: What bandwidth is predicted for, on machines that name none themselves.
    """

    def __init__(self, nodes: NodeTable) -> None:
        """``nodes`` gives the rows of nodes, and is told which offer GPUs and where some became free."""
        self.holds = Holds()
        self._nodes = nodes
        self._slices: dict[str, dict[str, SliceRecord]] = {}
        self._pools: dict[str, _Pool] = {}
        self._lacks: collections.Counter[str] = collections.Counter()
        self._fleet = Fleet()
        self.nccl_version = ""
        self._dirty: set[str] = set()
        self._free = np.zeros(64, dtype=np.int64)
        self._viewer = ""
        self._tenants = Tenants()

    def look_as(self, namespace: str) -> None:
        """Let the fleet offer from now on what a pod of this namespace may have parts of.

        A GPU whose parts are of one namespace at a time is offered to all alike, but where one of the two has parts.
        """
        if namespace != self._viewer:
            self._dirty |= self._tenants.nodes(self._viewer) | self._tenants.nodes(namespace)
            self._viewer = namespace

    @property
    def fleet(self) -> Fleet:
        """The allocator's arrays, up to date."""
        self.catch_up(lambda: False)
        return self._fleet

    def catch_up(self, late: Callable[[], bool]) -> bool:
        """Bring the fleet up to date node by node, until it is late: the first of its kind takes milliseconds.

        Returns whether others are left.
        """
        for pool in sorted(self._dirty):
            self._dirty.discard(pool)
            self._refresh(pool)
            if late():
                break
        return bool(self._dirty)

    def free(self) -> NDArray[np.int64]:
        """Return the number of free GPUs of each node, by row."""
        _ = self.fleet
        return self._free

    def set_slice(self, old: SliceRecord | None, new: SliceRecord | None) -> set[str]:
        """Take in a slice's change. Returns the pools that it concerns."""
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
        """Predict for this NCCL on all machines that name none themselves; empty: the newest that is known."""
        if version == self.nccl_version:
            return
        self.nccl_version = version
        for name, pool in self._pools.items():
            pool.row = None  # so that the fleet is told of the machine again
            self._dirty.add(name)
            self._nodes.helped(name)

    def set_node(self, name: str) -> None:
        """Take in that a node came or went: without a row of its own it has no place in the arrays."""
        self._offer(name)

    def hold(self, claim: Key, devices: Mapping[Device, Taken]) -> set[Device]:
        """Record all that a claim holds from now on. Returns the devices that it is news for."""
        before = dict(self.holds.of(claim))
        news = self.holds.hold(claim, devices)
        for pool, device in news:
            self._dirty.add(pool)
            left = self.holds.holders((pool, device))
            less = claim not in left or before.get((pool, device), ()) is None  # or it is known now which part it is
            if less and None not in left.values():
                self._nodes.helped(pool)
        return news

    @contextlib.contextmanager
    def without(self, claim: Key) -> Iterator[None]:
        """Count what a claim holds as free inside the block, to see where its pod could go instead.

        Never await inside: everybody else would see those devices as free.
        """
        devices = dict(self.holds.of(claim))
        self._dirty.update(pool for pool, _ in self.holds.hold(claim, {}))
        try:
            yield
        finally:
            self._dirty.update(pool for pool, _ in self.holds.hold(claim, devices))

    def uuids(self, pool: str) -> dict[int, str]:
        """Return the uuids of a node's GPUs by the machine's own number; none while its pool is not complete."""
        found = self._pools.get(pool)
        return {} if found is None else {number: uuid for number, (_, uuid) in found.devices.items()}

    def usable(self, device: Device, taken: Taken) -> bool | None:
        """Return whether a GPU, or these parts of it, is handed out and untainted; None while its pool is not complete.

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
            and all(how.shared if isinstance(one, Amount) else how.sliced for one in taken)
        )

    def holders(self, device: Device) -> Mapping[Key, Taken]:
        """Return the claims that hold a GPU or parts of it, given as its own device or as one of its slices."""
        pool = self._pools.get(device[0])
        if pool is None:
            return self.holds.holders(device)
        gpu = next((gpu for gpu, placed in pool.placed.items() if device[1] in placed), device[1])
        own = self.holds.holders((device[0], gpu))
        if gpu not in pool.placed:
            return _believed(pool.machine, gpu, own) if own else own  # asked of every GPU, again and again
        held = dict(_believed(pool.machine, gpu, own))
        for name, one in pool.placed[gpu].items():
            for claim in self.holds.holders((device[0], name)):
                before = held.get(claim, ())
                held[claim] = None if before is None else (*before, one)
        return held

    def placed(self, pool: str) -> frozenset[str]:
        """Return the uuids of a node's GPUs whose MIG slices are devices of their own."""
        found = self._pools.get(pool)
        if found is None:
            return frozenset()
        return frozenset(uuid for device, uuid in found.devices.values() if device in found.placed)

    def counted(self, pool: str) -> bool:
        """Return whether a node has MIG placements that share counters: such a node costs the scheduler long."""
        found = self._pools.get(pool)
        return found is not None and found.counted

    def compute(self, pool: str) -> dict[str, int]:
        """Return the compute slices of the MIG profiles of a node's GPUs, by the profile's name."""
        found = self._pools.get(pool)
        return {} if found is None else {p.name: p.compute for gpu in found.machine.gpus for p in gpu.profiles}

    def lacks(self) -> frozenset[str]:
        """Return what the API server lacks, as the nodes' agents found, by the names of ``api/abilities.py``."""
        return frozenset(+self._lacks)

    def fits(self, claim: Key, device: Device, taken: Taken, others: Collection[Key]) -> bool:
        """Return whether a claim can have this of a device beside what these other claims hold of it."""
        held = self.holders(device)
        loads = [held[other] for other in others if other != claim and other in held]
        if not loads:
            return True
        if taken is None or None in loads:
            return False
        pool = self._pools.get(device[0])
        gpus = () if pool is None else pool.machine.gpus
        gpu = next((gpu for gpu in gpus if slices.device_name(gpu.uuid) == device[1]), None)
        if pool is None or gpu is None:
            return False  # nobody knows how much of it there is
        parts = pool.parts.get(device[1])
        if parts is not None and parts.exclusive and any(o[0] != claim[0] for o in others if o in held):
            return False
        every = [*taken, *(one for load in loads if load is not None for one in load)]
        amounts = [one for one in every if isinstance(one, Amount)]
        spans = [range(one.start, one.start + one.size) for one in every if isinstance(one, Slice)]
        return (
            not (amounts and spans)
            and sum(amount.cores for amount in amounts) <= ALL_CORES
            and sum(amount.memory_mib for amount in amounts) <= ((parts and parts.memory_mib) or gpu.memory_mib)
            and len({number for span in spans for number in span}) == sum(map(len, spans))
        )

    def _read(self, name: str) -> None:
        self._pools.pop(name, None)
        found = self._current(name)
        if found:
            machine = next((piece.machine for piece in found if piece.machine is not None), None)
            if isinstance(machine, str):
                logger.warning("pool %s: %s; its GPUs are not placed", name, machine)
            elif machine is not None:
                devices = {gpu.index: (slices.device_name(gpu.uuid), gpu.uuid) for gpu in machine.gpus}
                usable = frozenset().union(*(piece.usable for piece in found))
                parts = {device: how for piece in found for device, how in piece.parts.items()}
                own = {device: one for piece in found for device, one in piece.placed.items()}
                placed = _placed(machine, own)
                for device, of_gpu in placed.items():
                    exclusive = any(own[each].exclusive for each in of_gpu)
                    parts[device] = PartsOf(shared=False, sliced=True, only=device not in usable, exclusive=exclusive)
                    if not usable.isdisjoint(of_gpu):
                        usable |= {device}
                counted = any(one.counted for one in own.values())
                offered = _offered(machine, placed, own)
                self._pools[name] = _Pool(devices, usable, parts, placed, counted, machine, offered)
        self._offer(name)

    def _current(self, name: str) -> list[SliceRecord]:
        """The pool's newest generation; the scheduler gives away nothing of an incomplete one, so neither may a pin."""
        found = list(self._slices.get(name, {}).values())
        if not found:
            self._slices.pop(name, None)
            return []
        newest = max(piece.generation for piece in found)
        current = sorted((p for p in found if p.generation == newest), key=lambda p: p.metadata.name)
        if len(current) != current[0].count:
            return []
        if any(piece.node != name for piece in current):
            logger.warning("pool %s: its slices are not those of the node of that name; its GPUs are not used", name)
            return []
        return current

    def _offer(self, name: str) -> None:
        self._dirty.add(name)
        self._nodes.offer(name, name in self._pools)

    def _refresh(self, name: str) -> None:
        pool, row = self._pools.get(name), self._nodes.find(name)
        if row is not None:
            if row >= len(self._free):
                self._free = np.append(self._free, np.zeros(max(row, len(self._free)), dtype=np.int64))
            self._free[row] = 0
        self._tenants.set(name, ())
        if pool is None or row is None:
            self._fleet.remove(name)
            return
        free = [
            number
            for number, (device, _) in pool.devices.items()
            if device in pool.usable and not self.holders((name, device))
        ]
        offer, parts = self._in_parts(name, pool)
        try:
            if pool.row == row:
                self._fleet.set_free(name, free)
            else:
                self._fleet.set_node(name, self._with_nccl(pool.offered), free, row=row)
                pool.row = row
            self._fleet.set_offer(name, offer)
            self._fleet.set_parts(name, parts)
            self._free[row] = len(set(free) - offer.parts_only)
        except DriverError as error:
            logger.warning("node %s: %s; its GPUs are not placed", name, error)
            self._leave_out(name)
        except Exception:  # a bug in what one machine meets must not stop the other nodes
            logger.exception("node %s: an error in this program; its GPUs are not placed", name)
            self._leave_out(name)

    def _leave_out(self, name: str) -> None:
        self._fleet.remove(name)
        del self._pools[name]
        self._nodes.offer(name, False)

    def _in_parts(self, name: str, pool: _Pool) -> tuple[Offer, dict[int, list[Part]]]:
        """Return which GPUs of a node may be had in parts, and the parts that are on them, by the machine's numbers.

        On a GPU that somebody has whole, or of which nobody knows what is taken, there are none: it is not free either,
        so nothing more is given of it.
        """
        if not pool.parts:
            return WHOLE, {}
        shared, sliced, only = set(), set(), set()
        rules: list[tuple[int, ShareRule]] = []
        memory = {gpu.index: gpu.memory_mib for gpu in pool.machine.gpus}
        found: dict[int, list[Part]] = {}
        tenants: set[str] = set()
        for number, (device, _) in pool.devices.items():
            how = pool.parts.get(device)
            if how is None or device not in pool.usable:
                continue
            held = self.holders((name, device))
            if how.only:
                only.add(number)
            own = {namespace for namespace, _ in held} if how.exclusive else set()
            tenants |= own
            others = not own <= {self._viewer}
            if how.sliced and not others:
                sliced.add(number)
            if how.shared and not others:
                shared.add(number)
            rule = ShareRule(how.memory_mib if how.memory_mib != memory.get(number) else 0, how.equal)
            if how.shared and rule != _ANY_SIZE:
                rules.append((number, rule))
            if None not in held.values():
                taken = [one for load in held.values() for one in load or ()]
                blocked = (one for name, one in pool.placed.get(device, {}).items() if name not in pool.usable)
                taken += [one for one in blocked if one not in taken]
                if taken:
                    found[number] = [_part(number, one) for one in taken]
        self._tenants.set(name, tenants)
        offer = Offer(
            shared=frozenset(shared), sliced=frozenset(sliced), parts_only=frozenset(only), rules=tuple(rules)
        )
        return offer, found

    def _with_nccl(self, machine: Machine) -> Machine:
        if machine.nccl_version or not self.nccl_version:
            return machine
        return msgspec.structs.replace(machine, nccl_version=self.nccl_version)


def _part(number: int, one: Amount | Slice) -> Part:
    if isinstance(one, Amount):
        return SharePart(gpu=number, amount=one)
    return MigPart(gpu=number, profile=one.profile, start=one.start, size=one.size)


def _believed(machine: Machine, device: str, held: Mapping[Key, Taken]) -> Mapping[Key, Taken]:
    """Return what claims hold of a GPU, all of it where a status tells of a slice that the scheduler counts otherwise.

    Anybody with the right can write a status; and what the scheduler has no room for by its own count, it refuses
    again and again, whatever place there is.
    """
    told = [
        claim for claim, taken in held.items() if any(isinstance(one, Slice) and one.compute for one in taken or ())
    ]
    if not told:
        return held
    profiles = {p.name: p for gpu in machine.gpus if slices.device_name(gpu.uuid) == device for p in gpu.profiles}

    def sound(one: Amount | Slice) -> bool:
        profile = profiles.get(one.profile) if isinstance(one, Slice) else None
        return (
            isinstance(one, Slice)
            and profile is not None
            and one.start in profile.starts
            and (one.size, one.compute) == (profile.size, profile.compute)
        )

    return {**held, **{claim: None for claim in told if not all(map(sound, held[claim] or ()))}}


def _offered(machine: Machine, placed: Mapping[str, Mapping[str, Slice]], own: Mapping[str, OwnSlice]) -> Machine:
    """Return the machine as MIG slices can be had of it: where instances are there already, those and no others."""
    if all(one.counted for one in own.values()):
        return machine
    gpus = list(machine.gpus)
    for position, gpu in enumerate(gpus):
        every = placed.get(slices.device_name(gpu.uuid), {})
        if every and not any(own[name].counted for name in every):
            gpus[position] = with_instances(gpu, [(one.profile, one.start) for one in every.values()])
    return msgspec.structs.replace(machine, gpus=tuple(gpus))


def _placed(machine: Machine, listed: Collection[str]) -> dict[str, dict[str, Slice]]:
    """Return what those devices of a machine are that are a MIG slice each."""
    found: dict[str, dict[str, Slice]] = {}
    for gpu in machine.gpus if listed else ():
        device = slices.device_name(gpu.uuid)
        every = ((profile, start) for profile in gpu.profiles for start in profile.starts)
        own = {
            name: Slice(profile.name, start, profile.size)
            for profile, start in every
            if (name := slices.part_name(gpu.uuid, profile.id, start)) in listed
        }
        if own:
            found[device] = own
    return found
