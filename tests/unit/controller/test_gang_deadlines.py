"""When the deadlines of a gang begin: none is put off for ever, and none has passed before it could be kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.api.base.gang_barrier_device import GO
from dradriver.kube.client import ApiError
from dradriver.kube.resources import RESOURCE_CLAIMS
from tests.fakes.gang_pods import bound, gang, nodes
from tests.fakes.gpucluster import claim_of
from tests.fakes.preempting import Contested
from tests.unit.controller.test_gang_barrier import told


async def test_a_gang_that_waits_for_others_and_for_an_earlier_claim_holds_nothing_for_long() -> None:
    cluster = Contested()
    cluster.promise_s, cluster.unschedulable_s = 30.0, 5.0
    cluster.restart()
    for node in "ab":
        cluster.node(node)
    await cluster.run(("low-a", 4, 0), nodeSelector={"kubernetes.io/hostname": "a"})
    await cluster.run(("low-b", 4, 0), nodeSelector={"kubernetes.io/hostname": "b"})
    pods = ["me-0", "me-1"]
    for pod in pods:
        cluster.pod(pod, 8, priority=10, wishes={"gang": "me", "gang-size": "2"})
    await cluster.settle()
    assert all(cluster.claim(pod) for pod in pods)
    assert cluster.ending() == ["low-a", "low-b"]
    key = "default", claim_of("me-0")  # somebody deletes a claim on which there is a finalizer
    cluster.store.edit(RESOURCE_CLAIMS, key, lambda claim: claim["metadata"].update(finalizers=["example.com/x"]))
    cluster.store.remove(RESOURCE_CLAIMS, key)
    waited = 0
    while (claim := cluster.claim("me-1")) is not None and "deletionTimestamp" not in claim["metadata"]:
        assert waited < 120
        await asyncio.sleep(5)
        waited += 5
        await cluster.settle()
        cluster.schedule()
        cluster.collect()


@pytest.mark.parametrize("outage_s", [30, 70])
async def test_a_pod_that_is_told_to_go_late_has_all_the_time_to_be_bound(outage_s: int) -> None:
    cluster = nodes("ab")
    cluster.barrier()
    pods = gang(cluster, 2)
    await cluster.settle()
    cluster.schedule()
    patch, is_broken = cluster.client.patch, True

    async def refused(resource: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if is_broken and name == claim_of("train-1"):
            raise ApiError(403, "Forbidden", "admission webhook denied the request")
        return await patch(resource, name, *args, **kwargs)

    cluster.client.patch = refused  # type: ignore[method-assign]
    claim = cluster.claim("train-1")
    assert claim is not None
    for second in range(outage_s + 130):
        await cluster.settle()
        if second % 5 == 0 and is_broken:
            cluster.schedule()
        if second == outage_s:
            is_broken = False
        if not is_broken and told(cluster, "train-1"):
            break
        await asyncio.sleep(1)
    assert told(cluster, "train-1") == [GO]
    await asyncio.sleep(4)  # the scheduler looks every 5 s
    await cluster.settle()
    now = cluster.claim("train-1")
    assert now is not None
    assert "deletionTimestamp" not in now["metadata"]
    assert now["metadata"]["uid"] == claim["metadata"]["uid"]
    cluster.schedule()
    assert bound(cluster, pods) == pods
