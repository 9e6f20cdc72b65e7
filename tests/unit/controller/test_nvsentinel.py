"""Pods that get GPUs say so to NVSentinel, if the administrator wants it."""

from __future__ import annotations

import asyncio
import json

from dradriver.api.base import names
from dradriver.kube.resources import PODS
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.fakes.troubles import working


def telling() -> GpuCluster:
    cluster = GpuCluster()
    cluster.tells_nvsentinel = True
    cluster.restart()
    cluster.node("a")
    return cluster


def devices(cluster: GpuCluster, pod: str) -> str | None:
    text: str | None = cluster.get_pod(pod)["metadata"]["annotations"].get(names.NVSENTINEL_DEVICES)
    return text


async def test_a_placed_pod_names_its_gpus_in_the_same_write() -> None:
    cluster = telling()
    cluster.pod("p", {"main": 4})
    await cluster.settle()
    _, gpus = cluster.gpus("p")
    uuids = sorted(cluster.machines["a"].gpus[index].uuid for index in gpus)
    assert json.loads(devices(cluster, "p") or "") == {"devices": {names.GPU_RESOURCE: uuids}}
    assert cluster.client.writes == [("create", claim_of("p")), ("patch", "p")]


async def test_without_the_option_nothing_is_written() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", {"main": 4})
    await cluster.settle()
    assert devices(cluster, "p") is None


async def test_it_is_put_right_with_what_the_pod_says_of_its_gpus() -> None:
    cluster = telling()
    cluster.pod("p", 2)
    async with working(cluster):
        await asyncio.sleep(1)
        cluster.schedule()
        await asyncio.sleep(1)
        true = devices(cluster, "p")
        pod = cluster.get_pod("p")
        pod["metadata"]["annotations"] |= {names.ALLOCATED: "GPU-x", names.NVSENTINEL_DEVICES: "forged"}
        cluster.put(PODS, pod)
        await asyncio.sleep(1)
        assert devices(cluster, "p") == true
