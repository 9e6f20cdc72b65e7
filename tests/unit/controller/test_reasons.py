"""What a waiting pod says: the truth, seldom, and never ahead of placements."""

from __future__ import annotations

import asyncio

import pytest

from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.troubles import refuse, working


@pytest.mark.slow
async def test_one_pod_among_three_hundred_that_wait_costs_its_own_two_writes() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    cluster.pod("first", 8)
    async with working(cluster):
        await asyncio.sleep(1)
        cluster.schedule()
        for number in range(300):
            cluster.pod(f"w{number}", 8 - number % 4, wishes={"policy": "nvlink"})
        await asyncio.sleep(60)
        before = len(cluster.client.writes)
        assert all(cluster.note(f"w{number}", "reason") for number in range(300))
        cluster.node("b", "rtx4090-x8", labels={"only": "new"})
        cluster.pod("new", 4, nodeSelector={"only": "new"})
        await asyncio.sleep(1)
        cluster.schedule()
        await asyncio.sleep(60)
        assert cluster.gpus("new")[0] == "b"
        assert len(cluster.client.writes) - before <= 2


@pytest.mark.slow
async def test_a_reason_that_changes_is_written_every_thirty_seconds_at_most() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    cluster.pod("p", 8, requests={"cpu": "1"})
    async with working(cluster):
        for turn in range(60):
            cluster.node("a", None, ready="False" if turn % 2 else "True", allocatable={"cpu": "0"})
            await asyncio.sleep(1)
    assert 1 <= len([verb for verb, _ in cluster.client.writes if verb == "patch"]) <= 3


@pytest.mark.slow
async def test_a_reason_becomes_true_again_without_any_event_about_its_pod() -> None:
    cluster = GpuCluster()
    cluster.node("a", allocatable={"cpu": "0"})
    cluster.pod("p", 9, requests={"cpu": "1"})
    async with working(cluster):
        await asyncio.sleep(5)
        assert cluster.note("p", "reason") == "No node with GPUs can run this pod: too little cpu."
        cluster.node("a", None)
        await asyncio.sleep(60)
        assert "no node of this cluster has such a set" in (cluster.note("p", "reason") or "")


async def test_an_extended_resource_that_a_device_class_serves_keeps_no_pod_waiting() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", requests={"example.com/nic": "1"})
    async with working(cluster):
        await asyncio.sleep(2)
        assert cluster.claim("p") is None
        cluster.device_class("nic", "example.com/nic")
        await asyncio.sleep(1)
        assert cluster.gpus("p")[0] == "a"


async def test_reasons_of_others_do_not_wait_for_a_namespace_that_hangs() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    for number in range(100):
        cluster.pod(f"slow{number}", 9, namespace="slow")
    cluster.pod("good", 10)
    refuse(cluster, "slow", lambda: asyncio.sleep(30))
    async with working(cluster):
        await asyncio.sleep(5)
        assert cluster.note("good", "reason")


async def test_a_gang_that_was_told_how_many_are_there_is_told_soon_why_it_has_no_place() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    pods = [f"train-{number}" for number in range(4)]
    async with working(cluster):
        for pod in pods:
            assert (
                pod == pods[0]
                or cluster.note(pods[0], "reason") == "Waiting for more pods of the gang: 1 of 4 pods exist."
            )
            cluster.pod(pod, 8, wishes={"gang": "train", "gang-size": "4"})
            await asyncio.sleep(1.5)
        why = {cluster.note(pod, "reason") for pod in pods}
        assert len(why) == 1
        assert "pods exist" not in str(why)
        before = len(cluster.client.writes)
        for turn in range(20):
            cluster.node("b", None, ready="False" if turn % 2 else "True", allocatable={"cpu": "0"})
            await asyncio.sleep(1)
        assert len(cluster.client.writes) == before, "what it is told after that comes seldom"


def refused(cluster: GpuCluster, name: str, message: str) -> None:
    """Have the scheduler say that it finds no room for a pod."""
    pod = cluster.get_pod(name)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    cluster.put(PODS, pod | {"status": pod["status"] | {"conditions": [condition]}})


NO_PORTS = "0/2 nodes are available: 2 node(s) didn't have free ports for the requested pod ports."
NO_ROOM = "The scheduler finds no room for pod p on its nodes: "


@pytest.mark.slow
async def test_a_pod_that_is_refused_on_each_node_goes_on_saying_why() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    for name in "abc":
        cluster.node(name)
    cluster.pod("p", 8)
    says: set[str | None] = set()
    claims: set[str] = set()
    async with working(cluster):
        await asyncio.sleep(2)
        refused(cluster, "p", NO_PORTS)
        await asyncio.sleep(10)
        for _ in range(240):
            await asyncio.sleep(1)
            says.add(cluster.note("p", "reason"))
            claims |= set() if (claim := cluster.claim("p")) is None else {claim["metadata"]["uid"]}
        assert len(claims) > 5, "it is tried again and again"
        assert says == {f"{NO_ROOM}node(s) didn't have free ports for the requested pod ports."}
        refused(cluster, "p", "0/3 nodes are available: 3 Insufficient memory.")
        await asyncio.sleep(60)
        assert cluster.note("p", "reason") == f"{NO_ROOM}Insufficient memory."
        pod = cluster.get_pod("p")
        cluster.put(PODS, pod | {"status": pod["status"] | {"conditions": []}})
        for _ in range(30):
            cluster.schedule()
            await asyncio.sleep(1)
        assert cluster.get_pod("p")["spec"].get("nodeName")
        assert cluster.note("p", "reason") is None


@pytest.mark.slow
async def test_a_pod_that_requests_something_else_is_not_told_what_the_scheduler_said_before() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    for name in "abc":
        cluster.node(name)
    cluster.pod("p", 8)
    async with working(cluster):
        await asyncio.sleep(2)
        refused(cluster, "p", NO_PORTS)
        await asyncio.sleep(60)
        while cluster.claim("p") is not None:
            await asyncio.sleep(0.1)
        assert cluster.note("p", "reason")
        pod = cluster.get_pod("p")
        cluster.put(PODS, pod | {"spec": pod["spec"] | {"tolerations": [{"operator": "Exists"}]}})
        await asyncio.sleep(1)
        assert cluster.claim("p") is not None
        assert cluster.note("p", "reason") is None


async def test_what_has_become_untrue_goes_once_a_pod_has_a_place_again() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    cluster.pod("p", 8)
    async with working(cluster):
        await asyncio.sleep(2)
        cluster.rival("theirs", "a", range(8))
        await asyncio.sleep(40)
        assert "can use only the nodes of that placement" in (cluster.note("p", "reason") or "")
        cluster.remove(RESOURCE_CLAIMS, "theirs", "default")
        await asyncio.sleep(2)
        assert (cluster.gpus("p")[0], cluster.note("p", "reason")) == ("a", None)
