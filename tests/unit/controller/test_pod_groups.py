"""Pods of PodGroups, which kube-scheduler places together or not at all, and what the controller makes of that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.controller.steps.deadlines import GATHER_S
from dradriver.kube.client import ApiError
from dradriver.kube.resources import PODS, Resource
from tests.fakes import owners
from tests.fakes.apistore import Object
from tests.fakes.control_plane.jobs import JOBS
from tests.fakes.gang_pods import bound, lifted, nodes
from tests.fakes.gpucluster import GpuCluster

GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", namespaced=True)
BASIC: Object = {"basic": {}}


def cluster_of(called: str, **times: float) -> GpuCluster:
    cluster = nodes(called, **times)
    cluster.barrier()
    return cluster


def group(cluster: GpuCluster, policy: Object, *, name: str = "train", uid: str = "g") -> None:
    metadata = {"name": name, "namespace": "default", "uid": uid}
    cluster.put(GROUPS, {"metadata": metadata, "spec": {"schedulingPolicy": policy}})


def of_job(cluster: GpuCluster, count: int, *, stored: bool = False, wishes: dict[str, str] | None = None) -> list[str]:
    """Create the pods of a Job to which the Job controller gave PodGroup ``train``, as the webhook leaves them."""
    for index in range(count):
        made = cluster.admitted(f"train-{index}", 8, wishes=wishes or {})
        job_pod = owners.job_pod(index, group="train", stored=stored, namespace="default")
        made["metadata"]["ownerReferences"] = job_pod["metadata"]["ownerReferences"]
        made["metadata"]["labels"] |= job_pod["metadata"]["labels"]
        made["spec"] |= {"schedulingGroup": {"podGroupName": "train"}} if stored else {}
        cluster.put(PODS, made)
    spec = {"parallelism": count, "completions": count, "completionMode": "Indexed"}
    cluster.put(JOBS, {"metadata": {"name": "train", "namespace": "default", "uid": owners.UID}, "spec": spec})
    return [f"train-{index}" for index in range(count)]


async def gathered(cluster: GpuCluster) -> None:
    """Let a gang of a PodGroup, which may have more pods, be placed."""
    await cluster.settle()
    await asyncio.sleep(GATHER_S)
    await cluster.settle()


async def test_an_array_in_the_group_of_the_job_controller_starts_as_far_as_there_is_room() -> None:
    cluster = cluster_of("abcd")
    group(cluster, BASIC)
    pods = of_job(cluster, 8)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    assert len(bound(cluster, pods)) == 4
    assert lifted(cluster, pods) == bound(cluster, pods)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("policy", [BASIC, {"gang": {"minCount": 4}}])
async def test_what_the_author_of_a_job_says_of_a_gang_counts_whatever_its_group_is(
    stored: bool, policy: Object
) -> None:
    cluster = cluster_of("abc")
    group(cluster, policy)
    pods = of_job(cluster, 4, stored=stored, wishes={"gang": "auto"})
    await cluster.settle()
    assert lifted(cluster, pods) == []
    cluster.node("d")
    for _ in range(2):
        await cluster.settle()
        cluster.schedule()
    assert bound(cluster, pods) == pods


@pytest.mark.parametrize("status", [403, 404, 500])
async def test_an_array_starts_though_its_group_cannot_be_read(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    cluster = cluster_of("ab")
    group(cluster, BASIC)
    get = cluster.client.get

    async def refusing(resource: Resource, name: str, **more: Any) -> Any:
        if resource == GROUPS:
            raise ApiError(status, {403: "Forbidden", 404: "NotFound"}.get(status, ""), "no")
        return await get(resource, name, **more)

    monkeypatch.setattr(cluster.client, "get", refusing)
    pods = of_job(cluster, 3)
    await cluster.settle()
    assert len(lifted(cluster, pods)) == (0 if status == 500 else 2), "trouble of the server says nothing of the group"
    monkeypatch.undo()
    await cluster.settle()
    assert len(lifted(cluster, pods)) == 2


async def test_a_job_that_asks_kubernetes_for_a_gang_is_one() -> None:
    cluster = cluster_of("abc")
    group(cluster, {"gang": {"minCount": 4}})
    pods = of_job(cluster, 4)
    await gathered(cluster)
    assert lifted(cluster, pods) == []
    cluster.node("d")
    for _ in range(2):
        await cluster.settle()
        cluster.schedule()
    assert bound(cluster, pods) == pods


async def test_a_replacement_is_placed_though_another_pod_of_its_group_has_succeeded() -> None:
    cluster = cluster_of("abcd")
    group(cluster, {"gang": {"minCount": 4}})
    pods = of_job(cluster, 4)
    await gathered(cluster)
    for _ in range(2):
        cluster.schedule()
        await cluster.settle()
    assert bound(cluster, pods) == pods
    cluster.store.edit(PODS, ("default", "train-0"), lambda pod: pod["status"].update(phase="Succeeded"))
    cluster.remove(PODS, "train-3", "default")
    cluster.collect()
    of_job(cluster, 4)[3]
    await cluster.settle()
    cluster.schedule()
    assert bound(cluster, ["train-3"]) == ["train-3"]
