"""Gangs on machines whose bandwidth cannot be predicted: the fastest sets by their links, and rails."""

from __future__ import annotations

import pytest

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.gang_placement import place_gang
from dradriver.allocator.gang_request import GangChoice, GangRequest
from dradriver.allocator.request import Choice, Level, Whole
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests.effort import sampled

OTHERS = [*profiles.names("amd"), *profiles.names("ascend")]


def fleet_of(machine: Machine, *frees: list[int]) -> Fleet:
    fleet = Fleet()
    for row, free in enumerate(frees):
        fleet.set_node(f"n{row}", machine, free, row=row)
    return fleet


def placed(fleet: Fleet, pods: int, gpus: int) -> GangChoice:
    (vendor,) = {group.vendor for group in fleet.groups}
    return place_gang(fleet, GangRequest(pods=pods, pod=Whole(containers=(gpus,), vendor=vendor)))


def test_the_slowest_pod_has_links_where_that_can_be() -> None:
    """The first two nodes by name have four GPUs of two hives each; a hive is free on the last two."""
    across, hive = [0, 1, 4, 5], [0, 1, 2, 3]
    found = placed(fleet_of(profiles.load("mi210-x8"), across, across, hive, hive), 2, 4)
    assert found.nodes == ("n2", "n3")
    assert {pod.level for pod in found.pods} == {Level.NVLINK}


def test_the_slowest_pod_has_the_most_links_where_all_are_linked() -> None:
    machine = profiles.load("mi250-x4")
    wide = next(b for b in range(8) if machine.links[0][b] == 4)
    narrow = next(b for b in range(8) if machine.links[0][b] == 1)
    found = placed(fleet_of(machine, [0, narrow], [0, narrow], [0, wide], [0, wide]), 2, 2)
    assert found.nodes == ("n2", "n3")


def near_nics(machine: Machine, choice: Choice) -> list[set[str]]:
    """Of each GPU the NICs that nothing is nearer to it than."""
    out = []
    for place, gpu in enumerate(machine.gpus):
        if gpu.index in choice.gpus and machine.nics:
            paths = [row[place] for row in machine.nic_paths]
            out.append({nic.name for nic, path in zip(machine.nics, paths, strict=True) if path == min(paths)})
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(name for name in [*OTHERS, "dgx-h100"] if len(profiles.load(name).gpus) >= 8))
def test_pods_get_gpus_and_so_nics_at_equal_positions(name: str) -> None:
    """The second node has others free, too, and lower numbers, which alone would be taken where all are linked."""
    machine = profiles.load(name)
    every = [gpu.index for gpu in machine.gpus]
    half, quarter = every[len(every) // 2 :], every[: len(every) // 4]
    found = placed(fleet_of(machine, half, quarter + half), 2, len(half))
    assert [pod.gpus for pod in found.pods] == [tuple(half)] * 2
    first, second = (near_nics(machine, pod) for pod in found.pods)
    assert first == second


def test_a_rail_is_not_worth_a_link() -> None:
    """Equal positions would be 0, 1, 4, 5 on both, over two hives: whole hives at unequal ones are faster."""
    machine = profiles.load("mi210-x8")
    found = placed(fleet_of(machine, [0, 1, 2, 3, 4, 5], [0, 1, 4, 5, 6, 7]), 2, 4)
    assert sorted(pod.gpus for pod in found.pods) == [(0, 1, 2, 3), (4, 5, 6, 7)]
