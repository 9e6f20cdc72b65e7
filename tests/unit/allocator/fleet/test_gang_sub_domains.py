"""Gangs and the sub-domains (racks) of a multi-node NVLink fabric: the narrowest that holds all, within the fabric."""

from __future__ import annotations

import pytest

from dradriver.allocator import NoPlaceError, Whole, place_gang
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.gang_request import GangRequest
from dradriver.topology.network_levels import levels_of
from tests.fakes import machines

LEAF = "fabric.topograph.run/tier-0"
DOMAIN, SUB_DOMAIN = "accelerator.topograph.run/domain", "accelerator.topograph.run/sub-domain"


def racks(*sizes: tuple[int, ...], gbps: float = 0.0) -> Fleet:
    """Return empty nodes ``d<fabric>-r<rack>-<number>``: for each fabric the sizes of its racks, on two leaves."""
    labels = {
        f"d{fabric}-r{rack}-{number}": {LEAF: f"l{number % 2}", DOMAIN: f"d{fabric}", SUB_DOMAIN: f"r{rack}"}
        for fabric, rack_sizes in enumerate(sizes)
        for rack, size in enumerate(rack_sizes)
        for number in range(size)
    }
    levels = levels_of(labels.values())
    fleet = Fleet()
    fleet.set_levels(levels.names, {})
    for row, (name, node_labels) in enumerate(labels.items()):
        fleet.set_node(name, machines.dgx_h100(), range(8), row=row)
        fleet.set_location(name, levels.location(node_labels, gbps=gbps))
    return fleet


def gang(pods: int, near: str = "", *, one_fabric: bool = False, min_gbps: float = 0.0) -> GangRequest:
    return GangRequest(
        pod=Whole(containers=(8,)), pods=pods, near=near, near_required=bool(near), one_fabric=one_fabric,
        min_network_gbps=min_gbps,
    )  # fmt: skip


def of_racks(fleet: Fleet, request: GangRequest) -> set[str]:
    return {node.rpartition("-")[0] for node in place_gang(fleet, request).nodes}


@pytest.mark.parametrize("one_fabric", [False, True])
def test_a_gang_is_in_the_narrowest_sub_domain_that_holds_it(one_fabric: bool) -> None:
    fleet = racks((2, 4), (3, 2))
    assert of_racks(fleet, gang(2, one_fabric=one_fabric)) <= {"d0-r0", "d1-r1"}
    assert of_racks(fleet, gang(3, one_fabric=one_fabric)) == {"d1-r0"}
    assert of_racks(fleet, gang(4, one_fabric=one_fabric)) == {"d0-r1"}
    assert {rack[:2] for rack in of_racks(fleet, gang(6, one_fabric=one_fabric))} == {"d0"}


@pytest.mark.parametrize("one_fabric", [False, True])
def test_near_a_sub_domain_waits_for_one_that_holds_all(one_fabric: bool) -> None:
    fleet = racks((2, 2), (2, 2))
    assert len(of_racks(fleet, gang(2, "sub-domain", one_fabric=one_fabric))) == 1
    with pytest.raises(NoPlaceError, match="the largest sub-domain, d0/r0, has room for 2"):
        place_gang(fleet, gang(3, "sub-domain", one_fabric=one_fabric))


def test_the_switch_is_still_the_leaf_next_to_the_levels_of_nvlink() -> None:
    fleet = racks((2, 2), gbps=50.0)
    assert fleet.sites.switch == "leaf"
    place_gang(fleet, gang(2, min_gbps=50.0))
    with pytest.raises(NoPlaceError):
        place_gang(fleet, gang(3, min_gbps=50.0))
