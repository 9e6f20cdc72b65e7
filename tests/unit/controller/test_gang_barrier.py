"""Gangs behind the barrier: nobody is bound before all have their seats, and what is given back is free."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import msgspec
import pytest

from dradriver.api.base import gang_barrier_device, names
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Claim
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import claim_record
from dradriver.controller.steps.deadlines import BOUND_S, GATHER_S, UNSEATED_S
from dradriver.controller.writing.pod_writer import PodWriter
from dradriver.kube.client import ApiError
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.effort import sampled
from tests.fakes.gang_pods import bound, claims, gang, lifted, nodes
from tests.fakes.gpucluster import GpuCluster, Killed


def cluster_of(called: str, **times: float) -> GpuCluster:
    cluster = nodes(called, **times)
    cluster.barrier()
    return cluster


def filler(cluster: GpuCluster, node: str, *, cpu: str = "64", priority: int = 0) -> None:
    """Put somebody else's pod on a node, which takes its CPU."""
    spec: dict[str, Any] = {"nodeName": node, "priority": priority, "containers": [
        {"name": "main", "resources": {"requests": {"cpu": cpu}}}]}  # fmt: skip
    cluster.put(PODS, {"metadata": {"name": f"filler-{node}", "namespace": "other"}, "spec": spec,
                       "status": {"phase": "Running"}})  # fmt: skip


def told(cluster: GpuCluster, pod: str) -> list[str]:
    claim = cluster.claim(pod)
    assert claim is not None
    return [met["type"] for entry in claim["status"].get("devices", []) for met in entry.get("conditions", [])]


def seated(cluster: GpuCluster, pod: str) -> bool:
    claim = cluster.claim(pod)
    return claim is not None and any(
        result["pool"] == names.SEAT_POOL
        for result in claim.get("status", {}).get("allocation", {})["devices"]["results"]
    )


async def test_all_are_bound_once_all_have_their_seats() -> None:
    cluster = cluster_of("abc")
    pods = gang(cluster, 3)
    await cluster.settle()
    assert lifted(cluster, pods) == pods
    cluster.schedule()
    assert bound(cluster, pods) == [], "nobody has told them to go"
    await cluster.settle()
    assert [told(cluster, pod) for pod in pods] == [[gang_barrier_device.GO]] * 3
    cluster.schedule()
    assert bound(cluster, pods) == pods
    await cluster.settle()


async def test_a_pod_whose_barrier_is_off_is_not_counted_among_those_that_may_be_bound() -> None:
    cluster = cluster_of("abc", promise_s=30.0)
    pods = gang(cluster, 3)
    await cluster.settle()
    cluster.schedule()
    claim = cluster.claim(pods[1])
    assert claim is not None
    record = claim_record(msgspec.json.decode(msgspec.json.encode(claim), type=Claim))
    assert record.seat is not None
    now = datetime.datetime.now(datetime.UTC)
    off = gang_barrier_device.status(record.metadata, record.seat, gang_barrier_device.OFF, now=now)
    cluster.put(RESOURCE_CLAIMS, claim | {"status": claim["status"] | off["status"]})
    await cluster.settle()
    assert [told(cluster, pod) for pod in pods] == [[], [gang_barrier_device.OFF], []], "nobody may go without it"
    await asyncio.sleep(31)
    for _ in range(8):
        await cluster.settle()
        cluster.schedule()
        cluster.collect()
        await asyncio.sleep(1.5)
    assert bound(cluster, pods) == pods


async def test_a_gang_of_which_one_finds_no_room_gives_all_back_and_starts_within_its_nodes() -> None:
    cluster = cluster_of("abcd", unschedulable_s=0.0)
    pods = [f"train-{i}" for i in range(3)]
    for pod in pods:
        cluster.pod(pod, 8, wishes={"gang": "train", "gang-size": "3"}, requests={"cpu": "32"})
    await cluster.settle()
    nodes = {pod: cluster.gpus(pod)[0] for pod in pods}
    (spare,) = set("abcd") - set(nodes.values())
    uids = {pod: cluster.get_pod(pod)["metadata"]["uid"] for pod in pods}
    filler(cluster, nodes["train-1"])
    cluster.schedule()
    await cluster.settle()
    assert bound(cluster, pods) == []
    for _ in range(8):
        await asyncio.sleep(1.5)
        await cluster.settle()
        cluster.schedule()
        cluster.collect()
    await cluster.settle()
    assert bound(cluster, pods) == pods
    assert {cluster.gpus(pod)[0] for pod in pods} == {*nodes.values(), spare} - {nodes["train-1"]}
    assert {pod: cluster.get_pod(pod)["metadata"]["uid"] for pod in pods} == uids, "no pod was touched"


async def test_a_gang_without_room_holds_nothing_after_its_deadline() -> None:
    cluster = cluster_of("abc", promise_s=30.0, unschedulable_s=5.0)
    pods = [f"train-{i}" for i in range(3)]
    for pod in pods:
        cluster.pod(pod, 8, wishes={"gang": "train", "gang-size": "3"}, requests={"cpu": "32"})
    await cluster.settle()
    filler(cluster, cluster.gpus("train-1")[0])
    cluster.schedule()
    await cluster.settle()
    await asyncio.sleep(6)
    await cluster.settle()
    await asyncio.sleep(2)
    await cluster.settle()
    assert claims(cluster, pods), "they go when the scheduler lets go of the seats"
    assert all("train-1" in (cluster.note(pod, "reason") or "") for pod in pods), "why they go says more"
    cluster.schedule()
    cluster.collect()
    await cluster.settle()
    assert claims(cluster, pods) == []
    assert bound(cluster, pods) == []
    assert all("too little cpu" in (cluster.note(pod, "reason") or "") for pod in pods), "what keeps it waiting now"
    cluster.pod("single", 8)
    await cluster.settle()
    assert cluster.claim("single") is not None


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", sampled([*range(1, 10), *(-n for n in range(1, 10))]))
async def test_a_leader_killed_at_any_write_leaves_what_the_next_goes_on_from(kill_at: int) -> None:
    cluster = cluster_of("abc")
    pods = gang(cluster, 3)
    cluster.client.kill_at = kill_at
    killed = False
    for _ in range(12):
        try:
            await cluster.settle()
        except (Killed, BaseExceptionGroup):
            killed = True
            cluster.restart()
        cluster.schedule()
        cluster.collect()
        some = bound(cluster, pods)
        assert not some or all(seated(cluster, pod) for pod in pods), "nobody before all have seats"
        await asyncio.sleep(5)
    assert killed
    assert bound(cluster, pods) == pods


async def test_a_member_that_loses_its_place_before_all_have_theirs_holds_nothing_for_long() -> None:
    cluster = cluster_of("ab", promise_s=30.0, unschedulable_s=5.0)
    cluster.pod("train-0", 8, wishes={"gang": "train", "gang-size": "2"}, requests={"cpu": "32"})
    cluster.pod("train-1", 8, wishes={"gang": "train", "gang-size": "2"}, requests={"cpu": "32"})
    await cluster.settle()
    node = cluster.gpus("train-0")[0]
    filler(cluster, cluster.gpus("train-1")[0], cpu="60")  # the second finds no room
    cluster.schedule()
    cluster.put_out("train-0")
    filler(cluster, node, cpu="60")
    await cluster.settle()
    assert bound(cluster, ["train-0", "train-1"]) == []
    for _ in range(10):
        await asyncio.sleep(5)
        await cluster.settle()
        cluster.schedule()
        cluster.collect()
    await cluster.settle()
    assert cluster.store.all(RESOURCE_CLAIMS) == []


async def test_a_member_that_loses_its_seat_after_the_others_went_gets_another_place() -> None:
    cluster = cluster_of("abc", promise_s=30.0, unschedulable_s=5.0)
    for i in range(2):
        cluster.pod(f"train-{i}", 8, wishes={"gang": "train", "gang-size": "2"}, requests={"cpu": "32"})
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    lost = cluster.gpus("train-1")[0]
    cluster.put_out("train-1")
    filler(cluster, lost, cpu="60")
    for _ in range(int(BOUND_S + UNSEATED_S)):
        cluster.schedule()
        cluster.collect()
        await asyncio.sleep(2)
        await cluster.settle()
    assert bound(cluster, ["train-0", "train-1"]) == ["train-0", "train-1"]
    assert cluster.gpus("train-1")[0] not in (lost, cluster.gpus("train-0")[0])


@pytest.mark.parametrize("barrier", [True, False])
async def test_a_gang_whose_gates_others_keep_shut_keeps_its_gpus_from_no_other(
    monkeypatch: pytest.MonkeyPatch, barrier: bool
) -> None:
    cluster = cluster_of("ab", promise_s=30.0) if barrier else GpuCluster(promise_s=30.0)
    if not barrier:
        cluster.node("a")
        cluster.node("b")
    lift = PodWriter.lift

    async def refused(writer: PodWriter, pod: Pod, placement: Placement) -> None:
        if pod.metadata.name.startswith("train"):
            raise ApiError(403, "Forbidden", "admission webhook denied the request")
        await lift(writer, pod, placement)

    monkeypatch.setattr(PodWriter, "lift", refused)
    pods = gang(cluster, 2)
    await cluster.settle()
    assert claims(cluster, pods) == []
    cluster.pod("other", 8)
    await cluster.settle()
    assert cluster.claim("other") is not None
    assert all("denied" in (cluster.note(pod, "reason") or "") for pod in pods)


async def test_no_nomination_outlives_its_plan() -> None:
    cluster = GpuCluster(promise_s=30.0)
    for node in "ab":
        cluster.node(node)
    pods = gang(cluster, 2)
    cluster.client.kill_at = 5  # two claims, two nominations, and the first gate
    with pytest.raises((Killed, BaseExceptionGroup)):
        await cluster.settle()
    assert all(cluster.get_pod(pod)["status"].get("nominatedNodeName") for pod in pods)
    cluster.restart()
    cluster.remove(PODS, "train-1", "default")
    cluster.collect()
    for _ in range(3):
        await cluster.settle()
        cluster.collect()
        await asyncio.sleep(40)
    await cluster.settle()
    assert claims(cluster, ["train-0"]) == []
    assert "nominatedNodeName" not in cluster.get_pod("train-0")["status"]


async def test_a_range_of_which_one_pod_comes_again_asks_for_that_pod_alone() -> None:
    cluster = cluster_of("ab", promise_s=30.0, unschedulable_s=5.0)
    for i in range(3):
        cluster.pod(f"train-{i}", 8, wishes={"gang": "train", "gang-size": "2-3"})
    await cluster.settle()
    await asyncio.sleep(GATHER_S)
    await cluster.settle()
    cluster.schedule()
    pods = [f"train-{i}" for i in range(3)]
    first = claims(cluster, pods)[0]
    cluster.remove(PODS, first, "default")
    cluster.collect()
    cluster.pod(first, 8, wishes={"gang": "train", "gang-size": "2-3"})
    for _ in range(4):
        await cluster.settle()
        cluster.schedule()
        await asyncio.sleep(1)
    assert len(bound(cluster, pods)) == 2
