"""Whatever goes wrong with one object costs that object's pod a pause and a reason, and nobody else anything."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from dradriver.allocator import Fleet
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller.loop.worker import Worker
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.reflector import Change
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.fakes.troubles import WEBHOOK, raising, refuse, working
from tests.kept import entries


@pytest.mark.slow
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
async def test_a_namespace_whose_writes_fail_delays_no_other(error: Exception) -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a", "dgx-h100")
    for number in range(40):
        cluster.pod(f"bad{number}", 1, namespace="bad")
    cluster.pod("good", 8)
    refuse(cluster, "bad", raising(error))
    async with working(cluster):
        await asyncio.sleep(1.0)
        assert cluster.gpus("good")[0] == "a"


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


async def test_pods_whose_claims_a_busy_quota_does_not_take_keep_their_turns_and_hold_up_no_other_namespace() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    conflict = 'Operation cannot be fulfilled on resourcequotas "gpus": the object has been modified'
    cluster.client.refuse["create"] = [ApiError(409, "Conflict", conflict)] * 7
    for number in range(3):
        cluster.pod(f"p{number}", 2)
    async with working(cluster):
        await asyncio.sleep(0.05)
        cluster.pod("good", 2, namespace="other")
        cluster.client.refuse["create"], later = [], cluster.client.refuse["create"]
        await asyncio.sleep(0.03)
        assert cluster.find(RESOURCE_CLAIMS, "gpus-good", "other") is not None
        assert not any(cluster.claim(f"p{number}") for number in range(3))
        cluster.client.refuse["create"] = later
        await asyncio.sleep(4)
    created = [name for verb, name in cluster.client.writes if verb == "create" and name != claim_of("good")]
    assert created[:3] == [claim_of(f"p{number}") for number in range(3)]
    assert created[3:] == [claim_of(f"p{number}") for number in (0, 0, 0, 0, 0, 1, 2)]


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


async def test_retry_after_is_heeded_between_two_writes_for_one_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 9)
    cluster.client.refuse["patch"] = [ApiError(429, "TooManyRequests", "too many requests", retry_after_s=7)]
    for verb in ("create", "patch"):
        write = getattr(cluster.client, verb)

        async def slowly(*args: Any, write: Any = write, **kwargs: Any) -> Any:
            await asyncio.sleep(0.5)
            return await write(*args, **kwargs)

        monkeypatch.setattr(cluster.client, verb, slowly)
    async with working(cluster):
        await asyncio.sleep(1.2)  # the reason of the first pod is under way, and is to be refused
        cluster.pod("q")
        await asyncio.sleep(6.5)
        assert cluster.client.writes == [("patch", "p"), ("create", claim_of("q"))]
        await asyncio.sleep(2)
        assert not cluster.get_pod("q")["spec"]["schedulingGates"]


async def test_retry_after_is_heeded_by_all_where_only_the_end_of_an_old_claim_meets_it() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 8)
    await cluster.settle()
    cluster.rival("theirs", "a", range(4))
    cluster.client.writes.clear()
    cluster.client.refuse["patch"] = [ApiError(429, "TooManyRequests", "too many requests", retry_after_s=7)]
    async with working(cluster):
        await asyncio.sleep(0.5)
        cluster.pod("q", 2)
        await asyncio.sleep(6)
        assert cluster.client.writes == [("delete", claim_of("p")), ("patch", claim_of("p"))]
        await asyncio.sleep(2)
        assert cluster.gpus("q")[0] == "a"


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
        assert "The controller failed because of a bug" in (cluster.note("odd", "reason") or "")
        monkeypatch.undo()
        await asyncio.sleep(10)
        assert cluster.gpus("odd")[0] == "a"
    assert "a bug" in caplog.text


async def test_an_error_of_the_program_about_one_machine_costs_that_node_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = GpuCluster()
    for name in ("a-odd", "b"):
        cluster.node(name)
    cluster.pod("good", 2)

    def set_node(fleet: Fleet, name: str, *args: Any, **more: Any) -> None:
        if name == "a-odd":
            raise KeyError("a bug")
        original(fleet, name, *args, **more)

    original = Fleet.set_node
    monkeypatch.setattr(Fleet, "set_node", set_node)
    async with working(cluster):
        await asyncio.sleep(0.5)
        assert cluster.gpus("good")[0] == "b"
        monkeypatch.undo()
        cluster.publish("a-odd", cluster.machines["a-odd"])
        cluster.pod("again", 8)
        await asyncio.sleep(0.5)
        assert cluster.gpus("again")[0] == "a-odd"
    assert "Node a-odd" in caplog.text


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


async def test_a_standby_remembers_nothing_of_what_it_need_not_do() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    standby = Worker(cast("Client", cluster.client))
    for number in range(50):
        cluster.pod(f"p{number}", 1)
        cluster.deliver()
    for key, pod in cluster.worker.picture.pods.items():
        standby.picture.pod_changed(Change(key, None, pod))
    assert not standby.busy


async def test_claims_without_pods_are_collected_next_to_those_of_a_namespace_that_hangs() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    for namespace, name in (("alpha", "p"), ("slow", "q"), ("zeta", "r")):
        cluster.pod(name, 1, namespace=namespace)
    await cluster.settle()
    for namespace, name in (("alpha", "p"), ("slow", "q"), ("zeta", "r")):
        cluster.remove(PODS, name, namespace)
    cluster.deliver()
    refuse(cluster, "slow", lambda: asyncio.sleep(5), verbs=("delete",))
    sweep = asyncio.create_task(cluster.worker.sweep())
    await asyncio.sleep(1)
    cluster.deliver()
    assert [claim["metadata"]["namespace"] for claim in cluster.all(RESOURCE_CLAIMS)] == ["slow"]
    await sweep
    cluster.deliver()
    assert not cluster.all(RESOURCE_CLAIMS)


def worker_entries(worker: Worker) -> int:
    """Return how many entries a worker keeps, without those of its cluster cache."""
    return entries(worker) - entries(worker.picture)


@pytest.mark.slow
async def test_nothing_is_kept_of_a_claim_that_went_by_itself_while_the_server_wanted_a_pause() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.grace_s = 0.5
    cluster.restart()
    cluster.node("a")
    async with working(cluster):
        cluster.pod("before", 1)
        await asyncio.sleep(1)
        cluster.remove(PODS, "before", "default")
        await asyncio.sleep(60)
        before = worker_entries(cluster.worker)
        cluster.pod("p", 1)
        await asyncio.sleep(1)
        cluster.client.refuse["delete"] = [ApiError(403, "Forbidden", "no")]
        cluster.remove(PODS, "p", "default")
        await asyncio.sleep(22)
        assert cluster.client.writes[-1] == ("delete", claim_of("p"))
        assert worker_entries(cluster.worker) > before, "it is to be deleted after a pause"
        cluster.client.refuse["create"] = [ApiError(429, "TooManyRequests", "later", retry_after_s=29)]
        cluster.pod("other", 1)
        await asyncio.sleep(15)
        cluster.remove(RESOURCE_CLAIMS, claim_of("p"), "default")
        cluster.remove(PODS, "other", "default")
        await asyncio.sleep(60)
        assert cluster.client.writes.count(("delete", claim_of("p"))) == 1
        assert worker_entries(cluster.worker) == before


async def test_others_have_the_loop_between_the_tables_of_one_node_and_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes, seen = 0, []

    async def lease() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    def set_node(fleet: Fleet, *args: Any, **options: Any) -> None:
        seen.append(passes)
        made(fleet, *args, **options)

    made, loop = Fleet.set_node, asyncio.get_running_loop()
    monkeypatch.setattr(Fleet, "set_node", set_node)
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + len(seen))  # each table takes a second
    cluster = GpuCluster()
    for node in "abcd":
        cluster.node(node)
    cluster.pod("p", 8)
    cluster.deliver()
    other = asyncio.create_task(lease())
    await cluster.worker.turn()
    other.cancel()
    assert len(set(seen)) == 4
    await cluster.settle()
    assert cluster.gpus("p")[0] == "a"
