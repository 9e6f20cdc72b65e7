"""Gangs of many pods: what happens to one of them does not cost a look at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.controller import gang_step, gang_worker
from dradriver.kube.resources import PODS
from tests.fakes.gpucluster import GpuCluster
from tests.unit.controller.test_gangs import gang


@pytest.mark.looptime
async def test_a_large_gang_is_looked_at_once_for_many_events(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal looks
        looks += 1
        return gang_step.gang_step(*args, **more)

    monkeypatch.setattr(gang_worker, "gang_step", counted)
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
