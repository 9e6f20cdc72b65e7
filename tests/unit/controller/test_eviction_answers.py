"""What the Eviction API answers about one pod: others are chosen, and nobody else's writes wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import pytest

from dradriver.kube.client import ApiError
from dradriver.kube.resources import POD_DISRUPTION_BUDGETS, PODS, Resource
from tests.fakes.apistore import Object
from tests.fakes.control_plane.evicting import SEVERAL
from tests.fakes.preempting import Contested, contested
from tests.fakes.troubles import WEBHOOK, working

EVICTION = "POST /api/v1/namespaces/default/pods/one/eviction"
ANSWERS = {
    "two budgets": ApiError(500, "", SEVERAL, request=EVICTION, is_status=True),
    "a webhook that fails": ApiError(500, "InternalError", WEBHOOK, request=EVICTION),
    "a webhook that denies": ApiError(400, "BadRequest", 'admission webhook "x" denied the request', request=EVICTION),
    "an internal error": ApiError(500, "InternalError", "Internal error occurred: no", request=EVICTION),
}


def budgets(cluster: Contested, pod: str, *names: str) -> None:
    """Put a pod under several budgets, each of which allows one disruption."""
    cluster.store.edit(PODS, ("default", pod), lambda pod: pod["metadata"]["labels"].update(app="kept"))
    for name in names:
        cluster.put(
            POD_DISRUPTION_BUDGETS,
            {
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"selector": {"matchLabels": {"app": "kept"}}},
                "status": {"disruptionsAllowed": 1},
            },
        )


@pytest.mark.slow
@pytest.mark.parametrize("answer", ANSWERS)
async def test_an_answer_about_one_pod_has_another_chosen_and_no_other_wait(answer: str) -> None:
    cluster = await contested(("one", 8, 0), ("two", 8, 5), nodes="ab")
    cluster.client.refuse["evict"] = [ANSWERS[answer]] * 100
    cluster.pod("me", 8, priority=10)
    async with working(cluster):
        while not cluster.evicted():
            await asyncio.sleep(0.01)
        cluster.node("c")
        cluster.pod("bystander", 8, namespace="elsewhere", nodeSelector={"kubernetes.io/hostname": "c"})
        await asyncio.sleep(0.5)
        bystander = cluster.find(PODS, "bystander", "elsewhere")
        assert bystander is not None
        assert bystander["spec"]["schedulingGates"] == []
        cluster.remove(PODS, "bystander", "elsewhere")
        cluster.node("c", None, unschedulable=True)
        cluster.client.refuse["evict"] = []
        await asyncio.sleep(40)
    assert cluster.evicted()[:1] == ["one"]
    assert cluster.ending() == ["two"]


def forbid(cluster: Contested, pods: Collection[str]) -> None:
    """Put pods under budgets of their own that allow no disruption."""
    for name in pods:
        cluster.store.edit(
            PODS, ("default", name), lambda pod: pod["metadata"]["labels"].update(app=pod["metadata"]["name"])
        )
        cluster.put(
            POD_DISRUPTION_BUDGETS,
            {
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"selector": {"matchLabels": {"app": name}}},
                "status": {"disruptionsAllowed": 0},
            },
        )


def fail_webhook(cluster: Contested, pods: Collection[str]) -> None:
    """Let a webhook fail each eviction of some pods."""
    original = cluster.client.create

    async def create(resource: Resource, obj: Object, **options: Any) -> Any:
        if options.get("subresource") == "eviction" and obj["metadata"]["name"] in pods:
            raise ANSWERS["a webhook that fails"]
        return await original(resource, obj, **options)

    cluster.client.create = create  # type: ignore[method-assign]


@pytest.mark.parametrize("keep", [forbid, fail_webhook])
@pytest.mark.parametrize("count", [2, 6, pytest.param(12, marks=pytest.mark.slow)])
async def test_many_that_cannot_be_ended_keep_no_other_from_ending(
    keep: Callable[[Contested, Collection[str]], None], count: int
) -> None:
    decoys = [f"decoy-{number}" for number in range(count)]
    nodes = "abcdefghijklm"[: count + 1]
    cluster = await contested(*((name, 8, 0) for name in decoys), ("other", 8, 5), nodes=nodes)
    keep(cluster, decoys)
    cluster.deliver()
    cluster.pod("me", 8, priority=10)
    async with working(cluster), asyncio.timeout(300):
        while not cluster.ending():
            await asyncio.sleep(1)
    assert cluster.ending() == ["other"]


@pytest.mark.slow
async def test_who_was_refused_is_ended_once_it_may_be() -> None:
    cluster = await contested(("one", 8, 0))
    forbid(cluster, ["one"])
    cluster.deliver()
    cluster.pod("me", 8, priority=10)
    async with working(cluster):
        await asyncio.sleep(20)
        assert cluster.ending() == []
        cluster.remove(POD_DISRUPTION_BUDGETS, "one", "default")
        await asyncio.sleep(60)
        cluster.node("b", None, unschedulable=True)  # an event: the clock on the wall stands still here
        await asyncio.sleep(30)
    assert cluster.ending() == ["one"]


async def test_who_is_refused_keeps_no_neighbour_from_ending() -> None:
    cluster = await contested(("one", 4, 0), ("two", 2, 0), ("three", 2, 5))
    budgets(cluster, "two", "first", "second")
    cluster.pod("me", 6, priority=10)
    async with working(cluster):
        await asyncio.sleep(20)
    assert cluster.ending() == ["one", "three"]


async def test_trouble_of_the_servers_storage_is_no_refusal() -> None:
    cluster = await contested(("one", 8, 0), ("two", 8, 5), nodes="ab")
    cluster.client.refuse["evict"] = [ApiError(500, "", "etcdserver: request timed out", request=EVICTION)]
    cluster.pod("me", 8, priority=10)
    async with working(cluster):
        await asyncio.sleep(20)
    assert cluster.ending() == ["one"]


async def test_a_pod_under_two_budgets_is_no_victim_and_is_not_asked_for() -> None:
    cluster = await contested(("one", 4, 0), ("two", 4, 0))
    budgets(cluster, "two", "first", "second")
    cluster.pod("me", 8, priority=10)
    await cluster.settle()
    assert cluster.evicted() == []  # the other one would have ended in vain
    assert cluster.ending() == []
    reason = cluster.note("me", "reason") or ""
    assert "Pod 'default/two' has 2 PodDisruptionBudgets ('first', 'second')" in reason
    assert "Eviction API supports only one" in reason
