"""The best closed tour over stops of which only the worth of each step is known: GPUs of a set, nodes of a gang."""

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
    """Return the closed tour whose steps are worth most, from stop 0: exact up to 16 stops, greedy and 2-opt beyond.

    Args:
        gain: Shape (n, n), symmetric, worth of each step, finite; the diagonal does not count.
    """
    if len(gain) < 4:
        return tuple(range(len(gain)))
    return exact(gain) if len(gain) <= _EXACT else improved(gain)


def exact(gain: Gains) -> tuple[int, ...]:
    """Return the closed tour with the highest sum of gains; of equal ones the lowest.

    The algorithm is that of Held and Karp (1962). The lowest of equal tours is the first in the order of lists.

    A step that is worth -inf is forbidden.
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
    """Return a good closed tour of many stops: the best of a few greedy ones, improved by 2-opt."""
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
    """The stages of Held and Karp's recursion over ``n`` stops, from all but one visited to one visited.

    Per number of visited stops: masks with stop 0 (m,); where in the flat table (2**n, n) the value of going on
    to each stop stands (m, n); which stops are visited already (m, n).
    """
    visited = np.arange(1 << n)
    count = np.bitwise_count(visited)
    single = subsets.bits(n)
    stages = []
    for size in range(n - 1, 0, -1):
        masks = visited[(count == size) & (visited & 1 != 0)]
        stages.append((masks, (masks[:, None] | single) * n + np.arange(n), (masks[:, None] & single) != 0))
    return stages
