"""Finds out which of many graphs have a ring through all their vertices.

A graph has up to eight vertices, such as GPUs. ``reach`` calls this module.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dradriver.allocator.sets.subsets import Bools, Ints

MOST = 8  # members: 28 pairs, 2,520 rings
_Graphs: TypeAlias = NDArray[np.uint32]  # bit i stands for the i-th pair


@lru_cache(maxsize=MOST)
def pairs(k: int) -> tuple[Ints, Ints]:
    """Return all pairs of ``k`` vertices, as two arrays with the first and the second vertex.

    ``have_ring`` reads a graph as one entry for each pair, in this order.
    """
    return np.triu_indices(k, 1)


def have_ring(adjacent: Bools, k: int) -> Bools:
    """Return whether each graph of ``k`` vertices has a cycle through all of them: (...), bool.

    ``adjacent`` says which vertices are neighbours: (..., pairs), in the order of ``pairs``. A vertex is, for example,
    a GPU. Two vertices have a cycle if they are neighbours.
    """
    bits = np.uint32(1) << np.arange(adjacent.shape[-1], dtype=np.uint32)
    missing = (~adjacent * bits).sum(axis=-1, dtype=np.uint32)
    out: Bools = (_rings(k) & missing[..., None] == 0).any(axis=-1)
    return out


@lru_cache(maxsize=MOST)
def _rings(k: int) -> _Graphs:
    """Return all possible rings through all of ``k`` vertices, in one direction each.

    A ring is a bit mask of its edges; the bits are in the order of ``pairs``.
    """
    number = {pair: bit for bit, pair in enumerate(itertools.combinations(range(k), 2))}
    out = []
    for order in itertools.permutations(range(1, k)):
        if order[0] <= order[-1]:
            steps = itertools.pairwise((0, *order, 0))
            out.append(sum(1 << bit for bit in {number[min(a, b), max(a, b)] for a, b in steps}))
    return np.array(out, dtype=np.uint32)
