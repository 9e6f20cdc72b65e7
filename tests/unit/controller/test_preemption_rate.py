"""How many have to end within a minute: those that were told to, and nobody else's plans that came to nothing."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from dradriver.api.claims.evicted_workloads import Evicted
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Cap, Queue, Tenant
from dradriver.kube.client import ApiError
from dradriver.kube.resources import POD_DISRUPTION_BUDGETS, PODS
from tests.fakes.apistore import Object
from tests.fakes.preempting import ON, Contested, contested
from tests.fakes.troubles import working

NO_DISRUPTION: Object = {
    "metadata": {"name": "kept", "namespace": "default"},
    "spec": {"selector": {"matchLabels": {"app": "kept"}}},
    "status": {"disruptionsAllowed": 0},
}
FORBIDS = ApiError(429, "TooManyRequests", "it would violate the budget", request="POST /pods/low-a/eviction")


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time of day go with the loop's."""
    began = time.time()
    monkeypatch.setattr(time, "time", lambda: began + asyncio.get_running_loop().time())


def on(node: str) -> Object:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


async def bounded(nodes: str, most: int = 1) -> Contested:
    """Return a cluster with a full node each, of which so many workloads may have to end within a minute."""
    cluster = await contested(nodes=nodes)
    for node in nodes:
        await cluster.run((f"low-{node}", 8, 0), **on(node))
    follow(cluster, most)
    return cluster


async def with_a_pair(nodes: str, most: int, **tenants: Tenant) -> Contested:
    """Return a cluster of full nodes: the first has two pods of 4 GPUs, each other one has a pod of 8."""
    cluster = Contested()
    for node in nodes:
        cluster.node(node)
    await cluster.run(*((f"pair-{number}", 4, 0) for number in range(2)), **on(nodes[0]))
    for node in nodes[1:]:
        await cluster.run((f"low-{node}", 8, 0), **on(node))
    follow(cluster, most, **tenants)
    return cluster


def follow(cluster: Contested, most: int = 1, **tenants: Tenant) -> None:
    preemption = msgspec.structs.replace(ON.queue.preemption, workloads_per_minute=most)
    cluster.worker.follow(Policies(queue=Queue(preemption=preemption), tenants=tenants))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "at last"])
async def test_what_a_budget_refused_leaves_the_minute_to_others(when: str) -> None:
    cluster = await bounded("ab")
    if when == "before":
        cluster.store.edit(PODS, ("default", "low-a"), lambda pod: pod["metadata"]["labels"].update(app="kept"))
        cluster.put(POD_DISRUPTION_BUDGETS, NO_DISRUPTION)
    else:
        cluster.client.refuse["evict"] = [FORBIDS]
    cluster.pod("first", 8, priority=10, **on("a"))
    async with working(cluster):
        await asyncio.sleep(1)
        cluster.pod("second", 8, priority=10, **on("b"))
        await asyncio.sleep(20)
    assert cluster.ending() == ["low-b"]


async def test_an_eviction_without_an_answer_counts_as_one() -> None:
    cluster = await bounded("ab")
    cluster.client.lose["evict"] = 1
    cluster.pod("first", 8, priority=10, **on("a"))
    async with working(cluster):
        while not cluster.ending():
            await asyncio.sleep(0.01)
        cluster.pod("second", 8, priority=10, **on("b"))
        await asyncio.sleep(20)
    assert cluster.ending() == ["low-a"]


async def test_a_plan_that_its_pod_does_not_need_any_more_leaves_the_minute_to_others() -> None:
    cluster = await bounded("ab")
    cluster.client.refuse["evict"] = [ApiError(503, "ServiceUnavailable", "not now")] * 3
    cluster.pod("first", 8, priority=10, **on("a"))
    async with working(cluster):
        await asyncio.sleep(1)
        cluster.remove(PODS, "first", "default")
        cluster.collect()
        cluster.client.refuse["evict"] = []
        cluster.pod("second", 8, priority=10, **on("b"))
        await asyncio.sleep(20)
    assert cluster.ending() == ["low-b"]


@pytest.mark.slow
async def test_who_was_told_to_end_counts_for_a_minute_though_it_is_gone() -> None:
    cluster = await bounded("ab")
    cluster.pod("first", 8, priority=10, **on("a"))
    async with working(cluster):
        await asyncio.sleep(1)
        assert cluster.ending() == ["low-a"]
        cluster.gone("low-a")
        await asyncio.sleep(1)
        cluster.schedule()
        cluster.pod("second", 8, priority=10, **on("b"))
        await asyncio.sleep(50)
        assert cluster.ending() == []
        await asyncio.sleep(50)
        assert cluster.ending() == ["low-b"]


async def test_the_next_leader_counts_whom_the_last_one_told_to_end() -> None:
    cluster = await bounded("ab")
    cluster.pod("first", 8, priority=10, **on("a"))
    await cluster.settle()
    cluster.gone("low-a")
    cluster.restart()
    follow(cluster)
    await cluster.settle()
    cluster.pod("second", 8, priority=10, **on("b"))
    await cluster.settle()
    assert cluster.ending() == []


@pytest.mark.slow
async def test_evictions_of_a_leader_whose_clock_was_ahead_count_for_a_minute(wall: None) -> None:
    cluster = await bounded("a")
    cluster.worker.evicted.restore([Evicted(time.time() + 7200, "uid-gone", "default/Job/gone")])
    cluster.pod("first", 8, priority=10, **on("a"))
    async with working(cluster):
        await asyncio.sleep(50)
        assert cluster.ending() == []
        await asyncio.sleep(50)
    assert cluster.ending() == ["low-a"]


@pytest.mark.slow
async def test_one_that_is_refused_counts_while_its_plan_goes_on() -> None:
    cluster = await contested(nodes="ab")
    await cluster.run(("one", 4, 0), ("two", 4, 0), **on("a"))
    await cluster.run(("low-b", 8, 0), **on("b"))
    follow(cluster, 2)

    def end(key: tuple[str, str]) -> None:
        cluster.client.refuse["evict"] = [FORBIDS] * 100
        cluster.end(key)

    cluster.client.ends = end
    cluster.pod("first", 8, priority=10, **on("a"))
    async with working(cluster):
        await asyncio.sleep(10)
        assert len(cluster.ending()) == 1
        cluster.pod("second", 8, priority=10, **on("b"))
        await asyncio.sleep(15)
        assert "low-b" not in cluster.evicted()  # it would be the third within a minute if the refused one may end
        cluster.client.refuse["evict"] = []
        await asyncio.sleep(15)
    assert cluster.ending() == ["one", "two"]


async def test_plans_under_way_count_until_all_are_told() -> None:
    cluster = await bounded("abcd", most=2)
    for node in "abcd":
        cluster.pod(f"me-{node}", 8, priority=10, **on(node))
    await cluster.settle()
    assert len(cluster.ending()) == 2


@pytest.mark.slow
async def test_evictions_are_saved_for_the_first_in_order_that_needs_many(wall: None) -> None:
    cluster = await with_a_pair("abcd", 2)
    cluster.pod("first", 8, priority=10, **on("b"))
    async with working(cluster):
        await asyncio.sleep(5)
        assert cluster.ending() == ["low-b"]
        cluster.pod("large", 8, priority=1000, **on("a"))
        await asyncio.sleep(5)
        for node in "cd":
            cluster.pod(f"small-{node}", 8, priority=500, **on(node))
        await asyncio.sleep(65)
        assert cluster.ending() == ["low-b", "pair-0", "pair-1"]
        await asyncio.sleep(180)
    assert cluster.ending() == ["low-b", "low-c", "low-d", "pair-0", "pair-1"]


@pytest.mark.slow
async def test_who_has_a_higher_priority_does_not_wait_for_what_is_saved(wall: None) -> None:
    cluster = await with_a_pair("abc", 1)
    cluster.pod("first", 8, priority=10, **on("b"))
    async with working(cluster):
        await asyncio.sleep(5)
        cluster.pod("large", 8, priority=500, **on("a"))
        await asyncio.sleep(5)
        cluster.pod("urgent", 8, priority=1000, **on("c"))
        await asyncio.sleep(65)
        assert cluster.ending() == ["low-b", "low-c"]
        await asyncio.sleep(70)
    assert cluster.ending() == ["low-b", "low-c", "pair-0", "pair-1"]


@pytest.mark.slow
async def test_what_is_saved_for_one_that_goes_or_finds_a_place_is_for_others(wall: None) -> None:
    cluster = await with_a_pair("abc", 2)
    cluster.pod("first", 8, priority=10, **on("b"))
    async with working(cluster):
        await asyncio.sleep(5)
        cluster.pod("large", 8, priority=1000, **on("a"))
        await asyncio.sleep(5)
        cluster.pod("small", 8, priority=500, **on("c"))
        await asyncio.sleep(20)
        assert cluster.ending() == ["low-b"]
        cluster.remove(PODS, "large", "default")
        await asyncio.sleep(5)
    assert cluster.ending() == ["low-b", "low-c"]


@pytest.mark.slow
async def test_what_is_saved_for_one_whose_scheduler_is_silent_is_for_others(wall: None) -> None:
    cluster = await bounded("bc", most=2)
    for node in "ad":
        cluster.node(node)
    await cluster.run(*((f"part-{number}", 2, 0) for number in range(4)), **on("a"))
    cluster.pod("first", 8, priority=10, **on("c"))
    async with working(cluster):
        await asyncio.sleep(2)
        cluster.pod("large", 8, priority=10, schedulerName="silent", **on("a"))
        await asyncio.sleep(3)
        for number in range(8):  # as many as may wait for a scheduler that has bound none
            cluster.pod(f"unbound-{number}", 1, priority=10, schedulerName="silent", **on("d"))
        await asyncio.sleep(1)
        assert cluster.ending() == ["low-c"]
        cluster.pod("small", 8, priority=10, **on("b"))
        await asyncio.sleep(15)
    assert cluster.ending() == ["low-b", "low-c"]


async def test_what_is_saved_for_one_that_its_cap_keeps_waiting_is_for_others(wall: None) -> None:
    cluster = await with_a_pair("abc", 2, capped=Tenant(namespaces=("capped",), cap=(Cap(gpus=8),)))
    cluster.pod("first", 8, priority=10, **on("b"))
    async with working(cluster):
        await asyncio.sleep(5)
        cluster.pod("large", 8, namespace="capped", priority=1000, **on("a"))
        await asyncio.sleep(5)
        cluster.pod("small", 8, priority=500, **on("c"))
        await asyncio.sleep(5)
        assert cluster.ending() == ["low-b"]
        cluster.node("d")
        cluster.pod("of-the-cap", 8, namespace="capped", priority=1000, **on("d"))
        await asyncio.sleep(8)
    assert cluster.ending() == ["low-b", "low-c"]
