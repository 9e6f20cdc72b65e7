"""Every ring through up to eight members at once, for graphs that differ from set to set.

A graph is a number here: bit ``i`` stands for the ``i``-th pair of vertices, in the order of ``np.triu_indices``.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dradriver.allocator.sets.subsets import Bools

MOST = 8  # members: 28 pairs, 2,520 rings
_Graphs: TypeAlias = NDArray[np.uint32]


def have_ring(adjacent: Bools) -> Bools:
    """Which of m graphs of k vertices have a ring through all of them: ``adjacent`` is (m, k, k); shape (m,), bool.

    Two vertices have one where they are neighbours.
    """
    k = adjacent.shape[-1]
    out: Bools = np.logical_or.reduce(_rings(k) & ~_graphs(adjacent)[:, None] == 0, axis=1)
    return out


def in_every_ring(adjacent: Bools) -> Bools:
    """Which steps no ring of its graph can do without: (m, k, k) as ``adjacent``, bool; none where there is no ring."""
    k = adjacent.shape[-1]
    rings = _rings(k)
    has = rings & ~_graphs(adjacent)[:, None] == 0
    common = np.bitwise_and.reduce(np.where(has, rings, ~np.uint32(0)), axis=1)
    common = np.where(has.any(axis=1), common, 0)
    out = np.zeros(adjacent.shape, dtype=np.bool_)
    a, b = np.triu_indices(k, 1)
    out[:, a, b] = out[:, b, a] = (common[:, None] >> np.arange(len(a)) & 1) != 0
    return out


def _graphs(adjacent: Bools) -> _Graphs:
    a, b = np.triu_indices(adjacent.shape[-1], 1)
    bits = np.uint32(1) << np.arange(len(a), dtype=np.uint32)
    out: _Graphs = np.bitwise_or.reduce(np.where(adjacent[:, a, b], bits, np.uint32(0)), axis=1)
    return out


@lru_cache(maxsize=MOST)
def _rings(k: int) -> _Graphs:
    """The rings, each in one direction."""
    number = {pair: bit for bit, pair in enumerate(itertools.combinations(range(k), 2))}
    out = []
    for order in itertools.permutations(range(1, k)):
        if order[0] <= order[-1]:
            steps = itertools.pairwise((0, *order, 0))
            out.append(sum(1 << bit for bit in {number[min(a, b), max(a, b)] for a, b in steps}))
    return np.array(out, dtype=np.uint32)
