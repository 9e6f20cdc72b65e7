"""Pods of ours that are not to be beside each other, before and after the scheduler refuses them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.cluster.pods.neighbours import MOST_PODS
from dradriver.kube.resources import PODS
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.troubles import working

HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
DB = {"matchLabels": {"app": "db"}}
ALONE = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": DB, "topologyKey": HOSTNAME}]
    }
}
EVEN = [{"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": DB}]


def db(cluster: GpuCluster, name: str, *, app: str = "db", **spec: Any) -> None:
    cluster.pod(name, 1, **spec)
    pod = cluster.get_pod(name)
    pod["metadata"]["labels"]["app"] = app
    pod["metadata"]["ownerReferences"] = [{"kind": "StatefulSet", "name": "db", "uid": "set", "controller": True}]
    cluster.put(PODS, pod)


def node_of(cluster: GpuCluster, name: str) -> str:
    return cluster.gpus(name)[0]


def allowed(cluster: GpuCluster, name: str) -> list[str]:
    affinity = cluster.get_pod(name)["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [term["matchFields"][0]["values"][0] for term in terms]


async def test_replicas_that_must_be_alone_are_narrowed_to_nodes_without_siblings() -> None:
    cluster = GpuCluster()
    for number in range(16):
        cluster.node(f"n{number:02}")
    for replica in range(12):
        db(cluster, f"db-{replica}", affinity=ALONE)
        await cluster.settle()
        siblings = {node_of(cluster, f"db-{other}") for other in range(replica)}
        assert not siblings & set(allowed(cluster, f"db-{replica}"))
        cluster.schedule()
    assert len({node_of(cluster, f"db-{replica}") for replica in range(12)}) == 12
    cluster.remove(PODS, "db-9", "default")
    cluster.collect()
    await cluster.settle()
    db(cluster, "db-9", affinity=ALONE)
    await cluster.settle()
    assert len({node_of(cluster, f"db-{replica}") for replica in range(12)}) == 12


async def test_replicas_that_come_at_once_are_kept_apart_too() -> None:
    cluster = GpuCluster()
    for number in range(6):
        cluster.node(f"n{number}")
    for replica in range(6):
        db(cluster, f"db-{replica}", affinity=ALONE)
    await cluster.settle()
    assert len({node_of(cluster, f"db-{replica}") for replica in range(6)}) == 6


async def test_who_finds_no_node_without_a_sibling_waits_and_is_told_why() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    for name in ("db-0", "db-1"):
        db(cluster, name, affinity=ALONE)
    await cluster.settle()
    assert cluster.claim("db-1") is None
    assert "excluded by the pod's anti-affinity or topology spread" in (cluster.note("db-1", "reason") or "")
    cluster.pod("other", 1)
    cluster.node("b")
    await cluster.settle()
    assert (node_of(cluster, "db-1"), cluster.claim("other") is not None) == ("b", True)


async def test_a_pod_whom_others_shun_goes_elsewhere_while_it_can() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.node("b")
    db(cluster, "alone", app="web", affinity=ALONE)
    await cluster.settle()
    for name in ("db-0", "db-1"):
        db(cluster, name)
    await cluster.settle()
    assert {node_of(cluster, "alone"), node_of(cluster, "db-0")} == {"a", "b"}
    assert node_of(cluster, "db-1") == node_of(cluster, "db-0")


async def test_replicas_are_spread_over_zones_before_they_are_narrowed() -> None:
    cluster = GpuCluster()
    for number in range(9):
        cluster.node(f"n{number}", labels={ZONE: f"z{number // 3}"})
    cluster.pod("filler", 8)  # the best node has least room left, and all replicas would go into its zone
    for replica in range(6):
        db(cluster, f"db-{replica}", topologySpreadConstraints=EVEN)
        await cluster.settle()
        cluster.schedule()
    zones = sorted(f"z{int(node_of(cluster, f'db-{replica}')[1:]) // 3}" for replica in range(6))
    assert zones == ["z0", "z0", "z1", "z1", "z2", "z2"]


async def test_the_nodes_of_a_pod_are_of_several_zones() -> None:
    cluster = GpuCluster()
    for number in range(24):
        cluster.node(f"n{number:02}", labels={ZONE: "near" if number < 16 else f"far{number // 20}"})
    cluster.pod("p", 1)
    await cluster.settle()
    assert allowed(cluster, "p")[:4] == ["n00", "n01", "n02", "n03"]
    assert {"n16", "n20"} < set(allowed(cluster, "p"))


@pytest.mark.parametrize(
    "spec",
    [
        {
            "affinity": {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}, {"topologyKey": "x"}]}
            }
        },
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
        {"topologySpreadConstraints": EVEN * 500},
        {"topologySpreadConstraints": [EVEN[0] | {"labelSelector": {"matchLabels": {str(i): "" for i in range(500)}}}]},
    ],
)
async def test_rules_that_say_nothing_or_too_much_are_left_to_the_scheduler(spec: Any) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    db(cluster, "p", **spec)
    db(cluster, "q", **spec)
    await cluster.settle()
    assert (node_of(cluster, "p"), node_of(cluster, "q")) == ("a", "a")


@pytest.mark.slow
@pytest.mark.looptime
async def test_a_pod_that_one_good_node_takes_comes_to_it_and_looks_at_each_once() -> None:
    """Twenty nodes, all of which but one of its own the scheduler refuses it on, and always in the same words."""
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    for number in range(20):
        cluster.node(f"n{number:02}")
    cluster.pod("p", 8)
    async with working(cluster):
        await asyncio.sleep(1)
        good, looked = allowed(cluster, "p")[-1], list[str]()
        for _ in range(180):
            if cluster.claim("p") is not None:
                node = cluster.gpus("p")[0]
                if not looked or looked[-1] != node:
                    looked.append(node)
                if node == good:
                    break
                pod = cluster.get_pod("p")
                refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
                if pod["status"].get("conditions") != [refused]:
                    cluster.put(PODS, pod | {"status": pod["status"] | {"conditions": [refused]}})
            await asyncio.sleep(1)
        assert looked[-1] == good
        assert len(looked) == len(set(looked)) == 8


@pytest.mark.slow
@pytest.mark.looptime
async def test_others_of_its_kind_are_not_narrowed_to_nodes_that_the_scheduler_refuses() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    for number in range(4):
        cluster.node(f"n{number}")
    db(cluster, "db-0")
    async with working(cluster):
        await asyncio.sleep(1)
        first = node_of(cluster, "db-0")
        pod = cluster.get_pod("db-0")
        refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        cluster.put(PODS, pod | {"status": pod["status"] | {"conditions": [refused]}})
        await asyncio.sleep(6)
        db(cluster, "db-1")
        cluster.pod("stranger", 8)
        await asyncio.sleep(1)
        assert first not in allowed(cluster, "db-1")
        assert node_of(cluster, "stranger") == first
        await asyncio.sleep(600)
        db(cluster, "db-2")
        await asyncio.sleep(1)
        assert first in allowed(cluster, "db-2")


@pytest.mark.slow
@pytest.mark.looptime
async def test_a_pod_that_was_bound_by_hand_keeps_no_gpus_and_is_told() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    cluster.pod("p", 8, schedulerName="by-hand")
    async with working(cluster):
        await asyncio.sleep(1)
        pod = cluster.get_pod("p")
        cluster.put(PODS, pod | {"spec": pod["spec"] | {"nodeName": "a"}})
        await asyncio.sleep(1)
        cluster.pod("q", 8)
        await asyncio.sleep(28)
        assert cluster.claim("p") is not None
        await asyncio.sleep(3)
        assert (cluster.claim("p"), cluster.gpus("q")[0]) == (None, "a")
        await asyncio.sleep(30)
        assert (cluster.note("p", "reason") or "").startswith("The pod was bound to node a without its GPUs")


@pytest.mark.looptime
async def test_a_pod_whose_allocation_is_shown_late_keeps_its_claim() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    cluster.pod("p", 8)
    await cluster.settle()
    cluster.schedule()
    cluster.deliver(PODS)
    await cluster.worker.rest()
    await asyncio.sleep(31)
    await cluster.worker.rest()
    await cluster.settle()
    assert cluster.claim("p") is not None
    assert cluster.note("p", "reason") is None
    assert names.ALLOCATED in cluster.get_pod("p")["metadata"]["annotations"]


async def test_pods_are_spread_as_if_those_that_end_were_gone() -> None:
    cluster = GpuCluster()
    for zone in ("a", "b"):
        cluster.node(zone, labels={ZONE: zone})
    cluster.pod("filler", 8)
    await cluster.settle()
    db(cluster, "db-0", topologySpreadConstraints=EVEN)
    await cluster.settle()
    cluster.schedule()
    ending = cluster.get_pod("db-0")
    ending["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/slow"]}
    cluster.put(PODS, ending)
    db(cluster, "db-1", topologySpreadConstraints=EVEN)
    await cluster.settle()
    assert node_of(cluster, "db-1") == node_of(cluster, "db-0")


async def test_a_spread_that_counts_no_pod_keeps_no_pod_away() -> None:
    cluster = GpuCluster()
    for zone in ("a", "b"):
        cluster.node(zone, labels={ZONE: zone})
    cluster.pod("filler", 8)
    spread = [EVEN[0] | {"labelSelector": {}}]
    for name in ("db-0", "db-1", "db-2"):
        db(cluster, name, topologySpreadConstraints=spread)
    await cluster.settle()
    assert len({node_of(cluster, name) for name in ("db-0", "db-1", "db-2")}) == 1


@pytest.mark.slow
async def test_among_very_many_pods_rules_are_left_to_the_scheduler() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    for name in ("db-0", "db-1", "db-2"):
        db(cluster, name, affinity=ALONE)
    await cluster.settle()
    assert cluster.claim("db-1") is None
    waiting = {"schedulingGates": [{"name": names.GATE}, {"name": "example.com/later"}]}
    for number in range(MOST_PODS):
        db(cluster, f"other-{number}", app="other", **waiting)
    db(cluster, "db-3", affinity=ALONE)
    await cluster.settle()
    assert node_of(cluster, "db-3") == "a"
