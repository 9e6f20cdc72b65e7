"""Hundreds of pods come to one claim: they are written into it together, and in nobody's way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.api.base.jsonpatch import Patch
from dradriver.kube.client import ApiError, Unreachable
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS, Resource
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.sharing import SHARED, cluster_of, drop, gates, owners, settled
from tests.fakes.troubles import working
from tests.kept import entries

TRIES = 5  # maxRetryWhenPatchConflicts of k8s.io/apiserver


class Slowly:
    """Patches of a cluster's claims take as long as a server's, which reads, changes, and writes if nobody did.

    Attributes:
        patches: How many of the claim were asked for.
        conflicts: How many of these another one was ahead of, too often.
        most: How many of them were under way at once.
        lifts: How many pods were asked to be lifted.
    """

    def __init__(self, cluster: GpuCluster) -> None:
        self.patches = self.conflicts = self.under_way = self.most = self.lifts = 0
        self._cluster = cluster
        self._patch = cluster.client.patch
        cluster.client.patch = self.patch  # type: ignore[method-assign]

    async def patch(self, resource: Resource, name: str, *args: Any, **kwargs: Any) -> Any:
        if resource is not RESOURCE_CLAIMS:
            self.lifts += isinstance(args[0], Patch)
            await asyncio.sleep(0.003)
            return await self._patch(resource, name, *args, **kwargs)
        self.patches += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            for _ in range(TRIES):
                before = self._version(name)
                await asyncio.sleep(0.004)
                if self._version(name) == before:
                    return await self._patch(resource, name, *args, **kwargs)
            self.conflicts += 1
            raise ApiError(409, "Conflict", f'Operation cannot be fulfilled on resourceclaims "{name}"')
        finally:
            self.under_way -= 1

    def _version(self, name: str) -> str:
        claim = self._cluster.find(RESOURCE_CLAIMS, name, "default")
        assert claim is not None
        return str(claim["metadata"]["resourceVersion"])


@pytest.mark.slow
async def test_a_hundred_pods_of_one_set_cost_a_write_each_and_few_of_the_claim() -> None:
    cluster = GpuCluster()
    cluster.node("a", allocatable={"pods": "110"})
    every = [f"p{number:03}" for number in range(100)]
    cluster.pod(every[0], wishes=SHARED)
    await settled(cluster)
    for name in every[1:]:
        cluster.pod(name, wishes=SHARED)
    slowly = Slowly(cluster)
    await settled(cluster)
    assert sorted(owners(cluster)) == every
    assert all(cluster.get_pod(name)["spec"]["nodeName"] == "a" for name in every)
    assert slowly.conflicts == 0
    assert slowly.most == 1, "one after another"
    assert slowly.patches <= 100 / 4
    assert slowly.lifts == 99


async def left_of(count: int, error: Exception | None = None) -> int:
    """Return how many entries a controller keeps after so many pods came to a claim at once, and all pods are gone.

    At first the patches of the claim meet the error.
    """
    cluster = cluster_of("trainer")
    await settled(cluster)
    slowly = Slowly(cluster)
    failing, patch = error, cluster.client.patch

    async def maybe(resource: Resource, *args: Any, **kwargs: Any) -> Any:
        if failing is not None and resource is RESOURCE_CLAIMS:
            await asyncio.sleep(0.01)
            raise failing
        return await patch(resource, *args, **kwargs)

    cluster.client.patch = maybe  # type: ignore[method-assign]
    for number in range(count):
        cluster.pod(f"late{number:02}", wishes=SHARED)
    cluster.pod("alone", 1)
    async with working(cluster):
        await asyncio.sleep(3)
        assert error is None or gates(cluster, "late00")
        assert not gates(cluster, "alone")
        failing = None
        await asyncio.sleep(30)
        assert len(owners(cluster)) == 1 + count
        assert not slowly.conflicts
        for pod in cluster.all(PODS):
            drop(cluster, pod["metadata"]["name"])
        cluster.collect()
        await asyncio.sleep(60)
        return entries(cluster.worker)


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [ApiError(500, "InternalError", "no such patch"), Unreachable("PATCH: timeout", timed_out=True)]
)
async def test_what_a_patch_of_many_meets_is_over_with_it(error: Exception) -> None:
    assert await left_of(40, error) == await left_of(0), "nothing of it is kept"


async def test_a_claim_that_is_another_by_now_gets_none_of_those_who_wait() -> None:
    cluster = cluster_of("trainer")
    await settled(cluster)
    Slowly(cluster)
    for number in range(20):
        cluster.pod(f"late{number:02}", wishes=SHARED)
    cluster.deliver()
    await cluster.worker.turn()
    cluster.remove(RESOURCE_CLAIMS, "duo", "default")
    cluster.deliver()
    await cluster.worker.rest()
    assert all(gates(cluster, f"late{number:02}") for number in range(1, 20))
    assert cluster.all(PODS)
