"""A gang that has started: whether it lost a pod, by its pods and claims."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dradriver.api.gangs import suspendable_owners
from dradriver.controller.steps.deadlines import Deadlines
from dradriver.controller.steps.gang_running import Anew, OneByOne, running_step
from dradriver.kube.resources import PODS
from tests.fakes.control_plane.jobs import JOBS
from tests.fakes.gang_pods import bound, gang, running
from tests.fakes.gpucluster import GpuCluster
from tests.unit.controller.test_gang_barrier import cluster_of, filler, told

JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job", "controller": True}


def step(cluster: GpuCluster, *, restarts: bool = True, late: str = "") -> Anew | OneByOne:
    """Return what becomes of the gang; ``late`` is the pod of it that was made long after the others."""
    picture = cluster.worker.picture
    pods = [pod for pod in picture.pods.values() if pod.metadata.name.startswith("train-")]
    metadata = {pod.metadata.name: replace(pod.metadata, creation_timestamp="2999-01-01T00:00:00Z") for pod in pods}
    pods = [replace(pod, metadata=metadata[late]) if pod.metadata.name == late else pod for pod in pods]
    return running_step(pods, picture, 2, 0.0, restarts=restarts, since=0.0, deadlines=Deadlines())


def of_job(cluster: GpuCluster, **changes: Any) -> list[str]:
    """Create a Job and two pods of a gang that belong to it; ``changes`` as for ``GpuCluster.pod``."""
    cluster.put(JOBS, {"metadata": {"name": "train", "namespace": "default", "uid": JOB["uid"]}, "spec": {}})
    for pod in (pods := ["train-0", "train-1"]):
        made = cluster.admitted(pod, 8, **changes)
        made["metadata"]["ownerReferences"] = [JOB]
        cluster.put(PODS, made)
    return pods


def why_suspended(cluster: GpuCluster) -> str | None:
    """Return why the controller suspended the Job to start its pods again; None if it did not."""
    job = cluster.find(JOBS, "train", "default")
    assert job is not None
    record = suspendable_owners.record_of(msgspec.convert(job, suspendable_owners.Suspendable))
    assert (record is not None) == job["spec"].get("suspend", False)
    return None if record is None else record.why


async def test_one_whose_pods_are_told_to_go_and_not_bound_yet_has_lost_none() -> None:
    cluster = cluster_of("ab")
    pods = gang(cluster, 2)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    assert all(told(cluster, pod) for pod in pods)
    assert bound(cluster, pods) == []
    assert isinstance(step(cluster), OneByOne)
    cluster.schedule()
    await cluster.settle()
    assert bound(cluster, pods) == pods
    assert isinstance(step(cluster), OneByOne)


async def test_one_to_which_a_pod_came_after_its_claims_has_lost_one() -> None:
    cluster = cluster_of("ab")
    pods = gang(cluster, 2)
    for _ in range(2):
        await cluster.settle()
        cluster.schedule()
    await cluster.settle()
    assert bound(cluster, pods) == pods
    cluster.remove(PODS, pods[0], "default")
    cluster.collect()
    await cluster.settle()
    gang(cluster, 2, there=1)
    await cluster.settle()
    assert isinstance(step(cluster, late=pods[0]), Anew)
    assert isinstance(step(cluster, late=pods[0], restarts=False), OneByOne)


async def test_a_leader_that_begins_sees_what_a_gang_lost_without_a_leader() -> None:
    cluster = cluster_of("ab")
    wishes = {"gang": "train", "gang-size": "2", "on-member-loss": "restart"}
    pods = of_job(cluster, wishes=wishes)
    for _ in range(2):
        await cluster.settle()
        cluster.schedule()
    assert bound(cluster, pods) == pods
    cluster.remove(PODS, "train-0", "default")
    cluster.collect()
    late = cluster.admitted("train-0", 8, wishes=wishes)
    late["metadata"] |= {"creationTimestamp": "2999-01-01T00:00:00Z", "ownerReferences": [JOB]}
    cluster.put(PODS, late)
    cluster.stands_by = True
    cluster.restart()
    cluster.deliver()
    await cluster.settle()
    assert why_suspended(cluster) is None, "a replica that stands by sees all of it and does nothing"
    cluster.worker.begin()
    await cluster.settle()
    assert why_suspended(cluster) == "it lost a pod: 1 of 2 run"


async def test_a_pod_that_comes_waits_until_it_is_known_where_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = GpuCluster()
    for node, leaf in {"a": "1", "b": "1", "c": "2"}.items():
        cluster.node(node, labels={"network.topology.nvidia.com/leaf": leaf})
    wishes = {"gang": "train", "gang-size": "2", "near": "leaf"}
    for pod in (pods := ["train-0", "train-1"]):
        cluster.pod(pod, 8, wishes=wishes)
    for _ in range(2):
        await cluster.settle()
        cluster.schedule()
    assert bound(cluster, pods) == pods
    others, lost = (cluster.gpus(pod)[0] for pod in pods)
    cluster.remove(PODS, "train-1", "default")
    cluster.collect()
    cluster.rival("theirs", lost, range(8))
    cluster.restart()
    inventory = cluster.worker.picture.inventory
    monkeypatch.setattr(inventory.tables, "ready", lambda node, _: node != others)
    cluster.pod("train-1", 8, wishes=wishes)
    await cluster.settle()
    assert cluster.claim("train-1") is None
    assert "not assessed yet" in (cluster.note("train-1", "reason") or "")


async def test_one_of_which_half_is_bound_is_to_start_again_after_its_deadline_however_often_it_is_looked_at() -> None:
    cluster = GpuCluster(promise_s=30.0)
    for node in "ab":
        cluster.node(node)
    pods = of_job(cluster, wishes={"gang": "train", "gang-size": "2"}, requests={"cpu": "32"})
    await cluster.settle()
    filler(cluster, cluster.gpus("train-1")[0])
    for _ in range(5):
        cluster.schedule()
        await cluster.settle()
        await asyncio.sleep(5)
    await cluster.settle()
    assert bound(cluster, pods) == ["train-0"]
    assert why_suspended(cluster) is None
    await asyncio.sleep(10)
    await cluster.settle()
    assert why_suspended(cluster) == "1 of 2 of its pods were bound in time"


async def test_two_that_come_at_once_count_where_each_is_about_to_be() -> None:
    cluster = cluster_of("abcd")
    wishes = {"gang": "train", "gang-size": "4", "max-nodes": "2"}
    for pod in (pods := [f"train-{number}" for number in range(4)]):
        cluster.pod(pod, 4, wishes=wishes)
    for _ in range(2):
        await cluster.settle()
        cluster.schedule()
    await cluster.settle()
    assert bound(cluster, pods) == pods
    where = {pod: cluster.gpus(pod)[0] for pod in pods}
    gone = [pod for pod in pods if where[pod] == where[pods[-1]]]
    assert len(gone) == 2
    for pod in gone:
        cluster.remove(PODS, pod, "default")
    cluster.collect()
    cluster.rival("all", where[gone[0]], range(8))
    for node in set("abcd") - set(where.values()):
        cluster.rival(f"half-{node}", node, range(4))  # each has room for one of the two
    for pod in gone:
        cluster.pod(pod, 4, wishes=wishes)
    await cluster.settle()
    assert sum(cluster.claim(pod) is not None for pod in gone) == 1


async def test_who_comes_while_the_lost_one_ends_has_its_place_and_no_stranger() -> None:
    cluster = cluster_of("ab")
    wishes = {"gang": "train", "gang-size": "2"}
    for pod in (pods := ["train-0", "train-1"]):
        cluster.pod(pod, 8, wishes=wishes)
    for _ in range(2):
        await cluster.settle()
        cluster.schedule()
    assert bound(cluster, pods) == pods
    cluster.pod("stranger", 8)
    await cluster.settle()
    going = cluster.get_pod("train-0")
    going["metadata"] |= {"deletionTimestamp": "2026-11-01T00:00:00Z", "finalizers": ["example.com/grace"]}
    cluster.put(PODS, going)
    await cluster.settle()
    cluster.pod("train-0b", 8, wishes=wishes)
    await cluster.settle()
    del going["metadata"]["finalizers"]
    cluster.put(PODS, cluster.get_pod("train-0") | going)
    cluster.collect()
    await cluster.settle()
    assert cluster.find(PODS, "train-0", "default") is None
    assert cluster.claim("train-0b") is not None
    assert cluster.claim("stranger") is None


async def test_a_pod_that_leaves_its_running_gang_is_placed_as_a_single_pod(caplog: pytest.LogCaptureFixture) -> None:
    cluster, pods = await running("ab")
    node, _ = cluster.gpus(pods[1])
    cluster.remove(PODS, pods[1], "default")
    cluster.collect()
    cluster.rival("theirs", node, range(8))
    cluster.pod(pods[1], 8, wishes={"gang": "train", "gang-size": "2"})
    await cluster.settle()
    assert cluster.claim(pods[1]) is None
    words = cluster.admitted(pods[1], 8)["metadata"]["annotations"]
    cluster.store.edit(PODS, ("default", pods[1]), lambda pod: pod["metadata"].update(annotations=words))
    cluster.node("c")
    await cluster.settle()
    assert cluster.gpus(pods[1])[0] == "c"
    assert "internal error" not in caplog.text
