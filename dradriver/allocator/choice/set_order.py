"""The order of the sets that meet the criteria, as small numbers that compare: the set with the lowest is taken.

A strategy is one function from tables to an array over masks. Three numbers decide, one after the other: of the set
(its bandwidth), of what remains free without it, of the set again (the weighted cohesion, its NICs, its GPUs' numbers).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from dradriver.allocator.request import Strategy, Weights, Whole
from dradriver.allocator.sets import blocks, subsets
from dradriver.allocator.sets.subsets import Array, Floats, Ints
from dradriver.allocator.sets.tables import SAME, Tables
from dradriver.topology.machine import PathType


class Preference(msgspec.Struct, frozen=True):
    """Which of the sets of equal bandwidth is taken."""

    strategy: Strategy = Strategy.BEST_FIT
    numa_first: bool = False
    weights: Weights = Weights()


USUAL = Preference()


def preference(request: Whole) -> Preference:
    """Return by what a request orders sets of equal bandwidth: its strategy, its weights and NUMA nodes."""
    return Preference(request.strategy, request.prefer_same_numa, request.weights)


class SetOrder(NamedTuple):
    """Three arrays of shape (2**g,), int64; all below 2**20 but the first, which is below 2**23."""

    first: Ints
    rest: Ints
    last: Ints


def set_order(tables: Tables, preference: Preference, *, gpus: int) -> SetOrder:
    """Return the numbers by which sets of ``gpus`` GPUs are ordered: lower is better."""
    # Where a machine has blocks, which is best is another for each number of GPUs; else for one GPU and for more.
    kind = gpus if tables.shape.blocks is not None else min(gpus, 2)
    return SetOrder(
        tables.row(("first", preference.numa_first), lambda: _first(tables, numa_first=preference.numa_first)),
        tables.row(("rest", preference.strategy, kind), lambda: _REST[preference.strategy](tables, kind)),
        tables.row(("last", preference.strategy, preference.weights), lambda: _last(tables, preference)),
    )


def cohesion(tables: Tables, weights: Weights) -> Floats:
    """Return the cohesion by which sets are ordered last, 0-100 with the usual weights: shape (2**g,), float32.

    ``nvlink * share of the most links a pair can have + pcie * nearness of the pairs (PIX 1, PXB 3/4, … SYS 0)
    + numa / NUMA nodes + memory * least/most memory + power * least/most power limit``; shares and nearness are means
    over all pairs. Worked example: two GPUs of a DGX-1 with one of at most two links, two sockets apart, alike
    otherwise: 40 * 1/2 + 25 * 0 + 20 / 2 + 10 + 5 = 45.
    """
    shape = tables.shape
    positions = range(tables.size)
    links = [[shape.linked(a, b) for b in positions] for a in positions]
    near = [[(PathType.SYS - max(path, PathType.PIX)) / (PathType.SYS - PathType.PIX) for path in row]
            for row in shape.paths]  # fmt: skip
    pairs = np.maximum(tables.count * (tables.count - 1.0) / 2, 1)
    most = max([*(max(row) for row in links), 1])
    out = weights.nvlink * subsets.pair_sums(links) / most / pairs + weights.pcie * subsets.pair_sums(near) / pairs
    out += weights.numa / np.maximum(tables.numa_nodes, 1)
    out += weights.memory * _evenness(shape.memory_mib) + weights.power * _evenness(shape.power_watts)
    return out.astype(np.float32)


def keep_order(gpus: int) -> tuple[int, ...]:
    """Return the order of the rows of ``Tables.still_offered``: pairs first for one GPU, eights first for more."""
    return (4, 3, 0, 1, 2) if gpus == 1 else (0, 1, 2, 3, 4)


def _first(tables: Tables, *, numa_first: bool) -> Ints:
    """Order by the most bandwidth and then, if ``numa_first``, the fewest NUMA nodes: (2**g,), int64."""
    numbers = [_classes(tables.worth)]
    return _joined([*numbers, tables.numa_nodes] if numa_first else numbers)


def _leaves_most(tables: Tables, gpus: int) -> Ints:
    """Order by what the remaining GPUs still offer: MAPA's "preserve" (SC21) over sets of 8, 4 and 2.

    The best set of 8, of 4, of 2 that remains, then all disjoint sets of 4, of 2; for one GPU the pairs come first, and
    before all of them the block that the machine's maker takes first. Worked example: of a broken and a whole NVLink
    pair a single GPU is taken from the broken one.
    """
    own = tables.shape.blocks
    first = [] if own is None else [blocks.spoilt(own, gpus)]
    return _joined([*first, *(_classes(tables.still_offered[row]) for row in keep_order(gpus))])


def _leaves_even(tables: Tables, gpus: int) -> Ints:
    """Order by the most GPUs free on the NUMA node with the fewest, then by what they offer.

    Worked example: with 0-2 of {0-3} and all of {4-7} free, one GPU comes from {4-7}.
    """
    numa = tables.shape.numa
    least = np.full(1 << tables.size, tables.size, dtype=np.int64)
    masks = np.arange(1 << tables.size)
    for node in set(numa):
        own = sum(1 << position for position, other in enumerate(numa) if other == node)
        least = np.minimum(least, np.bitwise_count(masks & own))
    return _joined([tables.size - least, _leaves_most(tables, gpus)])


def _no_matter(tables: Tables, gpus: int) -> Ints:  # noqa: ARG001  # one signature for all strategies
    """No order by what remains: all sets are equal, and the lowest numbers decide."""
    return np.zeros(1 << tables.size, dtype=np.int64)


_REST = {
    Strategy.BEST_FIT: _leaves_most,
    Strategy.PACK: _leaves_most,
    Strategy.SPREAD: _leaves_even,
    Strategy.FIRST_FIT: _no_matter,
}


def _last(tables: Tables, preference: Preference) -> Ints:
    # Of two sets of one size the one whose ascending list of positions is lower has the larger reversed mask.
    lowest = -subsets.sums([1 << (tables.size - 1 - position) for position in range(tables.size)]).astype(np.int64)
    if preference.strategy is Strategy.FIRST_FIT:
        return _joined([lowest - lowest.min()])
    nics = np.round(tables.nic_distance).astype(np.int64)
    return _joined([_classes(cohesion(tables, preference.weights)), nics, lowest - lowest.min()])


def _classes(values: Floats) -> Ints:
    """The rank of each value: 0 for the largest, 1 for the next smaller, …; nearly equal values share a rank."""
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    out = np.zeros(len(values), dtype=np.int64)
    out[order[1:]] = np.cumsum(ordered[1:] < ordered[:-1] * SAME)
    return out


def _joined(numbers: list[Ints]) -> Ints:
    """One small number for each set, which compares as its numbers in all lists do, the first list first."""
    out = np.zeros(len(numbers[0]), dtype=np.int64)
    for each in numbers:
        _, out = np.unique(out * (each.max() + 1) + each, return_inverse=True)
    return out


def _evenness(values: tuple[int, ...]) -> Array:
    most = subsets.maxima(values)
    return np.where(most > 0, np.minimum(subsets.minima(values), most) / np.maximum(most, 1), 1)
