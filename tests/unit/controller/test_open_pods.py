"""Pods with rules that only the scheduler can evaluate are confined to no node; a refusal moves their GPUs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.api.policies.policies_reader import read
from dradriver.kube.client import ApiError
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS, Resource
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.preempting import contested
from tests.fakes.troubles import working

OTHER = {"name": "fpga", "resourceClaimName": "fpga"}
REFUSAL = "0/4 nodes are available: 4 cannot allocate all claims."


def admit(cluster: GpuCluster, name: str, *, gpus: int = 4, **changes: Any) -> None:
    """Create a pod that names a claim of another driver, which is not allocated, next to its GPUs."""
    pod = cluster.admitted(name, gpus, **changes)
    pod["spec"]["resourceClaims"].append(OTHER)
    cluster.put(PODS, pod)


def refuse(cluster: GpuCluster, name: str) -> None:
    """Have the scheduler say that it finds no room for a pod, and remove a nomination, as it does when it says so."""
    pod = cluster.get_pod(name)
    refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": REFUSAL}
    may_preempt = pod["spec"].get("preemptionPolicy") != "Never"
    kept = {} if may_preempt else {"nominatedNodeName": pod["status"].get("nominatedNodeName", "")}
    cluster.put(PODS, pod | {"status": {"phase": "Pending", "conditions": [refusal], **kept}})


def nodes(cluster: GpuCluster, count: int) -> None:
    """Create nodes with eight free GPUs each."""
    for number in range(count):
        cluster.node(f"n{number}")


async def refused(cluster: GpuCluster, name: str, times: int) -> list[str]:
    """Refuse each placement of a pod, so many times. Returns the nodes that it had."""
    tried = []
    for _ in range(times):
        tried.append(cluster.gpus(name)[0])
        before = cluster.claim(name)
        assert before is not None
        refuse(cluster, name)
        async with asyncio.timeout(600):
            while (claim := cluster.claim(name)) is None or claim["metadata"]["uid"] == before["metadata"]["uid"]:
                await asyncio.sleep(0.5)
                cluster.deliver()
    return tried


async def test_it_is_confined_to_no_node_and_its_node_is_nominated() -> None:
    cluster = GpuCluster()
    nodes(cluster, 2)
    admit(cluster, "p")
    await cluster.settle()
    pod, node = cluster.get_pod("p"), cluster.gpus("p")[0]
    assert pod["spec"]["schedulingGates"] == []
    assert "affinity" not in pod["spec"]
    assert names.AFFINITY not in pod["metadata"]["annotations"]
    assert pod["status"]["nominatedNodeName"] == node


async def test_a_refusal_moves_the_gpus_to_a_node_that_was_not_tried() -> None:
    cluster = GpuCluster(promise_s=30.0, unschedulable_s=5.0)
    nodes(cluster, 4)
    admit(cluster, "p")
    async with working(cluster):
        await asyncio.sleep(1)
        tried = await refused(cluster, "p", 2)
        assert len({*tried, cluster.gpus("p")[0]}) == 3
        assert cluster.get_pod("p")["status"]["nominatedNodeName"] == cluster.gpus("p")[0]


@pytest.mark.parametrize("policy", ["PreemptLowerPriority", "Never"])
async def test_after_three_refusals_the_scheduler_chooses(policy: str) -> None:
    cluster = GpuCluster(promise_s=300.0, unschedulable_s=5.0)
    nodes(cluster, 6)
    admit(cluster, "p", preemptionPolicy=policy)
    async with working(cluster):
        await asyncio.sleep(1)
        begun = cluster.time_s()
        await refused(cluster, "p", 3)
        claim = cluster.claim("p")
        assert cluster.time_s() - begun < 100
    assert claim is not None
    assert claim["metadata"]["labels"][names.LABEL] == names.LABEL_HANDED_OVER


async def test_no_more_than_eight_of_a_namespace_wait_for_the_scheduler() -> None:
    cluster = GpuCluster()
    nodes(cluster, 10)
    for number in range(12):
        admit(cluster, f"p{number}")
    cluster.pod("plain")
    await cluster.settle()
    claims = [cluster.claim(f"p{number}") is not None for number in range(12)]
    assert claims.count(True) == 8
    assert cluster.claim("plain") is not None
    bound = cluster.get_pod("p0")
    cluster.put(PODS, bound | {"spec": bound["spec"] | {"nodeName": cluster.gpus("p0")[0]}})
    await cluster.settle()
    assert [cluster.claim(f"p{number}") is not None for number in range(12)].count(True) == 9


async def test_gangs_wait_for_the_scheduler_only_while_fewer_than_eight_pods_of_their_namespace_do() -> None:
    cluster = GpuCluster()
    cluster.barrier()
    nodes(cluster, 4)
    for gang, size in (("a", 4), ("b", 3), ("c", 12), ("d", 2)):
        for rank in range(size):
            admit(cluster, f"{gang}-{rank}", gpus=1, wishes={"gang": gang, "gang-size": str(size)})
    await cluster.settle()
    claims = cluster.all(RESOURCE_CLAIMS)
    assert len(claims) == 4 + 3 + 12, "a gang is placed whole while seven pods wait, and the next one is not"


async def test_a_nomination_ends_with_the_placement() -> None:
    cluster = GpuCluster(promise_s=30.0)
    nodes(cluster, 1)
    admit(cluster, "p")
    async with working(cluster):
        await asyncio.sleep(1)
        assert cluster.get_pod("p")["status"]["nominatedNodeName"] == "n0"
        cluster.rival("other", "n0", range(8))
        await asyncio.sleep(60)
        assert cluster.claim("p") is None
        assert not cluster.get_pod("p")["status"].get("nominatedNodeName")


PARTITION = b"tenants:\n  ours: {namespaces: [default], partition: {nodeSelector: {pool: red}}}"
CAP = b"tenants:\n  ours: {namespaces: [default], cap: [{gpus: 4}]}"


@pytest.mark.slow
@pytest.mark.parametrize(("policies", "claims"), [(PARTITION, {names.LABEL_PLACED}), (CAP, {names.LABEL_HANDED_OVER})])
async def test_a_partition_keeps_it_from_the_scheduler(policies: bytes, claims: set[str]) -> None:
    cluster = GpuCluster(promise_s=300.0, unschedulable_s=5.0)
    cluster.worker.follow(read(policies, source="x"))
    for number in range(6):
        cluster.node(f"n{number}", labels={"pool": "red"})
    admit(cluster, "p")
    labels: set[str] = set()
    held_s = 0
    async with working(cluster):
        for second in range(900):
            await asyncio.sleep(1)
            claim = cluster.claim("p")
            if second > 120:
                labels |= set() if claim is None else {claim["metadata"]["labels"][names.LABEL]}
                held_s += claim is not None and names.CHOICE in claim["metadata"]["annotations"]
            if claim is not None and second % 5 == 0 and names.CHOICE in claim["metadata"]["annotations"]:
                refuse(cluster, "p")
    assert labels == claims
    if claims == {names.LABEL_PLACED}:
        assert held_s < 200, "it keeps GPUs from others for less and less of the time"


async def test_pods_of_a_gang_are_confined_to_no_node_either() -> None:
    cluster = GpuCluster()
    cluster.barrier()
    nodes(cluster, 3)
    for number in range(2):
        admit(cluster, f"g-{number}", gpus=8, wishes={"gang": "g", "gang-size": "2"})
    await cluster.settle()
    pods = [cluster.get_pod(f"g-{number}") for number in range(2)]
    assert [pod["spec"]["schedulingGates"] for pod in pods] == [[], []]
    assert not any("affinity" in pod["spec"] for pod in pods)
    assert {pod["status"]["nominatedNodeName"] for pod in pods} == {cluster.gpus(f"g-{n}")[0] for n in range(2)}


async def test_it_is_confined_to_no_node_either_if_others_end_for_it() -> None:
    cluster = await contested(("low", 8, 0))
    admit(cluster, "p", priority=1000)
    await cluster.settle()
    assert cluster.evicted() == ["low"]
    assert "affinity" not in cluster.get_pod("p")["spec"]
    assert cluster.get_pod("p")["status"]["nominatedNodeName"] == "a"


@pytest.mark.parametrize("status", [400, 403, 422])
async def test_a_nomination_that_is_refused_keeps_nothing_waiting(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = GpuCluster()
    nodes(cluster, 1)
    send = cluster.client.patch

    async def patch(resource: Resource, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("subresource") == "status" and resource is PODS:
            raise ApiError(status, "", "no status of pods may be written")
        return await send(resource, *args, **kwargs)

    monkeypatch.setattr(cluster.client, "patch", patch)
    admit(cluster, "p")
    await cluster.settle()
    assert cluster.get_pod("p")["spec"]["schedulingGates"] == []
    assert cluster.claim("p") is not None


@pytest.mark.slow
async def test_changes_of_its_labels_do_not_let_it_keep_gpus_for_more_of_the_time() -> None:
    cluster = GpuCluster(promise_s=300.0, unschedulable_s=5.0)
    cluster.worker.follow(read(PARTITION, source="x"))
    cluster.node("n0", labels={"pool": "red"})
    admit(cluster, "p")
    held_s = 0
    async with working(cluster, see_s=0.5):
        for second in range(1200):
            await asyncio.sleep(1)
            if cluster.claim("p") is not None:
                held_s += 1
                refuse(cluster, "p")
            else:
                pod = cluster.get_pod("p")
                labels = pod["metadata"]["labels"] | {"changed": str(second)}
                cluster.put(PODS, pod | {"metadata": pod["metadata"] | {"labels": labels}})
    assert held_s < 400


@pytest.mark.parametrize(
    ("more", "is_open"),
    [
        ({}, False),
        ({"minDomains": 2}, True),
        ({"nodeTaintsPolicy": "Honor"}, False),
        ({"nodeTaintsPolicy": "Ignore"}, False),
    ],
)
async def test_of_topology_spread_the_scheduler_alone_evaluates_min_domains(
    more: dict[str, Any], is_open: bool
) -> None:
    cluster = GpuCluster()
    cluster.node("n0", labels={"zone": "a"})
    spread = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    cluster.pod("p", topologySpreadConstraints=[spread | more])
    await cluster.settle()
    assert ("affinity" not in cluster.get_pod("p")["spec"]) == is_open


async def test_topology_spread_counts_pods_on_nodes_that_the_pod_selects_alone() -> None:
    cluster = GpuCluster()
    for name, zone in (("g0", "a"), ("g1", "b")):
        cluster.node(name, labels={"zone": zone, "gpu": "1"})
    cluster.node("cpu", None, labels={"zone": "a"})
    for number in range(2):
        metadata = {"name": f"web-{number}", "namespace": "default", "labels": {"app": "web"}}
        cluster.put(PODS, {"metadata": metadata, "spec": {"nodeName": "cpu"}, "status": {"phase": "Running"}})
    cluster.rival("other", "g1", range(8))
    spread = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    cluster.pod("p", nodeSelector={"gpu": "1"}, topologySpreadConstraints=[spread])
    await cluster.settle()
    assert cluster.gpus("p")[0] == "g0"


@pytest.mark.slow
async def test_a_set_that_pods_share_is_placed_and_never_handed_over() -> None:
    cluster = GpuCluster(promise_s=300.0, unschedulable_s=5.0)
    nodes(cluster, 6)
    for name in ("p", "q"):
        pod = cluster.admitted(name, {"main": 2, "other": 2}, wishes={"shared-claim": "duo"})
        pod["spec"]["resourceClaims"].append(OTHER)
        cluster.put(PODS, pod)
    labels = set()
    async with working(cluster):
        for _ in range(200):
            await asyncio.sleep(1)
            claim = cluster.find(RESOURCE_CLAIMS, "duo", "default")
            if claim is not None:
                labels.add(claim["metadata"]["labels"][names.LABEL])
                refuse(cluster, "p")
    assert labels == {names.LABEL_PLACED}
