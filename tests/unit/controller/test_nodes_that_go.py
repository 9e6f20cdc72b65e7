"""Pods and nodes that go: for maintenance at a time that is known, as spot nodes at any."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest

from dradriver.allocator.request import Amount
from dradriver.api.base import names
from dradriver.api.policies.gpu_modes import Mode
from dradriver.cluster.nodes.node_table import GOING
from dradriver.kube.resources import PODS
from dradriver.queue.reservation_rules import Terms
from tests.fakes.gang_pods import gang
from tests.fakes.gpucluster import GpuCluster, Killed
from tests.fakes.preempting import Contested
from tests.fakes.reserving import Reserving

HOUR_S = 3600
WAIT_S = Terms().bounded_wait_s + 60
SPOT = {"karpenter.sh/capacity-type": "spot"}


def going(in_s: float) -> dict[str, Any]:
    """Return the annotations of a node that goes so soon."""
    at = datetime.datetime.fromtimestamp(time.time() + in_s, datetime.UTC)
    return {"annotations": {names.MAINTENANCE: at.isoformat()}}


def spot_and(*others: str, profile: str = "dgx-h100") -> GpuCluster:
    """Return a cluster of a spot node and others; the spot node is neither the first nor the last by name."""
    cluster = GpuCluster()
    cluster.node("m", profile, labels=SPOT)
    for name in others:
        cluster.node(name, profile)
    return cluster


async def test_only_a_pod_that_is_gone_before_gets_gpus_of_a_node_that_goes() -> None:
    cluster = GpuCluster()
    cluster.node("a", **going(2 * HOUR_S))
    cluster.pod("endless", 2)
    cluster.pod("long", 2, activeDeadlineSeconds=3 * HOUR_S)
    cluster.pod("short", 2, activeDeadlineSeconds=HOUR_S)
    await cluster.settle()
    assert cluster.gpus("short")[0] == "a"
    for pod in ("endless", "long"):
        assert cluster.claim(pod) is None
        assert GOING in (cluster.note(pod, "reason") or "")
    cluster.node("b")
    await cluster.settle()
    assert {cluster.gpus(pod)[0] for pod in ("endless", "long")} == {"b"}


async def test_those_who_wait_get_the_gpus_of_a_node_that_stays_after_all() -> None:
    cluster = GpuCluster()
    cluster.node("a", **going(HOUR_S))
    cluster.pod("p", 2)
    await cluster.settle()
    assert cluster.claim("p") is None
    cluster.node("a", None)
    await cluster.settle()
    assert cluster.gpus("p")[0] == "a"


async def test_a_node_that_goes_is_no_next_best_node_either() -> None:
    cluster = GpuCluster()
    cluster.node("a", **going(HOUR_S))
    cluster.node("b")
    cluster.node("c")
    cluster.pod("p", 2)
    await cluster.settle()
    affinity = str(cluster.get_pod("p")["spec"]["affinity"])
    assert ["'a'" in affinity, "'b'" in affinity, "'c'" in affinity] == [False, True, True]


async def test_a_pod_that_exists_stays() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 2)
    await cluster.settle()
    cluster.schedule()
    cluster.node("a", None, **going(60))
    await cluster.settle()
    assert cluster.claim("p") is not None
    assert cluster.get_pod("p")["spec"]["nodeName"] == "a"


async def test_a_gang_goes_only_where_all_of_it_has_ended_before() -> None:
    cluster = GpuCluster()
    cluster.node("a", **going(2 * HOUR_S))
    cluster.node("b", **going(2 * HOUR_S))
    wishes = {"gang": "mixed", "gang-size": "2"}
    cluster.pod("mixed-0", 8, wishes=wishes, activeDeadlineSeconds=HOUR_S)
    cluster.pod("mixed-1", 8, wishes=wishes, activeDeadlineSeconds=9 * HOUR_S)
    await cluster.settle()
    assert cluster.claim("mixed-0") is None
    assert cluster.note("mixed-0", "reason")
    wishes = {"gang": "short", "gang-size": "2"}
    for pod in ("short-0", "short-1"):
        cluster.pod(pod, 8, wishes=wishes, activeDeadlineSeconds=HOUR_S)
    await cluster.settle()
    assert {cluster.gpus(pod)[0] for pod in ("short-0", "short-1")} == {"a", "b"}


async def test_pods_of_different_ends_are_one_kind_of_a_gang() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    wishes = {"gang": "g", "gang-size": "1-3"}
    for at, deadline_s in enumerate((HOUR_S, 2 * HOUR_S, 3 * HOUR_S)):
        cluster.pod(f"g-{at}", 4, wishes=wishes, activeDeadlineSeconds=deadline_s)
    await cluster.settle()
    assert sum(cluster.claim(f"g-{at}") is not None for at in range(3)) == 2, "it begins with those that have a place"


@pytest.mark.parametrize(("word", "node"), [("prefer", "m"), ("avoid", "a"), ("any", "a")])
async def test_a_pod_goes_where_it_had_rather_be_and_else_anywhere(word: str, node: str) -> None:
    cluster = spot_and("a", "z")
    cluster.pod("p", 2, wishes={"spot": word})
    await cluster.settle()
    assert cluster.gpus("p")[0] == node
    alone = spot_and() if word == "avoid" else GpuCluster()
    if word != "avoid":
        alone.node("a")
    alone.pod("p", 2, wishes={"spot": word})
    await alone.settle()
    assert alone.gpus("p")[0] == ("m" if word == "avoid" else "a")


async def test_spot_nodes_of_the_policies_file_count() -> None:
    cluster = GpuCluster()
    cluster.worker.picture.nodes.spot_labels = {"example.com/cheap": "yes"}
    cluster.node("a")
    cluster.node("m", labels={"example.com/cheap": "yes"})
    cluster.pod("p", 2, wishes={"spot": "prefer"})
    await cluster.settle()
    assert cluster.gpus("p")[0] == "m"


async def test_no_pod_gets_gpus_that_are_further_apart_for_it() -> None:
    cluster = spot_and("a", profile="rtx-a6000-x4-pairs")
    cluster.rival("held", "m", (0, 2))  # no pair is left there
    cluster.pod("pair", 2, wishes={"spot": "prefer"})
    cluster.pod("single", 1, wishes={"spot": "prefer"})
    await cluster.settle()
    assert cluster.gpus("pair")[0] == "a"
    assert cluster.note("pair", "level") == "nvlink"
    assert cluster.gpus("single")[0] == "m"


async def test_a_share_goes_where_it_had_rather_be() -> None:
    cluster = GpuCluster()
    for name, labels in (("a", {}), ("m", SPOT)):
        cluster.node(name, mode=Mode(shared="time-slicing"), labels=labels)
    cluster.pod("p", Amount(cores=50), wishes={"share": "0.5", "spot": "prefer"})
    await cluster.settle()
    assert cluster.gpus("p")[0] == "m"


@pytest.mark.parametrize("word", ["prefer", "avoid"])
async def test_a_gang_is_wholly_on_spot_nodes_or_wholly_on_others(word: str) -> None:
    cluster = GpuCluster()
    for name in ("a", "c", "e"):
        cluster.node(name, "dgx-h100", labels=SPOT)
    for name in ("b", "d", "f"):
        cluster.node(name, "dgx-h100")
    pods = [f"g-{at}" for at in range(2)]
    for pod in pods:
        cluster.pod(pod, 8, wishes={"gang": "g", "gang-size": "2", "spot": word})
    await cluster.settle()
    assert {cluster.gpus(pod)[0] for pod in pods} <= set("ace" if word == "prefer" else "bdf")
    four = [f"h-{at}" for at in range(4)]
    for pod in four:
        cluster.pod(pod, 8, wishes={"gang": "h", "gang-size": "4", "spot": word})
    await cluster.settle()
    assert len({cluster.gpus(pod)[0] for pod in four}) == 4, "there is no other place for all of it"


async def test_a_gang_whose_pods_say_different_things_takes_what_there_is() -> None:
    cluster = spot_and("a")
    for at, word in enumerate(("prefer", "avoid")):
        cluster.pod(f"g-{at}", 8, wishes={"gang": "g", "gang-size": "2", "spot": word})
    await cluster.settle()
    assert {cluster.gpus(f"g-{at}")[0] for at in range(2)} == {"a", "m"}


async def test_a_gang_without_the_word_is_as_before() -> None:
    cluster = spot_and("a")
    pods = gang(cluster, 2)
    await cluster.settle()
    assert {cluster.gpus(pod)[0] for pod in pods} == {"a", "m"}


async def test_a_gang_gets_no_gpus_that_are_further_apart_for_it() -> None:
    cluster = GpuCluster()
    for name, taken, labels in (("a", (2, 3), {}), ("b", (2, 3), {}), ("m", (0, 2), SPOT), ("n", (0, 2), SPOT)):
        cluster.node(name, "rtx-a6000-x4-pairs", labels=labels)
        cluster.rival(f"held-{name}", name, taken)
    pods = [f"g-{at}" for at in range(2)]
    for pod in pods:
        cluster.pod(pod, 2, wishes={"gang": "g", "gang-size": "2", "spot": "prefer"})
    await cluster.settle()
    assert {cluster.note(pod, "level") for pod in pods} == {"nvlink"}


@pytest.mark.parametrize("word", ["any", "avoid"])
async def test_a_lost_pod_comes_back_to_its_place_against_its_preferences(word: str) -> None:
    cluster = GpuCluster()
    for name in "mn":
        cluster.node(name, "dgx-h100", labels=SPOT)
    wishes = {"gang": "g", "gang-size": "2", "spot": word}
    for at in range(2):
        cluster.pod(f"g-{at}", 8, wishes=wishes)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    was = cluster.gpus("g-1")[0]
    for name in "cd":
        cluster.node(name, "dgx-h100")
    cluster.remove(PODS, "g-1", "default")
    cluster.collect()
    await cluster.settle()
    cluster.pod("g-1", 8, wishes=wishes)
    await cluster.settle()
    assert cluster.gpus("g-1")[0] == was


async def test_a_pod_that_is_short_joins_its_set_on_a_node_that_goes_later() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("first", 2, wishes={"shared-claim": "set"})
    await cluster.settle()
    cluster.schedule()
    cluster.node("a", None, **going(2 * HOUR_S))
    cluster.pod("short", 2, wishes={"shared-claim": "set"}, activeDeadlineSeconds=HOUR_S)
    cluster.pod("endless", 2, wishes={"shared-claim": "set"})
    await cluster.settle()
    assert not cluster.get_pod("short")["spec"].get("schedulingGates")
    assert GOING in (cluster.note("endless", "reason") or "")


async def test_the_next_leader_lifts_no_gang_onto_a_node_that_goes_too_soon_for_one_of_its_pods() -> None:
    cluster = GpuCluster()
    for name in "abc":
        cluster.node(name)
    cluster.pod("g-0", 8, wishes={"gang": "g", "gang-size": "2"})
    cluster.pod("g-1", 8, wishes={"gang": "g", "gang-size": "2"}, activeDeadlineSeconds=600)
    cluster.client.kill_at = -2
    with pytest.raises(Killed):
        await cluster.settle()
    marked = cluster.gpus("g-1")[0]
    cluster.restart()
    cluster.node(marked, None, **going(2 * HOUR_S))
    await cluster.settle()
    assert marked not in {cluster.gpus(f"g-{at}")[0] for at in range(2)}


async def test_a_gang_is_told_that_nodes_go() -> None:
    cluster = GpuCluster()
    cluster.node("a", **going(HOUR_S))
    gang(cluster, 2, gpus=4)
    await cluster.settle()
    assert GOING in (cluster.note("train-0", "reason") or "")


# Others end, or are waited for.


@pytest.mark.parametrize(("goes_s", "ended"), [(90 * 60, []), (4 * HOUR_S, ["low"])])
async def test_no_pod_ends_for_a_pod_that_would_begin_too_late_there(goes_s: float, ended: list[str]) -> None:
    cluster = Contested()
    cluster.node("a")
    await cluster.run(("low", 8, 0), terminationGracePeriodSeconds=HOUR_S)
    cluster.node("a", None, **going(goes_s))
    cluster.pod("me", 8, priority=10, activeDeadlineSeconds=HOUR_S)
    await cluster.settle()
    assert cluster.ending() == ended


async def test_a_node_that_is_marked_while_others_end_is_given_back() -> None:
    cluster = Contested()
    cluster.node("a")
    await cluster.run(("low", 8, 0), terminationGracePeriodSeconds=HOUR_S)
    cluster.pod("me", 8, priority=10)
    await cluster.settle()
    assert cluster.ending() == ["low"]
    cluster.node("a", None, **going(HOUR_S + 100))
    cluster.deliver()
    cluster.worker.begin()  # it is looked at every half second
    await cluster.settle()
    assert cluster.claim("me") is None


async def test_no_pod_ends_on_a_node_that_goes_for_a_pod_of_a_gang_that_runs() -> None:
    cluster = Contested()
    cluster.node("a")
    wishes = {"gang": "g", "gang-size": "2"}
    cluster.pod("g-0", 4, priority=10, wishes=wishes)
    cluster.pod("g-1", 4, priority=10, wishes=wishes, activeDeadlineSeconds=600)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    cluster.node("b")
    await cluster.settle()
    await cluster.run(("low", 8, 0))
    cluster.node("b", None, **going(2 * HOUR_S))
    cluster.remove(PODS, "g-1", "default")
    cluster.collect()
    await cluster.settle()
    cluster.rival("x", "a", [index for index in range(8) if index not in cluster.gpus("g-0")[1]])
    cluster.pod("g-1", 4, priority=10, wishes=wishes, activeDeadlineSeconds=600)
    await cluster.settle()
    assert cluster.ending() == []


@pytest.fixture
def reserving(monkeypatch: pytest.MonkeyPatch) -> Reserving:
    """A cluster whose time is what everybody goes by."""
    cluster = Reserving()
    monkeypatch.setattr(time, "time", lambda: cluster.now)
    return cluster


async def test_nothing_is_reserved_on_a_node_that_goes_before_its_unit_would_have_ended(reserving: Reserving) -> None:
    cluster = reserving
    cluster.node("a")
    await cluster.settle()
    await cluster.run("s0", 8, activeDeadlineSeconds=3 * HOUR_S)
    cluster.node("b")
    await cluster.settle()
    await cluster.run("s1", 8, activeDeadlineSeconds=6 * HOUR_S)
    cluster.node("a", None, **going(4 * HOUR_S))
    await cluster.settle()
    cluster.pod("big", 8, activeDeadlineSeconds=2 * HOUR_S)
    await cluster.settle()
    await cluster.later(WAIT_S)
    assert [{node for node, _ in held.gpus} for held in cluster.held] == [{"b"}]


async def test_what_is_reserved_for_a_gang_moves_when_a_node_goes_too_soon_for_one_of_its_pods(
    reserving: Reserving,
) -> None:
    cluster = reserving
    for name in "abcd":
        cluster.node(name)
    await cluster.settle()
    for at in range(8):
        await cluster.run(f"s{at}", 4)
    wishes = {"gang": "g", "gang-size": "2"}
    cluster.pod("g-0", 8, wishes=wishes, activeDeadlineSeconds=HOUR_S)
    cluster.pod("g-1", 8, wishes=wishes, activeDeadlineSeconds=9 * HOUR_S)
    await cluster.settle()
    await cluster.later(WAIT_S)
    was = {node for held in cluster.held for node, _ in held.gpus}
    assert len(was) == 2
    for name in was:
        cluster.node(name, None, **going(3 * HOUR_S))
    await cluster.settle()
    await cluster.look()
    assert was.isdisjoint(node for held in cluster.held for node, _ in held.gpus)
    assert cluster.held
