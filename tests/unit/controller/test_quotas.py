"""A quota that is too busy for a claim holds up its namespace's claims, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dradriver.kube.client import ApiError
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from dradriver.queue.write_lanes import WaitReason
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.fakes.troubles import raising, working

QUOTA = ApiError(
    409, "Conflict", 'Operation cannot be fulfilled on resourcequotas "gpus": the object has been modified'
)
BUSY = ApiError(429, "TooManyRequests", "too many requests", retry_after_s=5)


def refuse_claim(cluster: GpuCluster, pod: str, answer: Callable[[], Any]) -> None:
    """Let every creation of a pod's claim end in what ``answer`` raises."""
    create = cluster.client.create

    async def refusing(*args: Any, **more: Any) -> Any:
        if args[1]["metadata"]["name"] == claim_of(pod):
            answer()
        return await create(*args, **more)

    cluster.client.create = refusing  # type: ignore[method-assign]


async def test_a_claim_that_a_webhook_denies_by_a_conflict_stops_no_other_of_its_namespace() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    denied = 'admission webhook "x.example.com" denied the request: name is reserved'
    request = "POST /apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    refuse_claim(cluster, "bad", raising(ApiError(409, "Conflict", denied, request=request)))
    cluster.pod("bad", 1)
    async with working(cluster):
        await asyncio.sleep(0.1)
        cluster.pod("good", 1)
        await asyncio.sleep(5)
        assert cluster.gpus("good")[0] == "a"
        assert cluster.note("bad", "reason") == (
            f"The API server refuses the pod's claim: {denied}. Change the pod, or the policy, webhook or right that "
            "this text names."
        )


async def test_gpus_are_given_back_while_a_quota_is_busy() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a", "dgx-h100")
    refuse_claim(cluster, "old", raising(QUOTA))
    cluster.pod("old", 1)
    cluster.pod("young", 7)
    async with working(cluster):
        await asyncio.sleep(0.5)
        assert cluster.claim("young") is not None
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
        cluster.put(PODS, cluster.get_pod("young") | {"status": {"phase": "Pending", "conditions": [condition]}})
        cluster.pod("other", 8, namespace="other")
        await asyncio.sleep(10)
        assert cluster.find(RESOURCE_CLAIMS, claim_of("other"), "other") is not None


async def test_who_waits_for_its_quota_is_served_when_an_older_one_that_wanted_a_place_is_gone() -> None:
    cluster = GpuCluster(promise_s=3000, unschedulable_s=5000)
    cluster.node("a", "dgx-h100")
    quota_busy, tried = True, list[str]()

    def old() -> None:
        tried.append("old")
        raise BUSY

    def young() -> None:
        tried.append("young")
        if quota_busy:
            raise QUOTA

    refuse_claim(cluster, "old", old)
    refuse_claim(cluster, "young", young)
    cluster.pod("old", 1, namespace="other", nodeSelector={"kubernetes.io/hostname": "b"})
    cluster.pod("young", 1)
    async with working(cluster):
        await asyncio.sleep(4)
        assert cluster.note("young", "reason") == WaitReason.QUOTA.value
        assert set(tried) == {"young"}
        cluster.node("b", "dgx-h100")
        await asyncio.sleep(2)
        assert tried[tried.index("old") :] == ["old"], "nothing is written in the pause that the server asked for"
        quota_busy = False
        cluster.remove(PODS, "old", "other")
        await asyncio.sleep(10)
        assert cluster.gpus("young")[0] == "a"


@pytest.mark.slow
async def test_a_pod_that_has_failed_says_its_own_trouble_and_no_longer_that_its_quota_was_busy() -> None:
    cluster = GpuCluster(promise_s=3000, unschedulable_s=5000)
    cluster.node("a", "dgx-h100")
    exceeded = "exceeded quota: gpus, requested: 8"
    cluster.client.refuse["create"] = [ApiError(403, "Forbidden", exceeded)]
    async with working(cluster):
        cluster.pod("p", 8)
        await asyncio.sleep(0.9)
        cluster.client.refuse["create"] = [QUOTA] * 4
        await asyncio.sleep(1.2)
        assert cluster.claim("p") is None
        cluster.pod("other", 8, namespace="other")
        await asyncio.sleep(120)
        assert cluster.find(RESOURCE_CLAIMS, claim_of("other"), "other") is not None
        assert cluster.note("p", "reason") == (
            f"The API server refuses the pod's claim: {exceeded}. End pods of the namespace, or raise the "
            "ResourceQuota."
        )
