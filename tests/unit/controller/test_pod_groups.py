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
from tests.fakes.gang_pods import bound, claims, gang, lifted, nodes
from tests.fakes.gpucluster import GpuCluster

GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", namespaced=True)
BASIC: Object = {"basic": {}}
OTHERS = "minCount (3) cannot be satisfied: 1 scheduled, 1 remaining, pod group preemption: No preemption victims found"


def cluster_of(called: str, **times: float) -> GpuCluster:
    cluster = nodes(called, **times)
    cluster.barrier()
    return cluster


def group(cluster: GpuCluster, policy: Object, *, name: str = "train") -> None:
    metadata = {"name": name, "namespace": "default"}
    cluster.put(GROUPS, {"metadata": metadata, "spec": {"schedulingPolicy": policy}})


def of_job(cluster: GpuCluster, count: int, *, stored: bool = False, wishes: dict[str, str] | None = None) -> list[str]:
    """Create the pods of a Job to which the Job controller gave a PodGroup, as the webhook leaves them."""
    for index in range(count):
        made = cluster.admitted(f"train-{index}", 8, wishes=wishes or {})
        job_pod = owners.job_pod(index, stored=stored, namespace="default")
        for field in ("labels", "annotations"):
            made["metadata"][field] |= job_pod["metadata"][field]
        made["metadata"]["ownerReferences"] = job_pod["metadata"]["ownerReferences"]
        made["spec"] |= {"schedulingGroup": job_pod["spec"]["schedulingGroup"]} if stored else {}
        cluster.put(PODS, made)
    spec = {"parallelism": count, "completions": count, "completionMode": "Indexed"}
    cluster.put(JOBS, {"metadata": {"name": "train", "namespace": "default", "uid": owners.UID}, "spec": spec})
    return [f"train-{index}" for index in range(count)]


def written(cluster: GpuCluster, count: int, *, first: int = 0) -> list[str]:
    """Create pods whose author wrote ``schedulingGroup`` into them."""
    pods = [f"train-{index}" for index in range(first, first + count)]
    for pod in pods:
        cluster.pod(pod, 8, schedulingGroup={"podGroupName": "train"})
    return pods


def says(cluster: GpuCluster, pod: str, message: str, *, reason: str = "Unschedulable") -> None:
    """Have the scheduler write of a pod that it is not scheduled."""
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    cluster.store.edit(PODS, ("default", pod), lambda made: made["status"].update(conditions=[condition]))


async def gathered(cluster: GpuCluster) -> None:
    """Let a gang of a PodGroup, which may have more pods, be placed."""
    await cluster.settle()
    await asyncio.sleep(GATHER_S)
    await cluster.settle()


async def test_an_array_in_the_group_of_the_job_controller_starts_as_far_as_there_is_room() -> None:
    cluster = cluster_of("abcd")
    group(cluster, BASIC, name=owners.JOB_GROUP)
    pods = of_job(cluster, 8)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    assert len(bound(cluster, pods)) == 4
    assert lifted(cluster, pods) == bound(cluster, pods)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("policy", [BASIC, {"gang": {"minCount": 4}}])
async def test_what_the_author_of_a_job_says_of_a_gang_counts_with_any_group(stored: bool, policy: Object) -> None:
    cluster = cluster_of("abc")
    group(cluster, policy, name=owners.JOB_GROUP)
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
    group(cluster, BASIC, name=owners.JOB_GROUP)
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
    group(cluster, {"gang": {"minCount": 4}}, name=owners.JOB_GROUP)
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
    group(cluster, {"gang": {"minCount": 4}}, name=owners.JOB_GROUP)
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


async def test_only_the_pod_of_a_group_that_finds_no_node_is_blamed() -> None:
    cluster = cluster_of("abcd", promise_s=60.0, unschedulable_s=5.0)
    group(cluster, {"gang": {"minCount": 3}})
    pods = written(cluster, 3)
    await gathered(cluster)
    assert lifted(cluster, pods) == pods
    first = {pod: cluster.gpus(pod)[0] for pod in pods}
    says(cluster, "train-0", OTHERS)
    says(cluster, "train-1", "0/4 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.")
    says(cluster, "train-2", OTHERS)
    await cluster.settle()
    await asyncio.sleep(5.1)
    await cluster.settle()
    for pod in pods:
        assert "The scheduler finds no room for pod train-1 on its nodes" in (cluster.note(pod, "reason") or "")
    await asyncio.sleep(2)
    await cluster.settle()
    assert first["train-1"] not in {cluster.gpus(pod)[0] for pod in pods}
    assert {first["train-0"], first["train-2"]} < {cluster.gpus(pod)[0] for pod in pods}


@pytest.mark.parametrize(
    ("message", "reason", "told"),
    [
        (OTHERS, "Unschedulable", "The scheduler finds no room for another pod of PodGroup 'train'"),
        ("pod group is unschedulable, x", "Unschedulable", "another pod of PodGroup 'train'"),
        ("0/5 placements are available, first placement status: x", "Unschedulable", "another pod of PodGroup"),
        ('error in "DynamicResources" PodGroupPostFilter plugins: not found', "SchedulerError", "another pod of"),
        (
            "non-empty scheduling gates",
            "SchedulingGated",
            "The scheduler tries no pod of PodGroup 'train' while one of them",
        ),
    ],
)
async def test_what_is_about_the_group_blames_no_node(message: str, reason: str, told: str) -> None:
    cluster = cluster_of("abcd", promise_s=60.0, unschedulable_s=5.0)
    group(cluster, {"gang": {"minCount": 3}})
    pods = written(cluster, 3)
    await gathered(cluster)
    for pod in pods:
        says(cluster, pod, message, reason=reason)
    await cluster.settle()
    await asyncio.sleep(30)
    await cluster.settle()
    assert claims(cluster, pods) == pods
    await asyncio.sleep(35)
    await cluster.settle()
    assert [cluster.worker.picture.refusals.of(pod, 0.0) for pod in cluster.worker.picture.pods.values()] == [[]] * 3
    assert all(told in (cluster.note(pod, "reason") or "") for pod in pods)


async def test_no_pod_of_a_group_keeps_its_gate_while_others_start() -> None:
    """The scheduler would try none of them, so one that finds no place keeps all of them waiting."""
    cluster = cluster_of("abcd")
    group(cluster, {"gang": {"minCount": 3}})
    pods = written(cluster, 5)
    await gathered(cluster)
    assert lifted(cluster, pods) == []
    cluster.node("e")
    await cluster.settle()
    assert lifted(cluster, pods) == pods


def uids(cluster: GpuCluster, pods: list[str]) -> list[str]:
    """Return the uids of the pods' claims that are there and not on their way out."""
    found = [claim["metadata"] for pod in pods if (claim := cluster.claim(pod)) is not None]
    return [metadata["uid"] for metadata in found if "deletionTimestamp" not in metadata]


@pytest.mark.parametrize("in_group", [True, False])
async def test_a_gang_whose_group_lost_a_gated_pod_begins_again(in_group: bool) -> None:
    """Nothing else has the scheduler try those that are left."""
    cluster = cluster_of("abc")
    group(cluster, {"gang": {"minCount": 3}})
    more: dict[str, Any] = {"schedulingGroup": {"podGroupName": "train"}} if in_group else {}
    for index in range(3):
        cluster.pod(f"train-{index}", 8, wishes={} if in_group else {"gang": "train", "gang-size": "3-9"}, **more)
    pods = [f"train-{index}" for index in range(3)]
    await gathered(cluster)
    assert lifted(cluster, pods) == pods
    before = uids(cluster, pods)
    cluster.pod("train-3", 8, wishes={} if in_group else {"gang": "train", "gang-size": "3-9"}, **more)
    await cluster.settle()
    assert lifted(cluster, ["train-3"]) == [], "there is no room for it"
    cluster.remove(PODS, "train-3", "default")
    await gathered(cluster)
    assert (uids(cluster, pods) != before) == in_group
    for _ in range(2):
        cluster.schedule()
        await cluster.settle()
    assert bound(cluster, pods) == pods


async def test_an_array_in_a_group_that_an_author_made_starts_once_all_have_their_places() -> None:
    """The scheduler would have it so, and until then nothing is kept from others for them."""
    cluster = cluster_of("ab")
    group(cluster, BASIC)
    pods = written(cluster, 3)
    await gathered(cluster)
    assert (lifted(cluster, pods), claims(cluster, pods)) == ([], [])
    assert "has no place for all of them" in (cluster.note("train-0", "reason") or "")
    cluster.node("c")
    for _ in range(2):
        await cluster.settle()
        cluster.schedule()
    assert bound(cluster, pods) == pods
    cluster.remove(PODS, "train-1", "default")
    cluster.collect()
    written(cluster, 1, first=1)
    await cluster.settle()
    cluster.schedule()
    assert bound(cluster, pods) == pods, "a pod that comes later is placed by itself"


async def test_a_gang_that_lost_a_pod_to_one_of_higher_priority_gives_all_places_back_at_once() -> None:
    """The scheduler of 1.37.2 deletes a pod at the barrier, and tries the other one only once a place is given back."""
    cluster = cluster_of("abcd", promise_s=60.0)
    pods = gang(cluster, 3)
    await cluster.settle()
    cluster.schedule()
    assert len(uids(cluster, pods)) == 3

    def preempt(pod: Object) -> None:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": ""}
        pod["status"]["conditions"] = [*pod["status"].get("conditions", ()), condition]

    cluster.store.edit(PODS, ("default", "train-1"), preempt)
    cluster.deliver(PODS)
    cluster.remove(PODS, "train-1", "default")
    for _ in range(3):
        await cluster.settle()
        cluster.schedule()
        cluster.collect()
    assert uids(cluster, pods) == []
    assert bound(cluster, ["train-0", "train-2"]) == []
    cluster.pod("train-1", 8, wishes={"gang": "train", "gang-size": "3"})
    for _ in range(4):
        await cluster.settle()
        cluster.schedule()
    assert bound(cluster, pods) == pods
