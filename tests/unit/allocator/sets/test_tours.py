"""Closed tours."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dradriver.allocator.sets import tours


def worth(tour: tuple[int, ...], gain: tours.Gains) -> float:
    return float(sum(gain[a, b] for a, b in zip(tour, (*tour[1:], tour[0]), strict=True)))


def gains(count: int, *, seed: int) -> tours.Gains:
    """Places in a plane, far ones worth less."""
    places = np.random.default_rng(seed).random((count, 2))
    out: tours.Gains = -np.linalg.norm(places[:, None] - places[None, :], axis=2)
    return out


@pytest.mark.parametrize("seed", range(4))
def test_few_places_get_the_best_tour_there_is(seed: int) -> None:
    gain = gains(7, seed=seed)
    every = [(0, *others) for others in itertools.permutations(range(1, 7))]
    assert worth(tours.exact(gain), gain) == pytest.approx(max(worth(tour, gain) for tour in every))


def test_groups_are_left_once() -> None:
    group = np.arange(12) % 3
    gain = np.where(group[:, None] == group[None, :], 2.0, 1.0)
    tour = tours.exact(gain)
    changes = sum(group[a] != group[b] for a, b in zip(tour, (*tour[1:], tour[0]), strict=True))
    assert changes == 3
