"""Gangs of many pods: what happens to one of them does not cost a look at all."""

from __future__ import annotations

import asyncio
import collections
from types import ModuleType
from typing import Any

import pytest

from dradriver.cluster.nodes import pod_demands
from dradriver.controller.loop import step_runner
from dradriver.controller.steps.step import step
from dradriver.kube.resources import PODS
from tests.fakes.gang_pods import gang
from tests.fakes.gpucluster import GpuCluster


async def test_a_large_gang_is_looked_at_once_for_many_events(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal looks
        looks += 1
        return step(*args, **more)

    monkeypatch.setattr(step_runner, "next_step", counted)
    cluster = GpuCluster()
    for number in range(20):
        cluster.node(f"n{number:02}")
    pods = gang(cluster, 20)
    await cluster.settle()
    looks = 0
    for pod in pods:
        cluster.put(PODS, cluster.get_pod(pod) | {"status": {"message": "something else happened"}})
        cluster.deliver()
        await cluster.worker.turn()
    assert looks <= 1, "all of that happened in no time"
    looks = 0
    await asyncio.sleep(1)
    await cluster.worker.turn()
    assert looks == 1


async def test_a_pod_that_comes_late_costs_no_look_at_the_others_and_no_reading_of_all_their_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = collections.Counter[str]()

    def counted(module: ModuleType, name: str) -> None:
        original = getattr(module, name)

        def call(*args: Any, **more: Any) -> Any:
            counts[name] += 1
            return original(*args, **more)

        monkeypatch.setattr(module, name, call)

    cluster = GpuCluster()
    for number in range(20):
        cluster.node(f"n{number:02}")
    gang(cluster, 20)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    cluster.remove(PODS, "train-7", "default")
    cluster.collect()
    await cluster.settle()
    cluster.pod("train-7", 8, wishes={"gang": "train", "gang-size": "20"})
    cluster.deliver()
    counted(pod_demands, "terms_of")
    counted(step_runner, "next_step")
    await cluster.worker.rest()
    assert cluster.claim("train-7") is not None
    assert counts["next_step"] <= 4, "its own looks"
    assert counts["terms_of"] <= 1, "each of the others has one for all nodes of the gang"
