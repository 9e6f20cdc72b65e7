"""Where no bandwidth can be predicted, sets compare by the weakest step of their best ring, then by all their links."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.allocator.choice.choose import choose
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.request import Choice, Constraint, Level, NoPlaceError, Whole
from dradriver.allocator.sets.tables import MAX_GPUS
from dradriver.topology import profiles
from dradriver.topology.load import read_machine
from dradriver.topology.machine import Machine, PathType
from dradriver.topology.vendors import AMD
from tests.paths import SHARED_DATA
from tests.strategies import machines

MODELS = sorted((SHARED_DATA / "vendors" / "amd" / "rccl_models").glob("*.xml"))
OTHERS = [*profiles.names("amd"), *profiles.names("ascend")]
BY_HAND = {"topo_4p4h", "topo_8p1h_1"}  # which no machine is
LEVELS = {
    PathType.PIX: 1, PathType.PXB: 2, PathType.PHB: 2, PathType.NODE: 3, PathType.SYS: 4,
}  # fmt: skip
Step = tuple[int, int, float]


def step(machine: Machine, a: int, b: int) -> Step:
    """How good the step between two GPUs is, the larger the better: its level, its links, its rate."""
    if machine.links[a][b]:
        return 0, machine.links[a][b], 0.0
    rate = min(machine.gpus[a].pcie_gbps, machine.gpus[b].pcie_gbps)
    path = machine.paths[a][b]
    return -LEVELS[path], 0, min(rate, machine.socket_gbps) if path is PathType.SYS else rate


def value(machine: Machine, places: tuple[int, ...]) -> tuple[Step, int]:
    """The weakest step of the best ring, by trying every order, and the links inside."""
    first, *others = places
    rings = (itertools.pairwise((first, *order, first)) for order in itertools.permutations(others))
    best = max(min(step(machine, a, b) for a, b in ring) for ring in rings)
    return best, sum(machine.links[a][b] for a, b in itertools.combinations(places, 2))


def chosen(machine: Machine, choice: Choice) -> tuple[int, ...]:
    return tuple(place for place, gpu in enumerate(machine.gpus) if gpu.index in choice.gpus)


def check_best(machine: Machine, free: list[int], gpus: int) -> None:
    choice = choose(machine, [machine.gpus[place].index for place in free], Whole(containers=(gpus,)))
    best = max(value(machine, places) for places in itertools.combinations(sorted(free), gpus))
    assert value(machine, chosen(machine, choice)) == best, (free, gpus)
    assert choice.busbw_gbps == 0
    assert choice.level is (Level.NVLINK if best[0][0] == 0 else choice.level)


@pytest.mark.shared_data
@pytest.mark.parametrize("path", [path for path in MODELS if path.stem not in BY_HAND], ids=lambda path: path.stem)
def test_the_best_set_of_every_dump(path: Path) -> None:
    machine = read_machine(path)
    places = range(len(machine.gpus))
    some = random.Random(path.stem)  # the same sets in every run
    frees = [list(places), *(sorted(some.sample(places, len(places) // 2 + some.randrange(3))) for _ in range(3))]
    for free in frees:
        for gpus in range(2, min(len(free), 4 if len(places) > 8 else 5) + 1):
            check_best(machine, free, gpus)


@pytest.mark.parametrize("name", OTHERS)
def test_the_best_set_of_every_profile(name: str) -> None:
    machine = profiles.load(name)
    for gpus in range(2, 5):
        check_best(machine, list(range(len(machine.gpus))), gpus)


@settings(max_examples=60)
@given(machines(max_gpus=6, min_gpus=2), st.data())
def test_the_best_set_of_any_machine(machine: Machine, data: st.DataObject) -> None:
    count = len(machine.gpus)
    if machine.switched or count > MAX_GPUS:
        return
    amd = msgspec.structs.replace(
        machine, gpus=tuple(msgspec.structs.replace(gpu, vendor=AMD.word) for gpu in machine.gpus)
    )
    free = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=2)))
    check_best(amd, free, data.draw(st.integers(2, len(free))))


@pytest.mark.parametrize("name", OTHERS)
def test_a_wish_for_predicted_bandwidth_is_refused_with_the_reason(name: str) -> None:
    machine = profiles.load(name)
    wish = Whole(containers=(2,), min_busbw_gbps=0.1, vendor=machine.vendor.word)
    every = [gpu.index for gpu in machine.gpus]
    with pytest.raises(NoPlaceError, match=f"bus bandwidth of {machine.vendor.link} cannot be predicted"):
        choose(machine, every, wish)
    fleet = Fleet()
    fleet.set_node("node", machine, every)
    with pytest.raises(NoPlaceError, match="cannot be predicted"):
        fleet.rank(wish)
    assert fleet.rank(Whole(containers=(2,), vendor=machine.vendor.word))[0].node == "node"
    assert choose(machine, every, Whole(containers=(1,), min_busbw_gbps=0.1)).gpus


# Huawei's rule for the 910A, as Volcano's plugin has it (ascend910old/module910x8, frame.go): up to four NPUs are of
# one ring, and which of both is better by how many it has free, best first.
RING_SCORES = {1: (1, 3, 2, 4), 2: (2, 4, 3), 4: (4,)}
# Where the choice is another: one NPU of rings with 1 and 3 free, and a pair of rings with 2 and 3, come from either,
# for both ways leave one pair; and a pair comes from a ring with 3 rather than from a whole one, which Huawei breaks.
ELSEWHERE = {1: {(1, 3)}, 2: {(2, 3), (3, 4)}, 4: set[tuple[int, int]]()}


@pytest.mark.parametrize("gpus", sorted(RING_SCORES))
def test_a_910a_gives_no_set_over_two_rings_and_takes_the_ring_that_huawei_takes(gpus: int) -> None:
    elsewhere = set()
    machine = profiles.load("ascend-910a-x8")
    rings = ({0, 1, 2, 3}, {4, 5, 6, 7})
    for count in range(1, 9):
        for free in itertools.combinations(range(8), count):
            fits = any(len(ring & set(free)) >= gpus for ring in rings)
            wish = Whole(containers=(gpus,), required=(Constraint.NVLINK,))
            if not fits:
                with pytest.raises(NoPlaceError):
                    choose(machine, list(free), wish)
                continue
            found = set(choose(machine, list(free), wish).gpus)
            taken = next(len(ring & set(free)) for ring in rings if found <= ring)
            order, have = RING_SCORES[gpus], [len(ring & set(free)) for ring in rings]
            if taken != min((own for own in have if own in order), key=order.index):
                elsewhere.add(tuple(sorted(have)))
    assert elsewhere == ELSEWHERE[gpus]
