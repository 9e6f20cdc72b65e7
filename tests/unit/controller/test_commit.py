"""What is undone after a write that fails, and what is told: for single pods as before, for a gang as a whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.kube.client import ApiError, PatchKind, Unreachable
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.gang_pods import bound, gang, lifted, nodes
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.fakes.troubles import working

DENIED = 'admission webhook "x.example.com" denied the request: no'
TIMEOUT = Unreachable("PATCH: timeout", timed_out=True)


async def test_what_a_pod_waits_for_now_is_told_although_a_write_failed_before() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 8)
    cluster.client.refuse["create"] = [ApiError(403, "Forbidden", DENIED)]
    async with working(cluster):
        await asyncio.sleep(0.3)
        cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": claim_of("p"), "namespace": "default"}, "spec": {}})
        await asyncio.sleep(120)
        assert "belongs to somebody else" in (cluster.note("p", "reason") or "")


@pytest.mark.parametrize("error", [ApiError(504, "Timeout", "request did not complete in time"), TIMEOUT])
async def test_the_last_gate_of_a_gang_that_is_not_removed_at_once_costs_no_claim(
    error: ApiError | Unreachable,
) -> None:
    cluster = nodes("ab")
    cluster.barrier()
    pods = gang(cluster, 2)
    patch, failures = cluster.client.patch, [error] * 4

    async def fails(resource: Any, name: str, *args: Any, **more: Any) -> Any:
        if name == "train-1" and resource is PODS and more["kind"] is PatchKind.JSON and failures:
            raise failures.pop()
        return await patch(resource, name, *args, **more)

    cluster.client.patch = fails  # type: ignore[method-assign]
    async with working(cluster):
        await asyncio.sleep(0.5)
        cluster.pod("single", 8)  # it would have the GPUs of a claim that is deleted
        for _ in range(60):
            await asyncio.sleep(1)
            cluster.schedule()
        assert not failures
        assert lifted(cluster, pods) == bound(cluster, pods) == pods
        assert cluster.claim("single") is None
