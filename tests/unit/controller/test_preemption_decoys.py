"""Pods that a budget keeps from ending beside pods that may end: who needs GPUs reaches the latter, and soon."""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Sequence

import pytest

from dradriver.controller.owners.eviction_refusals import LONGEST_S
from dradriver.kube.resources import POD_DISRUPTION_BUDGETS, PODS
from tests.fakes.apistore import Object
from tests.fakes.preempting import Contested
from tests.fakes.storeclient import Call
from tests.fakes.troubles import working


async def decoys(namespaces: Sequence[str], allowed: int = 0) -> Contested:
    """Return a full cluster: notebooks, each with a budget of its own, and a pod of higher priority without any."""
    cluster = Contested()
    for number, namespace in enumerate(namespaces):
        name = f"notebook-{number}"
        cluster.node(f"n{number}")
        cluster.pod(name, 8, namespace=namespace, **on(f"n{number}"))
        cluster.put(POD_DISRUPTION_BUDGETS, budget(name, namespace, allowed))
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    for number, namespace in enumerate(namespaces):
        label(cluster, f"notebook-{number}", f"notebook-{number}", namespace)
    cluster.node("last")
    await cluster.run(("train", 8, 5), **on("last"))
    return cluster


def on(node: str) -> Object:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def label(cluster: Contested, pod: str, app: str, namespace: str = "default") -> None:
    cluster.store.edit(PODS, (namespace, pod), lambda pod: pod["metadata"]["labels"].update(app=app))


def budget(name: str, namespace: str = "default", allowed: int = 0) -> Object:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": name}}},
        "status": {"disruptionsAllowed": allowed},
    }


async def ends_within(cluster: Contested, seconds: float, *, see_s: float = 0.1) -> list[str]:
    """Return who was told to end once anybody was, or after so many seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    async with working(cluster, see_s=see_s):
        while not cluster.ending() and loop.time() < until:
            await asyncio.sleep(0.1)
    return cluster.ending()


@pytest.mark.slow
@pytest.mark.parametrize("count", [6, 24])
async def test_a_namespace_of_pods_with_budgets_is_found_out_at_once(count: int) -> None:
    cluster = await decoys(["default"] * count)
    cluster.pod("me", 8, priority=1000)
    assert await ends_within(cluster, 5) == ["train"]


@pytest.mark.slow
async def test_in_many_namespaces_each_pod_with_a_budget_is_tried_once_before_the_others() -> None:
    cluster = await decoys([f"space-{number}" for number in range(16)])
    asked: collections.Counter[str] = collections.Counter()

    def count(call: Call) -> None:
        if call.plural == POD_DISRUPTION_BUDGETS.plural:
            asked[call.namespace] += 1

    cluster.client.on_request = count
    cluster.pod("me", 8, priority=1000)
    assert await ends_within(cluster, 8 * 18) == ["train"]
    assert {asked[f"space-{number}"] for number in range(16)} == {1}


async def test_a_budget_that_allows_one_hides_no_pod_but_those_beyond_it() -> None:
    cluster = Contested()
    for node in "abcd":
        cluster.node(node)
        await cluster.run((f"left-{node}", 4, 0), (f"right-{node}", 4, 0), **on(node))
        label(cluster, f"left-{node}", "kept")
        label(cluster, f"right-{node}", "kept")
    cluster.put(POD_DISRUPTION_BUDGETS, budget("kept", allowed=1))
    cluster.node("last")
    await cluster.run(("train", 8, 5), **on("last"))
    cluster.pod("me", 8, priority=1000)
    assert await ends_within(cluster, 5) == ["train"]
    cluster.gone("train")
    cluster.schedule()
    cluster.pod("small", 4, priority=1000)
    assert len(await ends_within(cluster, 5)) == 1


@pytest.mark.slow
async def test_a_budget_that_lets_its_pod_end_later_is_noticed_within_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = time.time()
    monkeypatch.setattr(time, "time", lambda: began + asyncio.get_running_loop().time())
    cluster = await decoys(["default"] * 3)
    label(cluster, "train", "notebook-0")
    cluster.pod("me", 8, priority=1000)
    assert await ends_within(cluster, 300, see_s=2) == []
    cluster.store.edit(
        POD_DISRUPTION_BUDGETS, ("default", "notebook-1"), lambda one: one["status"].update(disruptionsAllowed=1)
    )
    assert await ends_within(cluster, LONGEST_S + 60, see_s=2) == ["notebook-1"]
