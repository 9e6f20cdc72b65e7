"""The simulated nodes, their free GPUs, and the bandwidth of sets of them."""

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
    """The simulated nodes, by number. Equal nodes share their tables.

    Attributes:
        machines: The machine of each node.
        tables: The bandwidth of sets of its GPUs, for each node.
        idle: For each node, the mask of the GPUs that no job has.
        free: For each node, the mask of the idle GPUs that are not reserved.
        names: The nodes' names; ``number`` finds a node by its name.
        fleet: The same nodes for the allocator.
        gpus: Number of GPUs in the cluster.
        largest: The most GPUs that a pod can have.
        vendor: The vendor of the GPUs.
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
        """Count GPUs of the simulated cluster (``parts``, by node) as busy."""
        for part in parts:
            assert part.mask & ~self.free[part.node] == 0, "no GPU is given twice"
            self.idle[part.node] ^= part.mask
            self._update(part.node)

    def give_back(self, parts: Iterable[Part]) -> None:
        """Count GPUs of the simulated cluster (``parts``, by node) as free."""
        for part in parts:
            self.idle[part.node] |= part.mask
            self._update(part.node)

    def reserve(self, masks: Mapping[int, int]) -> None:
        """Reserve GPUs of the simulated cluster, given as a mask for each node.

        This replaces all earlier reservations.
        """
        before, self._reserved = self._reserved, dict(masks)
        for node in before.keys() | masks.keys():
            self._update(node)

    def count_free(self) -> int:
        """Return how many GPUs of the simulated cluster no job uses, including reserved GPUs."""
        return sum(mask.bit_count() for mask in self.idle)

    def count_reserved(self) -> int:
        """Return how many idle GPUs of the simulated cluster are reserved."""
        return sum((self.idle[node] & mask).bit_count() for node, mask in self._reserved.items())

    def worth(self, parts: Sequence[Part]) -> float:
        """Return the bandwidth of a job's slowest pod relative to the best for its size, 0-1.

        ``parts`` has the GPUs of each pod.
        """
        return min(
            float(self.tables[part.node].busbw[part.mask]) / best if (best := self.best(part.mask.bit_count())) else 1.0
            for part in parts
        )

    def best(self, gpus: int) -> float:
        """Return the highest bandwidth of a set of ``gpus`` GPUs in the empty simulated cluster."""
        if gpus not in self._best:
            fitting = (tables for tables in set(self.tables) if gpus <= tables.size)
            self._best[gpus] = max((float(tables.best(gpus)[tables.everything]) for tables in fitting), default=0.0)
        return self._best[gpus]

    def fragmentation(self) -> float:
        """Return the share of free GPUs that are in no good free set of four: 0-1.

        A set is good if it has the bandwidth of the best set of four on the empty node.
        """
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
