"""The simulated nodes, their free GPUs and what sets on them are worth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dradriver.allocator import Fleet, Tables, tables_of
from dradriver.allocator.fleet.gang_nodes import pod_capacity
from dradriver.allocator.sets.criteria import ANY, Criteria
from dradriver.cli.simulator.job_sizes import given
from dradriver.topology.machine import Machine
from dradriver.topology.network_levels import location

_NODES_PER_LEAF = 4
_LEAVES_PER_SPINE = 4
_QUAD = 4


class Part(msgspec.Struct, frozen=True):
    """GPUs of one node, as a mask of positions."""

    node: int
    mask: int


class Cluster:
    """Nodes by number; alike ones share their tables.

    Attributes:
        machines: What each node is.
        tables: What sets of its GPUs are worth.
        idle: By node the mask of the GPUs that nobody has.
        free: By node those of them that may be given; others are reserved.
        names: The nodes' names; ``number`` finds a node by its own.
        fleet: The same for the allocator.
        gpus: How many GPUs there are.
        largest: How many a pod can have at most.
        vendor: Whose they are.
    """

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = tuple(machines)
        self.tables: tuple[Tables, ...] = tuple(tables_of(machine) for machine in machines)
        self.idle = [tables.everything for tables in self.tables]
        self.free = list(self.idle)
        self._reserved: dict[int, int] = {}
        self.names = [f"node-{number:05}" for number in range(len(machines))]
        self.number = {name: number for number, name in enumerate(self.names)}
        self.fleet = Fleet()
        for number, (name, machine) in enumerate(zip(self.names, machines, strict=True)):
            self.fleet.set_node(name, machine, [gpu.index for gpu in machine.gpus])
            leaf = number // _NODES_PER_LEAF
            place = location(zone="zone", spine=f"spine-{leaf // _LEAVES_PER_SPINE}", leaf=f"leaf-{leaf}")
            self.fleet.set_location(name, place)
        self.gpus = sum(tables.size for tables in self.tables)
        self.largest = max(size for tables in set(self.tables) for size in given(tables))
        self.vendor = next(machine.vendor.word for machine in machines if machine.gpus)
        self._best: dict[int, float] = {}

    def take(self, parts: Iterable[Part]) -> None:
        """Count GPUs of the simulated cluster as busy."""
        for part in parts:
            assert part.mask & ~self.free[part.node] == 0, "no GPU is given twice"
            self.idle[part.node] ^= part.mask
            self._update(part.node)

    def give_back(self, parts: Iterable[Part]) -> None:
        """Count GPUs of the simulated cluster as free."""
        for part in parts:
            self.idle[part.node] |= part.mask
            self._update(part.node)

    def reserve(self, masks: Mapping[int, int]) -> None:
        """Reserve some GPUs of the simulated cluster, by node, instead of all that were reserved before."""
        before, self._reserved = self._reserved, dict(masks)
        for node in before.keys() | masks.keys():
            self._update(node)

    def count_free(self) -> int:
        """Return how many GPUs of the simulated cluster are idle, reserved ones included."""
        return sum(mask.bit_count() for mask in self.idle)

    def count_reserved(self) -> int:
        """Return how many idle GPUs of the simulated cluster are reserved."""
        return sum((self.idle[node] & mask).bit_count() for node, mask in self._reserved.items())

    def worth(self, parts: Sequence[Part]) -> float:
        """Return the bandwidth of a job's slowest part in the simulated cluster against the best for its size, 0-1."""
        return min(
            float(self.tables[part.node].busbw[part.mask]) / best if (best := self.best(part.mask.bit_count())) else 1.0
            for part in parts
        )

    def best(self, gpus: int) -> float:
        """Return the most bandwidth that a set of this size has in the simulated cluster if all GPUs are free."""
        if gpus not in self._best:
            fitting = (tables for tables in set(self.tables) if gpus <= tables.size)
            self._best[gpus] = max((float(tables.best(gpus)[tables.everything]) for tables in fitting), default=0.0)
        return self._best[gpus]

    def fragmentation(self) -> float:
        """Return the share of the simulated cluster's free GPUs that are in no good free set of four: 0-1."""
        free = whole = 0
        for tables, mask in zip(self.tables, self.free, strict=True):
            free += mask.bit_count()
            if tables.size >= _QUAD:
                best = float(tables.best(_QUAD)[tables.everything])
                whole += _QUAD * int(pod_capacity(tables, _QUAD, _with_worth(best))[mask])
        return 1 - whole / free if free else 0.0

    def _update(self, node: int) -> None:
        mask = self.idle[node] & ~self._reserved.get(node, 0)
        if mask == self.free[node]:
            return
        self.free[node] = mask
        gpus = self.machines[node].gpus
        self.fleet.set_free(self.names[node], [gpu.index for place, gpu in enumerate(gpus) if mask >> place & 1])


def _with_worth(worth: float) -> Criteria:
    return msgspec.structs.replace(ANY, min_worth=worth)
