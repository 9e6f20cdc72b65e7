"""Facts about all subsets of a few positions at once, as numpy arrays over bit masks.

A subset of ``g`` positions is a bit mask: bit ``i`` stands for position ``i``. Every array has one entry for each of
the ``2**g`` masks. Callers must keep ``g`` at 16 or less. This module knows nothing of GPUs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache, reduce
from operator import or_
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Counts: TypeAlias = NDArray[np.int16]
Floats: TypeAlias = NDArray[np.float32]
Bools: TypeAlias = NDArray[np.bool_]
Array: TypeAlias = NDArray[Any]

_BLOCK = 1 << 18  # entries of one block of a search that is done piece by piece
_GRAPHS = 16  # at once: 30 MB for 16 positions


def bits(g: int) -> Ints:
    """Return the bit masks of ``g`` single positions: 1, 2, 4 and so on.

    The shape is (g,), int64.
    """
    return 1 << np.arange(g, dtype=np.int64)


def members(g: int, k: int) -> Ints:
    """Return the bit masks of all subsets of ``k`` of ``g`` positions: (C(g, k),), int64.

    Subsets with low positions come first: {0, 1}, {0, 2}, and so on.
    """
    sets = list(itertools.combinations(range(g), k))
    if k == 0:
        return np.zeros(1, dtype=np.int64)
    out: Ints = (1 << np.array(sets, dtype=np.int64).reshape(-1, k)).sum(axis=1)
    return out


def sums(weights: Sequence[float]) -> Floats:
    """Return for each subset (bit mask) of positions the sum of its members' weights.

    ``weights`` has the weight of each of g positions. The shape is (2**g,), float32.
    """
    out = np.zeros(1 << len(weights), dtype=np.float32)
    for position, weight in enumerate(weights):
        half = 1 << position
        np.add(out[:half], np.float32(weight), out=out[half : 2 * half])
    return out


def maxima(weights: Sequence[float]) -> Floats:
    """Return for each subset (bit mask) the largest weight of a member; 0 for the empty subset.

    The shape is (2**g,), float32. No weight may be negative.
    """
    out = np.zeros(1, dtype=np.float32)
    for weight in weights:
        out = np.concatenate((out, np.maximum(out, np.float32(weight))))
    return out


def minima(weights: Sequence[float]) -> Floats:
    """Return for each subset (bit mask) the smallest weight of a member.

    It is inf for the empty subset. ``weights`` has the weight of each of g positions. The shape is (2**g,), float32.
    """
    out = np.full(1, np.inf, dtype=np.float32)
    for weight in weights:
        out = np.concatenate((out, np.minimum(out, np.float32(weight))))
    return out


def pair_sums(weights: Sequence[Sequence[float]]) -> Floats:
    """Return for each subset (bit mask) the sum of the weights of all pairs of its members: shape (2**g,), float32.

    ``weights`` is a symmetric matrix.
    """
    out = np.zeros(1, dtype=np.float32)
    for position, row in enumerate(weights):
        out = np.concatenate((out, out + sums(row[:position])))
    return out


def unions(masks: Sequence[int]) -> Ints:
    """Return for each subset (bit mask) the union of its members' masks: shape (2**g,), int64.

    ``masks`` has one mask for each position.
    """
    out = np.zeros(1 << len(masks), dtype=np.int64)
    for position, mask in enumerate(masks):
        half = 1 << position
        np.bitwise_or(out[:half], mask, out=out[half : 2 * half])
    return out


def neighbours(adjacent: Bools) -> Ints:
    """Return for each position the bit mask of its neighbours, int64.

    ``adjacent`` says which positions are neighbours: a boolean matrix. Further axes before its last two are kept.
    """
    without_self = adjacent & ~np.eye(adjacent.shape[-1], dtype=np.bool_)
    out: Ints = (without_self * bits(adjacent.shape[-1])).sum(axis=-1)
    return out


def cliques(adjacent: Bools) -> Bools:
    """Return whether all members of each subset (bit mask) are neighbours of each other: (2**g,), bool.

    ``adjacent`` says which of g positions are neighbours: (g, g).
    """
    out = np.ones(1, dtype=np.bool_)
    for position, near in enumerate(neighbours(adjacent).tolist()):
        masks = np.arange(1 << position)
        out = np.concatenate((out, out & (masks & ~near == 0)))
    return out


def part_of_lowest(adjacent: Bools, masks: Ints | None = None) -> Ints:
    """Return for each subset the members that its lowest member reaches inside it.

    Subsets and results are bit masks. The subset is connected if the result is the whole subset.

    Args:
        adjacent: (g, g), which positions are neighbours.
        masks: The bit masks of the subsets; None for all subsets, (2**g,).
    """
    g = adjacent.shape[0]
    if masks is None:
        masks = np.arange(1 << g, dtype=np.int64)
    near = unions(neighbours(adjacent).tolist())
    part: Ints = np.bitwise_and(masks, -masks)
    while True:
        grown: Ints = np.bitwise_or(part, np.bitwise_and(near[part], masks))
        if np.array_equal(grown, part):
            return part
        part = grown


def components(adjacent: Bools) -> tuple[int, ...]:
    """Return the groups of connected positions as bit masks, sorted by lowest position.

    ``adjacent`` is (g, g), which positions are neighbours.
    """
    near, rest, parts = neighbours(adjacent).tolist(), (1 << adjacent.shape[0]) - 1, []
    while rest:
        part, grown = 0, rest & -rest
        while grown:
            part |= grown
            beside = [of for position, of in enumerate(near) if grown >> position & 1]
            grown = reduce(or_, beside) & ~part
        parts.append(part)
        rest &= ~part
    return tuple(parts)


def hamiltonian(adjacent: Bools) -> tuple[Bools, Bools]:
    """Return which subsets have a cycle, and which an open path, through all members.

    Each member is visited once; each step goes to a neighbour. Paths are extended by one member at a time, for all
    subsets and end points (Held and Karp 1962), and for several graphs at once.

    Args:
        adjacent: Which positions are neighbours in each of r graphs: (r, g, g), symmetric.

    Returns:
        Two arrays of shape (r, 2**g), bool, with one entry for each bit mask: whether a cycle exists, and whether a
            path exists. Two members have a cycle if they are neighbours; one or no member has one.
    """
    r, g, _ = adjacent.shape
    cycles, paths = np.empty((2, r, 1 << g), dtype=np.bool_)
    near = adjacent | np.eye(g, dtype=np.bool_)
    whole = (near == (near @ near)).all(axis=(1, 2))  # nothing but parts in which all are neighbours
    for graph in np.flatnonzero(whole):
        cycles[graph] = paths[graph] = cliques(adjacent[graph])
    others = np.flatnonzero(~whole)
    for start in range(0, len(others), _GRAPHS):
        some = others[start : start + _GRAPHS]
        cycles[some], paths[some] = _hamiltonian(adjacent[some])
    return cycles, paths


def _hamiltonian(adjacent: Bools) -> tuple[Bools, Bools]:
    """Return which subsets have a cycle, and which an open path, through all members.

    Both are (r, 2**g), bool, for r graphs of g vertices. ``adjacent`` says which vertices are neighbours: (r, g, g).
    Paths are extended by one member at a time, for all subsets.
    """
    r, g, _ = adjacent.shape
    # Half the memory of int32, which is what these gathers are bound by; masks of 16 positions just fit.
    single = bits(g).astype(np.uint16)
    near = np.tile(neighbours(adjacent).T, 2).astype(np.uint16)
    everything = np.arange(1 << g)
    count = np.bitwise_count(everything)
    member = (everything[:, None] & bits(g)) != 0
    # Per graph the positions that a path through exactly these members can end at: started anywhere, and at the lowest.
    ends = np.zeros((1 << g, 2 * r), dtype=np.uint16)
    ends[single] = single[:, None]
    cycles = np.ones((1 << g, r), dtype=np.bool_)

    # From small sets to large ones: a path can end at a member if a path through the others ends at a neighbour of it.
    for size in range(2, g + 1):
        masks = everything[count == size]
        last = member[masks].nonzero()[1].reshape(-1, size).T
        bit = single[last]
        ends_here = np.bitwise_or.reduce(np.where(ends[masks ^ bit] & near[last], bit[..., None], np.uint16(0)), axis=0)
        ends_here[:, r:] &= ~bit[0, :, None]  # the lowest is where the path began
        ends[masks] = ends_here
        cycles[masks] = (ends_here[:, r:] & near[last[0], r:]) != 0
    paths = ends[:, :r] != 0
    paths[0] = True
    return cycles.T, paths.T


def min_cuts(inside: Counts, wanted: Ints) -> Counts:
    """Return the fewest links that must be cut to divide each set in two parts.

    A set is a bit mask. Every way to divide the members is tried, with the lowest member always in the same part: 2**(n
    - 1) ways for n members. A full graph of 16 GPUs with all its subsets costs 21 million steps, in blocks of a few MB.

    Args:
        inside: (r, 2**g), int16, for each of r graphs the links within each mask.
        wanted: The masks.

    Returns:
        (r, wanted), int16; 0 for a mask whose members are not connected.
    """
    fewest = np.zeros((len(inside), len(wanted)), dtype=np.int16)
    count = np.bitwise_count(wanted)
    single = bits((inside.shape[1] - 1).bit_length())
    for size in range(2, len(single) + 1):
        of_size = np.flatnonzero(count == size)
        if not of_size.size:
            continue

        # A row for each way: which members but the lowest are on the other side.
        sides = np.arange(1, 1 << (size - 1))[:, None] >> np.arange(size - 1) & 1
        step = max(1, _BLOCK >> (size - 1))
        for start in range(0, len(of_size), step):
            block = of_size[start : start + step]
            masks = wanted[block]

            # The members of each mask as masks of one position, the lowest first.
            members = single[np.nonzero(masks[:, None] & single)[1].reshape(-1, size)]
            # A cut takes the links that are in neither side. (masks, ways): the mask of the other side.
            other_side = members[:, 1:] @ sides.T
            most_kept = (inside[:, other_side] + inside[:, masks[:, None] ^ other_side]).max(axis=2)
            fewest[:, block] = inside[:, masks] - most_kept
    return fewest


def best_inside(values: Floats) -> Floats:
    """Return for each bit mask the largest value of any of its subsets, itself included.

    ``values`` and the result are (..., 2**g), float32.
    """
    out = values.copy()
    lead, size = out.shape[:-1], out.shape[-1]
    for position in range(size.bit_length() - 1):
        halves = out.reshape(*lead, -1, 2, 1 << position)
        np.maximum(halves[..., 1, :], halves[..., 0, :], out=halves[..., 1, :])
    return out


def packed(values: Floats, g: int, k: int) -> Floats:
    """Return for each bit mask the largest total value of disjoint subsets of ``k`` members.

    The subsets lie inside the mask. ``values`` has the value of each subset. ``values`` and the result are (2**g,),
    float32.
    """
    out = np.zeros(1 << g, dtype=np.float32)
    with_all, with_none = (slice(None), 1) * (k - 1), (slice(None), 0) * (k - 1)
    for top in range(g):
        low, block = out[: 1 << top], out[1 << top : 2 << top]
        block[:] = low
        for axes, mask in _axes(top, k):
            whole = block.reshape(axes)[with_all]
            np.maximum(whole, low.reshape(axes)[with_none] + values[mask], out=whole)
    return out


@lru_cache(maxsize=64)
def _axes(top: int, k: int) -> list[tuple[tuple[int, ...], int]]:
    """Return how ``packed`` must view its table for each set that it adds.

    The sets have ``k`` positions, of which ``top`` is the highest. Each entry is a shape and the set's bit mask. The
    table is over masks of the positions below ``top``. In the shape, each position of the set below ``top`` has an axis
    of length two: the second axis, the fourth, and so on. So index 1 or 0 on these axes selects all masks with or
    without the position.
    """
    out = []
    for others in itertools.combinations(range(top), k - 1):
        apart = [1 << after - before - 1 for before, after in itertools.pairwise((-1, *others, top))]
        axes = [length for low in reversed(apart) for length in (low, 2)][:-1]
        out.append((tuple(axes), sum(1 << other for other in others) | 1 << top))
    return out
