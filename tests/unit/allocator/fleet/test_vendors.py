"""Nodes of several vendors in one fleet: a request sees its own vendor's alone."""

from __future__ import annotations

import pytest

from dradriver.allocator import Amount, Fleet, GangRequest, NoPlaceError, Share, Whole, choose, place_gang
from dradriver.allocator.fleet.domain_capacity import largest_gangs
from dradriver.topology import profiles
from dradriver.topology.network_levels import location
from dradriver.topology.vendors import VENDORS

PROFILES = {"nvidia": "dgx1-v100", "amd": "mi210-x8", "ascend": "ascend-910b-x8"}


def fleet(*vendors: str) -> Fleet:
    made = Fleet()
    for vendor in vendors:
        machine = profiles.load(PROFILES[vendor], seed=vendor)
        made.set_node(vendor, machine, range(len(machine.gpus)))
    return made


def refusal(made: Fleet, request: Whole, *, explain: bool = True) -> str:
    with pytest.raises(NoPlaceError) as refused:
        made.rank(request, explain=explain)
    return str(refused.value)


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_request_sees_its_own_vendors_nodes_alone(vendor: str) -> None:
    made = fleet(*PROFILES)
    assert [choice.node for choice in made.rank(Whole(containers=(4,), vendor=vendor))] == [vendor]
    others = fleet(*(other for other in PROFILES if other != vendor))
    have = " and ".join(sorted(set(PROFILES) - {vendor}))
    for explain in (True, False):
        message = refusal(others, Whole(containers=(4,), vendor=vendor), explain=explain)
        assert message.endswith(f": no node has GPUs of vendor {vendor}, only of {have}.")


def test_the_nearest_thing_is_looked_for_among_the_vendors_own() -> None:
    made = fleet(*PROFILES)
    made.set_node("small", profiles.load("mi210-x8", seed="s").subset(range(4)), range(4))
    assert refusal(made, Whole(containers=(9,), vendor="amd")).endswith(". The largest machine, amd, has 8 GPUs.")
    made.set_free("amd", [0])
    assert "Most GPUs of amd on one node: 4 free on small" in refusal(made, Whole(containers=(6,), vendor="amd"))
    assert "The nodes have AMD Instinct MI210" in refusal(made, Whole(containers=(1,), vendor="amd", product="MI300"))


def test_who_says_nothing_means_nvidia_of_parts_too() -> None:
    with pytest.raises(NoPlaceError, match="no node offers GPUs as shares"):
        fleet("amd").rank(Share(amounts=(Amount(cores=50),)))
    assert "no node has GPUs of vendor nvidia" in refusal(fleet("amd", "ascend"), Whole(containers=(1,)))


def test_of_a_machine_that_is_named_its_own_vendor_is_meant() -> None:
    machine = profiles.load("mi210-x8", seed="n")
    assert choose(machine, range(8), Whole(containers=(4,))) == choose(
        machine, range(8), Whole(containers=(4,), vendor="amd")
    )
    with pytest.raises(
        NoPlaceError,
        match=r"4 GPUs of ascend: .* 0 of 8 free GPUs match the request. The machine has GPUs of vendor amd",
    ):
        choose(machine, range(8), Whole(containers=(4,), vendor="ascend"))


def test_the_largest_gang_is_of_one_vendor() -> None:
    made = fleet(*PROFILES)
    made.set_node("amd-2", profiles.load("mi210-x8", seed="2"), range(8))
    gpus, found = largest_gangs(made, most=8)
    assert (gpus, found["cluster"].pods, set(found["cluster"].nodes)) == (8, 2, {"amd", "amd-2"})


@pytest.mark.parametrize("vendor", ["amd", "ascend"])
@pytest.mark.parametrize("gpus", [1, 2])
def test_no_all_reduce_is_predicted_for_a_gang_by_a_model_of_another_library(vendor: str, gpus: int) -> None:
    """Be the rate of its nodes' network cards known."""
    made = fleet(vendor)
    made.set_node("more", profiles.load(PROFILES[vendor], seed="more"), range(8))
    for node in (vendor, "more"):
        made.set_location(node, location(gbps=50))
    placed = place_gang(made, GangRequest(pod=Whole(containers=(gpus,), vendor=vendor), pods=12 // gpus))
    assert (len(placed.nodes), placed.busbw_gbps) == (2, 0)


NPUS = {"old": "ascend-910a-x8", "new": "ascend-910b-x8", "super": "ascend-a3-x16"}
ORDERS = [("old", "new", "super"), ("super", "new", "old")]


def npus(*nodes: str) -> Fleet:
    made = Fleet()
    for node in nodes:
        machine = profiles.load(NPUS[node], seed=node)
        made.set_node(node, machine, range(len(machine.gpus)))
    return made


def of_910a(gpus: int) -> Whole:
    return Whole(containers=(gpus,), vendor="ascend", product="*910A")


@pytest.mark.parametrize("nodes", ORDERS)
def test_who_asks_for_a_product_hears_of_its_numbers_alone(nodes: tuple[str, ...]) -> None:
    made = npus(*nodes)
    for explain in (True, False):
        assert refusal(made, of_910a(3), explain=explain).endswith(": a pod gets 1, 2, 4 or 8 GPUs of Ascend 910A.")
    with pytest.raises(NoPlaceError) as refused:
        place_gang(made, GangRequest(pod=of_910a(3), pods=2))
    assert refused.value.stable.endswith("a pod gets 1, 2, 4 or 8 GPUs of Ascend 910A.")


@pytest.mark.parametrize("nodes", ORDERS)
def test_who_finds_no_block_hears_of_those_of_the_node_that_is_named(nodes: tuple[str, ...]) -> None:
    made = npus(*nodes)
    made.set_free("old", {*range(8)} - {0, 4})  # three of each ring
    message = refusal(made, of_910a(4))
    rule = "a pod gets up to 4 GPUs of Ascend 910A from one block, and more in equal numbers from each block"
    assert message.endswith(f"2 free on old. There, {rule}.")
    made.set_free("new", range(3))
    made.set_free("super", [])
    assert refusal(made, Whole(containers=(4,), vendor="ascend")).endswith(
        "Most GPUs of ascend on one node: 3 free on new."
    )
    assert refusal(made, of_910a(12)).endswith("Most GPUs of ascend of product *910A on one node: 2 free on old.")
