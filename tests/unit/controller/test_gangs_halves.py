"""Gangs of which some pods run and others found no room, where no seat keeps the first from being bound."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.kube.resources import PODS
from tests.fakes.control_plane.scheduler import Scheduler
from tests.fakes.gang_pods import bound, claims, gang
from tests.fakes.gpucluster import GpuCluster


async def test_a_pod_that_only_the_scheduler_finds_no_room_for_is_tried_on_its_node_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = GpuCluster(unschedulable_s=1.0)
    for node in "ab":
        cluster.node(node)
    pods = gang(cluster, 2)
    await cluster.settle()
    port_taken = True
    place = Scheduler.place

    def places(scheduler: Scheduler, pod: Any, claims: Any) -> Any:
        taken = port_taken and pod["metadata"]["name"] == "train-1"
        return None if taken else place(scheduler, pod, claims)

    monkeypatch.setattr(Scheduler, "place", places)
    await rounds(cluster)
    assert bound(cluster, pods) == ["train-0"]
    port_taken = False
    await rounds(cluster, 60)
    assert bound(cluster, pods) == pods
    assert claims(cluster, pods) == pods


async def test_what_the_scheduler_refuses_is_waited_for_once_though_the_gang_starts_and_ends_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = GpuCluster(unschedulable_s=5.0)
    for node in "ab":
        cluster.node(node)
    pods = gang(cluster, 2)
    refused = {*pods}
    place = Scheduler.place

    def places(scheduler: Scheduler, pod: Any, claims: Any) -> Any:
        return None if pod["metadata"]["name"] in refused else place(scheduler, pod, claims)

    monkeypatch.setattr(Scheduler, "place", places)
    await cluster.settle()
    await rounds(cluster, 1)
    claim = cluster.claim("train-0")
    refused.remove("train-1")
    await rounds(cluster, 1)
    assert bound(cluster, pods) == ["train-1"]
    assert cluster.claim("train-0") == claim
    cluster.remove(PODS, "train-1", "default")
    await rounds(cluster, 1)
    assert cluster.claim("train-0") != claim, "six seconds after it was refused"


@pytest.mark.slow
async def test_a_gang_that_needs_much_search_finds_places_again_after_the_scheduler_refused_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = GpuCluster(unschedulable_s=1.0)
    for number in range(16):
        cluster.node(f"n{number:02}", labels={"network.topology.nvidia.com/leaf": f"l{number // 8}"})
    shapes = [(2, 1, 2), (2, 3, 1), (3, 2, 4), (4, 3, 4), (2, 3, 1), (4, 2, 1)]  # GPUs, pods, CPUs
    requests = [(gpus, cpus + 10 * at) for at, (gpus, pods, cpus) in enumerate(shapes) for _ in range(pods)]
    pods = [f"train-{number:02}" for number in range(len(requests))]
    wishes = {"gang": "train", "gang-size": str(len(pods)), "max-nodes": "5"}
    for pod, (gpus, cpus) in zip(pods, requests, strict=True):
        cluster.pod(pod, gpus, wishes=wishes, requests={"cpu": f"{cpus * 100}m"})
    is_refused = True
    place = Scheduler.place

    def places(scheduler: Scheduler, pod: Any, claims: Any) -> Any:
        return None if is_refused else place(scheduler, pod, claims)

    monkeypatch.setattr(Scheduler, "place", places)
    await cluster.settle()
    assert claims(cluster, pods) == pods
    await rounds(cluster, 2)
    is_refused = False
    await rounds(cluster, 30)
    assert bound(cluster, pods) == pods


async def rounds(cluster: GpuCluster, number: int = 8) -> None:
    """Let some time pass in which everybody works."""
    for _ in range(number):
        cluster.schedule()
        await cluster.settle()
        cluster.collect()
        await asyncio.sleep(2)
        await cluster.settle()
