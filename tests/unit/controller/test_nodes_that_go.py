"""Pods and nodes that go: for maintenance at a time that is known, as spot nodes at any."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest

from dradriver.allocator.request import Amount
from dradriver.api import names
from dradriver.api.policies.modes import Mode
from dradriver.cluster.nodes.table import GOING
from tests.fakes.gpucluster import GpuCluster
from tests.unit.controller.test_gangs import gang

HOUR_S = 3600
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


async def test_only_who_is_gone_by_then_gets_gpus_of_a_node_that_goes() -> None:
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


async def test_whoever_is_there_stays() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 2)
    await cluster.settle()
    cluster.schedule()
    cluster.node("a", None, **going(60))
    await cluster.settle()
    assert cluster.claim("p") is not None
    assert cluster.get_pod("p")["spec"]["nodeName"] == "a"


async def test_a_gang_goes_only_where_all_of_it_has_ended_by_then() -> None:
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


async def test_nobody_gets_gpus_that_are_further_apart_for_it() -> None:
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
