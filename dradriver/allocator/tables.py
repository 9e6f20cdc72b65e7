"""Everything about every subset of a machine's GPUs, computed once per shape and looked up ever after.

Positions, not GPU numbers: bit ``i`` of a mask is ``machine.gpus[i]``. For ``g`` GPUs an array over masks has
``2**g`` entries: 256 for 8 GPUs, 65,536 for 16, so a shape costs about 60 kB or 15 MB for its own arrays and each
set of constraints asked for ``(g + 1) * 2**g`` float32 more (9 kB, 4.5 MB).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dradriver.allocator import busbw, subsets
from dradriver.allocator.request import Constraint, Level
from dradriver.allocator.shape import Shape, shape_of
from dradriver.allocator.subsets import Bools, Floats, Ints
from dradriver.errors import DriverError
from dradriver.topology.machine import Machine, PathType

MAX_GPUS = 16
LEVELS = tuple(Level)  # best first

_LEVEL_OF_PATH = {
    PathType.SELF: Level.PCIE_SWITCH,
    PathType.PIX: Level.PCIE_SWITCH,
    PathType.PXB: Level.PCIE_ROOT,
    PathType.PHB: Level.PCIE_ROOT,
    PathType.NODE: Level.NUMA,
    PathType.SYS: Level.NODE,
}


class MachineTooLargeError(DriverError):
    """The machine has more GPUs than the tables hold."""

    reason = "MachineTooLarge"


class Tables:
    """All subsets of one shape.

    Attributes:
        shape: The shape.
        size: Number of GPUs g.
        everything: Mask of all GPUs.
        busbw: (2**g,) float32, predicted all-reduce bus bandwidth in GB/s, 0 below two GPUs.
        second_tree: (2**g,) bool, whether NCCL's search will have luck with these numbers; see ``busbw.second_tree``.
        step_gbps: (g, g) float32, line rate of the step between two GPUs, one direction, GB/s.
        step_rank: (g, g) int64, how bad that step is: its number in ``steps``.
        steps: The machine's kinds of steps, best first: (level, GB/s).
        weakest: (2**g,) int64, number in ``steps`` of the weakest step of the best ring; 0 below two GPUs.
        numa_nodes: (2**g,) int64, NUMA nodes that the set touches (an unknown one counts for itself).
        nic_distance: (2**g,) float32, sum over the GPUs of the path to their nearest NIC.
        keep: (5, 2**g) float32, what a free mask still offers, GB/s: best set of 8, of 4, of 2, total of disjoint
            sets of 4, of 2.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.size = g = shape.size
        self.everything = (1 << g) - 1
        self._members: dict[int, Ints] = {}
        self._allowed: dict[frozenset[Constraint], Bools] = {}
        self._best: dict[frozenset[Constraint], Floats] = {}

        self.steps, self.step_rank, self.step_gbps = _steps(shape)
        widths = sorted({shape.linked(a, b) for a in range(g) for b in range(g)} - {0})
        linked = np.array([[shape.linked(a, b) for b in range(g)] for a in range(g)], dtype=np.int64).reshape(g, g)
        hops = np.array(shape.paths, dtype=np.int64).reshape(g, g)
        kinds = sorted({path for row in shape.paths for path in row} - {PathType.SELF})
        graphs = (
            [self.step_rank <= rank for rank in range(len(self.steps))]
            + [linked >= width for width in widths]
            + [(linked > 0) | (hops <= kind) for kind in kinds]
        )
        cycles, paths = subsets.hamiltonian(np.array(graphs, dtype=np.bool_).reshape(len(graphs), g, g))
        ranked, wide, near = np.split(cycles, (len(self.steps), len(self.steps) + len(widths)))
        self.weakest: Ints = (~ranked).sum(axis=0)  # a ring over better steps is one over worse ones, too
        open_paths = paths[len(self.steps) :]
        self.busbw: Floats = busbw.predict(
            shape,
            rings=dict(zip(widths, wide, strict=True)),
            paths=dict(zip(widths, open_paths, strict=False)),
            steps=dict(zip(kinds, near, strict=True)),
        )
        self._linked: Bools = wide[0].copy() if widths else np.zeros(1 << g, dtype=np.bool_)
        # One GPU meets "nvlink" where it has links at all, be its peers busy or not.
        self._linked[subsets.bits(g)] = (linked > 0).any(axis=1)

        self.second_tree: Bools = busbw.second_tree(shape)
        self.numa_nodes: Ints = _distinct(shape.numa)
        self.nic_distance: Floats = subsets.sums(shape.nics)
        plain = self.best(frozenset())
        self.keep: Floats = np.stack(
            [
                *(np.maximum(plain[k], 0) if k <= g else np.zeros(1 << g) for k in (8, 4, 2)),
                *(subsets.packed(self.busbw, g, k) for k in (4, 2)),
            ]
        ).astype(np.float32)

    def members(self, k: int) -> Ints:
        """All masks of ``k`` GPUs, lowest positions first: (C(g, k),), int64."""
        if k not in self._members:
            self._members[k] = subsets.members(self.size, k)
        return self._members[k]

    def allowed(self, constraints: frozenset[Constraint]) -> Bools:
        """Masks whose set meets all the constraints: (2**g,), bool."""
        if constraints not in self._allowed:
            out = np.ones(1 << self.size, dtype=np.bool_)
            for constraint in constraints:
                out = out & self._meets(constraint)
            self._allowed[constraints] = out
        return self._allowed[constraints]

    def best(self, constraints: frozenset[Constraint]) -> Floats:
        """``best[k][mask]``: highest busbw of any admissible k-subset of a free mask, -1 where there is none.

        Shape (g + 1, 2**g), float32, GB/s: per ``k`` the admissible sets' own values, spread to all masks that
        contain them.
        """
        if constraints not in self._best:
            count = np.bitwise_count(np.arange(1 << self.size))
            sizes = np.arange(self.size + 1)[:, None]
            own = np.where((count == sizes) & self.allowed(constraints), self.busbw, np.float32(-1))
            self._best[constraints] = subsets.best_inside(own.astype(np.float32))
        return self._best[constraints]

    def level(self, mask: int) -> Level:
        """The level of the best ring's weakest step; of a single GPU: nvlink where it has links, else pcie-switch."""
        if mask.bit_count() < 2:
            return Level.NVLINK if self._linked[mask] else Level.PCIE_SWITCH
        return self.steps[int(self.weakest[mask])][0]

    def bandwidth_gbps(self, mask: int) -> float:
        """Line rate of the weakest step of the best ring, one direction; 0 for a single GPU."""
        return self.steps[int(self.weakest[mask])][1] if mask.bit_count() > 1 else 0.0

    def _meets(self, constraint: Constraint) -> Bools:
        shape = self.shape
        if constraint is Constraint.NVLINK:
            return self._linked
        if constraint is Constraint.SAME_NUMA:
            unknown = subsets.sums([numa is None for numa in shape.numa]) > 0
            return subsets.cliques(_equal(shape.numa)) & ~unknown
        hops = np.array(shape.paths, dtype=np.int64).reshape(shape.size, shape.size)
        if constraint is Constraint.SAME_PCIE_SWITCH:
            return subsets.cliques(hops <= PathType.PIX)
        known = np.array([root is not None for root in shape.roots])
        both = known[:, None] & known[None, :]
        return subsets.cliques(np.where(both, _equal(shape.roots), hops <= PathType.PHB))


@lru_cache(maxsize=64)
def of_shape(shape: Shape) -> Tables:
    """The tables of a shape, built on first use."""
    return Tables(shape)


@lru_cache(maxsize=1024)
def of_machine(machine: Machine) -> Tables:
    """The tables of a machine's shape.

    Raises:
        MachineTooLargeError: The machine has more than 16 GPUs.
    """
    if len(machine.gpus) > MAX_GPUS:
        raise MachineTooLargeError(
            f"machine {machine.name!r} has {len(machine.gpus)} GPUs; at most {MAX_GPUS} are supported: describe "
            f"the parts that share links as machines of their own"
        )
    return of_shape(shape_of(machine))


def _steps(shape: Shape) -> tuple[tuple[tuple[Level, float], ...], Ints, Floats]:
    """The kinds of steps from best to worst, and for each pair its kind and line rate."""
    g = shape.size
    kinds: dict[tuple[int, int], tuple[int, float]] = {}
    for a in range(g):
        for b in range(g):
            if a != b:
                kinds[a, b] = _step(shape, a, b)
    ordered = sorted(set(kinds.values()), key=lambda kind: (kind[0], -kind[1]))
    number = {kind: rank for rank, kind in enumerate(ordered)}
    rank = np.zeros((g, g), dtype=np.int64)
    gbps: NDArray[np.float32] = np.zeros((g, g), dtype=np.float32)
    for (a, b), kind in kinds.items():
        rank[a, b] = number[kind]
        gbps[a, b] = kind[1]
    return tuple((LEVELS[level], rate) for level, rate in ordered), rank, gbps


def _step(shape: Shape, a: int, b: int) -> tuple[int, float]:
    links = shape.linked(a, b)
    if links:
        return LEVELS.index(Level.NVLINK), links * shape.line_gbps
    path = shape.paths[a][b]
    rate = min(shape.pcie_gbps[a], shape.pcie_gbps[b])
    if path is PathType.SYS:
        rate = min(rate, shape.socket_gbps)
    return LEVELS.index(_LEVEL_OF_PATH[path]), rate


def _equal(values: tuple[int | None, ...]) -> Bools:
    return np.array([[a == b for b in values] for a in values], dtype=np.bool_).reshape(len(values), len(values))


def _distinct(values: tuple[int | None, ...]) -> Ints:
    """How many different values the members of each mask have; None differs from all: (2**g,), int64."""
    groups = [1 << value if value is not None else 1 << (MAX_GPUS + place) for place, value in enumerate(values)]
    return np.bitwise_count(subsets.unions(groups)).astype(np.int64)
