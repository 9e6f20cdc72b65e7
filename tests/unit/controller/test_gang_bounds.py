"""Gangs: what one of them, or one tenant, can cost everybody else has bounds."""

from __future__ import annotations

import asyncio
import json
import sys
from types import FrameType
from typing import Any

import pytest

from dradriver.allocator.fleet.gang_effort import Effort
from dradriver.api.base import names
from dradriver.api.claims import gang_plan_note
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.controller.loop import step_runner
from dradriver.controller.placing import gang_plan, gang_roles
from dradriver.controller.placing.gang_terms import GangTerms
from dradriver.controller.steps.actions import Step
from dradriver.controller.steps.deadlines import GATHER_S
from dradriver.controller.steps.step import step
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS, Resource
from dradriver.queue.pending import Member
from tests.fakes.apistore import Object
from tests.fakes.gang_pods import gang
from tests.fakes.gpucluster import GpuCluster

GROUPS = Resource("scheduling.k8s.io", "v1", "podgroups", "PodGroup", namespaced=True)


def ranked(cluster: GpuCluster, name: str, index: int) -> None:
    """Create a pod of a gang of one or two that says its place in it."""
    cluster.pod(name, 8, wishes={"gang": "train", "gang-size": "1-2"})
    pod = cluster.get_pod(name)
    pod["metadata"]["labels"] |= {
        "kueue.x-k8s.io/pod-group-name": "train",
        "kueue.x-k8s.io/pod-group-pod-index": str(index),
    }
    cluster.put(PODS, pod)


@pytest.mark.slow
async def test_a_gang_that_gathers_is_looked_at_no_more_often_for_what_its_pods_went_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def counted(*args: Any, **more: Any) -> Step:
        nonlocal looks
        looks += 1
        return step(*args, **more)

    monkeypatch.setattr(step_runner, "next_step", counted)
    cluster = GpuCluster()
    cluster.node("a")
    gang(cluster, 8, there=2)
    cluster.deliver()
    work = asyncio.create_task(cluster.worker.run())
    for number in range(500):
        pod = cluster.get_pod("train-0")
        pod["metadata"]["annotations"]["gpu.topology/x"] = str(number)
        cluster.put(PODS, pod)
        cluster.deliver()
        await asyncio.sleep(0.004)
    await asyncio.sleep(30)
    looks = 0
    await asyncio.sleep(60)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert looks < 30


async def test_a_gang_keeps_no_more_places_than_it_has_pods() -> None:
    cluster = GpuCluster()
    for node in "abcdefghij":
        cluster.node(node)
    ranked(cluster, "anchor", 0)
    ranked(cluster, "p1", 1)
    await cluster.settle()
    cluster.schedule()
    for number in range(2, 12):
        cluster.remove(PODS, f"p{number - 1}", "default")
        cluster.collect()
        await cluster.settle()
        ranked(cluster, f"p{number}", number)
        await cluster.settle()
        cluster.schedule()
        await cluster.settle()
    for number in range(8):
        cluster.pod(f"other-{number}", 8)
    await cluster.settle()
    assert sum(cluster.claim(f"other-{number}") is not None for number in range(8)) == 8


async def test_a_plan_of_more_pods_than_there_can_be_does_not_count() -> None:
    cluster = GpuCluster()
    for node in "abc":
        cluster.node(node)
    gang(cluster, 2)
    await cluster.settle()
    cluster.schedule()
    claim: Object | None = cluster.claim("train-0")
    assert claim is not None
    plan = json.loads(claim["metadata"]["annotations"][names.PLAN]) | {"size": gang_plan_note.MOST_PODS + 1}
    claim["metadata"]["annotations"][names.PLAN] = json.dumps(plan)
    cluster.put(RESOURCE_CLAIMS, claim)
    await cluster.settle()
    record = cluster.worker.picture.claims["default", "gpus-train-0"]
    assert record.planned is None


async def test_a_share_in_a_gang_is_told_what_to_write() -> None:
    cluster = GpuCluster()
    for node in "abc":
        cluster.node(node)
    group = {"podGroupName": "group"}
    cluster.pod("p0", 1, wishes={"share": "0.5"}, schedulingGroup=group)
    cluster.pod("p1", 8, schedulingGroup=group)
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    cluster.put(GROUPS, {"metadata": {"name": "group", "namespace": "default"}, "spec": spec})
    await cluster.settle()
    await asyncio.sleep(GATHER_S)
    await cluster.settle()
    assert "Gangs use whole GPUs" in (cluster.note("p0", "reason") or "")


async def test_a_gang_of_very_many_kinds_of_pods_is_told_and_decided_on_no_more() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    for number in range(gang_roles.MOST_KINDS + 1):
        wishes = {"gang": "train", "gang-size": str(gang_roles.MOST_KINDS + 1)}
        cluster.pod(f"p{number}", 1, wishes=wishes, requests={"cpu": f"{number + 1}m"})
    cluster.pod("other", 1)
    await cluster.settle()
    assert "give them the same requests" in (cluster.note("p0", "reason") or "")
    assert cluster.claim("other") is not None


async def test_pods_that_were_lifted_for_one_plan_ask_for_the_same_again() -> None:
    cluster = GpuCluster()
    for node in "abcd":
        cluster.node(node)
    pods = gang(cluster, 3)
    await cluster.settle()
    affinities = [cluster.get_pod(pod)["spec"]["affinity"] for pod in pods]
    assert affinities[0] == affinities[1] == affinities[2]


async def test_a_gang_that_comes_again_is_looked_at_though_the_one_before_went_before_its_next_look() -> None:
    cluster = GpuCluster()
    for node in "ab":
        cluster.node(node)
    worker = cluster.worker

    async def come() -> None:  # the second a moment after the first was looked at
        for pod in ("train-0", "train-1"):
            cluster.pod(pod, 8, wishes={"gang": "train", "gang-size": "2"})
            cluster.deliver()
            await worker.turn()

    await come()
    for pod in ("train-0", "train-1"):  # as of a Job that is suspended
        cluster.remove(PODS, pod, "default")
    cluster.deliver()
    await asyncio.sleep(1)
    await worker.turn()
    await come()
    assert not worker.busy
    await asyncio.sleep(1)
    await worker.turn()
    assert worker.busy, "its claims are made"
    await cluster.settle()


async def _calls_of_a_look(shapes: int) -> tuple[GpuCluster, int]:
    """Return a cluster with a gang of eight pods of 5 GPUs and two of 4, in so many shapes, and a look's calls.

    No leaf of eight nodes has room for nine of them: each pod of 5 GPUs leaves three of its node. That there is room
    for either size alone, and that there are GPUs enough, does not tell.
    """
    cluster = GpuCluster()
    for number in range(32):
        cluster.node(f"n{number:02}", labels={"network.topology.nvidia.com/leaf": f"l{number // 8}"})
    for number in range(10):
        cluster.pod(
            f"train-{number}", 5 if number < 8 else 4, wishes={"gang": "train", "gang-size": "9-10", "near": "leaf"},
            requests={"cpu": f"{1000 + number % shapes}m"},
        )  # fmt: skip
    cluster.deliver()
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        await cluster.worker.rest()
    finally:
        sys.setprofile(before)
    return cluster, calls


@pytest.mark.slow
async def test_a_gang_of_many_shapes_costs_no_more_than_the_limit_of_a_look() -> None:
    _, few = await _calls_of_a_look(1)
    cluster, calls = await _calls_of_a_look(10)
    assert calls < 10 * few
    assert cluster.claim("train-0") is None
    await asyncio.sleep(2)  # of the test's clock: a pod is told nothing in its first second
    await cluster.settle()
    assert "no place for all of them, even if all its GPUs are free" in str(cluster.note("train-0", "reason"))


async def test_without_anything_left_to_search_with_a_gang_begins_with_as_few_as_it_may() -> None:
    cluster = GpuCluster()
    for node in "abcdef":
        cluster.node(node)
    for number in range(6):
        cpu = "100" if number == 4 else f"{1000 + number}m"
        cluster.pod(f"train-{number}", 8, wishes={"gang": "train", "gang-size": "2-6"}, requests={"cpu": cpu})
    cluster.deliver()
    picture = cluster.worker.picture
    members = [Member(picture.pods["default", f"train-{number}"], None, ()) for number in range(6)]

    def names_of(effort: Effort) -> list[str]:
        terms = GangTerms(None, "train", least=2, effort=effort)
        places = gang_plan.plan(Snapshot(picture, "default"), members, terms)
        return [member.key[1] for member in places]

    assert names_of(Effort()) == ["train-0", "train-1", "train-2", "train-3"]
    assert names_of(Effort(0)) == ["train-0", "train-1"]
