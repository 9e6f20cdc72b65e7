"""Facts about all subsets of a few positions at once, as numpy arrays over bit masks.

Bit ``i`` of a mask stands for position ``i``; every array has one entry for each of the ``2**g`` masks. Whoever
calls these keeps ``g`` at 16 or less. Nothing here knows what a GPU is.
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
    """Return the masks of single positions, to build subsets: shape (g,), int64."""
    return 1 << np.arange(g, dtype=np.int64)


def members(g: int, k: int) -> Ints:
    """Return all subsets of ``k`` of ``g`` positions as masks, ordered as ascending lists: shape (C(g, k),), int64."""
    sets = list(itertools.combinations(range(g), k))
    if k == 0:
        return np.zeros(1, dtype=np.int64)
    out: Ints = (1 << np.array(sets, dtype=np.int64).reshape(-1, k)).sum(axis=1)
    return out


def sums(weights: Sequence[float]) -> Floats:
    """Return for each subset the sum of its members' weights: shape (2**g,), float32."""
    out = np.zeros(1 << len(weights), dtype=np.float32)
    for position, weight in enumerate(weights):
        half = 1 << position
        np.add(out[:half], np.float32(weight), out=out[half : 2 * half])
    return out


def maxima(weights: Sequence[float]) -> Floats:
    """Return for each subset its members' largest weight, 0 for the empty one: (2**g,), float32; none is negative."""
    out = np.zeros(1, dtype=np.float32)
    for weight in weights:
        out = np.concatenate((out, np.maximum(out, np.float32(weight))))
    return out


def minima(weights: Sequence[float]) -> Floats:
    """Return for each subset its members' smallest weight, infinite for the empty one: shape (2**g,), float32."""
    out = np.full(1, np.inf, dtype=np.float32)
    for weight in weights:
        out = np.concatenate((out, np.minimum(out, np.float32(weight))))
    return out


def pair_sums(weights: Sequence[Sequence[float]]) -> Floats:
    """Return for each subset the sum of a symmetric matrix over all pairs of its members: shape (2**g,), float32."""
    out = np.zeros(1, dtype=np.float32)
    for position, row in enumerate(weights):
        out = np.concatenate((out, out + sums(row[:position])))
    return out


def unions(masks: Sequence[int]) -> Ints:
    """Return for each subset the union of its members' masks: shape (2**g,), int64."""
    out = np.zeros(1 << len(masks), dtype=np.int64)
    for position, mask in enumerate(masks):
        half = 1 << position
        np.bitwise_or(out[:half], mask, out=out[half : 2 * half])
    return out


def neighbours(adjacent: Bools) -> Ints:
    """Return for each position the subset of its neighbours: shape of ``adjacent`` less its last axis, int64."""
    without_self = adjacent & ~np.eye(adjacent.shape[-1], dtype=np.bool_)
    out: Ints = (without_self * bits(adjacent.shape[-1])).sum(axis=-1)
    return out


def cliques(adjacent: Bools) -> Bools:
    """Return which subsets have only members that are all neighbours: ``adjacent`` is (g, g); shape (2**g,)."""
    out = np.ones(1, dtype=np.bool_)
    for position, near in enumerate(neighbours(adjacent).tolist()):
        masks = np.arange(1 << position)
        out = np.concatenate((out, out & (masks & ~near == 0)))
    return out


def part_of_lowest(adjacent: Bools, masks: Ints | None = None) -> Ints:
    """Return the part of each subset that its lowest member reaches inside it, as masks: ``adjacent`` is (g, g).

    Without ``masks`` all of them: (2**g,).
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
    """Return the largest connected subsets of positions as masks, by lowest position: ``adjacent`` is (g, g)."""
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
    """Return which subsets a cycle, and which a path, visits once each, step by step between neighbours.

    Held and Karp's recursion (1962) over end points, for several graphs at once.

    Args:
        adjacent: Shape (r, g, g), symmetric.

    Returns:
        Two arrays of shape (r, 2**g): a cycle exists (for two members: they are neighbours; for one or none: True),
        a path exists.
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
    """Return which subsets have a Hamiltonian cycle, and which an open path, for each graph.

    Both are (r, 2**g), bool, for r graphs of g vertices: dynamic programming over the subsets.
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
    """Return the fewest links whose cut divides each subset in two.

    Every way to part a mask is tried, with the lowest member always on one side: 2**(n - 1) ways for n members. A full
    graph of 16 GPUs with all its subsets costs 21 million steps, in blocks of a few MB.

    Args:
        inside: (r, 2**g), int16, for each of r graphs the links within each mask.
        wanted: The masks.

    Returns:
        (r, wanted), int16; 0 for a mask that is not connected.
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
    """Return for each mask the largest value of any subset of it: both (..., 2**g), float32."""
    out = values.copy()
    lead, size = out.shape[:-1], out.shape[-1]
    for position in range(size.bit_length() - 1):
        halves = out.reshape(*lead, -1, 2, 1 << position)
        np.maximum(halves[..., 1, :], halves[..., 0, :], out=halves[..., 1, :])
    return out


def packed(values: Floats, g: int, k: int) -> Floats:
    """Return for each mask the largest total value of disjoint ``k``-subsets inside it: both (2**g,), float32."""
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
    """How to shape a table of all masks below ``top``, and a mask, for each set of ``k`` positions up to ``top``.

    Each position below gets an axis of two, every second axis from the second on.
    """
    out = []
    for others in itertools.combinations(range(top), k - 1):
        apart = [1 << after - before - 1 for before, after in itertools.pairwise((-1, *others, top))]
        axes = [length for low in reversed(apart) for length in (low, 2)][:-1]
        out.append((tuple(axes), sum(1 << other for other in others) | 1 << top))
    return out
