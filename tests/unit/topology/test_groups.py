from __future__ import annotations

import csv
from itertools import combinations

import msgspec
import pytest

from dradriver.topology import profiles
from dradriver.topology.groups import Groups, group
from dradriver.topology.machine import Gpu, Machine, PathType
from dradriver.topology.synthetic import synthetic_uuid
from tests.paths import SHARED_DATA


def machine_of(links: dict[tuple[int, int], int], count: int, *, switch_links: int = 0) -> Machine:
    matrix = [[0] * count for _ in range(count)]
    for (i, j), number in links.items():
        matrix[i][j] = matrix[j][i] = number
    far = [[PathType.SELF if i == j else PathType.PHB for j in range(count)] for i in range(count)]
    return Machine(
        name="m",
        gpus=tuple(
            Gpu(index=i, uuid=synthetic_uuid("m", i), minor=i, pci="", switch_links=switch_links) for i in range(count)
        ),
        links=tuple(map(tuple, matrix)),
        paths=tuple(map(tuple, far)),
        link_gbps=20.0,
    )


def sets(groups: Groups, size: int) -> list[set[int]]:
    numbers = groups.by_size[size]
    count = len(groups.gbps[size])
    return [{i for i, n in enumerate(numbers) if n == number} for number in range(count)]


def test_dgx1() -> None:
    groups = group(profiles.load("dgx1-v100"))
    assert groups.domain == (0,) * 8
    assert sets(groups, 8) == [set(range(8))]
    assert sets(groups, 4) == [{0, 1, 2, 3}, {4, 5, 6, 7}]
    assert sets(groups, 2) == [{0, 3}, {1, 2}, {4, 7}, {5, 6}]
    # 40: NV2 rings and pairs exist; the best ring of a quad needs one NV1 step
    assert groups.gbps == {2: (40.0,) * 4, 4: (20.0,) * 2, 8: (40.0,)}
    assert groups.order == (0, 3, 1, 2, 4, 7, 5, 6)


def test_a_switched_machine_has_consecutive_groups_within_numa_nodes() -> None:
    groups = group(profiles.load("dgx-h100"))
    assert sets(groups, 2) == [{0, 1}, {2, 3}, {4, 5}, {6, 7}]
    assert sets(groups, 4) == [{0, 1, 2, 3}, {4, 5, 6, 7}]
    assert groups.gbps[8] == (370.8,)
    assert groups.order == tuple(range(8))


def test_switched_groups_stay_within_an_uneven_numa_node() -> None:
    machine = machine_of(dict.fromkeys(combinations(range(8), 2), 18), 8, switch_links=18)
    numas = (0, 0, 0, 1, 1, 1, 1, 1)
    gpus = (msgspec.structs.replace(g, numa=n) for g, n in zip(machine.gpus, numas, strict=True))
    groups = group(msgspec.structs.replace(machine, gpus=tuple(gpus)))
    assert sets(groups, 2) == [{0, 1}, {2, 7}, {3, 4}, {5, 6}]
    assert sets(groups, 4) == [{0, 1, 2, 7}, {3, 4, 5, 6}]


def test_a_gpu_that_lost_its_links_is_in_no_group_and_a_weak_one_is_counted_as_weak() -> None:
    switch_links = (18, 18, 18, 9, 18, 0)
    pairs = combinations(range(6), 2)
    machine = machine_of({(i, j): min(switch_links[i], switch_links[j]) for i, j in pairs}, 6)
    gpus = (msgspec.structs.replace(g, switch_links=n) for g, n in zip(machine.gpus, switch_links, strict=True))
    groups = group(msgspec.structs.replace(machine, gpus=tuple(gpus)))
    assert groups.domain == (0, 0, 0, 0, 0, None)
    assert sets(groups, 4) == [{0, 1, 2, 4}]
    assert groups.gbps[4] == (360.0,)
    assert groups.order[-1] == 5


def _without(machine: Machine, *pairs: tuple[int, int]) -> Machine:
    """The machine with peer-to-peer access failing between some of its GPUs."""
    holes = {*pairs, *((j, i) for i, j in pairs)}
    links = tuple(tuple(0 if (i, j) in holes else n for j, n in enumerate(row)) for i, row in enumerate(machine.links))
    return msgspec.structs.replace(machine, links=links)


def test_two_gpus_that_a_switch_does_not_join_share_no_pair() -> None:
    groups = group(_without(profiles.load("hgx-h100"), (0, 1)))
    assert {0, 1} not in sets(groups, 2)
    assert len(sets(groups, 2)) == 4
    assert sets(groups, 8) == [set(range(8))]
    # quads and the eight have rings that go round the hole
    assert groups.gbps == {2: (370.8,) * 4, 4: (370.8,) * 2, 8: (370.8,)}


def test_a_gpu_that_a_switch_joins_to_one_other_alone_is_in_no_quad() -> None:
    groups = group(_without(profiles.load("hgx-h100"), *((0, j) for j in range(2, 8))))
    assert sets(groups, 2)[0] == {0, 1}
    assert groups.by_size[8] == (None,) * 8
    assert groups.by_size[4][0] is None
    assert groups.gbps[4] == (370.8,)


def test_a_rack_with_a_hole_keeps_to_its_other_trays() -> None:
    groups = group(_without(profiles.load("gb200-nvl72-rack"), (0, 1)))
    assert sets(groups, 4)[2:] == [set(range(start, start + 4)) for start in range(8, 72, 4)]
    assert min(gbps for every in groups.gbps.values() for gbps in every) == 721.8
    assert all(len(members) == 2 and members != {0, 1} for members in sets(groups, 2))


def test_direct_links_in_addition_to_the_switches_count() -> None:
    machine = machine_of({(0, 1): 8, (0, 2): 8, (1, 2): 6, (0, 3): 6, (1, 3): 8, (2, 3): 8}, 4, switch_links=6)
    groups = group(machine)
    assert sets(groups, 2) == [{0, 1}, {2, 3}]
    assert groups.gbps == {2: (160.0,) * 2, 4: (160.0,), 8: ()}  # the ring 0, 1, 3, 2 has 8 links at every step


def test_bridge_pairs_make_pairs_and_nothing_larger() -> None:
    groups = group(profiles.load("a100-pcie-x8-bridge-pairs"))
    assert groups.domain == (0, 0, 1, 1, 2, 2, 3, 3)
    assert sets(groups, 2) == [{0, 1}, {2, 3}, {4, 5}, {6, 7}]
    assert groups.by_size[4] == groups.by_size[8] == (None,) * 8
    assert groups.gbps == {2: (240.0,) * 4, 4: (), 8: ()}


def test_crossed_pairs_are_made_neighbours_in_the_order() -> None:
    groups = group(machine_of({(0, 2): 4, (1, 3): 4}, 4))
    assert groups.order == (0, 2, 1, 3)


def test_without_links_the_order_keeps_pcie_neighbours_together() -> None:
    machine = profiles.load("rtx4090-x8")
    shuffled = (0, 4, 1, 5, 2, 6, 3, 7)
    paths = tuple(tuple(machine.paths[i][j] for j in shuffled) for i in shuffled)
    groups = group(msgspec.structs.replace(machine, paths=paths))
    assert groups.domain == (None,) * 8
    assert groups.order == (0, 2, 4, 6, 1, 3, 5, 7)


def test_a_quad_without_a_ring_is_no_group() -> None:
    star = machine_of({(0, 1): 1, (0, 2): 1, (0, 3): 1}, 4)
    groups = group(star)
    assert groups.by_size[4] == (None,) * 4
    assert len(groups.gbps[2]) == 1


def test_more_groups_come_before_better_ones() -> None:
    groups = group(machine_of({(0, 1): 1, (1, 2): 9, (2, 3): 1}, 4))
    assert sets(groups, 2) == [{0, 1}, {2, 3}]


def test_a_gpu_without_a_partner_comes_last_in_the_order() -> None:
    groups = group(machine_of({(0, 1): 1, (1, 2): 2, (3, 4): 1}, 5))
    assert sets(groups, 2) == [{1, 2}, {3, 4}]
    assert groups.order == (1, 2, 3, 4, 0)


@pytest.mark.parametrize("count", [12, 20])
def test_larger_machines_of_quads_are_split_into_these_quads(count: int) -> None:
    quads = [range(start, start + 4) for start in range(0, count, 4)]
    links = {pair: 2 for quad in quads for pair in combinations(quad, 2)}
    chain = {(quad[3], quad[3] + 1): 1 for quad in quads[:-1]}  # one domain in all
    groups = group(machine_of(links | chain, count))
    assert groups.domain == (0,) * count
    assert sets(groups, 4) == [set(quad) for quad in quads]
    assert len(sets(groups, 2)) == count // 2


@pytest.mark.slow
def test_sixteen_gpus_with_direct_links_between_all_of_them() -> None:
    strong = {pair: 2 for start in (0, 1) for pair in combinations(range(start, 16, 2), 2)}
    weak = {(i, j): 1 for i in range(0, 16, 2) for j in range(1, 16, 2)}
    groups = group(machine_of(strong | weak, 16))
    assert sets(groups, 8) == [set(range(0, 16, 2)), set(range(1, 16, 2))]
    assert groups.gbps == {2: (40.0,) * 8, 4: (40.0,) * 4, 8: (40.0,) * 2}
    assert groups.order[:8] == tuple(range(0, 16, 2))


@pytest.mark.parametrize(
    ("steps", "links"),
    [
        ([(0, 1), (1, 2), (2, 3), (3, 0)], 20.0),  # a ring and nothing else
        ([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)], 20.0),
        ([(0, 1), (1, 2), (2, 0), (2, 3)], None),  # every GPU is reached, but 3 is a dead end
    ],
)
def test_a_quad_needs_a_ring_and_not_only_a_way(steps: list[tuple[int, int]], links: float | None) -> None:
    assert group(machine_of(dict.fromkeys(steps, 1), 4)).gbps[4] == (() if links is None else (links,))


def test_eight_gpus_of_two_sides_of_unequal_size_have_no_ring() -> None:
    sides = {(i, j): 1 for i in range(3) for j in range(3, 8)}
    groups = group(machine_of(sides, 8))
    assert groups.gbps == {2: (20.0,) * 3, 4: (20.0,), 8: ()}


def test_a_machine_of_one_gpu() -> None:
    groups = group(machine_of({}, 1))
    assert groups.domain == (None,)
    assert groups.order == (0,)


@pytest.mark.shared_data
@pytest.mark.parametrize("size", [2, 4])
def test_nccl_reaches_most_on_the_dgx1s_groups(size: int) -> None:
    verdicts = SHARED_DATA / "nccl_model" / "dgx1v-2.27.7.csv"
    with verdicts.open() as file:
        rows = [row for row in csv.DictReader(file) if int(row["k"]) == size]
    best = sorted((float(row["busbw_8GB"]) for row in rows), reverse=True)[: 8 // size]
    reached = {row["set"]: (float(row["busbw_8GB"]), row["ring_type"]) for row in rows}
    found = sets(group(profiles.load("dgx1-v100")), size)
    assert [reached["+".join(map(str, sorted(members)))] for members in found] == [(bw, "NVL") for bw in best]
