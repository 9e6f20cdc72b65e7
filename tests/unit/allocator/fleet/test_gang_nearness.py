"""Where in the network a gang goes: levels, required and preferred; rails, equal parts, members that differ or stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from dradriver.allocator import NoPlaceError, Role, Whole, largest_gang, place_gang
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.gang_domains import fewest
from dradriver.allocator.fleet.gang_search import search
from dradriver.allocator.gang_request import GangChoice, GangRequest
from dradriver.allocator.sets.subsets import Ints
from dradriver.topology.network_levels import Location, location
from tests.fakes import machines

WHOLE, HALF = Whole(containers=(8,)), Whole(containers=(4,))


def network(leaves: Mapping[tuple[str, str], int], *, gbps: float = 0.0) -> Fleet:
    """Empty nodes of eight GPUs, so many on each leaf of a spine; rows in the order of their names."""
    fleet = Fleet()
    for (spine, leaf), count in leaves.items():
        for number in range(count):
            name = f"{spine}{leaf}-{number:02}"
            fleet.set_node(name, machines.dgx_h100(), range(8), row=len(fleet.nodes))
            fleet.set_location(name, location(zone="z", spine=spine, leaf=leaf, gbps=gbps))
    return fleet


def by_leaf(choice: GangChoice) -> dict[str, int]:
    return dict(Counter(name.partition("-")[0] for name in choice.nodes))


def test_sixteen_and_sixteen_not_fourteen_and_eighteen() -> None:
    fleet = network({("a", "1"): 18, ("a", "2"): 14, ("b", "1"): 16, ("b", "2"): 16})
    choice = place_gang(fleet, GangRequest(pod=WHOLE, pods=32))
    assert (choice.reach, by_leaf(choice)) == ("spine", {"b1": 16, "b2": 16})
    fleet = network({("a", "1"): 20, ("a", "2"): 20, ("a", "3"): 14})
    assert by_leaf(place_gang(fleet, GangRequest(pod=WHOLE, pods=32))) == {"a1": 16, "a2": 16}


def test_few_parts_go_before_equal_ones_and_small_ones_are_taken() -> None:
    fleet = network({("a", "1"): 2, ("a", "2"): 2, ("a", "3"): 5, ("a", "4"): 1})
    assert by_leaf(place_gang(fleet, GangRequest(pod=WHOLE, pods=7))) == {"a1": 2, "a3": 5}
    assert by_leaf(place_gang(fleet, GangRequest(pod=WHOLE, pods=2))) == {"a1": 2}


def test_parts_are_equal_where_some_nodes_hold_more_pods_than_others() -> None:
    fleet = network({("a", "1"): 3, ("b", "1"): 2})
    for name in ("a1-00", "a1-01", "b1-00", "b1-01"):
        fleet.set_node(name, machines.dgx_h100(), range(4), row=list(fleet.nodes).index(name))
    choice = place_gang(fleet, GangRequest(pod=HALF, pods=5))
    assert (len(choice.nodes), by_leaf(choice)) == (4, {"a1": 2, "b1": 2})


def test_each_inner_level_is_divided_equally_too() -> None:
    leaves = {(spine, leaf): 3 for spine in "ab" for leaf in "123"}
    choice = place_gang(network(leaves), GangRequest(pod=WHOLE, pods=12))
    assert (choice.reach, by_leaf(choice)) == ("zone", {"a1": 3, "a2": 3, "b1": 3, "b2": 3})
    assert [name[:2] for name in choice.nodes] == [pod.node[:2] for pod in choice.pods]
    assert list(by_leaf(choice)) == ["a1", "a2", "b1", "b2"]


def test_the_same_positions_are_taken_on_every_node() -> None:
    fleet = network({("a", "1"): 6})
    free = [[0, 1, 2, 3, 4], [4, 5, 6, 7], [1, 2, 3, 4, 5], [4, 5, 6, 7], [0, 2, 3, 4, 6], [0, 4, 5, 6, 7]]
    for name, gpus in zip(sorted(fleet.nodes), free, strict=True):
        fleet.set_free(name, gpus)
    choice = place_gang(fleet, GangRequest(pod=HALF, pods=3))
    assert {pod.gpus for pod in choice.pods} == {(4, 5, 6, 7)}
    assert {pod.node for pod in choice.pods} == {"a1-01", "a1-03", "a1-05"}


def test_pods_are_as_many_on_every_node_where_they_can_be() -> None:
    two = Whole(containers=(2,))
    choice = place_gang(network({("a", "1"): 3}), GangRequest(pod=two, pods=6))
    assert Counter(pod.node for pod in choice.pods) == {"a1-00": 3, "a1-01": 3}
    gpus = [{gpu for pod in choice.pods if pod.node == name for gpu in pod.gpus} for name in choice.nodes]
    assert gpus[0] == gpus[1]


def test_near_required_is_refused_with_the_largest_domain() -> None:
    fleet = network({("a", "1"): 3, ("a", "2"): 4})
    near = GangRequest(pod=WHOLE, pods=5, near="leaf", near_required=True)
    with pytest.raises(NoPlaceError) as caught:
        place_gang(fleet, near)
    said = "the largest leaf, z/a/2, has room for 4 of them, even if it is empty."
    said = f"No place for 5 pods with 8 GPUs each, near leaf: {said}"
    assert str(caught.value) == caught.value.stable == said
    fleet.set_free("a2-00", [1])
    four = GangRequest(pod=WHOLE, pods=4, near="leaf", near_required=True)
    with pytest.raises(NoPlaceError, match=r"The leaf with most room, z/a/1, can take 3 of them now") as caught:
        place_gang(fleet, four)
    assert caught.value.stable.endswith("eligible nodes have no place for all of them at once.")
    with pytest.raises(
        NoPlaceError, match=r"no network level rack. Its levels are node, fabric, leaf, spine, zone, cluster"
    ):
        place_gang(fleet, GangRequest(pod=WHOLE, pods=1, near="rack", near_required=True))


def test_near_preferred_is_tried_and_told() -> None:
    fleet = network({("a", "1"): 3, ("a", "2"): 4})
    five = place_gang(fleet, GangRequest(pod=WHOLE, pods=5, near="leaf"))
    assert (five.reach, five.fallback) == ("spine", ("near: leaf",))
    four = place_gang(fleet, GangRequest(pod=WHOLE, pods=4, near="leaf"))
    assert (four.reach, four.fallback) == ("leaf", ())
    spread = Whole(containers=(1,), strategy=WHOLE.strategy.SPREAD)
    assert len(place_gang(fleet, GangRequest(pod=spread, pods=7)).nodes) == 7
    assert len(place_gang(fleet, GangRequest(pod=spread, pods=7, near="leaf")).nodes) == 4


def test_levels_of_a_clusters_own() -> None:
    fleet = network({("a", "1"): 4})
    fleet.set_levels(["rack", "row"])
    assert place_gang(fleet, GangRequest(pod=WHOLE, pods=2)).reach == "cluster"
    for number, name in enumerate(sorted(fleet.nodes)):
        fleet.set_location(name, Location(domains=(("w", str(number // 2)), ("w",))))
    assert place_gang(fleet, GangRequest(pod=WHOLE, pods=2)).reach == "rack"
    assert place_gang(fleet, GangRequest(pod=WHOLE, pods=3)).reach == "row"
    assert fleet.levels == ("rack", "row")


def test_bandwidth_that_is_not_known_is_not_promised() -> None:
    wish = GangRequest(pod=WHOLE, pods=3, min_network_gbps=40)
    assert place_gang(network({("a", "1"): 3}, gbps=50), wish).busbw_gbps == 50
    with pytest.raises(NoPlaceError, match=r"room for 0 of them. The network bandwidth of 3 nodes is not known"):
        place_gang(network({("a", "1"): 3}), wish)
    fleet = Fleet()
    fleet.set_levels(["leaf", "spine"], {"spine": 20})
    for number in range(4):
        fleet.set_node(f"n{number}", machines.dgx_h100(), range(8))
        fleet.set_location(f"n{number}", Location(domains=(("s", str(number // 2)), ("s",)), gbps=50))
    assert place_gang(fleet, GangRequest(pod=WHOLE, pods=2, min_network_gbps=40)).reach == "leaf"
    with pytest.raises(
        NoPlaceError, match="Within a spine the network carries 20 GB/s, and no smaller part of the network has room"
    ):
        place_gang(fleet, wish)
    assert place_gang(fleet, GangRequest(pod=WHOLE, pods=3)).busbw_gbps == 20


def test_bandwidth_beyond_a_leaf_is_promised_where_a_rate_was_given_alone() -> None:
    wish = GangRequest(pod=WHOLE, pods=3, min_network_gbps=40)
    fleet = network({("a", "1"): 2, ("a", "2"): 2}, gbps=50)
    with pytest.raises(
        NoPlaceError,
        match="Within a spine the network bandwidth is not known, and no smaller part of the network has room",
    ):
        place_gang(fleet, wish)
    assert place_gang(fleet, GangRequest(pod=WHOLE, pods=3)).busbw_gbps == 50, "its NICs have no more"
    for level, busbw in (("spine", 45), ("cluster", 50)):
        known = network({}, gbps=50)
        known.set_levels(fleet.levels, {level: 45})
        for name in fleet.nodes:
            known.set_node(name, machines.dgx_h100(), range(8))
            known.set_location(name, fleet.location(name))
        choice = place_gang(known, wish)
        assert (choice.reach, choice.busbw_gbps) == ("spine", busbw), "what is known, and at most what NICs have"
    fleet.set_levels(["fabric", "zone"])
    for name in fleet.nodes:
        fleet.set_location(name, Location(domains=(None, ("z",)), gbps=50))
    with pytest.raises(NoPlaceError, match="Within a zone the network bandwidth is not known"):
        place_gang(fleet, wish)


def test_a_node_with_unknown_nics_leaves_the_networks_figure_unknown() -> None:
    fleet = network({("a", "1"): 3}, gbps=50)
    fleet.set_location("a1-02", location(zone="z", spine="a", leaf="1"))
    assert place_gang(fleet, GangRequest(pod=WHOLE, pods=2)).busbw_gbps == 50
    assert place_gang(fleet, GangRequest(pod=WHOLE, pods=3)).busbw_gbps > 50, "what each pod has by itself"


def test_no_more_pods_than_cpu_and_memory_are_enough_for() -> None:
    fleet, one = network({("a", "1"): 3}), Whole(containers=(1,))
    amounts = np.array([[64, 110], [20, -5], [9, 1000]])
    choice = place_gang(fleet, GangRequest(pod=one, pods=4, needs=(8, 30)), amounts=amounts)
    assert sorted(pod.node for pod in choice.pods) == ["a1-00", "a1-00", "a1-00", "a1-02"]
    with pytest.raises(
        NoPlaceError, match=r"whole cluster has room for 4 of them. The free GPUs alone are enough for 24"
    ):
        place_gang(fleet, GangRequest(pod=one, pods=5, needs=(8, 30)), amounts=amounts)


def test_a_launcher_stands_next_to_its_workers() -> None:
    fleet = network({("a", "1"): 2, ("a", "2"): 3})
    request = GangRequest(pod=Whole(containers=(1,)), pods=1, roles=(Role(pod=WHOLE, pods=2),))
    choice = place_gang(fleet, request)
    assert (choice.reach, len(choice.pods[0].gpus), [len(pod.gpus) for pod in choice.pods[1:]]) == ("leaf", 1, [8, 8])
    assert by_leaf(choice) == {"a2": 3}
    with pytest.raises(NoPlaceError, match=r"1 pod with 1 GPU each and 5 pods with 8 GPUs each: "):
        place_gang(fleet, GangRequest(pod=Whole(containers=(1,)), pods=1, roles=(Role(pod=WHOLE, pods=5),)))
    with pytest.raises(NoPlaceError, match="Give one size, not a range"):
        place_gang(fleet, GangRequest(pod=WHOLE, pods=2, least_pods=1, roles=(Role(pod=WHOLE, pods=1),)))


def test_a_launcher_of_one_gpu_does_not_count_as_the_slowest() -> None:
    launcher = Role(pod=Whole(containers=(1,)), pods=1)
    fleet = network({("a", "1"): 3}, gbps=50)
    alone = place_gang(fleet, GangRequest(pod=WHOLE, pods=2)).busbw_gbps
    assert place_gang(fleet, GangRequest(pod=WHOLE, pods=2, roles=(launcher,))).busbw_gbps == alone == 50
    fleet = network({("a", "1"): 3})
    alone = place_gang(fleet, GangRequest(pod=WHOLE, pods=2)).busbw_gbps
    assert place_gang(fleet, GangRequest(pod=WHOLE, pods=2, roles=(launcher,))).busbw_gbps == alone > 0


def test_roles_may_have_nodes_of_their_own() -> None:
    fleet = network({("a", "1"): 4})
    request = GangRequest(pod=HALF, pods=2, needs=(1,), roles=(Role(pod=HALF, pods=2, needs=(1,)),))
    first, second = np.array([True, True, False, False]), np.array([False, False, True, True])
    choice = place_gang(fleet, request, eligible_by_role=[first, second], amounts=np.ones((4, 1), dtype=np.int64))
    assert [pod.node for pod in choice.pods] == ["a1-00", "a1-01", "a1-02", "a1-03"]


def test_a_lost_member_comes_back_where_it_was_or_near_the_rest() -> None:
    fleet = network({("a", "1"): 3, ("a", "2"): 3, ("b", "1"): 3})
    request = GangRequest(pod=WHOLE, pods=4)
    before = place_gang(fleet, request)
    assert by_leaf(before) == {"a1": 2, "a2": 2}
    fixed = {index: before.pods[index] for index in (0, 2, 3)}
    for pod in fixed.values():
        fleet.set_free(pod.node, [])
    home = {1: before.pods[1]}
    assert place_gang(fleet, request, fixed=fixed, home=home).pods == before.pods
    fleet.set_free(before.pods[1].node, range(7))
    again = place_gang(fleet, request, fixed=fixed, home=home)
    assert (again.pods[1].node, again.reach) == ("a1-02", "spine")
    assert [again.pods[index] for index in fixed] == list(fixed.values())
    fleet.set_free("a1-02", [])
    assert place_gang(fleet, request, fixed=fixed).pods[1].node.startswith("a2")
    for name in ("a2-02", "b1-00", "b1-01", "b1-02"):
        fleet.set_free(name, [])
    with pytest.raises(NoPlaceError, match="there is no place now for 1 of the pods"):
        place_gang(fleet, request, fixed=fixed)
    with pytest.raises(NoPlaceError, match="no pod 9"):
        place_gang(fleet, request, fixed={9: before.pods[0]})


def test_a_member_stays_on_a_node_that_the_fleet_does_not_know() -> None:
    fleet = network({("a", "1"): 2, ("a", "2"): 3})
    request = GangRequest(pod=WHOLE, pods=3)
    before = place_gang(fleet, request)
    fleet.remove(before.pods[2].node)
    again = place_gang(fleet, request, fixed={2: before.pods[2]})
    assert (again.pods[2], again.reach, by_leaf(again)) == (before.pods[2], "cluster", {"a1": 2, "a2": 1})
    assert {pod.node for pod in again.pods} == set(again.nodes)


def test_members_that_differ_are_spread_too() -> None:
    fleet = network({("a", "1"): 4})
    spread = Whole(containers=(1,), strategy=WHOLE.strategy.SPREAD)
    choice = place_gang(fleet, GangRequest(pod=spread, pods=3, roles=(Role(pod=spread, pods=1),)))
    assert len(choice.nodes) == 4


def test_a_node_in_no_leaf_is_not_where_the_gangs_node_in_no_leaf_is() -> None:
    fleet = network({("a", ""): 2, ("a", "1"): 5})
    request = GangRequest(pod=WHOLE, pods=5)
    fixed = {index: place_gang(fleet, GangRequest(pod=WHOLE, pods=1), eligible=[name]).pods[0]
             for index, name in enumerate(("a-00", "a1-00", "a1-01", "a1-02"))}  # fmt: skip
    for pod in fixed.values():
        fleet.set_free(pod.node, [])
    fleet.set_free("a1-04", [])
    assert place_gang(fleet, request, fixed=fixed).pods[4].node == "a1-03"


@pytest.mark.parametrize("order", [("a0", "a1", "b0", "b1"), ("b0", "b1", "a0", "a1"), ("b1", "a1", "b0", "a0")])
def test_the_plan_is_the_same_in_any_order_nodes_were_read(order: tuple[str, ...]) -> None:
    fleet, one = Fleet(), machines.dgx_h100()
    other = msgspec.structs.replace(one, driver_version="999.1")
    for name in order:
        fleet.set_node(name, one if name.startswith("a") else other, range(8))
    assert place_gang(fleet, GangRequest(pod=WHOLE, pods=2)).nodes == ("a0", "a1")
    assert place_gang(fleet, GangRequest(pod=HALF, pods=4)).nodes == ("a0", "a1")


def test_the_work_does_not_grow_with_the_number_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = network({(f"s{spine:02}", leaf): 1 for spine in range(40) for leaf in "12"})
    for number, name in enumerate(sorted(fleet.nodes)):
        fleet.set_free(name, set(range(8)) - {number % 8})
    looks = Counter[str]()

    def counted(owner: Ints, size: Ints, needed: int) -> tuple[Ints, Ints, Ints]:
        looks["fewest"] += 1
        return fewest(owner, size, needed)

    monkeypatch.setattr("dradriver.allocator.fleet.role_plan.fewest", counted)
    assert len(place_gang(fleet, GangRequest(pod=HALF, pods=20)).nodes) == 20
    assert looks["fewest"] < 10


def test_no_size_is_tried_that_so_few_nodes_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def counted(fleet: Fleet, request: GangRequest, *others: Any, **more: Any) -> Any:
        tried.append(request.pods)
        return search(fleet, request, *others, **more)

    monkeypatch.setattr("dradriver.allocator.fleet.gang_placement.search", counted)
    request = GangRequest(pod=HALF, pods=200, least_pods=3, max_nodes=2)
    assert len(place_gang(network({("a", "1"): 40}), request).pods) == 4
    assert tried == [4]


def test_members_that_come_back_are_near_their_neighbours() -> None:
    fleet = network({("a", "1"): 4, ("a", "2"): 4})
    request = GangRequest(pod=WHOLE, pods=6)
    before = place_gang(fleet, request)
    fixed = {index: before.pods[index] for index in (0, 5)}
    for pod in fixed.values():
        fleet.set_free(pod.node, [])
    again = place_gang(fleet, request, fixed=fixed)
    assert [pod.node[:2] for pod in again.pods] == ["a1"] * 3 + ["a2"] * 3


def test_only_inside_the_nodes_that_are_given() -> None:
    fleet = network({("a", "1"): 4})
    request = GangRequest(pod=WHOLE, pods=2)
    fixed = {0: place_gang(fleet, request).pods[0]}
    fleet.set_free(fixed[0].node, [])
    assert place_gang(fleet, request, eligible=["a1-03"], fixed=fixed).pods[1].node == "a1-03"


@pytest.mark.parametrize(
    ("level", "pods", "domain"), [("node", 1, "a1-00"), ("leaf", 4, "z/a/2"), ("spine", 7, "z/a"), ("cluster", 8, "")]
)
def test_the_largest_gang_by_level(level: str, pods: int, domain: str) -> None:
    fleet = network({("a", "1"): 3, ("a", "2"): 4, ("b", "1"): 1})
    found = largest_gang(fleet, Role(pod=WHOLE, pods=1), level)
    assert (found.pods, found.domain, len(found.nodes)) == (pods, domain, pods)


def test_the_largest_gang_counts_what_else_is_free() -> None:
    fleet = network({("a", "1"): 2})
    role = Role(pod=HALF, pods=1, needs=(3,))
    assert largest_gang(fleet, role, "leaf", amounts=np.array([[5], [6]])).pods == 3
    assert largest_gang(fleet, role, "leaf", eligible=[]).pods == 0
    with pytest.raises(NoPlaceError, match="This cluster has no network level rack"):
        largest_gang(fleet, role, "rack")


def test_a_fabric_over_two_leaves_is_not_near_a_leaf() -> None:
    fleet = network({("a", "1"): 2, ("a", "2"): 2})
    for name in fleet.nodes:
        fleet.set_location(name, location(zone="z", spine="a", leaf=name[1], fabric="f"))
    required = GangRequest(pod=WHOLE, pods=3, near="leaf", near_required=True)
    with pytest.raises(NoPlaceError, match="the largest leaf, z/a/1, has room for 2 of them, even if it is empty"):
        place_gang(fleet, required)
    preferred = place_gang(fleet, GangRequest(pod=WHOLE, pods=3, near="leaf"))
    assert (preferred.reach, preferred.fallback) == ("fabric", ("near: leaf",))
    fleet.set_free("a1-00", [])
    two = place_gang(fleet, GangRequest(pod=WHOLE, pods=2, near="leaf", near_required=True))
    assert (two.reach, two.fallback, by_leaf(two)) == ("fabric", (), {"a2": 2})
    fast = network({})
    for name in fleet.nodes:
        fast.set_node(name, machines.dgx_h100(), range(8))
        fast.set_location(name, location(zone="z", spine="a", leaf=name[1], fabric="f", gbps=50))
    assert place_gang(fast, GangRequest(pod=WHOLE, pods=2, min_network_gbps=50)).reach == "fabric"
    with pytest.raises(NoPlaceError, match="Within a spine the network bandwidth is not known"):
        place_gang(fast, GangRequest(pod=WHOLE, pods=3, min_network_gbps=50))


def test_what_a_node_must_have_of_the_gang_its_roles_have_together() -> None:
    launcher = Role(pod=Whole(containers=(1,)), pods=1)
    fleet = network({("a", "1"): 2})
    with pytest.raises(NoPlaceError):
        place_gang(fleet, GangRequest(pod=WHOLE, pods=1, roles=(launcher,), min_gpus_per_node=2))
    three = Whole(containers=(3,))
    for pods, least, nodes in ((2, 7, 1), (4, 6, 2)):
        choice = place_gang(fleet, GangRequest(pod=three, pods=pods, roles=(launcher,), min_gpus_per_node=least))
        assert len(choice.nodes) == nodes
    one = Whole(containers=(1,))
    halves = GangRequest(pod=one, pods=4, roles=(Role(pod=three, pods=4),), min_gpus_per_node=8)
    assert Counter(pod.node for pod in place_gang(fleet, halves).pods) == {"a1-00": 4, "a1-01": 4}


def test_no_domain_is_passed_over() -> None:
    leaves = {(f"s{number:03}", "1"): 2 for number in range(140)}
    fleet = network(leaves)
    amounts = np.ones((len(fleet.nodes), 1), dtype=np.int64)
    for number, (spine, leaf) in enumerate(leaves):
        fleet.set_free(f"{spine}{leaf}-01", range(4))  # CPU for one pod each, too few GPUs for the workers' two
        if number != 70:
            amounts[2 * number + 1] = 0
    launcher = Role(pod=Whole(containers=(4,)), pods=1, needs=(1,))
    choice = place_gang(fleet, GangRequest(pod=WHOLE, pods=1, needs=(1,), roles=(launcher,)), amounts=amounts)
    assert by_leaf(choice) == {"s0701": 2}


def test_what_was_not_looked_at_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = network({("a", "1"): 2})
    fleet.set_free("a1-00", range(6))
    fleet.set_free("a1-01", range(7))
    five = Whole(containers=(5,))
    request = GangRequest(pod=five, pods=1, roles=(Role(pod=HALF, pods=2),))
    with pytest.raises(
        NoPlaceError, match=r"at once. Pods with the same request have places without the others"
    ) as caught:
        place_gang(fleet, request)
    assert caught.value.stable.endswith(": no place was found for all of them at once.")
    monkeypatch.setattr("dradriver.allocator.fleet.gang_roles_search._MOST_OPTIONS", 0)
    with pytest.raises(
        NoPlaceError, match=r"at once. Pods with the same"
    ):  # two nodes have room for one of the three each
        place_gang(fleet, request)
    fleet.set_free("a1-00", range(8))
    with pytest.raises(NoPlaceError, match=r"all of them at once\. The search ended at its limit before") as caught:
        place_gang(fleet, GangRequest(pod=five, pods=2, roles=(Role(pod=HALF, pods=1),)))
    assert "even if all its GPUs are free" not in str(caught.value) + caught.value.stable
    with pytest.raises(NoPlaceError, match='Without "on at most 1 node"'):
        place_gang(network({("a", "1"): 2}), GangRequest(pod=WHOLE, pods=1, roles=request.roles, max_nodes=1))


def test_home_is_given_again_only_within_the_limits() -> None:
    fleet = network({("a", "1"): 2, ("a", "2"): 2})
    places = {name: place_gang(fleet, GangRequest(pod=HALF, pods=1), eligible=[name]).pods[0] for name in fleet.nodes}
    home = {0: places["a1-00"], 1: places["a2-00"]}
    assert place_gang(fleet, GangRequest(pod=HALF, pods=2), home=home).nodes == ("a1-00", "a2-00")
    limits: tuple[dict[str, Any], ...] = (
        {"max_nodes": 1},
        {"near": "leaf", "near_required": True},
        {"min_gpus_per_node": 8},
    )
    for limit in limits:
        request = GangRequest(pod=HALF, pods=2, **limit)
        assert place_gang(fleet, request, home=home).nodes == ("a1-00",)
    two = place_gang(fleet, GangRequest(pod=Whole(containers=(2,)), pods=1), home={0: places["a1-01"]})
    assert len(two.pods[0].gpus) == 2, "what it asks for now"


def test_late_members_next_to_those_that_are_not_within_the_limits() -> None:
    fleet = network({("a", "1"): 3, ("a", "2"): 3})
    places = {name: place_gang(fleet, GangRequest(pod=WHOLE, pods=1), eligible=[name]).pods[0] for name in fleet.nodes}
    fixed = {0: places["a1-00"], 1: places["a2-00"]}
    for pod in fixed.values():
        fleet.set_free(pod.node, [])
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"max_nodes": 1}, "that keep their places do not meet this: they use 2 nodes"),
        ({"near": "leaf", "near_required": True}, "their nodes are not in one leaf"),
        ({"min_network_gbps": 50.0}, "the network between their nodes is slower, or its bandwidth is not known"),
        ({"max_nodes": 2}, 'Without "on at most 2 nodes", there is a place'),
    )
    for limits, said in refused:
        with pytest.raises(NoPlaceError, match=said):
            place_gang(fleet, GangRequest(pod=WHOLE, pods=3, **limits), fixed=fixed)
    fleet.remove("a2-00")
    near = GangRequest(pod=WHOLE, pods=3, near="leaf", near_required=True)
    assert place_gang(fleet, near, fixed=fixed).pods[2].node == "a1-01"
    with pytest.raises(NoPlaceError, match='Without "on at most 2 nodes"'):
        place_gang(fleet, msgspec.structs.replace(near, max_nodes=2), fixed=fixed)
    few = GangRequest(pod=WHOLE, pods=3, min_gpus_per_node=9)
    with pytest.raises(NoPlaceError, match="8 of them are on node a2-00, which does not exist"):
        place_gang(fleet, few, fixed=fixed)
    assert place_gang(fleet, GangRequest(pod=WHOLE, pods=2, max_nodes=1), fixed=fixed).reach == "cluster"


def test_the_last_node_is_not_exchanged_for_one_in_a_further_leaf() -> None:
    fleet = network({("a", "1"): 3, ("a", "2"): 1})
    fleet.set_free("a2-00", range(4))
    assert by_leaf(place_gang(fleet, GangRequest(pod=HALF, pods=5))) == {"a1": 3}
    fleet = network({("a", "1"): 2, ("b", "1"): 2, ("c", "1"): 1})
    fleet.set_free("c1-00", range(4))
    assert by_leaf(place_gang(fleet, GangRequest(pod=HALF, pods=7))) == {"a1": 2, "b1": 2}
