"""Gangs: all or nothing, near each other, and as good as an exact search over small clusters says."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.gang_placement import place_gang
from dradriver.allocator.gang_request import GangChoice, GangRequest
from dradriver.allocator.request import Constraint, NoPlaceError, Strategy, Whole
from dradriver.allocator.sets.tables import tables_of
from dradriver.topology.machine import PathType
from dradriver.topology.network_levels import LEVELS, Location, location
from tests.effort import sampled
from tests.fakes import machines

FOUR = machines.build(
    "four-pairs",
    paths=machines.nested(((0, 0, 1, 1),), (PathType.PHB,), across=PathType.SYS),
    links={(0, 1): 4, (2, 3): 2},
    numa=(0, 0, 1, 1),
    capability="8.0",
)


def gang(pods: int, gpus: int, *, strategy: Strategy = Strategy.PACK, **limits: float | None) -> GangRequest:
    return GangRequest(pods=pods, pod=Whole(containers=(gpus,), strategy=strategy), **limits)  # type: ignore[arg-type]


def cluster(**free: tuple[list[int] | range, Location]) -> Fleet:
    fleet = Fleet()
    for name, (gpus, place) in free.items():
        fleet.set_node(name, machines.dgx1() if len(gpus) > 4 else FOUR, gpus)
        fleet.set_location(name, place)
    return fleet


def holds(fleet: Fleet, request: GangRequest, choice: GangChoice) -> None:
    """All that is promised of any placement."""
    assert len(choice.pods) == request.pods
    taken: dict[str, set[int]] = {}
    for pod in choice.pods:
        assert len(pod.gpus) == request.pod.gpus
        mine = taken.setdefault(pod.node, set())
        assert not mine & set(pod.gpus)
        mine |= set(pod.gpus)
        assert mine <= fleet.free(pod.node)
    assert sorted(taken) == sorted(choice.nodes)
    assert request.max_nodes is None or len(taken) <= request.max_nodes
    assert all(len(gpus) >= request.min_gpus_per_node for gpus in taken.values())
    if len(taken) > 1:
        assert all(fleet.location(name).gbps >= request.min_network_gbps for name in taken)


def test_all_or_nothing() -> None:
    fleet = cluster(a=(range(4), Location()), b=([0, 1, 2], Location()))
    holds(fleet, gang(3, 2), place_gang(fleet, gang(3, 2)))
    with pytest.raises(NoPlaceError, match=r"4 pods with 2 GPUs each: .* The whole cluster has room for 3 of them"):
        place_gang(fleet, gang(4, 2))


def test_the_narrowest_part_of_the_network_that_holds_all_is_taken() -> None:
    near, far = location(zone="z", spine="s", leaf="l1"), location(zone="z", spine="s", leaf="l2")
    fleet = cluster(a=(range(4), near), b=(range(4), far), c=(range(4), near), d=(range(4), location(zone="y")))
    for pods, nodes, reach in ((2, 1, "node"), (4, 2, "leaf"), (6, 3, "spine"), (8, 4, "cluster")):
        choice = place_gang(fleet, gang(pods, 2))
        assert (len(choice.nodes), choice.reach) == (nodes, reach)
    assert place_gang(fleet, gang(4, 2)).nodes == ("a", "c")


def test_an_nvlink_fabric_goes_before_a_leaf() -> None:
    leaf, fabric = location(leaf="l"), location(fabric="f")
    fleet = cluster(a=(range(4), leaf), b=(range(4), leaf), c=(range(4), fabric), d=(range(4), fabric))
    assert place_gang(fleet, gang(4, 2)).nodes == ("c", "d")


def test_leaves_of_one_name_in_two_zones_are_two() -> None:
    first, second = location(zone="x", leaf="1"), location(zone="y", leaf="1")
    fleet = cluster(a=(range(4), first), b=(range(4), second))
    assert place_gang(fleet, gang(4, 2)).reach == "cluster"


def test_the_fullest_part_that_holds_all_is_taken_and_the_tightest_node() -> None:
    one, two = location(leaf="1"), location(leaf="2")
    fleet = cluster(
        a=(range(4), one), b=(range(4), one), c=(range(4), one), d=(range(4), two), e=(range(4), two),
    )  # fmt: skip
    assert set(place_gang(fleet, gang(4, 2)).nodes) == {"d", "e"}
    fleet = cluster(a=(range(8), one), b=(range(8), one), c=([0, 1], one))
    assert set(place_gang(fleet, gang(5, 2)).nodes) == {"a", "c"}


def test_limits_on_nodes() -> None:
    fleet = cluster(a=(range(8), Location()), b=([0, 1, 2, 3], Location()), c=([0, 1, 2, 3], Location()))
    assert len(place_gang(fleet, gang(6, 2, max_nodes=2)).nodes) == 2
    with pytest.raises(NoPlaceError, match="2 nodes with most room can take 6 of them"):
        place_gang(fleet, gang(7, 2, max_nodes=2))
    choice = place_gang(fleet, gang(5, 2, min_gpus_per_node=4))
    assert sorted(sum(len(pod.gpus) for pod in choice.pods if pod.node == node) for node in choice.nodes) == [4, 6]
    with pytest.raises(NoPlaceError, match='Without "at least 6 GPUs per node", there is a place'):
        place_gang(fleet, gang(5, 2, min_gpus_per_node=6))


def test_network_bandwidth_counts_between_nodes_only() -> None:
    fast, slow = location(leaf="l", gbps=50), location(leaf="l", gbps=10)
    fleet = cluster(a=(range(4), slow), b=(range(4), slow), c=(range(4), fast), d=(range(4), fast), e=(range(4), fast))
    assert set(place_gang(fleet, gang(4, 2, min_network_gbps=50)).nodes) <= {"c", "d", "e"}
    assert place_gang(fleet, gang(2, 2, min_network_gbps=400)).reach == "node"
    with pytest.raises(NoPlaceError, match="Nodes with this network bandwidth have room for 6 of them"):
        place_gang(fleet, gang(7, 2, min_network_gbps=50))
    assert place_gang(fleet, gang(8, 2)).busbw_gbps == 10


def test_spread_takes_many_nodes_and_shares_them_evenly() -> None:
    fleet = cluster(a=(range(8), Location()), b=(range(8), Location()), c=([0, 1, 2, 3], Location()))
    choice = place_gang(fleet, gang(6, 1, strategy=Strategy.SPREAD))
    assert sorted(pod.node for pod in choice.pods) == ["a", "a", "b", "b", "c", "c"]
    assert len(place_gang(fleet, gang(6, 1, strategy=Strategy.SPREAD, max_nodes=2)).nodes) == 2


def test_ranks_follow_a_ring_that_leaves_each_part_of_the_network_once() -> None:
    fleet = Fleet()
    for number in range(24):
        fleet.set_node(f"n{number:02}", FOUR, range(4))
        fleet.set_location(f"n{number:02}", location(zone="z", spine=f"{number % 2}", leaf=f"{number % 6}"))
    choice = place_gang(fleet, gang(24, 4))
    where = [fleet.location(name) for name in choice.nodes]
    steps = [LEVELS[shared(a, b)] for a, b in zip(where, (*where[1:], where[0]), strict=True)]
    assert Counter(steps) == {"leaf": 18, "spine": 4, "zone": 2}
    assert [pod.node for pod in choice.pods] == list(choice.nodes)


def test_the_ladder_holds_for_all_pods() -> None:
    fleet = cluster(a=(range(4), Location()), b=([0, 2], Location()))
    pod = Whole(containers=(2,), preferred=(Constraint.NVLINK,))
    assert place_gang(fleet, GangRequest(pod=pod, pods=2)).fallback == ()
    assert place_gang(fleet, GangRequest(pod=pod, pods=3)).fallback == (Constraint.NVLINK,)


def test_what_makes_no_sense_is_refused() -> None:
    fleet = cluster(a=(range(4), Location()))
    with pytest.raises(NoPlaceError, match="at least 1"):
        place_gang(fleet, gang(0, 2))
    with pytest.raises(NoPlaceError, match="cannot name GPUs"):
        place_gang(fleet, GangRequest(pod=Whole(containers=(1,), include=(0,)), pods=2))


def test_only_eligible_nodes_are_used() -> None:
    fleet = cluster(a=(range(4), Location()), b=([1, 2, 3], Location()))
    assert place_gang(fleet, gang(1, 4)).nodes == ("a",)
    with pytest.raises(NoPlaceError):
        place_gang(fleet, gang(1, 4), eligible={"b"})
    fleet.set_node("b", FOUR, [1, 2, 3], row=1)
    with pytest.raises(NoPlaceError):
        place_gang(fleet, gang(1, 4), eligible=np.array([True, True]))
    assert place_gang(fleet, gang(1, 3), eligible=np.array([True, True])).nodes == ("b",)


@pytest.mark.parametrize(
    ("request_", "stable"),
    [
        (gang(4, 2), "No place for 4 pods with 2 GPUs each: eligible nodes have no place for all of them at once."),
        (gang(5, 2), "No place for 5 pods with 2 GPUs each: "
         "this cluster has no place for all of them, even if all its GPUs are free."),
        (gang(3, 2, max_nodes=1), "No place for 3 pods with 2 GPUs each, on at most 1 node: "
         "this cluster has no place for all of them, even if all its GPUs are free."),
    ],
)  # fmt: skip
def test_the_stable_text_does_not_change_as_gpus_come_and_go(request_: GangRequest, stable: str) -> None:
    fleet = cluster(a=([0], Location()), b=(range(4), Location()))
    for free in ([0, 1], [], [2]):
        fleet.set_free("b", free)
        for eligible in (None, ["a"], []):
            with pytest.raises(NoPlaceError) as caught:
                place_gang(fleet, request_, eligible=eligible)
            assert caught.value.stable == stable


# The exact solver: every way to share pods over nodes, every way to cut a node's GPUs into sets.


def disjoint(free: tuple[int, ...], size: int, count: int) -> Iterator[list[int]]:
    if not count:
        yield []
        return
    for part in itertools.combinations(free, size):
        rest = tuple(gpu for gpu in free if gpu > part[0] and gpu not in part)
        for others in disjoint(rest, size, count - 1):
            yield [sum(1 << gpu for gpu in part), *others]


def shared(one: Location, other: Location) -> int:
    """The number of the narrowest level that two nodes share; that of the cluster where they share none."""
    pairs = zip(one.domains, other.domains, strict=True)
    return next((at for at, (a, b) in enumerate(pairs) if a is not None and a == b), len(LEVELS))


def slowest(fleet: Fleet, name: str, size: int, count: int) -> float | None:
    """Most bandwidth that the worst of so many sets of a node can have; None where they do not fit."""
    tables = tables_of(FOUR)
    ways = disjoint(tuple(sorted(fleet.free(name))), size, count)
    return max((min(float(tables.busbw[part]) for part in way) for way in ways), default=None)


def exact(fleet: Fleet, request: GangRequest) -> tuple[float, ...] | None:
    names, size = sorted(fleet.nodes), request.pod.gpus
    spread = request.pod.strategy is Strategy.SPREAD
    best: tuple[float, ...] | None = None
    for counts in itertools.product(range(request.pods + 1), repeat=len(names)):
        if sum(counts) != request.pods:
            continue
        used = [(name, count) for name, count in zip(names, counts, strict=True) if count]
        if request.max_nodes is not None and len(used) > request.max_nodes:
            continue
        if any(count * size < request.min_gpus_per_node for _, count in used):
            continue
        where = [fleet.location(name) for name, _ in used]
        if len(used) > 1 and any(one.gbps < request.min_network_gbps for one in where):
            continue
        worth = [slowest(fleet, name, size, count) for name, count in used]
        real = [one for one in worth if one is not None]
        if len(real) < len(worth):
            continue
        width = -1 if len(used) == 1 else max(shared(a, b) for a, b in itertools.combinations(where, 2))
        if request.min_network_gbps and width > LEVELS.index("leaf"):
            continue
        key = (-len(used), width, -min(real)) if spread else (width, len(used), -min(real))
        best = key if best is None or key < best else best
    return best


@pytest.mark.parametrize("seed", sampled(range(40)))
def test_reach_nodes_and_slowest_pod_are_those_of_the_exact_solver(seed: int) -> None:
    rng = random.Random(seed)
    fleet = Fleet()
    for number in range(rng.randint(1, 4)):
        fleet.set_node(f"n{number}", FOUR, rng.sample(range(4), rng.randint(1, 4)))
        spine = rng.choice("xy")
        own = location(zone="z", spine=spine, leaf=spine + rng.choice("12"), gbps=rng.choice((10, 50)))
        fleet.set_location(f"n{number}", own)
    request = gang(
        rng.randint(1, 4),
        rng.choice((1, 2, 2)),
        strategy=rng.choice((Strategy.PACK, Strategy.SPREAD)),
        max_nodes=rng.choice((None, None, 1, 2)),
        min_gpus_per_node=rng.choice((0, 0, 2)),
        min_network_gbps=rng.choice((0, 0, 50)),
    )
    best = exact(fleet, request)
    if best is None:
        with pytest.raises(NoPlaceError):
            place_gang(fleet, request)
        return
    choice = place_gang(fleet, request)
    holds(fleet, request, choice)
    assert choice == place_gang(fleet, request)
    worst = min(pod.busbw_gbps for pod in choice.pods)
    spread = request.pod.strategy is Strategy.SPREAD
    width = ("node", *LEVELS, "cluster").index(choice.reach) - 1
    head: tuple[float, ...] = (-len(choice.nodes), width) if spread else (width, len(choice.nodes))
    assert (*head, pytest.approx(-worst, abs=0.01)) == best
