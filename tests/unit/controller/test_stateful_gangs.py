"""Gangs of StatefulSets, whose pods are deleted to start anew: not those of others, and not again and again."""

from __future__ import annotations

import asyncio
import datetime
import itertools
from collections.abc import Mapping

import pytest

from dradriver.kube.resources import PODS
from tests.fakes.gang_pods import bound
from tests.fakes.gpucluster import GpuCluster


def pod(cluster: GpuCluster, index: int, *, owner: str = "s", loss: str = "replace", **labels: str) -> None:
    wishes = {"gang": "train", "gang-size": "2", "on-member-loss": loss}
    made = cluster.admitted(f"s-{index}", 8, wishes=wishes)
    del made["metadata"]["creationTimestamp"]
    one = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": owner, "uid": owner, "controller": True}
    made["metadata"]["ownerReferences"] = [one]
    made["metadata"]["labels"] |= {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
    cluster.put(PODS, made)


def cluster_of_two() -> GpuCluster:
    cluster = GpuCluster(promise_s=30.0, unschedulable_s=5.0)
    seconds, begun = itertools.count(), datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    cluster.store.clock = lambda: begun + datetime.timedelta(seconds=next(seconds))
    cluster.node("a")
    cluster.node("b")
    return cluster


async def rounds(cluster: GpuCluster, count: int = 4) -> None:
    for _ in range(count):
        await cluster.settle()
        cluster.schedule()
        cluster.collect()
        await asyncio.sleep(1)
    await cluster.settle()


@pytest.mark.parametrize(
    ("labels", "owners"), [({"kueue_x-k8s_io__queue-name": "q"}, ("s", "s")), ({}, ("s", "other"))]
)
async def test_pods_of_kueues_or_of_several_owners_are_left_alone(
    labels: Mapping[str, str], owners: tuple[str, str]
) -> None:
    cluster = cluster_of_two()
    for index, owner in enumerate(owners):
        pod(cluster, index, owner=owner, loss="restart", **labels)
    await rounds(cluster)
    assert len(bound(cluster, ["s-0", "s-1"])) == 2
    uid = cluster.get_pod("s-1")["metadata"]["uid"]
    cluster.remove(PODS, "s-0", "default")
    cluster.collect()
    await cluster.settle()
    pod(cluster, 0, owner=owners[0], loss="restart", **labels)
    await rounds(cluster)
    assert cluster.get_pod("s-1")["metadata"]["uid"] == uid


@pytest.mark.slow
async def test_between_two_times_there_is_a_pause_that_grows() -> None:
    cluster = cluster_of_two()
    for index in (0, 1):
        pod(cluster, index, loss="restart")
    await rounds(cluster)
    begun, restarts_s = asyncio.get_running_loop().time(), []
    while asyncio.get_running_loop().time() - begun < 300:
        cluster.remove(PODS, "s-0", "default")
        cluster.collect()
        await cluster.settle()
        pod(cluster, 0, loss="restart")
        await rounds(cluster, 3)
        gone = {0, 1} - {int(each["metadata"]["name"][-1]) for each in cluster.all(PODS)}
        if gone:
            restarts_s.append(asyncio.get_running_loop().time() - begun)
        for index in sorted(gone):
            pod(cluster, index, loss="restart")
        await rounds(cluster, 3)
    assert 2 <= len(restarts_s) <= 4, restarts_s


@pytest.mark.parametrize("size", ["3", "2-3"])
async def test_a_gang_that_is_to_start_again_does_so_however_few_it_may_begin_with(size: str) -> None:
    cluster = GpuCluster(promise_s=30.0)
    seconds, begun = itertools.count(), datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    cluster.store.clock = lambda: begun + datetime.timedelta(seconds=next(seconds))
    for node in "abc":
        cluster.node(node)

    def make(index: int) -> None:
        made = cluster.admitted(f"t-{index}", 8, wishes={"gang": "t", "gang-size": size, "on-member-loss": "restart"})
        del made["metadata"]["creationTimestamp"]
        one = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "t", "uid": "t", "controller": True}
        made["metadata"]["ownerReferences"] = [one]
        cluster.put(PODS, made)

    for index in range(3):
        make(index)
    await rounds(cluster)
    assert len(bound(cluster, ["t-0", "t-1", "t-2"])) == 3
    cluster.remove(PODS, "t-1", "default")
    cluster.collect()
    await cluster.settle()
    make(1)
    await rounds(cluster, 2)
    assert cluster.find(PODS, "t-0", "default") is None, "all of them go, for their StatefulSet to make them anew"
