"""Rings, rank orders and splits."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from dradriver.allocator.sets import rank_order
from dradriver.allocator.sets.masks import positions_of
from dradriver.allocator.sets.tables import Tables, tables_of
from dradriver.topology.machine import Machine
from tests.fakes import machines


def worth(tables: Tables, ring: tuple[int, ...]) -> tuple[int, float]:
    steps = list(zip(ring, (*ring[1:], ring[0]), strict=True))
    return -max(int(tables.step_rank[step]) for step in steps), sum(float(tables.step_gbps[step]) for step in steps)


@pytest.mark.parametrize("build", [machines.dgx1, machines.bridge_pairs, machines.pcie_box])
def test_the_ring_of_every_set_of_up_to_five_is_the_best_there_is(build: Callable[[], Machine]) -> None:
    tables = tables_of(build())
    for mask in range(1, 256):
        if not 3 <= mask.bit_count() <= 5:
            continue
        ring = rank_order.best_ring(tables, mask)
        first, *others = positions_of(mask)
        every = [(first, *order) for order in itertools.permutations(others)]
        best = max(worth(tables, order) for order in every)
        assert ring == min(order for order in every if worth(tables, order) == best)


def test_the_ring_of_a_whole_dgx1_uses_double_links_only() -> None:
    assert rank_order.best_ring(tables_of(machines.dgx1()), 255) == (0, 3, 2, 1, 5, 6, 7, 4)


@pytest.mark.parametrize(("mask", "ring"), [(0b100, (2,)), (0b10100, (2, 4))])
def test_rings_of_one_and_two(mask: int, ring: tuple[int, ...]) -> None:
    assert rank_order.best_ring(tables_of(machines.dgx1()), mask) == ring


def test_a_ring_through_twelve_gpus_alternates_bridges() -> None:
    ring = rank_order.best_ring(tables_of(machines.bridge_pairs(12)), 0xFFF)
    assert sorted(ring) == list(range(12))
    assert all({ring[at], ring[at + 1]} == {2 * (ring[at] // 2), 2 * (ring[at] // 2) + 1} for at in range(0, 12, 2))


def test_ranks_put_double_links_into_pairs_and_quads_into_fours() -> None:
    tables = tables_of(machines.dgx1())
    order = rank_order.rank_order(tables, 255)
    assert sorted(order) == list(range(8))
    assert {frozenset(order[:4]), frozenset(order[4:])} == {frozenset(range(4)), frozenset(range(4, 8))}
    assert all(tables.step_gbps[order[at], order[at + 1]] == 50 for at in range(0, 8, 2))


def test_ranks_keep_pci_order_where_it_is_as_good() -> None:
    assert rank_order.rank_order(tables_of(machines.dgx_h100()), 255) == tuple(range(8))
    assert rank_order.rank_order(tables_of(machines.bridge_pairs(12)), 0xFFF) == tuple(range(12))


@pytest.mark.parametrize("mask", [0b111, 0b10111, 0b110111, 0b1110111])
def test_a_tail_comes_after_the_blocks(mask: int) -> None:
    tables = tables_of(machines.bridge_pairs())
    order = rank_order.rank_order(tables, mask)
    assert sorted(order) == list(positions_of(mask))
    assert order[0] // 2 == order[1] // 2
    assert len(order) < 5 or order[2] // 2 == order[3] // 2 or mask == 0b10111


def test_every_container_gets_a_good_part() -> None:
    tables = tables_of(machines.dgx1())
    quads = rank_order.split(tables, 255, (4, 4))
    assert set(quads) == {0b1111, 0b11110000}
    pairs = rank_order.split(tables, 255, (2, 2, 2, 2))
    assert all(tables.busbw[pair] == pytest.approx(40) for pair in pairs)
    assert rank_order.split(tables, 255, (8,)) == (255,)


@pytest.mark.parametrize("counts", [(1, 2, 1), (1, 1, 1, 1, 1, 1, 1, 1), (3, 5), (2, 1, 2, 1, 2), (1, 3, 3, 1)])
def test_parts_have_the_containers_sizes_and_make_up_the_set(counts: tuple[int, ...]) -> None:
    mask = (1 << sum(counts)) - 1
    parts = rank_order.split(tables_of(machines.dgx1()), mask, counts)
    assert tuple(part.bit_count() for part in parts) == counts
    assert sum(parts) == mask


def test_twelve_gpus_are_split_along_bridges() -> None:
    tables = tables_of(machines.bridge_pairs(12))
    parts = rank_order.split(tables, 0xFFF, (2, 4, 4, 2))
    assert tuple(part.bit_count() for part in parts) == (2, 4, 4, 2)
    assert sum(parts) == 0xFFF
    assert tables.busbw[parts[0]] == pytest.approx(240)
    assert tables.busbw[parts[3]] == pytest.approx(240)
