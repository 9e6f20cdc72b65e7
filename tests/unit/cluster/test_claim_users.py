"""Pods that share a set, counted on its node while writes are under way, and told of what comes late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.api.base.objects import Metadata
from dradriver.api.base.pods import Pod, PodClaim, PodSpec
from dradriver.api.claims.pins import Key
from dradriver.cluster.pods.claim_users import ClaimUsers
from dradriver.kube.client import ApiError
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS, Resource
from tests.fakes.apistore import Object
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.sharing import SHARED, cluster_of, drop, gates, settled
from tests.fakes.troubles import working
from tests.kept import entries


async def test_who_was_refused_takes_nothing_from_the_next() -> None:
    cluster = GpuCluster()
    cluster.node("a", allocatable={"cpu": "16"})
    cluster.pod("p", wishes=SHARED, requests={"cpu": "4"})
    await settled(cluster)
    cluster.pod("q", wishes=SHARED, requests={"cpu": "10"})
    cluster.client.refuse["patch"] = [ApiError(403, "Forbidden", "no")]
    await cluster.settle()
    assert gates(cluster, "q")
    cluster.pod("r", wishes=SHARED, requests={"cpu": "10"})
    await cluster.settle()
    assert not gates(cluster, "r")


async def test_while_a_set_is_made_it_counts_for_whom_it_is_made_alone() -> None:
    cluster = cluster_of("trainer", "sampler")
    answer = cluster.client.create
    counted: list[Any] = []

    async def create(resource: Resource, obj: Object, **more: Any) -> Any:
        cluster.deliver(PODS)
        cluster.put(PODS, cluster.get_pod("sampler"))  # something changes of it
        cluster.deliver(PODS)
        counted.extend(cluster.worker.picture.node_usage.by(("default", pod)) for pod in ("trainer", "sampler"))
        return await answer(resource, obj, **more)

    cluster.client.create = create  # type: ignore[method-assign]
    cluster.deliver()
    await cluster.worker.rest()
    trainer, sampler = counted
    assert trainer is not None
    assert trainer[0] == "a"
    assert sampler is None


async def test_the_only_pod_of_a_set_may_go_while_that_is_made() -> None:
    cluster = cluster_of("trainer")
    answer = cluster.client.create

    async def create(resource: Resource, obj: Object, **more: Any) -> Any:
        pod = cluster.get_pod("trainer")
        pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/keep"]}
        cluster.put(PODS, pod)
        cluster.deliver()
        return await answer(resource, obj, **more)

    cluster.client.create = create  # type: ignore[method-assign]
    await cluster.settle()
    await cluster.settle()
    assert cluster.find(RESOURCE_CLAIMS, "duo", "default") is None
    assert cluster.worker.picture.node_usage.by(("default", "trainer")) is None


async def test_others_come_once_the_claim_shows_its_gpus_however_late_that_is() -> None:
    cluster = cluster_of("trainer", "sampler")
    await cluster.settle()
    cluster.schedule()
    cluster.deliver(PODS)
    await cluster.worker.rest()
    assert gates(cluster, "sampler")
    cluster.deliver(RESOURCE_CLAIMS)
    await cluster.worker.turn()
    await cluster.worker.rest()
    assert not gates(cluster, "sampler")


async def test_a_promise_that_is_going_takes_no_cpu() -> None:
    cluster = GpuCluster()
    cluster.node("a", allocatable={"cpu": "16"})
    cluster.pod("p", wishes=SHARED, requests={"cpu": "10"})
    await cluster.settle()
    claim = cluster.find(RESOURCE_CLAIMS, "duo", "default")
    assert claim is not None
    claim["metadata"] |= {"finalizers": ["example.com/keep"]}
    cluster.put(RESOURCE_CLAIMS, claim)
    cluster.remove(RESOURCE_CLAIMS, "duo", "default")
    cluster.pod("q", requests={"cpu": "10"})
    await cluster.settle()
    assert not gates(cluster, "q")


async def test_of_sets_that_are_gone_nothing_is_kept() -> None:
    cluster = cluster_of()
    picture = cluster.worker.picture
    kept = []
    for sets in (1, 5):
        pods = [f"{name}{number}" for number in range(sets) for name in "pq"]
        for pod in pods:
            cluster.pod(pod, wishes=SHARED | {"shared-claim": f"set{pod[1:]}"})
        await settled(cluster)
        claims = len(cluster.all(RESOURCE_CLAIMS))
        assert claims == min(sets, 2), "the node has 8 GPUs"
        for pod in pods:
            drop(cluster, pod)
        cluster.collect()
        await cluster.settle()
        kept.append(entries(picture.claim_users, picture.node_usage, picture.accounts))
    assert kept[1] == kept[0] + claims, "the uids of claims that ended are remembered, for late answers"


@pytest.mark.parametrize("users", [255, 256])
async def test_so_many_use_a_claim_as_kubernetes_lets(users: int) -> None:
    cluster = cluster_of("trainer")
    await settled(cluster)
    claim = cluster.find(RESOURCE_CLAIMS, "duo", "default")
    assert claim is not None
    others = [{"resource": "pods", "name": f"x{number}", "uid": f"x{number}"} for number in range(1, users)]
    claim["status"]["reservedFor"] += others
    cluster.put(RESOURCE_CLAIMS, claim)
    cluster.pod("late", wishes=SHARED)
    await cluster.settle()
    assert bool(gates(cluster, "late")) is (users == 256)


@pytest.mark.looptime
async def test_who_waits_for_one_of_so_many_users_to_leave_comes_when_one_does() -> None:
    cluster = cluster_of("trainer")
    await settled(cluster)
    claim = cluster.find(RESOURCE_CLAIMS, "duo", "default")
    assert claim is not None
    others = [{"resource": "pods", "name": f"x{number}", "uid": f"x{number}"} for number in range(1, 256)]
    claim["status"]["reservedFor"] += others
    cluster.put(RESOURCE_CLAIMS, claim)
    cluster.pod("late", wishes=SHARED)
    async with working(cluster):
        await asyncio.sleep(2)
        assert gates(cluster, "late")
        claim = cluster.find(RESOURCE_CLAIMS, "duo", "default")
        assert claim is not None
        claim["status"]["reservedFor"].pop()
        cluster.put(RESOURCE_CLAIMS, claim)
        await asyncio.sleep(0.5)
        assert not gates(cluster, "late")


@pytest.mark.parametrize(("first", "then"), [("one", "two"), ("gpus-one", "gpus-two"), ("one", "gpus-one")])
def test_a_pod_of_the_same_name_with_another_claim_is_of_that_alone(first: str, then: str) -> None:
    """One event may tell of both: that the first is gone, and that the second is there."""
    pods: dict[Key, Pod] = {}
    claimants = ClaimUsers(pods)
    key, before, after = ("default", "p"), ("default", first), ("default", then)
    for claim in (first, then):
        named = PodSpec(resource_claims=[PodClaim(name=names.POD_CLAIM, resource_claim_name=claim)])
        pods[key] = Pod(metadata=Metadata(namespace="default", name="p", uid=claim), spec=named)
        claimants.put(before, key)
        if claim == then:
            claimants.put(after, key)
    assert ([*claimants.of(before)], [*claimants.of(after)]) == ([], [key])
    del pods[key]
    claimants.put(after, key)
    assert [*claimants.of(after)] == []
