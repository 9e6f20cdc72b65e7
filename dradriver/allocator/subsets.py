"""Facts about all subsets of a few positions at once, as numpy arrays over bit masks.

Bit ``i`` of a mask stands for position ``i``; every array has one entry for each of the ``2**g`` masks. Whoever
calls these keeps ``g`` at 16 or less. Nothing here knows what a GPU is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Bools: TypeAlias = NDArray[np.bool_]


def bits(g: int) -> Ints:
    """The one-position masks: shape (g,), int64."""
    return 1 << np.arange(g, dtype=np.int64)


def members(g: int, k: int) -> Ints:
    """All masks of ``k`` of ``g`` positions, ordered as ascending position lists: shape (C(g, k),), int64."""
    sets = list(itertools.combinations(range(g), k))
    if k == 0:
        return np.zeros(1, dtype=np.int64)
    out: Ints = (1 << np.array(sets, dtype=np.int64).reshape(-1, k)).sum(axis=1)
    return out


def sums(weights: Sequence[float]) -> Floats:
    """Sum of the members' weights: shape (2**g,), float32."""
    out = np.zeros(1, dtype=np.float32)
    for weight in weights:
        out = np.concatenate((out, out + np.float32(weight)))
    return out


def maxima(weights: Sequence[float]) -> Floats:
    """Largest of the members' weights, 0 for the empty mask: shape (2**g,), float32; weights are not negative."""
    out = np.zeros(1, dtype=np.float32)
    for weight in weights:
        out = np.concatenate((out, np.maximum(out, np.float32(weight))))
    return out


def minima(weights: Sequence[float]) -> Floats:
    """Smallest of the members' weights, infinite for the empty mask: shape (2**g,), float32."""
    out = np.full(1, np.inf, dtype=np.float32)
    for weight in weights:
        out = np.concatenate((out, np.minimum(out, np.float32(weight))))
    return out


def unions(masks: Sequence[int]) -> Ints:
    """Union of the members' masks: shape (2**g,), int64."""
    out = np.zeros(1, dtype=np.int64)
    for mask in masks:
        out = np.concatenate((out, out | mask))
    return out


def neighbours(adjacent: Bools) -> Ints:
    """For each position the mask of its neighbours: shape as ``adjacent`` less its last axis, int64."""
    without_self = adjacent & ~np.eye(adjacent.shape[-1], dtype=np.bool_)
    out: Ints = (without_self * bits(adjacent.shape[-1])).sum(axis=-1)
    return out


def cliques(adjacent: Bools) -> Bools:
    """Masks whose members are all neighbours of each other: ``adjacent`` is (g, g); shape (2**g,)."""
    out = np.ones(1, dtype=np.bool_)
    for position, near in enumerate(neighbours(adjacent).tolist()):
        masks = np.arange(1 << position)
        out = np.concatenate((out, out & (masks & ~near == 0)))
    return out


def part_of_lowest(adjacent: Bools) -> Ints:
    """The members that each mask's lowest one reaches through members: ``adjacent`` (g, g); result (2**g,), int64."""
    g = adjacent.shape[0]
    masks: Ints = np.arange(1 << g, dtype=np.int64)
    near = unions(neighbours(adjacent).tolist())
    part: Ints = np.bitwise_and(masks, -masks)
    for _ in range(g - 1):
        part = np.bitwise_or(part, np.bitwise_and(near[part], masks))
    return part


def hamiltonian(adjacent: Bools) -> tuple[Bools, Bools]:
    """Masks that a cycle, and masks that a path, visits once each, step by step between neighbours.

    Held and Karp's recursion (1962) over end points, for several graphs at once.

    Args:
        adjacent: Shape (r, g, g), symmetric.

    Returns:
        Two arrays of shape (r, 2**g): a cycle exists (for two members: they are neighbours; for one or none: True),
        a path exists.
    """
    r, g, _ = adjacent.shape
    one = bits(g)
    near = neighbours(adjacent)
    popcount = np.bitwise_count(np.arange(1 << g))
    # Mask of the positions a path through exactly these members can end at: first started anywhere, then at the lowest.
    ends = np.zeros((2, r, 1 << g), dtype=np.int64)
    ends[:, :, one] = one
    cycles = np.ones((r, 1 << g), dtype=np.bool_)
    for size in range(2, g + 1):
        masks = np.flatnonzero(popcount == size)
        rest = masks[:, None] ^ one
        member = (masks[:, None] & one) != 0
        lowest = masks & -masks
        reached = (ends[:, :, np.where(member, rest, 0)] & near[None, :, None, :]) != 0
        reached[1] &= one != lowest[:, None]
        ends[:, :, masks] = (reached * one).sum(axis=-1)
        first_near = near[:, np.bitwise_count(lowest - 1)]
        cycles[:, masks] = (ends[1][:, masks] & first_near) != 0
    paths = ends[0] != 0
    paths[:, 0] = True
    return cycles, paths


def min_cuts(links: Sequence[Sequence[int]]) -> Ints:
    """Fewest links that part the members into two, 0 where nothing joins them: shape (2**g,), int64."""
    g = len(links)
    out = np.zeros(1 << g, dtype=np.int64)
    part = part_of_lowest(np.array(links, dtype=np.int64).reshape(g, g) > 0)
    rest = (1 << g) - 1
    while rest:
        island = int(part[rest])
        places = [place for place in range(g) if island >> place & 1]
        masks = unions([1 << place for place in places])
        out[masks] = _cuts_of_island([[links[a][b] for b in places] for a in places])
        rest ^= island
    return out


def _cuts_of_island(links: Sequence[Sequence[int]]) -> NDArray[np.int16]:
    """Every position is outside, on one side or on the other: 3**g states, reduced axis by axis."""
    g = len(links)
    cut = np.zeros(1, dtype=np.int16)
    sides = np.zeros(1, dtype=np.int8)
    for position in range(g):
        left = np.zeros(1, dtype=np.int16)
        right = np.zeros(1, dtype=np.int16)
        for other in range(position):
            count = np.int16(links[position][other])
            left = np.concatenate((left, left + count, left))
            right = np.concatenate((right, right, right + count))
        cut = np.concatenate((cut, cut + right, cut + left))
        sides = np.concatenate((sides, sides | 1, sides | 2))
    large = np.int16(np.iinfo(np.int16).max)
    cut[sides != 3] = large
    states = cut.reshape((3,) * g)
    for axis in range(g):
        outside, first, second = (states.take(state, axis=axis) for state in range(3))
        states = np.stack((outside, np.minimum(first, second)), axis=axis)
    out = states.reshape(-1)
    out[out == large] = 0
    return out


def best_inside(values: Floats) -> Floats:
    """Largest value of any subset of each mask (a zeta transform over maximum): both (..., 2**g), float32."""
    out = values.copy()
    lead, size = out.shape[:-1], out.shape[-1]
    for position in range(size.bit_length() - 1):
        halves = out.reshape(*lead, -1, 2, 1 << position)
        np.maximum(halves[..., 1, :], halves[..., 0, :], out=halves[..., 1, :])
    return out


def packed(values: Floats, g: int, k: int) -> Floats:
    """Largest total value of disjoint ``k``-subsets inside each mask: ``values`` and result (2**g,), float32."""
    out = np.zeros(1 << g, dtype=np.float32)
    for top in range(g):
        low = 1 << top
        block = out[low : 2 * low]
        block[:] = out[:low]
        inner = np.arange(low)
        for others in members(top, k - 1).tolist():
            rest = inner[inner & others == 0]
            whole = rest | others
            block[whole] = np.maximum(block[whole], out[rest] + values[others | low])
    return out
