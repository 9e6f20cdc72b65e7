"""Writes that hang and servers that are slow: they hold few GPUs from others, and not for long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.kube.client import ApiError, Unreachable
from dradriver.kube.resources import RESOURCE_CLAIMS
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.fakes.troubles import refuse, working


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


async def test_a_server_that_is_slow_for_all_costs_no_pod_the_gpus_that_were_chosen() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    cluster.pod("p", 8)
    refuse(cluster, "default", lambda: asyncio.sleep(0.8), verbs=("get", "create"))
    refuse(cluster, "default", lambda: asyncio.sleep(3), verbs=("patch",))
    async with working(cluster):
        await asyncio.sleep(10)
        assert cluster.client.writes == [("create", claim_of("p")), ("patch", "p")]
        assert not cluster.get_pod("p")["spec"]["schedulingGates"]


@pytest.mark.parametrize("takes_s", [1.5, 5])
async def test_a_server_that_is_slow_to_write_and_quick_to_read_places_pods_all_the_same(takes_s: float) -> None:
    """A write that were ended after less would never be done; one that were given as long would keep GPUs as long."""
    cluster = GpuCluster(promise_s=60, unschedulable_s=30)
    for name in "ab":
        cluster.node(name)
        cluster.pod(f"p{name}", 8)
    refuse(cluster, "default", lambda: asyncio.sleep(takes_s), verbs=("create", "patch", "delete"))
    async with working(cluster):
        await asyncio.sleep(2 * takes_s + 1)
        assert sorted(cluster.gpus(f"p{name}")[0] for name in "ab") == ["a", "b"]
        assert not any(cluster.get_pod(f"p{name}")["spec"]["schedulingGates"] for name in "ab")


@pytest.mark.slow
@pytest.mark.parametrize("hangs_s", [10, 30])
async def test_pods_whose_writes_hang_again_and_again_keep_few_gpus_from_others(hangs_s: float) -> None:
    cluster = GpuCluster(promise_s=60, unschedulable_s=30)
    for name in "ab":
        cluster.node(name)
    for number in range(6):
        cluster.pod(f"p{number}", 8, namespace="slow")

    async def hang() -> None:
        await asyncio.sleep(hangs_s)
        raise Unreachable("POST: timeout", timed_out=True)

    refuse(cluster, "slow", hang)
    kept = []
    async with working(cluster):
        for _ in range(1200):
            await asyncio.sleep(0.1)
            kept.append(16 - sum(len(cluster.worker.picture.inventory.fleet.free(name)) for name in "ab"))
    assert sum(kept) / len(kept) < 2.5


async def test_a_lift_that_hangs_after_a_creation_that_was_slow_holds_gpus_for_a_second_and_no_more() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    cluster.pod("slow", 8, namespace="slow")
    refuse(cluster, "slow", lambda: asyncio.sleep(1.4), verbs=("create",))
    refuse(cluster, "slow", lambda: asyncio.sleep(30), verbs=("patch",))
    async with working(cluster):
        await asyncio.sleep(1.5)
        assert cluster.find(RESOURCE_CLAIMS, "gpus-slow", "slow") is not None
        cluster.pod("good", 8)
        await asyncio.sleep(1.5)
        assert cluster.gpus("good")[0] == "a"


async def test_a_lift_whose_answer_is_late_keeps_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    cluster.pod("p", 8)
    patch = cluster.client.patch

    async def late(*args: Any, **kwargs: Any) -> Any:
        answer = await patch(*args, **kwargs)
        await asyncio.sleep(10)
        return answer

    monkeypatch.setattr(cluster.client, "patch", late)
    async with working(cluster):
        await asyncio.sleep(5)
        assert cluster.gpus("p")[0] == "a"


async def test_a_gang_whose_writes_hang_is_no_server_that_is_slow() -> None:
    """Each of its pods is asked for in 30 ms: one after another that would take half as long as the write hangs."""
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    for name in "ab":
        cluster.node(name)
    for number in range(16):
        cluster.pod(f"train-{number}", 1, namespace="slow", wishes={"gang": "train", "gang-size": "16"})
    refuse(cluster, "slow", lambda: asyncio.sleep(10))
    cluster.pod("good", 8)
    get = cluster.client.get

    async def slowly(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0.03)
        return await get(*args, **kwargs)

    cluster.client.get = slowly  # type: ignore[method-assign]
    async with working(cluster):
        await asyncio.sleep(0.9)
        assert cluster.claim("good") is None
        await asyncio.sleep(0.6)
        assert cluster.claim("good") is not None


async def test_a_pause_that_the_server_asks_one_of_a_gang_for_is_kept_though_another_hangs() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    for name in "abc":
        cluster.node(name)
    for number in range(2):
        cluster.pod(f"train-{number}", 8, wishes={"gang": "train", "gang-size": "2"})
    create, sent = cluster.client.create, list[float]()

    async def slowly(*args: Any, **kwargs: Any) -> Any:
        sent.append(asyncio.get_running_loop().time())
        number = len(sent)
        if number == 1:
            await asyncio.sleep(0.1)
            raise ApiError(429, "TooManyRequests", "later", retry_after_s=5.0)
        if number == 2:
            await asyncio.sleep(1.0)
            raise ApiError(500, "InternalError", "etcdserver: request timed out")
        return await create(*args, **kwargs)

    cluster.client.create = slowly  # type: ignore[method-assign]
    async with working(cluster):
        await asyncio.sleep(0.5)
        cluster.pod("other", 8)
        cluster.deliver()
        await asyncio.sleep(4.0)
        assert len(sent) == 2
        await asyncio.sleep(30.0)
    assert all(cluster.claim(name) is not None for name in ("train-0", "train-1", "other"))
