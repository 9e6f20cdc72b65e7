"""Finds the best closed tour over some stops, such as the GPUs of a set. ``rank_order`` calls ``exact``.

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

_EXACT = 16
_STARTS = 8  # greedy tours to improve


def best(gain: Gains) -> tuple[int, ...]:
    """Return the closed tour with the highest sum of gains, starting at stop 0.

    The tour is exact up to 16 stops. For more stops, a greedy tour is improved by 2-opt: stretches of the tour are
    reversed as long as that helps.

    Args:
        gain: The gain of the step between two stops: (n, n), symmetric, finite; the diagonal does not count.
    """
    if len(gain) < 4:
        return tuple(range(len(gain)))
    return exact(gain) if len(gain) <= _EXACT else improved(gain)


def exact(gain: Gains) -> tuple[int, ...]:
    """Return the closed tour of some stops with the highest sum of gains.

    Among equal tours, return the lowest list of stops. The tour is computed from the best paths of all smaller sets of
    stops (Held and Karp 1962). ``gain`` has the gain of the step between two stops. A step with a gain of -inf is
    forbidden.
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


def improved(gain: Gains) -> tuple[int, ...]:
    """Return a good closed tour of many stops.

    A few greedy tours are improved, and the best one is returned. ``gain`` has the gain of the step between two stops.
    They are improved by 2-opt: stretches of the tour are reversed as long as that helps.
    """
    n = len(gain)
    tours = [_uncrossed(_greedy(gain, start), gain) for start in range(0, n, max(1, n // _STARTS))]
    tour = max(tours, key=lambda tour: _worth(tour, gain))
    return tuple(np.roll(tour, -int(np.flatnonzero(tour == 0)[0])).tolist())


def _greedy(gain: Gains, start: int) -> Ints:
    left = gain.copy()
    left[:, start] = -np.inf
    tour = [start]
    while len(tour) < len(gain):
        tour.append(int(left[tour[-1]].argmax()))
        left[:, tour[-1]] = -np.inf
    return np.array(tour)


def _uncrossed(tour: Ints, gain: Gains) -> Ints:
    n = len(tour)
    later = np.triu(np.ones((n, n), dtype=np.bool_), 1)
    for _ in range(4 * n):  # each round gains, so that this bound is for rounding errors only
        following = np.roll(tour, -1)
        step = gain[tour, following]
        turned = gain[np.ix_(tour, tour)] + gain[np.ix_(following, following)] - step[:, None] - step[None, :]
        turned[~later] = -np.inf
        at = int(turned.argmax())
        i, j = divmod(at, n)
        if turned[i, j] <= 1e-9:
            break
        tour = np.concatenate((tour[: i + 1], tour[i + 1 : j + 1][::-1], tour[j + 1 :]))
    return tour


def _worth(tour: Ints, gain: Gains) -> float:
    return float(gain[tour, np.roll(tour, -1)].sum())


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
