"""The order of the sets that meet the criteria, as integers: the set with the lowest number is taken.

A strategy is the rule by which a request chooses between equally good sets: ``best-fit``, ``pack``, ``spread`` or
``first-fit``. Each strategy is one function that returns an array with one number for each bit mask of GPUs. Three
numbers are compared one after another:

1. the bandwidth of the set
2. the sets that the remaining free GPUs still form if this set is taken; the strategy decides how these are counted
3. the cohesion of the set, its NICs, and the numbers of its GPUs
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
    """The rules that order sets of GPUs with equal bandwidth.

    They are the request's strategy, whether fewer NUMA nodes decide first, and the weights of links, memory and so on.
    """

    strategy: Strategy = Strategy.BEST_FIT
    numa_first: bool = False
    weights: Weights = Weights()


USUAL = Preference()


def preference(request: Whole) -> Preference:
    """Return the rules by which a request orders sets of equal bandwidth: strategy, weights and NUMA nodes."""
    return Preference(request.strategy, request.prefer_same_numa, request.weights)


class SetOrder(NamedTuple):
    """Three numbers for every set of GPUs; the set with the lowest numbers is taken.

    The numbers are compared one after another. Each is an array of shape (2**g,) for g GPUs, int64, with the set's bit
    mask as index. The second one is about the GPUs that remain, so its index is the mask of the remaining GPUs. The
    first number is below 2**23, the other two are below 2**20.
    """

    first: Ints
    rest: Ints
    last: Ints


def set_order(tables: Tables, preference: Preference, *, gpus: int) -> SetOrder:
    """Return the numbers that order the sets of ``gpus`` GPUs; lower is better.

    ``tables`` has the figures of all sets of the machine's GPUs. ``preference`` has the strategy, the weights and
    whether NUMA nodes decide first.
    """
    # Where a machine has blocks, which is best is another for each number of GPUs; else for one GPU and for more.
    kind = gpus if tables.shape.blocks is not None else min(gpus, 2)
    return SetOrder(
        tables.row(("first", preference.numa_first), lambda: _first(tables, numa_first=preference.numa_first)),
        tables.row(("rest", preference.strategy, kind), lambda: _REST[preference.strategy](tables, kind)),
        tables.row(("last", preference.strategy, preference.weights), lambda: _last(tables, preference)),
    )


def cohesion(tables: Tables, weights: Weights) -> Floats:
    """Return the cohesion of each set: how near and alike its GPUs are.

    Cohesion is compared after bandwidth and the remaining sets. With the default weights it is from 0 to 100. It is a
    weighted sum of five values from 0 to 1:

    * ``nvlink``: the links of a pair, relative to the most links that a pair of this machine can have
    * ``pcie``: the nearness of a pair over PCIe (PIX 1, PXB 3/4, ... SYS 0)
    * ``numa``: 1 divided by the number of NUMA nodes
    * ``memory``: the least memory of a GPU divided by the most memory
    * ``power``: the least power limit of a GPU divided by the highest

    The first two are means over all pairs of the set. Worked example: two GPUs of a DGX-1 have one of at most two
    links, are on two sockets, and are equal otherwise: 40 * 1/2 + 25 * 0 + 20 / 2 + 10 + 5 = 45.

    Returns:
        (2**g,) for g GPUs, float32; the index is the bit mask of the set.
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
    """Return the order in which the sets that remain for later pods are compared.

    The result has indices of the rows of ``Tables.still_offered``: each row is about sets of one size. ``gpus`` is the
    number of requested GPUs. If it is 1, sets of two GPUs are compared first; else sets of eight.
    """
    return (4, 3, 0, 1, 2) if gpus == 1 else (0, 1, 2, 3, 4)


def _first(tables: Tables, *, numa_first: bool) -> Ints:
    """Return numbers that order sets of GPUs by bandwidth; the lowest is best.

    If ``numa_first`` is set, the fewest NUMA nodes decide among sets of equal bandwidth. ``tables`` has the figures of
    all sets. The shape is (2**g,) for g GPUs, int64; the index is the bit mask of the set.
    """
    numbers = [_classes(tables.worth)]
    return _joined([*numbers, tables.numa_nodes] if numa_first else numbers)


def _leaves_most(tables: Tables, gpus: int) -> Ints:
    """Return numbers that order remaining free GPUs by the sets that they still form.

    The lowest number is best. This is the policy "preserve" of MAPA (SC21): it keeps the best sets for later pods. The
    policy compares bandwidths: of the best remaining set of 8, of 4 and of 2, then the total of all disjoint sets of 4
    and of 2. If ``gpus``, the number of requested GPUs, is 1, the totals are compared first: of 2, then of 4. Some
    machines' makers prescribe from which block of GPUs a set is taken (``sets/blocks.py``). Their rule comes before all
    others.

    Worked example: both GPUs of one NVLink pair are free, and one GPU of another pair. A single GPU is taken from the
    other pair.
    """
    own = tables.shape.blocks
    first = [] if own is None else [blocks.spoilt(own, gpus)]
    return _joined([*first, *(_classes(tables.still_offered[row]) for row in keep_order(gpus))])


def _leaves_even(tables: Tables, gpus: int) -> Ints:
    """Return numbers that order the GPUs that remain free: every NUMA node should keep some.

    The lowest number is best. There is one number for each bit mask of remaining GPUs. The masks are compared by the
    NUMA node that keeps the fewest free GPUs: the more GPUs this node keeps, the better the mask. Then the sets that
    the remaining GPUs still form decide (``_leaves_most``). ``gpus`` is the number of requested GPUs.

    Worked example: NUMA node A has GPUs 0-3, of which 0-2 are free. Node B has GPUs 4-7, all free. A single GPU is
    taken from B, so that three free GPUs remain on each node.
    """
    numa = tables.shape.numa
    least = np.full(1 << tables.size, tables.size, dtype=np.int64)
    masks = np.arange(1 << tables.size)
    for node in set(numa):
        own = sum(1 << position for position, other in enumerate(numa) if other == node)
        least = np.minimum(least, np.bitwise_count(masks & own))
    return _joined([tables.size - least, _leaves_most(tables, gpus)])


def _no_matter(tables: Tables, gpus: int) -> Ints:  # noqa: ARG001  # one signature for all strategies
    """Return zeros, for the strategy ``first-fit``: the GPUs that remain free do not count.

    So all sets of equal bandwidth are equal, and the lowest GPU numbers decide.
    """
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
    """Return the rank of each value: 0 for the largest, then 1, and so on.

    Nearly equal values have the same rank.
    """
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    out = np.zeros(len(values), dtype=np.int64)
    out[order[1:]] = np.cumsum(ordered[1:] < ordered[:-1] * SAME)
    return out


def _joined(numbers: list[Ints]) -> Ints:
    """Return one number for each set, which orders the sets as several lists do together.

    Each of ``numbers`` has one number for each set. Sets are compared by their numbers in the first list, among equals
    by the second list, and so on; lower is better.
    """
    out = np.zeros(len(numbers[0]), dtype=np.int64)
    for each in numbers:
        _, out = np.unique(out * (each.max() + 1) + each, return_inverse=True)
    return out


def _evenness(values: tuple[int, ...]) -> Array:
    most = subsets.maxima(values)
    return np.where(most > 0, np.minimum(subsets.minima(values), most) / np.maximum(most, 1), 1)
