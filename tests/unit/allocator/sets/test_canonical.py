"""Machines that are alike share what is costly, however their GPUs are numbered."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from dradriver.allocator.choice.machine_choice import choose
from dradriver.allocator.request import Whole
from dradriver.allocator.sets import busbw, facts
from dradriver.allocator.sets.canonical import canonical
from dradriver.allocator.sets.criteria import Criteria
from dradriver.allocator.sets.shape import shape_of
from dradriver.allocator.sets.tables import Tables, tables_of
from dradriver.topology.machine import Machine, PathType
from tests.fakes import machines

BUILDS = [machines.dgx1, machines.bridge_pairs, machines.pcie_box, machines.dgx_h100, machines.double_cube]


@pytest.mark.parametrize("build", [*BUILDS, machines.direct_mesh])
def test_every_numbering_has_one_canonical_shape(build: Callable[[], Machine]) -> None:
    rng = random.Random(2)
    shape = shape_of(build())
    general, order = canonical(shape)
    assert shape.renumbered(order) == general
    for _ in range(20):
        turned = shape.renumbered(rng.sample(range(shape.size), shape.size))
        assert canonical(turned)[0] == general


def test_random_graphs_have_one_canonical_shape() -> None:
    rng = random.Random(3)
    for number in range(60):
        count = rng.randint(2, 10)
        links = {(a, b): rng.choice((0, 0, 1, 2)) for b in range(count) for a in range(b)}
        paths = machines.nested(([rng.randint(0, 1) for _ in range(count)],), (PathType.PHB,), across=PathType.SYS)
        shape = shape_of(machines.build(f"random-{number}", paths=paths, links=links))
        turned = shape.renumbered(rng.sample(range(count), count))
        assert canonical(turned)[0] == canonical(shape)[0]


def test_different_machines_stay_different() -> None:
    assert len({canonical(shape_of(build()))[0] for build in (*BUILDS, machines.direct_mesh)}) == 6


def test_a_second_numbering_computes_no_facts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = shape_of(machines.dgx1())
    Tables(shape)
    monkeypatch.setattr(busbw, "predict", None)  # it would fail
    turned = shape.renumbered((5, 1, 0, 7, 2, 6, 3, 4))
    assert facts.facts_of(canonical(turned)[0]) is facts.facts_of(canonical(shape)[0])
    Tables(turned)


@pytest.mark.parametrize("build", BUILDS[:4])
def test_a_choice_is_worth_the_same_in_every_numbering(build: Callable[[], Machine]) -> None:
    rng = random.Random(5)
    machine = build()
    for _ in range(12):
        order = rng.sample(range(8), 8)
        turned = machines.renumbered(machine, order)
        free = rng.sample(range(8), rng.randint(2, 8))
        gpus = rng.randint(2, len(free))
        first = choose(machine, free, Whole(containers=(gpus,)))
        second = choose(turned, [order.index(gpu) for gpu in free], Whole(containers=(gpus,)))
        assert (first.busbw_gbps, first.level, first.score) == (second.busbw_gbps, second.level, second.score)


def test_rows_are_bounded_however_many_criteria_are_asked_about() -> None:
    tables = Tables(shape_of(machines.bridge_pairs(12)))
    for mask in range(1500):
        tables.best(4, Criteria(include=mask))
    entries = sum(row.size for row in tables._rows.values())
    assert entries == tables._entries <= 1 << 22
    every = [tables.best(2, Criteria(min_bandwidth_gbps=gbps)) for gbps in (11.0, 11.5, 12.0)]
    assert every[0] is every[1] is not every[2] or np.array_equal(every[0], every[1])
    assert tables_of(machines.bridge_pairs(12)).best(2) is tables_of(machines.bridge_pairs(12)).best(2)
