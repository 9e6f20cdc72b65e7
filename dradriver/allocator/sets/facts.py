"""Computes the costly figures of all sets of GPUs, once for machines that are alike.

A canonical shape is a machine without names, in a numbering that all equal machines share. The *strength* of a set is
the figure that replaces the bandwidth if none can be predicted (``strength.of_sets``). A *ring* leads through all GPUs
of a set. ``Tables`` renumber the figures to the positions of a machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
import numpy as np

from dradriver.allocator.request import Level
from dradriver.allocator.sets import blocks, busbw, strength, subsets
from dradriver.allocator.sets.shape import Shape
from dradriver.allocator.sets.subsets import Bools, Floats, Ints
from dradriver.allocator.sets.weighted_cache import Kept
from dradriver.topology.link_rates import line_rate_gbps
from dradriver.topology.machine import PathType

LEVELS = tuple(Level)  # best first

_LEVEL_OF_PATH = {
    PathType.SELF: LEVELS.index(Level.PCIE_SWITCH),
    PathType.PIX: LEVELS.index(Level.PCIE_SWITCH),
    PathType.PXB: LEVELS.index(Level.PCIE_ROOT),
    PathType.PHB: LEVELS.index(Level.PCIE_ROOT),
    PathType.NODE: LEVELS.index(Level.NUMA),
    PathType.SYS: LEVELS.index(Level.NODE),
}
_Kind = tuple[int, int, float]  # number of the level, links, rate, which nobody knows of some links
MOST: Final = 1 << 18  # masks of all that is kept for nobody: three shapes of 16 GPUs, or 60 of 8
_LEAST: Final = 1 << 12  # that any shape counts for
_KEPT: Final[Kept[Shape, Facts]] = Kept(MOST)


class Facts:
    """Figures of all subsets of one shape, in that shape's own numbering.

    Arrays with an axis of length 2**g (for g GPUs) have one entry for each bit mask of GPUs. A *step* is the connection
    between two GPUs.

    Attributes:
        busbw: Two arrays of (2**g,) float32, predicted all-reduce bus bandwidth in GB/s, 0 below two GPUs. The function
            ``busbw.split``, whose result depends on the numbering, says which array is right for a set. If no bandwidth
            can be predicted, both arrays have the strength of each set instead.
        worth: The figure that sets are compared by. It is ``busbw`` if the bandwidth between sockets is known. If not,
            it is the geometric mean of the bandwidths with both likely CPUs. So a set that is better with one CPU, and
            not worse with the other, has a larger figure.
        steps: The machine's kinds of steps, best first: (level, GB/s).
        step_rank: (g, g) int64, the kind of step between two GPUs, as an index into ``steps``.
        step_gbps: (g, g) float32, the rate of that step, one direction, GB/s. For links it is the line rate. Over PCIe
            and between sockets line rates are not known, so it is NCCL's figure.
        weakest: (2**g,) uint8, the weakest step of the set's best ring, as an index into ``steps``; 0 below two GPUs.
        linked: (2**g,) bool, whether a ring over links alone visits the set; for a single GPU: whether it has links.
        given: (2**g,) bool, whether the machine's maker allows such a set; None if any set is allowed.
        still_offered: (5, 2**g) float32, what a mask of free GPUs still offers, GB/s: the best set of 8, of 4 and of 2,
            and the total of disjoint sets of 4 and of 2.
    """

    def __init__(self, shape: Shape) -> None:
        """Compute all figures of a shape.

        1. Make a graph for each kind of step (connection of two GPUs), for each number of links, and for each PCIe
           path.
        2. Find which sets have a ring and which have an open path in each graph.
        3. Predict bandwidth from these, and compute which sets each bit mask of free GPUs still offers to later pods.
        """
        # Numbers of direct links between two GPUs. A *step* is the way from one GPU of a ring to the next.
        g = shape.size
        links = [[shape.linked(a, b) for b in range(g)] for a in range(g)]
        self.steps, self.step_rank, self.step_gbps = _steps_of(shape, links)
        steps, linked = self.steps, np.array(links, dtype=np.int64).reshape(g, g)
        widths = sorted(set(linked.ravel().tolist()) - {0})
        hops = np.array(shape.paths, dtype=np.int64).reshape(g, g)
        path_types = sorted({path for row in shape.paths for path in row} - {PathType.SELF})
        graphs = (
            [self.step_rank <= rank for rank in range(len(steps))]
            + [linked >= width for width in widths]
            + [(linked > 0) | (hops <= kind) for kind in path_types]
        )
        for graph in graphs:
            np.fill_diagonal(graph, val=False)

        # Many graphs are equal: "NVLink" is a kind of step and a width. The search for rings runs once for each.
        distinct_graphs = {graph.tobytes(): graph for graph in graphs}
        graph_numbers = [list(distinct_graphs).index(graph.tobytes()) for graph in graphs]
        adjacent = np.array(list(distinct_graphs.values()), dtype=np.bool_).reshape(len(distinct_graphs), g, g)
        cycles, paths = subsets.hamiltonian(adjacent)  # by graph and mask: is there a ring, is there an open path

        # Back from distinct graphs to all: by step rank, by number of links, by PCIe path.
        cycles, paths = cycles[graph_numbers], paths[graph_numbers]
        by_rank, by_width, by_path = np.split(cycles, (len(steps), len(steps) + len(widths)))

        # By mask, the rank of the worst step in the best ring. ``steps`` are ranked from the best kind to the worst,
        # and the graph of a rank has all better steps, too. So the number of ranks without a ring is that rank.
        self.weakest = (~by_rank).sum(axis=0).astype(np.uint8)
        _, wide_paths, near_paths = np.split(paths, (len(steps), len(steps) + len(widths)))
        predict: Callable[[Shape], tuple[Floats, Floats]]
        predict = partial(
            busbw.predict,
            linked=dict(zip(widths, by_width, strict=True)),
            linked_paths=dict(zip(widths, wide_paths, strict=True)),
            near=dict(zip(path_types, by_path, strict=True)),
            near_paths=dict(zip(path_types, near_paths, strict=True)),
        )
        if not shape.predicted:
            strengths = strength.of_sets(self.steps, self.weakest, linked)
            self.busbw: tuple[Floats, Floats] = (strengths, strengths)
        else:
            self.busbw = predict(shape)
        self.worth = self.busbw

        # The CPUs are not known: take the geometric mean of the figures for both likely bandwidths between sockets.
        if shape.socket_gbps_or and shape.predicted:
            other = predict(msgspec.structs.replace(shape, socket_gbps=shape.socket_gbps_or))
            worth_one, worth_two = (np.sqrt(mine * theirs) for mine, theirs in zip(self.busbw, other, strict=True))
            self.worth = (worth_one, worth_two)
        self.linked: Bools = by_width[0].copy() if widths else np.zeros(1 << g, dtype=np.bool_)

        # A set of one GPU meets "nvlink" if the GPU has links at all, even if its peers are busy.
        self.linked[subsets.bits(g)] = (linked > 0).any(axis=1)

        # By mask, the bandwidth that counts for later pods. Sets that a pod cannot get (``blocks``) are worth nothing.
        count = np.bitwise_count(np.arange(1 << g))
        worth_of_set = np.where(busbw.split(shape), self.worth[1], self.worth[0])  # two channels at least, or one
        self.given: Bools | None = None
        if shape.blocks is not None:
            self.given = blocks.possible(shape.blocks)
            worth_of_set = np.where(self.given, worth_of_set, np.float32(0))

        # (5, 2**g), by mask of free GPUs: the best set of 8, of 4 and of 2 in it, then the most that disjoint sets of 4
        # and of 2 add up to.
        best = [subsets.best_inside(np.where(count == k, worth_of_set, np.float32(0))) for k in (8, 4, 2)]
        self.still_offered: Floats = np.stack([*best, *(subsets.packed(worth_of_set, g, k) for k in (4, 2))])


def facts_of(shape: Shape) -> Facts:
    """Return the facts (such as bandwidths) about all sets of a machine's GPUs.

    ``shape`` is the machine in the numbering that all equal machines share. The facts are computed at the first use.
    For 16 GPUs they take about 2 MB.
    """
    found = _KEPT.find(shape)
    return keep(shape, Facts(shape)) if found is None else found


def keep(shape: Shape, facts: Facts) -> Facts:
    """Store facts about all sets of a machine's GPUs in the cache, and return them.

    Facts are, for example, bandwidths. ``shape`` is the machine in the numbering that all equal machines share. Another
    process may have computed the facts.
    """
    return _KEPT.put(shape, facts, weight(shape))


def weight(shape: Shape) -> int:
    """Return how much a machine's facts count towards the limit of the cache.

    The weight is the number of sets of the machine's GPUs, plus a fixed amount.
    """
    return (1 << shape.size) + _LEAST


def known(shape: Shape) -> bool:
    """Return whether the facts about all sets of a machine's GPUs are computed already.

    Facts are, for example, bandwidths. ``shape`` is the machine in the numbering that all equal machines share.
    """
    return shape in _KEPT


def _steps_of(shape: Shape, links: list[list[int]]) -> tuple[tuple[tuple[Level, float], ...], Ints, Floats]:
    """Return the kinds of steps between GPUs, best first, and the kind and rate of each pair's step.

    A step is the connection between two GPUs. Its kind is, for example, links of a certain rate. ``links`` is the
    number of links of each pair.

    Returns:
        The kinds; the kind of each pair as an index, (g, g) int64 for g GPUs; the rate of each pair in one direction,
        GB/s, (g, g) float32.
    """
    g, nvlink = shape.size, LEVELS.index(Level.NVLINK)
    kind_of_pair: dict[tuple[int, int], _Kind] = {}

    # The kind of the step between each two GPUs: over links, if there are some, else over PCIe and between sockets.
    for a, b in itertools.permutations(range(g), 2):
        path, rate = shape.paths[a][b], min(shape.pcie_gbps[a], shape.pcie_gbps[b])
        if path is PathType.SYS:
            rate = min(rate, shape.socket_gbps)
        line_gbps = float(line_rate_gbps(links[a][b], shape.link_gbps))
        kind_of_pair[a, b] = (nvlink, links[a][b], line_gbps) if links[a][b] else (_LEVEL_OF_PATH[path], 0, rate)

    # Best first: by level, then the most links, then the highest rate.
    ordered = sorted(set(kind_of_pair.values()), key=lambda step_kind: (step_kind[0], -step_kind[1], -step_kind[2]))
    rank_of_kind = {step_kind: rank for rank, step_kind in enumerate(ordered)}
    rank_of_pair = np.zeros((g, g), dtype=np.int64)
    gbps = np.zeros((g, g), dtype=np.float32)
    for pair, step_kind in kind_of_pair.items():
        rank_of_pair[pair] = rank_of_kind[step_kind]
        gbps[pair] = step_kind[2]
    return tuple((LEVELS[level], rate) for level, _, rate in ordered), rank_of_pair, gbps
