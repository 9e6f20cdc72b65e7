"""Which GPUs are kept from pods because they have no peer access to others that they are linked with."""

from __future__ import annotations

import random
from itertools import combinations, product

import msgspec
import pytest

from dradriver.topology import profiles
from dradriver.topology.load import read_machine
from dradriver.topology.machine import Machine
from dradriver.topology.peer_access import Pair, faulty, fewest, kept_off
from tests.paths import SHARED_DATA

EIGHT = tuple(range(8))


def without(machine: Machine, *pairs: Pair) -> Machine:
    """The machine as it is read where these pairs have no peer access."""
    links = [list(row) for row in machine.links]
    for i, j in pairs:
        links[i][j] = links[j][i] = 0
    return msgspec.structs.replace(machine, links=tuple(map(tuple, links)))


@pytest.mark.shared_data
def test_of_two_gpus_of_a_reported_machine_one_is_kept_off() -> None:
    assert kept_off(read_machine(SHARED_DATA / "reports" / "30-hgx-p2p-refused-between-two.json")) == {1: (0,)}


@pytest.mark.parametrize(
    ("refused", "off"),
    [
        ((), {}),
        (((0, 1),), {1: (0,)}),
        (((0, 1), (2, 3)), {1: (0,), 3: (2,)}),
        (((0, 1), (1, 2), (1, 5)), {1: (0, 2, 5)}),
        (tuple((3, j) for j in EIGHT if j != 3), {3: (0, 1, 2, 4, 5, 6, 7)}),
        (((0, 1), *((i, j) for i in (0, 1) for j in range(2, 8))), {0: (1, 2, 3, 4, 5, 6, 7), 1: (2, 3, 4, 5, 6, 7)}),
    ],
)
def test_the_fewest_gpus_are_kept_off(refused: tuple[Pair, ...], off: dict[int, tuple[int, ...]]) -> None:
    found = kept_off(without(profiles.load("hgx-h100"), *refused))
    assert set(found) == set(off)
    pairs = {frozenset(pair) for pair in refused}
    assert {frozenset((i, j)) for i, others in found.items() for j in others} == pairs
    assert len(off) > 1 or found == off


@pytest.mark.parametrize(
    "refused",
    [
        tuple(combinations(EIGHT, 2)),  # no fabric manager runs
        tuple(product(range(4), range(4, 8))),  # it has two partitions
        tuple((i, j) for i, j in combinations(EIGHT, 2) if i // 2 != j // 2),  # it has four
    ],
)
def test_what_a_fabric_manager_explains_is_no_fault(refused: tuple[Pair, ...]) -> None:
    assert kept_off(without(profiles.load("dgx-a100"), *refused)) == {}
    assert faulty(refused, switched=EIGHT) == set()
    assert faulty([*refused, (8, 9)], switched=EIGHT) == {(8, 9)}, "direct links have no fabric manager"


APART = tuple(product(range(4), range(4, 8)))  # two partitions


@pytest.mark.parametrize(
    ("faults", "off"),
    [
        (((0, 1),), {1}),
        (((0, 1), (0, 2), (5, 6)), {0, 6}),
        (((7, 4), (7, 5), (7, 6)), {7}),
        (((0, 1), (0, 2), (0, 3), (7, 4), (7, 5), (7, 6)), {0, 7}),
    ],
)
def test_a_fault_in_a_partition_keeps_off_no_gpu_for_the_other_partitions(
    faults: tuple[Pair, ...], off: set[int]
) -> None:
    assert set(kept_off(without(profiles.load("hgx-h100"), *APART, *faults))) == off


def test_a_gpu_in_mig_mode_has_no_peers_and_none_of_its_neighbours_is_kept_off() -> None:
    machine = without(profiles.load("hgx-h100"), *((2, j) for j in EIGHT if j != 2))
    gpus = list(machine.gpus)
    gpus[2] = msgspec.structs.replace(gpus[2], mig=())
    assert kept_off(machine) == {2: (0, 1, 3, 4, 5, 6, 7)}
    assert kept_off(msgspec.structs.replace(machine, gpus=tuple(gpus))) == {}


@pytest.mark.parametrize("name", [name for name in profiles.names("nvidia") if name != "gb200-nvl72-rack"])
def test_of_the_profiles_no_gpu_is_kept_off(name: str) -> None:
    assert kept_off(profiles.load(name)) == {}


def test_no_pair_is_left_after_any_refusal() -> None:
    rng = random.Random(30)
    for _ in range(300):
        every = list(combinations(range(rng.randint(2, 16)), 2))
        pairs = set(rng.sample(every, rng.randint(0, len(every))))
        off = fewest(pairs)
        assert all(i in off or j in off for i, j in pairs)
        assert all((min(i, j), max(i, j)) in pairs for i, others in off.items() for j in others)
