"""Rings that fit at once, against every way to choose them."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.allocator.sets import ring_packing
from dradriver.allocator.sets.shape import shape_of
from dradriver.allocator.sets.tables import Tables
from dradriver.topology.machine import PathType
from tests.effort import examples
from tests.fakes import machines

Thirds = Mapping[tuple[int, int], int]
MANY = 31


def rings(channels: list[list[int]], thirds: Thirds) -> list[Counter[tuple[int, int]]]:
    """How often each directed ring goes which way."""
    found = []
    for order in itertools.permutations(range(1, len(channels))):
        used: Counter[tuple[int, int]] = Counter()
        for a, b in itertools.pairwise((0, *order, 0)):
            third = thirds.get((a, b))
            used.update([(a, b)] if third is None else [(a, third), (third, b)])
        if all(channels[a][b] >= times for (a, b), times in used.items()):
            found.append(used)
    return found


def most(channels: list[list[int]], thirds: Thirds) -> int:
    """The same question, answered by trying everything."""
    best = 0
    for ring in rings(channels, thirds):
        left = [[count - ring[a, b] for b, count in enumerate(row)] for a, row in enumerate(channels)]
        best = max(best, 1 + most(left, thirds))
    return best


@st.composite
def links(draw: st.DrawFn) -> tuple[list[list[int]], dict[tuple[int, int], int]]:
    """Few GPUs with some links, and a third GPU for some pairs without."""
    count = draw(st.integers(3, 4))
    channels = [[0] * count for _ in range(count)]
    for a, b in itertools.combinations(range(count), 2):
        channels[a][b] = channels[b][a] = draw(st.integers(0, 2))
    thirds = {
        (a, b): draw(st.sampled_from([third for third in range(count) if third not in (a, b)]))
        for a, b in itertools.permutations(range(count), 2)
        if not channels[a][b] and draw(st.booleans())
    }
    return channels, thirds


@settings(max_examples=examples(60), deadline=None)
@given(links())
def test_as_many_rings_are_found_as_there_are(graph: tuple[list[list[int]], dict[tuple[int, int], int]]) -> None:
    channels, thirds = graph
    true = most(channels, thirds)
    assert ring_packing.most(channels, MANY, thirds) == true
    assert ring_packing.most(channels, 1, thirds) == min(true, 1)


def test_rings_get_in_each_others_way_where_every_gpu_has_links_enough() -> None:
    # Three links at each GPU, in two triangles that are joined corner by corner.
    prism = {(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (0, 3), (1, 4), (2, 5)}
    channels = [[int((a, b) in prism or (b, a) in prism) for b in range(6)] for a in range(6)]
    assert ring_packing.most(channels, 3, {}) == most(channels, {}) == 2


@pytest.mark.parametrize("limit", ["_MAX_RINGS", "_MAX_STEPS"])
def test_what_bounds_allow_is_given_back_where_a_search_for_fewer_takes_too_long(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = [[int(a != b) for b in range(4)] for a in range(4)]
    assert ring_packing.most(channels, 3, {}) == 2
    monkeypatch.setattr(ring_packing, limit, 1)
    assert ring_packing.most(channels, 3, {}) == 3


def test_complete_graphs_of_four_and_six_are_no_sum_of_rings_and_those_of_five_and_seven_are() -> None:
    # Tillson (1980), of directed rings
    found = {n: ring_packing.most([[int(a != b) for b in range(n)] for a in range(n)], n - 1, {}) for n in (3, 4, 5)}
    assert found == {3: 2, 4: 2, 5: 4}


@pytest.mark.parametrize("order", [range(5), (4, 2, 0, 3, 1)])
def test_a_pair_without_links_always_takes_the_same_third_gpu(order: tuple[int, ...]) -> None:
    # Two GPUs are each linked to three others, which are not linked: a ring must go twice through one of the two, for
    # two rings its links do not suffice, and NCCL takes three half as fast (as on a P100 with such a part).
    machine = machines.build(
        "two-and-three",
        paths=machines.nested((range(5),), (PathType.SELF,), across=PathType.PHB),
        links={(a, b): 1 for a in (0, 1) for b in (2, 3, 4)},
        link_gbps=18.0,
        capability="6.0",
    )
    tables = Tables(shape_of(machines.renumbered(machine, order)))
    assert tables.busbw[0b11111] == pytest.approx(0.92 * 3 * 18 * 4 / 5)  # trees of 18, as many as the rings of 9


@pytest.mark.parametrize("seed", [8, 14, 40, 52])
def test_five_hoppers_have_the_rings_that_there_are(seed: int) -> None:
    rng = random.Random(seed)
    links = {(a, b): rng.choice((0, 1, 1, 2)) for b in range(5) for a in range(b)}
    machine = machines.build(
        "five",
        paths=machines.nested((range(5),), (PathType.SELF,), across=PathType.PHB),
        links=links,
        link_gbps=20.6,  # a link fits 20 GB/s once
        capability="9.0",
    )
    channels = [list(row) for row in machine.links]
    assert Tables(shape_of(machine)).busbw[-1] == 20.0 * most(channels, {})
