"""Machines that broke other allocators, and every free set of the common ones by brute force."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from dradriver.allocator.choice.best_set import best_set
from dradriver.allocator.choice.machine_choice import choose
from dradriver.allocator.request import Constraint, NoPlaceError, Whole
from dradriver.allocator.sets.tables import tables_of
from dradriver.topology.machine import Machine, PathType
from tests.fakes import machines

NVLINK = Whole(containers=(2,), required=(Constraint.NVLINK,))
PIX, PXB, PHB, NODE, SYS = PathType.PIX, PathType.PXB, PathType.PHB, PathType.NODE, PathType.SYS


def pairs_of(*pairs: tuple[int, int], count: int, links: int = 4, inside: PathType = NODE) -> Machine:
    """GPUs on one socket, some of them joined in pairs."""
    paths = machines.nested((range(count),), (PathType.SELF,), across=inside)
    return machines.build("pairs", paths=paths, links=dict.fromkeys(pairs, links), capability="8.0")


def pascal() -> Machine:
    """DGX-1 with P100: two full quads and four links across, each single."""
    links = {pair: 1 for quad in (range(4), range(4, 8)) for pair in itertools.combinations(quad, 2)}
    links |= {(gpu, gpu + 4): 1 for gpu in range(4)}
    switches = (0, 1, 0, 1, 2, 3, 2, 3)
    paths = machines.nested((switches, machines.HALVES), (PIX, PHB), across=SYS)
    return machines.build("dgx1-p100", paths=paths, links=links, numa=machines.HALVES, link_gbps=18, capability="6.0")


def random_graph(count: int, seed: int) -> Machine:
    rng = random.Random(seed)
    links = {pair: rng.choice((0, 0, 1, 2)) for pair in itertools.combinations(range(count), 2)}
    paths = machines.nested(([rng.randint(0, 1) for _ in range(count)],), (PHB,), across=SYS)
    return machines.build(f"random-{seed}", paths=paths, links=links)


def best(machine: Machine, free: list[int], gpus: int) -> float:
    busbw = tables_of(machine).busbw
    return max(float(busbw[sum(1 << gpu for gpu in part)]) for part in itertools.combinations(free, gpus))


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [machines.dgx1, pascal, machines.bridge_pairs, machines.pcie_box, machines.dgx_h100,
     lambda: random_graph(8, 1), lambda: random_graph(8, 2)],
)  # fmt: skip
def test_every_free_set_of_eight_gives_what_brute_force_finds(build: Callable[[], Machine]) -> None:
    machine = build()
    tables = tables_of(machine)
    for mask in range(1, 256):
        free = [gpu for gpu in range(8) if mask >> gpu & 1]
        for gpus in range(1, len(free) + 1):
            found = best_set(tables, mask, gpus=gpus)
            assert found is not None
            assert (found & ~mask, found.bit_count()) == (0, gpus)
            assert float(tables.busbw[found]) == pytest.approx(best(machine, free, gpus), rel=2e-5)


@pytest.mark.parametrize(("count", "seed"), [(9, 3), (10, 4), (11, 5), (12, 6)])
def test_random_graphs_give_what_brute_force_finds(count: int, seed: int) -> None:
    machine, rng = random_graph(count, seed), random.Random(seed)
    for _ in range(25):
        free = sorted(rng.sample(range(count), rng.randint(2, count)))
        gpus = rng.randint(1, len(free))
        choice = choose(machine, free, Whole(containers=(gpus,)))
        assert set(choice.gpus) <= set(free)
        assert choice.busbw_gbps == pytest.approx(best(machine, free, gpus), abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("count", [14, 16])
def test_pairs_of_a_large_machine_are_what_brute_force_finds(count: int) -> None:
    machine, rng = random_graph(count, count), random.Random(count)
    for _ in range(20):
        free = sorted(rng.sample(range(count), rng.randint(2, count)))
        choice = choose(machine, free, Whole(containers=(2,)))
        assert choice.busbw_gbps == pytest.approx(best(machine, free, 2), abs=0.01)


def test_pascal_quads_are_whole() -> None:
    assert choose(pascal(), range(8), Whole(containers=(4,))).gpus in ((0, 1, 2, 3), (4, 5, 6, 7))
    assert choose(pascal(), [1, 2, 3, 4, 5, 6, 7], Whole(containers=(4,))).gpus == (4, 5, 6, 7)
    assert choose(pascal(), [0, 1, 4, 6], NVLINK).gpus in ((0, 1), (4, 6), (0, 4))


def test_bridged_pairs_that_are_not_neighbours_by_number() -> None:
    rtx8000 = pairs_of((0, 3), (1, 2), count=4, links=2)
    assert choose(rtx8000, [0, 1, 3], NVLINK).gpus == (0, 3)
    crossed = pairs_of((0, 2), (1, 3), (4, 5), (6, 7), count=8)  # k8s-device-plugin issue 546
    assert choose(crossed, [0, 1, 2, 4], NVLINK).gpus == (0, 2)
    assert choose(crossed, range(4), Whole(containers=(2, 2))).containers in (((0, 2), (1, 3)), ((1, 3), (0, 2)))


def test_one_bridge_among_four() -> None:
    machine = pairs_of((0, 1), count=4)  # k8s-device-plugin issue 436
    assert choose(machine, range(4), Whole(containers=(2,))).gpus == (0, 1)
    assert choose(machine, range(4), Whole(containers=(1,))).gpus == (2,)
    with pytest.raises(NoPlaceError, match=r"largest free set with nvlink has 1 GPU \(1\)"):
        choose(machine, [1, 2, 3], NVLINK)


def test_a_mesh_with_a_nic_each_takes_the_lowest() -> None:
    nics = [[PIX if gpu == nic else SYS for gpu in range(4)] for nic in range(4)]  # nccl issue 1617
    links = dict.fromkeys(itertools.combinations(range(4), 2), 6)
    machine = machines.build(
        "mesh", paths=machines.nested((range(4),), (PathType.SELF,), across=NODE), links=links, nic_paths=nics
    )
    assert {choose(machine, range(4), Whole(containers=(2,))).gpus for _ in range(200)} == {(0, 1)}


def test_a_tiered_box_keeps_to_its_tiers() -> None:
    paths = machines.nested((machines.PAIRS, machines.HALVES), (PIX, PXB), across=SYS)
    box = machines.build("pcie", paths=paths, capability="8.0", pcie_gbps=24)
    assert choose(box, [0, 2, 3, 5, 7], Whole(containers=(2,))).gpus == (2, 3)
    assert choose(box, [0, 2, 5, 7], Whole(containers=(2,))).gpus == (0, 2)
    assert choose(box, [1, 4, 5, 6, 7], Whole(containers=(4,))).gpus == (4, 5, 6, 7)


def test_asymmetric_links_do_no_harm() -> None:
    machine = pairs_of((0, 1), (2, 3), count=4, links=2)
    rows = [list(row) for row in machine.links]
    rows[0][1] = 1  # the other side says two
    uneven = Machine(
        name="uneven", gpus=machine.gpus, links=tuple(map(tuple, rows)), paths=machine.paths, link_gbps=20.0
    )
    assert choose(uneven, range(4), Whole(containers=(2,))).gpus == (2, 3)
