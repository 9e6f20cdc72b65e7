"""Finds the best closed tour over some stops, such as the GPUs of a set. ``rank_order`` calls it.

The only thing it knows of the stops is the gain of each step between two of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dradriver.allocator.sets import subsets
from dradriver.allocator.sets.subsets import Bools, Ints

Gains: TypeAlias = NDArray[np.float64]


def exact(gain: Gains) -> tuple[int, ...]:
    """Return the closed tour of some stops with the highest sum of gains.

    Among equal tours, return the lowest list of stops. The tour is computed from the best paths of all smaller sets of
    stops (Held and Karp 1962). ``gain`` has the gain of the step between two stops. A step with a gain of -inf is
    forbidden. There are at least two stops, and at most 16: the time doubles with each.
    """
    n = len(gain)
    gain = gain.copy()
    np.fill_diagonal(gain, -np.inf)
    # remaining[visited, gpu]: the highest sum of the steps from a GPU over all unvisited ones back to the start.
    remaining = np.full((1 << n, n), -np.inf)
    remaining[-1] = gain[:, 0]
    for masks, onward, is_dead_end in _stages(n):
        after = remaining.ravel()[onward]
        after[is_dead_end] = -np.inf
        remaining[masks] = (gain[None, :, :] + after[:, None, :]).max(axis=2)

    # Forward from the start: at each GPU the step that gains most together with the best steps that can follow it.
    tour, seen, current = [0], 1, 0
    while len(tour) < n:
        worth = gain[current] + remaining[[seen | 1 << gpu for gpu in range(n)], range(n)]
        worth[tour] = -np.inf
        current = int(worth.argmax())
        tour.append(current)
        seen |= 1 << current
    return tuple(tour)


@lru_cache(maxsize=16)
def _stages(n: int) -> list[tuple[Ints, Ints, Bools]]:
    """Return the index arrays by which ``exact`` computes the best tour of ``n`` stops.

    The best paths are computed from longer to shorter sets of visited stops. So the first stage has all stops but one
    visited, the last stage has one visited. A stage has three arrays for its ``m`` bit masks of visited stops; each
    mask contains stop 0:

    1. the masks: (m,)
    2. for each mask and next stop, where ``exact`` stores the result after that stop: an index into its table of shape
       (2**n, n), read as a flat list: (m, n)
    3. for each mask, which stops are visited already: (m, n)
    """
    visited = np.arange(1 << n)
    count = np.bitwise_count(visited)
    single = subsets.bits(n)
    stages = []
    for size in range(n - 1, 0, -1):
        masks = visited[(count == size) & (visited & 1 != 0)]
        stages.append((masks, (masks[:, None] | single) * n + np.arange(n), (masks[:, None] & single) != 0))
    return stages
