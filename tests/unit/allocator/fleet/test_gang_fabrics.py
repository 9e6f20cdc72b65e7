"""Gangs and multi-node NVLink fabrics: all in one where that must be, else in as few as can hold them."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from dradriver.allocator import NoPlaceError, Role, Whole, place_gang
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.gang_request import GangChoice, GangRequest
from dradriver.topology.network_levels import FABRIC, location
from tests.fakes import machines

WHOLE = Whole(containers=(8,))
LEAVES = 2


def racks(sizes: list[int], *, leaves: int = 1, zone: str = "z") -> Fleet:
    """Empty nodes in fabrics of so many each, dealt to leaves in turn; a fabric without a name where it has none."""
    fleet = Fleet()
    for rack, size in enumerate(sizes):
        for number in range(size):
            name, leaf = f"f{rack}-{number}", f"l{(rack + number) % leaves}"
            fleet.set_node(name, machines.dgx_h100(), range(8), row=len(fleet.nodes))
            where = (
                location(zone=zone, spine="s", leaf=leaf, fabric=f"f{rack}") if zone else location(fabric=f"f{rack}")
            )
            fleet.set_location(name, where)
    return fleet


def fabrics(choice: GangChoice) -> set[str]:
    return {node.partition("-")[0] for node in choice.nodes}


def test_one_fabric_is_taken_or_none_with_any_wider_level() -> None:
    seed = random.Random(7)
    for _ in range(60):
        sizes = [seed.randint(1, 4) for _ in range(seed.randint(1, 4))]
        pods = seed.randint(1, 5)
        request = GangRequest(pod=WHOLE, pods=pods, one_fabric=True)
        fleet = racks(sizes, leaves=LEAVES)
        if max(sizes) < pods:
            with pytest.raises(NoPlaceError, match="in one NVLink fabric"):
                place_gang(fleet, request)
            continue
        assert len(fabrics(place_gang(fleet, request))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["z", ""])
def test_otherwise_it_takes_the_fewest_fabrics_that_hold_it(zone: str) -> None:
    seed = random.Random(11)
    for _ in range(40):
        sizes = [seed.randint(1, 4) for _ in range(4)]
        pods = seed.randint(2, sum(sizes))
        least = next(
            count
            for count in range(1, 5)
            if any(sum(some) >= pods for some in itertools.combinations(sizes, count))
        )  # fmt: skip
        assert len(fabrics(place_gang(racks(sizes, zone=zone), GangRequest(pod=WHOLE, pods=pods)))) == least


def test_near_a_leaf_the_fabric_is_within_that_leaf() -> None:
    fleet = racks([4, 4], leaves=LEAVES)  # each leaf has two nodes of either
    near = GangRequest(pod=WHOLE, pods=2, near="leaf", near_required=True, one_fabric=True)
    assert len(fabrics(place_gang(fleet, near))) == 1
    with pytest.raises(NoPlaceError):
        place_gang(fleet, msgspec.structs.replace(near, pods=3))
    place_gang(fleet, msgspec.structs.replace(near, pods=3, one_fabric=False))


def test_members_that_differ_are_of_one_fabric_together() -> None:
    fleet = racks([2, 3])
    request = GangRequest(pod=WHOLE, pods=2, roles=(Role(pod=WHOLE, pods=1),), one_fabric=True)
    assert fabrics(place_gang(fleet, request)) == {"f1"}
    with pytest.raises(NoPlaceError, match="in one NVLink fabric"):
        place_gang(fleet, msgspec.structs.replace(request, roles=(Role(pod=WHOLE, pods=2),)))


def test_who_comes_to_others_comes_to_their_fabric() -> None:
    fleet = racks([2, 3])
    request = GangRequest(pod=WHOLE, pods=2, one_fabric=True)
    first = place_gang(racks([1, 0]), msgspec.structs.replace(request, pods=1)).pods[0]
    fleet.set_free("f0-0", [])
    assert place_gang(fleet, request, fixed={0: first}).pods[1].node == "f0-1"
    fleet.set_free("f0-1", [])
    with pytest.raises(NoPlaceError):
        place_gang(fleet, request, fixed={0: first})


def test_the_refusal_names_the_largest_fabric() -> None:
    with pytest.raises(NoPlaceError) as raised:
        place_gang(racks([2, 3]), GangRequest(pod=WHOLE, pods=4, one_fabric=True))
    assert f"the largest {FABRIC}, f1, has room for 3" in str(raised.value)
    fleet = racks([2, 4])
    fleet.set_free("f1-0", [])
    with pytest.raises(NoPlaceError) as raised:
        place_gang(fleet, GangRequest(pod=WHOLE, pods=4, one_fabric=True))
    assert f"The {FABRIC} with most room, f1, can take 3" in str(raised.value)


def test_a_cluster_without_fabrics_has_none_to_stay_in() -> None:
    fleet = Fleet()
    for number in range(2):
        fleet.set_node(f"n{number}", machines.dgx_h100(), range(8), row=number)
    assert len(place_gang(fleet, GangRequest(pod=WHOLE, pods=2, one_fabric=True)).nodes) == 2
