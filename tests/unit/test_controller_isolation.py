"""Whatever goes wrong with one object costs that object's pod a pause and a reason, and nobody else anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dradriver.api import names
from dradriver.controller.picture import Picture
from dradriver.controller.worker import Worker
from dradriver.kube.client import ApiError, Unreachable
from dradriver.kube.reflector import Change
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes.apirules import Object
from tests.fakes.gpucluster import GpuCluster, claim_of

WEBHOOK = 'Internal error occurred: failed calling webhook "x.example.com": connection refused'


@asynccontextmanager
async def working(cluster: GpuCluster) -> AsyncIterator[None]:
    """Let the controller work by itself, and see everything at once."""

    async def see() -> None:
        while True:
            cluster.deliver()
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(cluster.worker.run()), asyncio.create_task(see())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def refuse(cluster: GpuCluster, namespace: str, answer: Callable[[], Any]) -> None:
    """Let every write in a namespace end in what ``answer`` raises, or after what it awaits."""
    client = cluster.client
    for verb in ("create", "patch"):
        original = getattr(client, verb)

        async def write(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            if kwargs.get("namespace") == namespace:
                waited = answer()
                if waited is not None:
                    await waited
            return await original(*args, **kwargs)

        setattr(client, verb, write)


def raising(error: Exception) -> Callable[[], Any]:
    def answer() -> None:
        raise error

    return answer


@pytest.mark.looptime
@pytest.mark.parametrize(
    "error",
    [
        ApiError(500, "InternalError", WEBHOOK),
        ApiError(503, "ServiceUnavailable", 'admission webhook "x.example.com" denied the request: later'),
        ApiError(429, "TooManyRequests", 'admission webhook "x.example.com" denied the request: slow down'),
        ApiError(403, "Forbidden", "exceeded quota: gpus, requested: requests.nvidia.com/gpu=2"),
        ApiError(422, "Invalid", "ValidatingAdmissionPolicy 'x' with binding 'y' denied request: no"),
        ApiError(400, "BadRequest", "strange"),
        Unreachable("POST: timeout", timed_out=True),
        ZeroDivisionError("a bug"),
    ],
    ids=lambda error: f"{getattr(error, 'status', type(error).__name__)}",
)
async def test_a_namespace_whose_writes_fail_delays_nobody_else(error: Exception) -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a", "dgx-h100")
    for number in range(40):
        cluster.pod(f"bad{number}", 1, namespace="bad")
    cluster.pod("good", 8)
    refuse(cluster, "bad", raising(error))
    async with working(cluster):
        await asyncio.sleep(1.0)
        assert cluster.gpus("good")[0] == "a"


@pytest.mark.looptime
async def test_writes_that_hang_hold_up_neither_writers_nor_gpus_for_more_than_a_second() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    for number in range(40):
        cluster.pod(f"slow{number}", 1, namespace="slow")
    refuse(cluster, "slow", lambda: asyncio.sleep(10))
    cluster.pod("good", 8)
    async with working(cluster):
        await asyncio.sleep(1.5)
        assert cluster.gpus("good")[0] == "a"


@pytest.mark.looptime
async def test_trouble_with_the_server_itself_stops_all_and_is_over_with_it() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a", "dgx-h100")
    calls = []
    down = True

    def answer() -> None:
        calls.append(asyncio.get_running_loop().time())
        if down:
            raise ApiError(503, "ServiceUnavailable", "the server is currently unable to handle the request")

    refuse(cluster, "default", answer)
    for number in range(8):
        cluster.pod(f"p{number}", 1)
    async with working(cluster):
        await asyncio.sleep(10)
        assert len(calls) <= 40, "pauses grow, and one write after another finds out"
        down = False
        await asyncio.sleep(20)
        assert all(cluster.claim(f"p{number}") is not None for number in range(8))


@pytest.mark.looptime
async def test_retry_after_is_heeded() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p")
    cluster.client.refuse["create"] = [ApiError(429, "TooManyRequests", "too many requests", retry_after_s=7)]
    async with working(cluster):
        await asyncio.sleep(6.5)
        assert cluster.client.writes == [("create", claim_of("p"))]
        await asyncio.sleep(2)
        assert cluster.gpus("p")[0] == "a"


@pytest.mark.looptime
async def test_an_error_of_the_program_while_it_looks_at_one_pod_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("odd", 2)
    cluster.pod("good", 2)

    def claim_of_pod(picture: Any, pod: Any) -> Any:
        if pod.metadata.name == "odd":
            raise KeyError("a bug")
        return original(picture, pod)

    original = Picture.claim_of
    monkeypatch.setattr(Picture, "claim_of", claim_of_pod)
    async with working(cluster):
        await asyncio.sleep(2)
        assert cluster.gpus("good")[0] == "a"
        assert "an error in the controller" in (cluster.note("odd", "reason") or "")
        monkeypatch.undo()
        await asyncio.sleep(10)
        assert cluster.gpus("odd")[0] == "a"
    assert "a bug" in caplog.text


@pytest.mark.looptime
async def test_a_lift_that_is_refused_gives_the_gpus_back() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 8)
    cluster.client.refuse["patch"] = [ApiError(422, "Invalid", "denied by a policy of somebody's")] * 3
    await cluster.settle()
    assert cluster.claim("p") is None
    cluster.pod("q", 8)
    await cluster.settle()
    assert cluster.gpus("q")[0] == "a"


@pytest.mark.looptime
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


@pytest.mark.looptime
async def test_a_reason_that_changes_is_written_every_thirty_seconds_at_most() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    cluster.pod("p", 8, requests={"cpu": "1"})
    async with working(cluster):
        for turn in range(60):
            cluster.node("a", None, ready="False" if turn % 2 else "True", allocatable={"cpu": "0"})
            await asyncio.sleep(1)
    assert 1 <= len([verb for verb, _ in cluster.client.writes if verb == "patch"]) <= 3


@pytest.mark.looptime
async def test_a_reason_becomes_true_again_without_any_event_about_its_pod() -> None:
    cluster = GpuCluster()
    cluster.node("a", allocatable={"cpu": "0"})
    cluster.pod("p", 9, requests={"cpu": "1"})
    async with working(cluster):
        await asyncio.sleep(5)
        assert cluster.note("p", "reason") == "no node with GPUs can run this pod: too little cpu"
        cluster.node("a", None)
        await asyncio.sleep(60)
        assert "no node of this cluster has such a set" in (cluster.note("p", "reason") or "")


@pytest.mark.looptime
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


@pytest.mark.looptime
async def test_the_answer_to_a_creation_that_was_lost_is_found_out() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 8)
    original = cluster.client.create

    async def create(*args: Any, **kwargs: Any) -> Any:
        cluster.client.create = original  # type: ignore[method-assign]
        await original(*args, **kwargs)
        raise Unreachable("POST: connection reset")

    cluster.client.create = create  # type: ignore[method-assign]
    async with working(cluster):
        await asyncio.sleep(3)
        assert cluster.gpus("p")[0] == "a"
        assert cluster.get_pod("p")["spec"]["schedulingGates"] == []
        assert [verb for verb, _ in cluster.client.writes] == ["create", "patch"]


@pytest.mark.looptime
async def test_a_pod_that_says_other_gpus_than_its_claim_holds_is_put_right() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 2)
    async with working(cluster):
        await asyncio.sleep(1)
        cluster.schedule()
        await asyncio.sleep(1)
        true = cluster.note("p", "allocated")
        pod = cluster.get_pod("p")
        pod["metadata"]["annotations"][names.ALLOCATED] = "GPU-of-somebody-else"
        cluster.put(PODS, pod)
        await asyncio.sleep(1)
        assert cluster.note("p", "allocated") == true


@pytest.mark.looptime
async def test_a_label_taken_off_a_waiting_pod_ends_its_promise() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 8, schedulerName="nobody")
    async with working(cluster):
        await asyncio.sleep(1)
        assert cluster.claim("p") is not None
        pod = cluster.get_pod("p")
        del pod["metadata"]["labels"]
        cluster.put(PODS, pod)
        await asyncio.sleep(30)
        assert cluster.claim("p") is None


@pytest.mark.looptime
async def test_pods_that_never_bind_let_others_have_their_turn() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    for number in range(7):
        cluster.pod(f"bad{number}", 8, schedulerName="nobody")
    cluster.pod("good", 8)
    async with working(cluster):
        for _ in range(8 * 31):
            await asyncio.sleep(1)
            if cluster.claim("good") is not None:
                return
    raise AssertionError("the youngest never had its turn")


@pytest.mark.looptime
async def test_a_lift_that_hangs_holds_gpus_for_a_second_and_no_more() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    cluster.pod("slow", 8, namespace="slow")
    original = cluster.client.patch

    async def patch(*args: Any, **kwargs: Any) -> Any:
        if kwargs["namespace"] == "slow":
            await asyncio.sleep(30)
            raise Unreachable("PATCH: timeout", timed_out=True)
        return await original(*args, **kwargs)

    cluster.client.patch = patch  # type: ignore[method-assign]
    async with working(cluster):
        await asyncio.sleep(0.5)
        cluster.pod("good", 8)
        await asyncio.sleep(1.5)
        assert cluster.gpus("good")[0] == "a"


@pytest.mark.looptime
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


@pytest.mark.looptime
async def test_pods_that_their_scheduler_never_looks_at_hold_up_their_own_namespace_only() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    for number in range(40):
        cluster.node(f"n{number}", "dgx-h100")
    for number in range(300):
        cluster.pod(f"silent{number}", 1, namespace="silent")
    cluster.pod("good", 1)
    async with working(cluster):
        await asyncio.sleep(5)
        assert cluster.claim("good") is not None
        told = [pod["metadata"]["annotations"].get(names.REASON, "") for pod in cluster.all(PODS)]
        assert any("until its scheduler has bound" in text for text in told)


@pytest.mark.looptime
async def test_a_claim_that_is_being_deleted_for_ever_holds_nothing() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    cluster.pod("p", 8, schedulerName="nobody")
    async with working(cluster):
        await asyncio.sleep(1)
        claim: Object = cluster.claim("p") or {}
        claim["metadata"]["finalizers"] = ["example.com/mine"]
        cluster.put(RESOURCE_CLAIMS, claim)
        cluster.remove(RESOURCE_CLAIMS, claim_of("p"), "default")
        cluster.pod("q", 8)
        await asyncio.sleep(2)
        assert cluster.gpus("q")[0] == "a"


async def test_a_standby_remembers_nothing_of_what_it_need_not_do() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    standby = Worker(cluster.worker._writers._writer._client)
    for number in range(50):
        cluster.pod(f"p{number}", 1)
        cluster.deliver()
    for key, pod in cluster.worker.picture.pods.items():
        standby.picture.pod_changed(Change(key, None, pod))
    assert not standby.busy


async def test_a_new_leader_asks_for_the_claim_before_it_says_anything_else_of_a_lifted_pod() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 4)
    await cluster.settle()
    said, gpus = cluster.note("p", "allocated"), cluster.gpus("p")
    cluster.restart()
    cluster.deliver(PODS, NODES, RESOURCE_SLICES)
    await cluster.worker.rest()
    assert cluster.client.writes == []
    assert (cluster.note("p", "allocated"), cluster.gpus("p")) == (said, gpus)


async def test_a_lifted_pod_says_what_it_gets_before_its_claim_is_there() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 2)
    await cluster.settle()
    cluster.rival("rival", "a", cluster.gpus("p")[1])
    cluster.client.writes.clear()
    await cluster.settle()
    assert [verb for verb, _ in cluster.client.writes] == ["delete", "patch", "create"]


@pytest.mark.looptime
async def test_a_claim_with_our_label_and_no_requests_holds_nothing() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 8)
    await cluster.settle()
    forged: Object = cluster.claim("p") or {}
    cluster.remove(PODS, "p", "default")
    cluster.remove(RESOURCE_CLAIMS, claim_of("p"), "default")
    forged["metadata"] |= {"name": "gpus-forged"}
    del forged["metadata"]["uid"]
    forged["spec"]["devices"]["requests"] = []
    cluster.put(RESOURCE_CLAIMS, forged)
    cluster.pod("q", 8)
    await cluster.settle()
    assert cluster.gpus("q")[0] == "a"
