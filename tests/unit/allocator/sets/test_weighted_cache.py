"""What was computed goes when nobody has it any more, and is there once while somebody has."""

from __future__ import annotations

import gc
import io
import pickle
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from dradriver.allocator import Fleet, Mig, Offer, Whole
from dradriver.allocator.fleet import machine_kinds
from dradriver.allocator.parts import layouts
from dradriver.allocator.sets import facts, tables
from dradriver.allocator.sets.shape import shape_of
from dradriver.allocator.sets.weighted_cache import Kept
from dradriver.topology import profiles
from dradriver.topology.machine import Machine, MigProfile
from tests.fakes import machines
from tests.fakes.computed import forget_tables


class Thing:
    pass


def test_those_used_last_are_kept_up_to_a_weight() -> None:
    kept: Kept[str, Thing] = Kept(10)
    for name in "abc":
        kept.put(name, Thing(), 3)
    assert kept.find("a") is not None
    kept.put("d", Thing(), 3)
    assert [name for name in "abcd" if name in kept] == ["a", "c", "d"]


def test_what_is_in_use_is_found_however_much_there_is() -> None:
    kept: Kept[int, Thing] = Kept(2)
    mine = [kept.put(number, Thing(), 1) for number in range(20)]
    assert all(kept.find(number) is thing for number, thing in enumerate(mine))
    mine.clear()
    assert [number for number in range(20) if number in kept] == [18, 19]


def test_what_weighs_more_than_all_may_is_kept_only_while_it_is_in_use() -> None:
    kept: Kept[str, Thing] = Kept(2)
    kept.put("small", Thing(), 1)
    mine = kept.put("large", Thing(), 3)
    assert kept.find("large") is mine
    del mine
    assert "large" not in kept
    kept.put("again", Thing(), 2)
    assert "again" in kept


def test_a_value_that_is_put_again_weighs_once() -> None:
    kept: Kept[str, Thing] = Kept(2)
    kept.put("b", Thing(), 1)
    for _ in range(5):
        kept.put("a", Thing(), 1)
    assert "b" in kept


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_tables_go_with_the_last_node_that_has_such_a_machine_and_all_that_was_asked_of_them() -> None:
    fleet = Fleet()
    fleet.set_node("first", machines.bridge_pairs(12), range(12))
    fleet.set_node("second", machines.bridge_pairs(12), range(12))
    (group,) = fleet.groups
    seen = weakref.ref(group.tables)
    del group
    fleet.rank(Whole(containers=(2, 2)))
    fleet.remove("first")
    assert fleet.rank(Whole(containers=(4,)))[0].node == "second"
    fleet.remove("second")
    forget_tables()
    assert seen() is None, "the collector looks at old objects once an hour"


@pytest.mark.usefixtures("no_collector")
def test_layouts_go_with_the_last_node_that_has_such_gpus() -> None:
    found = profiles.load("hgx-h100")
    fleet = Fleet()
    fleet.set_node("n", found, range(8))
    fleet.set_offer("n", Offer(sliced=frozenset(range(8))))
    assert fleet.rank(Mig(profiles=(("1g.10gb", "2g.20gb"),)))
    layout = layouts.layout_of(found.gpus[0].profiles)
    assert layout is not None
    seen = weakref.ref(layout)
    del layout
    fleet.remove("n")
    forget_tables()
    gc.collect(0)  # what an answer needed is young, and goes soon
    assert seen() is None


def slices_of(seed: int) -> tuple[MigProfile, ...]:
    return (MigProfile(id=seed, name=f"1g.{seed + 1}gb", size=1, starts=(0, 1), most=2, compute=1, memory_mib=1),)


def test_no_more_than_four_kinds_of_gpus_of_a_machine_are_sliced() -> None:
    many = with_profiles(machines.dgx1(), [slices_of(min(number, 5)) for number in range(8)])
    assert [layout is not None for layout in layouts.layouts_of(many)] == [True] * 4 + [False] * 4
    two = with_profiles(machines.dgx1(), [slices_of(number % 2) for number in range(8)])
    assert all(layouts.layouts_of(two))


def with_profiles(machine: Machine, each: list[tuple[MigProfile, ...]]) -> Machine:
    return replace(machine, gpus=tuple(replace(gpu, profiles=own) for gpu, own in zip(machine.gpus, each, strict=True)))


@pytest.mark.parametrize("machine", [machines.dgx1(), profiles.load("hgx-h100"), machines.bridge_pairs(12)])
def test_what_another_process_computes_is_what_this_one_would(machine: Machine) -> None:
    kind = machine_kinds.kind_of(machine)
    assert kind is not None
    answers = io.BytesIO()
    machine_kinds.serve(io.BytesIO(machine_kinds.question(kind)), answers)
    here = facts.Facts(kind.shape)
    forget_tables()
    assert not machine_kinds.known(machine)
    answers.seek(0)
    for part, message in enumerate(machine_kinds.answer(answers)):
        machine_kinds.keep(kind, part, message)
    assert machine_kinds.known(machine)
    found = facts.facts_of(kind.shape)
    assert pickle.dumps(found) == pickle.dumps(here)
    before = tables.Tables(shape_of(machine))
    assert np.array_equal(before.busbw, tables.tables_of(machine).busbw)


def test_a_machine_with_too_many_gpus_is_of_no_kind_and_is_the_fleets_to_refuse() -> None:
    machine = profiles.load("gb200-nvl72-rack")
    assert len(machine.gpus) > tables.MAX_GPUS
    assert machine_kinds.kind_of(machine) is None
    assert machine_kinds.known(machine)
