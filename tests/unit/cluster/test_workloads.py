"""Workloads: which pods are together, what they use, and that an unchanged pod is read once."""

from __future__ import annotations

from typing import Any

from dradriver.api.claims.pins import Key
from dradriver.cluster.derived.workloads import Workload, Workloads
from dradriver.kube.resources import PODS
from tests.fakes.gpucluster import GpuCluster

GANG = {"gang": "train", "gang-size": "2"}


async def running() -> GpuCluster:
    """Return a cluster in which a pod and a gang of two run, and a pod waits."""
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("alone", 2, priority=7, terminationGracePeriodSeconds=5)
    for name in ("train-0", "train-1"):
        cluster.pod(name, 1, wishes=GANG)
    cluster.pod("waiting", 8)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    return cluster


def owned_by(cluster: GpuCluster, name: str, kind: str, uid: str) -> None:
    owner = {"apiVersion": "batch/v1", "kind": kind, "name": uid, "uid": uid, "controller": True}
    cluster.store.edit(PODS, ("default", name), lambda pod: pod["metadata"].update(ownerReferences=[owner]))


def names_of(workloads: list[Workload]) -> list[list[str]]:
    return [[member.key[1] for member in workload.pods] for workload in workloads]


def of(cluster: GpuCluster, *names: str, **options: Any) -> list[Workload]:
    picture = cluster.worker.picture
    keys: list[Key] = [("default", name) for name in names] or list(picture.pods)
    return Workloads(picture).of(keys, **options)


async def test_pods_of_a_gang_are_together_and_any_other_pod_is_alone() -> None:
    cluster = await running()
    workloads = of(cluster)
    assert names_of(workloads) == [["alone"], ["train-0", "train-1"], ["waiting"]]
    assert [workload.is_group for workload in workloads] == [False, True, False]
    assert names_of(of(cluster, "train-1")) == [["train-0", "train-1"]], "all pods of the gang of a pod"


async def test_a_deleted_pod_of_a_gang_is_alone() -> None:
    cluster = await running()
    cluster.store.edit(PODS, ("default", "train-0"), lambda pod: pod["metadata"].update(finalizers=["example.com/a"]))
    cluster.store.remove(PODS, ("default", "train-0"))
    await cluster.settle()
    workloads = of(cluster, "train-0", "train-1")
    assert names_of(workloads) == [["train-0"], ["train-1"]]
    assert [workload.is_group for workload in workloads] == [False, True]
    assert workloads[0].pods[0].is_ending
    assert workloads[0].pods[0].ends_at > 0


async def test_pods_of_an_owner_that_can_be_suspended_are_together_only_on_request() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    for name in ("job-0", "job-1", "other-0", "other-1"):
        cluster.pod(name, 1)
        owned_by(cluster, name, "Job" if name.startswith("job") else "ReplicaSet", name.partition("-")[0])
    await cluster.settle()
    assert names_of(of(cluster)) == [["job-0"], ["job-1"], ["other-0"], ["other-1"]]
    assert names_of(of(cluster, by_owner=True)) == [["job-0", "job-1"], ["other-0"], ["other-1"]]
    (job,) = of(cluster, "job-1", by_owner=True)
    assert names_of([job]) == [["job-0", "job-1"]], "all pods of the owner of a pod"
    assert job.is_group


async def test_the_uid_of_an_owner_is_never_taken_for_the_name_of_a_pod_or_gang() -> None:
    cluster = await running()
    gang = of(cluster, "train-0")[0].key[1]
    owned_by(cluster, "alone", "Job", "waiting")
    owned_by(cluster, "waiting", "Job", gang)
    await cluster.settle()
    workloads = of(cluster, by_owner=True)
    assert names_of(workloads) == [["alone"], ["train-0", "train-1"], ["waiting"]]


async def test_a_workload_says_what_its_pods_use_and_what_its_end_costs() -> None:
    alone, gang, waiting = of(await running())
    assert (alone.priority, alone.gpus, alone.grace_s, alone.shown, alone.owner) == (
        7, 2, 5, "default/alone", "default/alone",
    )  # fmt: skip
    assert (gang.priority, gang.gpus, gang.grace_s, gang.shown) == (0, 2, 30, "default/train-0's 2 pods")
    assert len(gang.devices) == 2
    assert {member.node for member in gang.pods} == {"a"}
    assert gang.lost_gpu_s(gang.since + 60) == 120
    assert gang.lost_gpu_s(gang.since - 60) == 0
    assert (waiting.gpus, waiting.pods[0].node, waiting.pods[0].amounts) == (0, "", {})


async def test_a_pod_is_read_again_only_if_it_or_its_claim_has_changed() -> None:
    cluster = await running()
    picture = cluster.worker.picture
    workloads = Workloads(picture)
    alone, gang, _ = workloads.of(picture.pods)
    assert workloads.of(picture.pods)[0] is alone
    cluster.store.edit(PODS, ("default", "alone"), lambda pod: pod["spec"].update(priority=9))
    await cluster.settle()
    changed, unchanged, _ = workloads.of(picture.pods)
    assert changed.priority == 9
    assert changed.pods[0].devices == alone.pods[0].devices
    assert [member is known for member, known in zip(unchanged.pods, gang.pods, strict=True)] == [True, True]
