"""Machines that do not give every set: Huawei's, held against the tables of its own scheduler (ascend-for-volcano)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from dradriver.allocator.choice.best_set import best_set
from dradriver.allocator.choice.machine_choice import choose
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.gang_placement import place_gang
from dradriver.allocator.gang_request import GangRequest
from dradriver.allocator.request import NoPlaceError, Strategy, Whole
from dradriver.allocator.sets.canonical import canonical
from dradriver.allocator.sets.shape import shape_of
from dradriver.allocator.sets.tables import tables_of
from dradriver.topology import machine_codec, profiles
from dradriver.topology.check import check
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Blocks, Machine
from tests.effort import sampled

# internal/npu/ascend910/ascend910old/module910x8/task.go, getNPUAllocPriorityArray: how many of a ring are free.
RINGS_OF_A_910A = {1: (1, 3, 2, 4), 2: (2, 4, 3), 4: (4,)}


def members(mask: int) -> list[int]:
    return [gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1]


def mask_of(gpus: Sequence[int]) -> int:
    return sum(1 << gpu for gpu in gpus)


def huawei_910a(free: int, gpus: int) -> list[int] | None:
    """What module910x8 gives (frame.go, selectNPUFromNode); None where the pod waits."""
    left, right = [gpu for gpu in members(free) if gpu < 4], [gpu for gpu in members(free) if gpu >= 4]
    if gpus == 8:
        return members(free) if free == 255 else None
    for priority in RINGS_OF_A_910A[gpus]:
        for ring in (left, right):
            if len(ring) == priority:
                return ring[:gpus]
    return None


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_a_910a_gives_what_huaweis_table_gives_of_every_free_set(gpus: int) -> None:
    tables = tables_of(profiles.load("ascend-910a-x8"))
    for free in range(256):
        found, theirs = best_set(tables, free, gpus=gpus), huawei_910a(free, gpus)
        assert (None if found is None else members(found)) == theirs, (members(free), gpus)


@pytest.mark.parametrize("gpus", [3, 5, 6, 7])
def test_other_counts_are_refused_with_those_that_there_are(gpus: int) -> None:
    machine = profiles.load("ascend-910a-x8")
    wish, fleet = Whole(containers=(gpus,), vendor="ascend"), Fleet()
    fleet.set_node("node", machine, range(8))
    says = "a pod gets 1, 2, 4 or 8 GPUs of Ascend 910A.$"
    with pytest.raises(NoPlaceError, match=says) as alone:
        choose(machine, range(8), wish)
    assert alone.value.stable == str(alone.value)
    for explain in (True, False):
        with pytest.raises(NoPlaceError, match=says):
            fleet.rank(wish, explain=explain)
    tables = tables_of(machine)
    assert not any(best_set(tables, free, gpus=gpus) for free in range(256))


def test_who_asks_for_another_product_does_not_hear_of_this_ones_numbers() -> None:
    machine = profiles.load("ascend-a3-x16")
    with pytest.raises(NoPlaceError, match=r"0 of 16 free GPUs match the request. The machine has Ascend 910C"):
        choose(machine, range(16), Whole(containers=(3,), product="*910A"))


def test_a_request_without_a_ring_waits_and_the_reason_names_the_rule() -> None:
    machine, fleet = profiles.load("ascend-910a-x8"), Fleet()
    rule = "a pod gets up to 4 GPUs of Ascend 910A from one block, and more in equal numbers from each block"
    with pytest.raises(
        NoPlaceError, match=rf"largest free set has 2 GPUs \(0, 1\). On this machine, {rule}. 4 GPUs are free"
    ):
        choose(machine, [0, 1, 4, 5], Whole(containers=(4,)))
    fleet.set_node("node", machine, [0, 1, 4, 5])
    with pytest.raises(NoPlaceError, match=f"Most GPUs of ascend on one node: 2 free on node. There, {rule}"):
        fleet.rank(Whole(containers=(4,), vendor="ascend"))


def test_containers_count_together_and_lie_in_one_ring() -> None:
    machine = profiles.load("ascend-910a-x8")
    choice = choose(machine, [0, 1, 2, 4, 5, 6, 7], Whole(containers=(1, 3)))
    assert choice.gpus == (4, 5, 6, 7)
    with pytest.raises(NoPlaceError, match="a pod gets 1, 2, 4 or 8 GPUs"):
        choose(machine, range(8), Whole(containers=(2, 1)))


@pytest.mark.parametrize("strategy", list(Strategy))
def test_no_strategy_breaks_the_rule(strategy: Strategy) -> None:
    machine = profiles.load("ascend-910a-x8")
    for free in range(256):
        wish = Whole(containers=(2,), strategy=strategy)
        try:
            found = choose(machine, members(free), wish).gpus
        except NoPlaceError:
            assert huawei_910a(free, 2) is None
        else:
            assert len({gpu // 4 for gpu in found}) == 1


def test_of_two_nodes_the_one_is_taken_whose_ring_ends_with_it() -> None:
    """The example of Huawei's page: one ring with a single NPU left, or rings with two and three."""
    fleet, machine = Fleet(), profiles.load("ascend-910a-x8")
    fleet.set_node("a", machine, [0, 1, 4, 5, 6])
    fleet.set_node("b", machine, [2])
    assert [(choice.node, choice.gpus) for choice in fleet.rank(Whole(containers=(1,), vendor="ascend"))] == [
        ("b", (2,)),
        ("a", (4,)),
    ]


def test_a_gangs_pods_each_have_a_ring() -> None:
    fleet, machine = Fleet(), profiles.load("ascend-910a-x8")
    fleet.set_node("a", machine, [0, 1, 4, 5])
    fleet.set_node("b", machine, range(8))
    found = place_gang(fleet, GangRequest(pods=2, pod=Whole(containers=(4,), vendor="ascend")))
    with pytest.raises(NoPlaceError, match=r"a pod gets 1, 2, 4 or 8 GPUs of Ascend 910A.$"):
        place_gang(fleet, GangRequest(pods=2, pod=Whole(containers=(3,), vendor="ascend")))
    assert sorted((pod.node, pod.gpus) for pod in found.pods) == [("b", (0, 1, 2, 3)), ("b", (4, 5, 6, 7))]
    with pytest.raises(NoPlaceError):
        place_gang(fleet, GangRequest(pods=3, pod=Whole(containers=(4,), vendor="ascend")))


def some_free(gpus: int) -> Iterator[int]:
    drawn = random.Random(16)  # the same in every run
    yield (1 << gpus) - 1
    for _ in range(500):
        yield mask_of(drawn.sample(range(gpus), drawn.randint(1, gpus)))


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, 2, 4, 6, 8, 10, 12, 14, 16])
def test_an_a3_gives_whole_modules_and_one_die_of_a_broken_one(gpus: int) -> None:
    """As ascend910a3/base.go, selectNPUForA3Job does: single dies of the modules with fewest free, else whole ones."""
    tables = tables_of(profiles.load("ascend-a3-x16"))
    for free in some_free(16):
        modules = Counter(gpu // 2 for gpu in members(free))
        found = best_set(tables, free, gpus=gpus)
        if gpus == 1:
            assert found is not None
            assert modules[members(found)[0] // 2] == min(modules.values())
        elif 2 * sum(count == 2 for count in modules.values()) < gpus:
            assert found is None
        else:
            assert found is not None
            assert set(Counter(gpu // 2 for gpu in members(found)).values()) == {2}


def test_an_a3_gives_no_odd_number_but_one() -> None:
    machine = profiles.load("ascend-a3-x16")
    with pytest.raises(NoPlaceError, match="a pod gets 1, 2, 4, 6, 8, 10, 12, 14 or 16 GPUs of Ascend 910C"):
        choose(machine, range(16), Whole(containers=(3,)))
    with pytest.raises(
        NoPlaceError, match=r"largest free set has 1 GPU.*more than one GPU of Ascend 910C in whole blocks of 2"
    ):
        choose(machine, [0, 2, 4], Whole(containers=(2,)))
    assert choose(machine, [0, 2, 3, 4], Whole(containers=(2,))).gpus == (2, 3)  # the example of Huawei's page


@pytest.mark.slow
@pytest.mark.parametrize("gpus", sampled([1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16]))
def test_a_box16_gives_of_the_fuller_group_and_half_of_each_above_eight(gpus: int) -> None:
    """As ascend910b/base.go does: the fewest free that suffice; above eight half of each group."""
    tables = tables_of(profiles.load("ascend-box16-x16"))
    for free in some_free(16):
        groups = [[gpu for gpu in members(free) if gpu // 8 == group] for group in (0, 1)]
        found = best_set(tables, free, gpus=gpus)
        if gpus > 8:
            assert (found is not None) is (min(map(len, groups)) >= gpus // 2)
            assert found is None or (found & 255).bit_count() == (found >> 8).bit_count() == gpus // 2
            continue
        fitting = [len(group) for group in groups if len(group) >= gpus]
        assert (found is not None) is bool(fitting)
        if found is not None:
            (group,) = {gpu // 8 for gpu in members(found)}
            assert len(groups[group]) == min(fitting)


@pytest.mark.parametrize("name", [name for name in profiles.names("ascend") if profiles.load(name).blocks])
def test_the_sets_that_are_given_are_those_of_the_definition(name: str) -> None:
    machine = profiles.load(name)
    blocks, tables = machine.blocks, tables_of(machine)
    assert blocks is not None
    assert tables.given is not None
    size = max(Counter(blocks.of).values())
    for mask in [*range(1, 256), *some_free(len(machine.gpus))]:
        own = Counter(blocks.of[gpu] for gpu in members(mask))
        count = mask.bit_count()
        whole = count == 1 or set(own.values()) == {size}
        even = len(set(own.values())) == 1 and len(own) == -(-count // size)
        assert bool(tables.given[mask]) is (count in blocks.counts and (whole if blocks.whole else even)), members(mask)


def test_two_chips_of_a_300i_duo_card_are_preferred_and_not_required() -> None:
    machine = profiles.load("ascend-300i-duo-x8")
    assert choose(machine, [0, 1, 2, 4], Whole(containers=(1,))).gpus == (2,)
    assert choose(machine, [0, 2, 6, 7], Whole(containers=(2,))).gpus == (6, 7)
    assert choose(machine, [0, 2], Whole(containers=(2,))).gpus == (0, 2)
    assert choose(machine, [0, 1, 2, 3, 5], Whole(containers=(3,))).gpus == (0, 1, 5)


@pytest.mark.parametrize("name", profiles.names("ascend"))
def test_the_rules_are_in_what_a_node_publishes_and_absent_without(name: str) -> None:
    machine = profiles.load(name)
    text = machine_codec.encode(machine)
    assert machine_codec.decode(text) == machine
    assert ('"blocks"' in text) is (machine.blocks is not None)
    bare = msgspec.structs.replace(machine, blocks=None)
    assert machine_codec.decode(machine_codec.encode(bare)) == bare


def test_a_machine_that_lost_gpus_keeps_the_rule_for_the_others() -> None:
    machine = profiles.load("ascend-910a-x8").subset([0, 1, 2, 4, 5, 6, 7])
    assert check(machine).blocks is not None
    assert machine.blocks is not None
    assert machine.blocks.of == (0, 0, 0, 1, 1, 1, 1)
    assert choose(machine, [0, 1, 2, 4, 5, 6, 7], Whole(containers=(4,))).gpus == (4, 5, 6, 7)
    dies = profiles.load("ascend-a3-x16").subset(range(1, 16))
    assert choose(dies, range(1, 16), Whole(containers=(1,))).gpus == (1,)
    assert 1 not in choose(dies, range(1, 16), Whole(containers=(14,))).gpus


def test_alike_machines_share_their_tables_with_any_numbers() -> None:
    machine = profiles.load("ascend-910a-x8")
    order = [4, 0, 5, 1, 6, 2, 7, 3]
    other = Machine(
        name="other",
        gpus=tuple(msgspec.structs.replace(machine.gpus[at], index=i, minor=i) for i, at in enumerate(order)),
        links=tuple(tuple(machine.links[a][b] for b in order) for a in order),
        paths=tuple(tuple(machine.paths[a][b] for b in order) for a in order),
        blocks=Blocks(of=(7, 3, 7, 3, 7, 3, 7, 3), counts=(1, 2, 4, 8), order=((1, 3, 2, 4), (2, 4, 3))),
    )
    assert canonical(shape_of(other))[0] == canonical(shape_of(machine))[0]
    assert choose(other, [0, 1, 3, 5, 7], Whole(containers=(4,))).gpus == (1, 3, 5, 7)
    loose = msgspec.structs.replace(machine, blocks=None)
    assert canonical(shape_of(loose))[0] != canonical(shape_of(machine))[0]


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        (Blocks(of=(0, 0)), "blocks.of"),
        (Blocks(of=(-1,) * 8), "blocks.of"),
        (Blocks(of=(0,) * 8, counts=(2, 1)), "blocks.counts: .*ascending"),
        (Blocks(of=(0,) * 8, counts=(0, 1)), "blocks.counts"),
        (Blocks(of=(0,) * 8, order=((1, 1),)), r"blocks.order\[0\]"),
    ],
)
def test_blocks_that_make_no_sense_are_refused(blocks: Blocks, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        check(msgspec.structs.replace(profiles.load("ascend-910a-x8"), blocks=blocks))
