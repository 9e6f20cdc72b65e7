"""Deadlines and starts of gangs: neither depends on pods that are not needed, nor on what cannot be read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.kube.client import ApiError
from dradriver.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES, Resource
from tests.fakes.control_plane.jobs import JOBS
from tests.fakes.gang_pods import bound, claims, gang, lifted
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.unit.controller.test_gang_barrier import cluster_of, filler
from tests.unit.controller.test_owner_reader import job
from tests.unit.controller.test_owner_reader import pods as pods_of
from tests.unit.controller.test_template_reader import put, request, spec

VOLUME: dict[str, Any] = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "absent"}}]}
OTHER_GATE: dict[str, Any] = {"schedulingGates": [{"name": names.GATE}, {"name": "example.com/other"}]}
OTHER_TEMPLATE: dict[str, Any] = {
    "resourceClaims": [
        {"name": names.POD_CLAIM, "resourceClaimName": claim_of("train-9")},
        {"name": "nic", "resourceClaimTemplateName": "absent"},
    ]
}
HINDRANCES = pytest.mark.parametrize(
    "hindrance", [VOLUME, OTHER_GATE, OTHER_TEMPLATE], ids=["volume", "gate", "template"]
)


def further(cluster: GpuCluster, size: int, name: str = "train-9", **changes: Any) -> None:
    """Create one more pod of the gang's name."""
    cluster.pod(name, 8, wishes={"gang": "train", "gang-size": str(size)}, **changes)


def large_gang(cluster: GpuCluster, size: int) -> list[str]:
    """Create the pods of a gang that need half of a node's CPU each."""
    pods = [f"train-{i}" for i in range(size)]
    for pod in pods:
        further(cluster, size, pod, requests={"cpu": "32"})
    return pods


async def go_on(cluster: GpuCluster, seconds: int) -> None:
    """Let everybody act for so many seconds."""
    for _ in range(seconds // 5):
        await cluster.settle()
        cluster.schedule()
        cluster.collect()
        await asyncio.sleep(5)
    await cluster.settle()


def refuse_to_read(cluster: GpuCluster, plural: str) -> None:
    """Let the server fail whenever the controller reads an object of a kind."""
    get = cluster.client.get

    async def failing(resource: Resource, name: str, **how: Any) -> Any:
        if resource.plural == plural:
            raise ApiError(500, "InternalError", "no answer")
        return await get(resource, name, **how)

    cluster.client.get = failing  # type: ignore[method-assign]


@HINDRANCES
async def test_seated_pods_start_though_a_pod_that_is_not_needed_cannot(hindrance: dict[str, Any]) -> None:
    cluster = cluster_of("abcd", promise_s=30.0)
    pods = gang(cluster, 4)
    await cluster.settle()
    cluster.schedule()
    further(cluster, 4, **hindrance)
    await cluster.settle()
    cluster.schedule()
    assert bound(cluster, pods) == pods


@HINDRANCES
async def test_pods_that_suffice_get_their_places_though_an_older_one_cannot(hindrance: dict[str, Any]) -> None:
    cluster = cluster_of("abc", promise_s=30.0)
    further(cluster, 3, **hindrance)
    pods = gang(cluster, 3)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    cluster.schedule()
    assert bound(cluster, pods) == pods


@HINDRANCES
async def test_a_deadline_does_not_depend_on_a_pod_that_is_not_needed(hindrance: dict[str, Any]) -> None:
    cluster = cluster_of("abc", promise_s=30.0)
    pods = large_gang(cluster, 3)
    await cluster.settle()
    filler(cluster, cluster.gpus("train-1")[0])
    cluster.schedule()
    further(cluster, 3, **hindrance)
    await cluster.settle()
    assert claims(cluster, pods) == pods
    await go_on(cluster, 45)
    assert claims(cluster, pods) == []
    assert bound(cluster, pods) == []


@pytest.mark.parametrize("hindrance", [VOLUME, OTHER_TEMPLATE], ids=["volume", "template"])
async def test_what_a_needed_pod_lacks_keeps_gpus_from_nobody_for_long(hindrance: dict[str, Any]) -> None:
    cluster = cluster_of("abc", promise_s=30.0)
    pods = gang(cluster, 3)
    await cluster.settle()
    cluster.schedule()
    cluster.remove(PODS, "train-2", "default")
    cluster.collect()
    further(cluster, 3, **hindrance)
    await cluster.settle()
    assert claims(cluster, pods) == ["train-0", "train-1"]
    assert "'absent', which is not there" in (cluster.note("train-0", "reason") or "")
    await go_on(cluster, 45)
    assert claims(cluster, pods) == []


async def test_a_template_that_cannot_be_read_is_waited_for_by_its_pod_alone() -> None:
    cluster = cluster_of("abc", promise_s=30.0)
    refuse_to_read(cluster, RESOURCE_CLAIM_TEMPLATES.plural)
    put(cluster, spec(request(count=8)))
    entries = [{"name": "gpus", "resourceClaimName": claim_of("train-9")}]
    wishes = {"template": "gpus/t", "gang": "train", "gang-size": "3"}
    cluster.pod("train-9", 1, wishes=wishes, resourceClaims=entries)
    pods = gang(cluster, 3)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    cluster.schedule()
    assert bound(cluster, pods) == pods


async def test_a_leader_that_cannot_read_a_template_gives_its_claims_back_at_the_deadline() -> None:
    cluster = cluster_of("abc", promise_s=30.0)
    put(cluster, spec(request(count=8)))
    pods = [f"train-{i}" for i in range(3)]
    for pod in pods:
        entries = [{"name": "gpus", "resourceClaimName": claim_of(pod)}]
        wishes = {"template": "gpus/t", "gang": "train", "gang-size": "3"}
        cluster.pod(pod, 1, wishes=wishes, resourceClaims=entries, requests={"cpu": "32"})
    await cluster.settle()
    filler(cluster, cluster.gpus("train-1")[0])
    cluster.schedule()
    cluster.restart()
    refuse_to_read(cluster, RESOURCE_CLAIM_TEMPLATES.plural)
    await go_on(cluster, 45)
    assert claims(cluster, pods) == []


async def test_a_request_that_cannot_be_read_is_the_trouble_of_its_pod_alone() -> None:
    cluster = cluster_of("abc")
    wishes = {"template": "gpus/absent", "gang": "train", "gang-size": "3"}
    cluster.pod("train-9", 1, wishes=wishes, resourceClaims=[{"name": "gpus", "resourceClaimName": "gpus-train-9"}])
    pods = gang(cluster, 3)
    await cluster.settle()
    assert lifted(cluster, pods) == pods


async def test_a_gang_whose_size_is_lost_starts_by_what_its_claims_say() -> None:
    cluster = cluster_of("abc", promise_s=30.0)
    job(cluster, 3)
    pods = pods_of(cluster, "Job", 3)
    await cluster.settle()
    cluster.schedule()
    cluster.remove(JOBS, "train", "default")
    cluster.restart()
    cluster.worker.picture.barrier = True
    await cluster.settle()
    cluster.schedule()
    assert bound(cluster, pods) == pods


@pytest.mark.parametrize("there", [True, False], ids=["gone", "unread"])
async def test_a_gang_whose_size_is_lost_keeps_gpus_from_nobody_for_long(there: bool) -> None:
    cluster = cluster_of("abc", promise_s=30.0)
    job(cluster, 3)
    pods = pods_of(cluster, "Job", 3, requests={"cpu": "32"})
    await cluster.settle()
    filler(cluster, cluster.gpus("train-1")[0])
    cluster.schedule()
    if there:
        cluster.remove(JOBS, "train", "default")
    cluster.restart()
    if not there:
        refuse_to_read(cluster, JOBS.plural)
    await go_on(cluster, 30)
    cluster.collect()
    assert claims(cluster, pods) == pods
    await go_on(cluster, 10)
    assert claims(cluster, pods) == []
    assert "Job train" in (cluster.note("train-0", "reason") or "")


@pytest.mark.parametrize("gated", [True, False], ids=["gated", "lifted"])
async def test_the_promise_of_a_pod_whose_template_cannot_be_read_ends_at_its_deadline(gated: bool) -> None:
    cluster = GpuCluster(promise_s=30.0)
    cluster.node("a")
    put(cluster, spec(request(count=4)))
    entries = [{"name": "gpus", "resourceClaimName": claim_of("p")}]
    cluster.pod("p", 1, wishes={"template": "gpus/t"}, resourceClaims=entries)
    await cluster.settle()
    assert claims(cluster, ["p"]) == ["p"]
    if gated:  # as if the leader had been killed before it lifted the pod
        gates = [{"name": names.GATE}]
        cluster.store.edit(PODS, ("default", "p"), lambda pod: pod["spec"].update(schedulingGates=gates))
    cluster.restart()
    refuse_to_read(cluster, RESOURCE_CLAIM_TEMPLATES.plural)
    await cluster.settle()
    assert claims(cluster, ["p"]) == ["p"]
    for _ in range(4):
        await asyncio.sleep(10)
        await cluster.settle()
    assert claims(cluster, ["p"]) == []
