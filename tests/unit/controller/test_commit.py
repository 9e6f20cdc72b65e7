"""What is undone after a write that fails, and what is told: for single pods, and for a gang as a whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.kube.client import ApiError, Unreachable
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.gang_pods import bound, claims, gang, nodes
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.fakes.troubles import working

DENIED = ApiError(403, "Forbidden", 'admission webhook "x.example.com" denied the request: no')


def at_gate(cluster: GpuCluster, pod: str, answer: Any) -> None:
    """Call ``answer`` with the number of each removal of a pod's gate, before it is done; it may raise."""
    original, count = cluster.client.patch, 0

    async def patch(resource: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        if resource is PODS and name == pod and "JSON" in str(kwargs.get("kind")):
            count += 1
            answer(count)
        return await original(resource, name, *args, **kwargs)

    cluster.client.patch = patch  # type: ignore[method-assign]


async def test_a_pod_whose_claim_is_of_another_owner_is_told_so_also_after_a_refusal() -> None:
    cluster = nodes("a")
    cluster.pod("p", 8)
    cluster.client.refuse["create"] = [DENIED]
    async with working(cluster):
        await asyncio.sleep(0.3)
        cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": claim_of("p"), "namespace": "default"}, "spec": {}})
        await asyncio.sleep(60)
    assert "does not belong to this pod. Delete the pod" in (cluster.note("p", "reason") or "")


@pytest.mark.slow
async def test_a_pod_whose_earlier_claim_stays_is_told_so() -> None:
    cluster = nodes("a", promise_s=30, unschedulable_s=5)
    cluster.pod("p", 8)
    async with working(cluster):
        await asyncio.sleep(5)
        claim = cluster.claim("p")
        assert claim is not None
        claim["metadata"].setdefault("finalizers", []).append("x.example.com/keep")
        cluster.put(RESOURCE_CLAIMS, claim)
        await asyncio.sleep(200)
    assert cluster.note("p", "reason") == f"Waiting until the earlier claim {claim_of('p')} of the pod is gone."


@pytest.mark.parametrize(
    ("error", "at_once"),
    [
        (DENIED, True),
        (ApiError(504, "Timeout"), True),
        (Unreachable("timeout", timed_out=True), True),
        (Unreachable("no route to host"), False),
        (ApiError(503, "ServiceUnavailable", "down"), False),
    ],
)
async def test_a_claim_of_a_gang_is_deleted_after_the_pause_if_the_server_itself_failed_on_another(
    error: Exception, at_once: bool
) -> None:
    cluster = nodes("ab")
    pods = gang(cluster, 2)
    create, delete, clock = cluster.client.create, cluster.client.delete, asyncio.get_running_loop().time
    refused_at: list[float] = []
    deleted_at: list[float] = []

    async def refusing(resource: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
        if resource is RESOURCE_CLAIMS and body["metadata"]["name"] == claim_of(pods[1]) and not refused_at:
            await asyncio.sleep(0.1)
            refused_at.append(clock())
            raise error
        return await create(resource, body, *args, **kwargs)

    async def deleting(resource: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        assert name == claim_of(pods[0])
        deleted_at.append(clock())
        return await delete(resource, name, *args, **kwargs)

    cluster.client.create = refusing  # type: ignore[assignment, method-assign]
    cluster.client.delete = deleting  # type: ignore[method-assign]
    async with working(cluster):
        for _ in range(20):
            await asyncio.sleep(1)
            cluster.schedule()
    assert len(deleted_at) == 1
    assert (deleted_at[0] - refused_at[0] < 0.1) == at_once
    assert bound(cluster, pods) == pods


@pytest.mark.slow
@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize(
    "error", [ApiError(504, "Timeout"), ApiError(500, "InternalError", "x"), Unreachable("timeout", timed_out=True)]
)
@pytest.mark.parametrize("size", [1, 2])
async def test_the_last_gate_of_a_gang_is_tried_again_with_its_claim(
    barrier: bool, error: Exception, size: int
) -> None:
    cluster = nodes("ab"[:size], promise_s=30, unschedulable_s=5)
    if barrier:
        cluster.barrier()
    pods = gang(cluster, size)

    def answer(count: int) -> None:
        if count <= 2:
            raise error

    at_gate(cluster, pods[-1], answer)
    async with working(cluster):
        await asyncio.sleep(0.3)
        cluster.pod("single", 8)
        for _ in range(10):
            await asyncio.sleep(1)
            cluster.schedule()
    assert bound(cluster, pods) == pods


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 2])
async def test_gates_that_are_refused_in_a_pause_keep_no_gpus_from_others_for_long(size: int) -> None:
    cluster = nodes("ab", promise_s=300)
    pods = gang(cluster, size) if size else ["train-0"]
    if not size:
        cluster.pod("train-0", 8)
    original, count = cluster.client.patch, 0

    async def patch(resource: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        if resource is PODS and name in pods and "JSON" in str(kwargs.get("kind")):
            count += name == "train-0"
            if count == 7:  # by now it waits for a minute after each refusal
                cluster.client.refuse["create"] = [ApiError(429, "TooManyRequests", retry_after_s=1)]
                cluster.pod("other", 1, nodeSelector={"kubernetes.io/hostname": "c"})
                await asyncio.sleep(0.1)
            raise DENIED
        return await original(resource, name, *args, **kwargs)

    cluster.node("c")
    cluster.client.patch = patch  # type: ignore[method-assign]
    held = 0
    async with working(cluster):
        for _ in range(130 * 4):
            await asyncio.sleep(0.25)
            held += bool(claims(cluster, pods))
    assert count >= 7
    assert held / 4 < 5


async def test_a_pod_that_has_its_claim_again_is_told_nothing_but_what_the_scheduler_said() -> None:
    cluster = nodes("a", promise_s=30, unschedulable_s=5)
    cluster.pod("p", 8)

    def refused(pod: Any) -> None:
        message = "0/1 nodes are available: 1 Insufficient cpu."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        pod["status"]["conditions"] = [condition]

    original, count = cluster.client.create, 0
    refusals: list[str] = []

    async def create(resource: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        if resource is RESOURCE_CLAIMS and body["metadata"]["name"] == claim_of("p"):
            count += 1
            if count > 1:  # another pod's write is refused meanwhile: the server wants a pause
                cluster.pod(f"other-{count}", 1, nodeSelector={"kubernetes.io/hostname": "b"})
                await asyncio.sleep(0.1)
        elif resource is RESOURCE_CLAIMS and body["metadata"]["name"] not in refusals:
            refusals.append(body["metadata"]["name"])
            raise ApiError(429, "TooManyRequests", retry_after_s=0.5)
        return await original(resource, body, *args, **kwargs)

    cluster.node("b")
    cluster.client.create = create  # type: ignore[method-assign, assignment]
    told: set[str] = set()
    on_a = {"kubernetes.io/hostname": "a"}
    cluster.store.edit(PODS, ("default", "p"), lambda pod: pod["spec"].update(nodeSelector=on_a))
    async with working(cluster):
        await asyncio.sleep(1)
        cluster.store.edit(PODS, ("default", "p"), refused)
        for _ in range(100):
            await asyncio.sleep(0.25)
            if cluster.claim("p") is not None and (reason := cluster.note("p", "reason")) is not None:
                told.add(reason)
    assert count > 1
    assert told == {"The scheduler finds no room for pod p on its nodes: Insufficient cpu."}


async def test_a_pod_is_handed_over_in_time_although_it_finds_places_that_it_loses_again() -> None:
    cluster = GpuCluster()
    cluster.hand_over_s = 5.0
    cluster.restart()
    cluster.node("a")
    cluster.pod("p", wishes={"policy": "nvlink", "when-full": "hand-over"})

    original = cluster.client.create

    async def create(resource: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
        if resource is RESOURCE_CLAIMS and names.CHOICE in body["metadata"]["annotations"]:
            raise ApiError(409, "Conflict", "Operation cannot be fulfilled on resourcequotas")
        return await original(resource, body, *args, **kwargs)

    cluster.client.create = create  # type: ignore[method-assign, assignment]
    async with working(cluster):
        for _ in range(6):  # for half a second in four the GPUs are free
            cluster.rival("other", "a", range(8))
            await asyncio.sleep(3.5)
            cluster.remove(RESOURCE_CLAIMS, "other", "default")
            await asyncio.sleep(0.5)
    assert not cluster.get_pod("p")["spec"]["schedulingGates"]
    assert cluster.claim("p") is not None
