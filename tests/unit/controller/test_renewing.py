"""Lifted pods that are not bound: when their claims are made anew, where, and when they are left alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes.gpucluster import GpuCluster, Killed, claim_of

UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


async def lifted(*nodes: str, gpus: int = 4, **times: float) -> GpuCluster:
    """Return a cluster of DGX-1 nodes with one pod ``p`` that was placed and not bound yet."""
    cluster = GpuCluster(**times)
    for node in nodes:
        cluster.node(node)
    cluster.pod("p", gpus)
    await cluster.settle()
    assert cluster.gpus("p")[0] == nodes[0]
    return cluster


def say(cluster: GpuCluster, **status: Any) -> None:
    pod = cluster.get_pod("p")
    cluster.put(PODS, pod | {"status": pod["status"] | status})


async def test_a_pin_that_another_claim_took_is_renewed_under_the_same_name() -> None:
    cluster = await lifted("a")
    before = cluster.claim("p")
    assert before is not None
    old = cluster.gpus("p")[1]
    cluster.rival("rival", "a", old[:1])
    await cluster.settle()
    after = cluster.claim("p")
    assert after is not None
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert not set(cluster.gpus("p")[1]) & set(old)
    uuids = {gpu.index: gpu.uuid for gpu in cluster.machines["a"].gpus}
    assert cluster.note("p", "allocated") == ",".join(uuids[index] for index in cluster.gpus("p")[1])


async def test_a_pin_moves_to_another_of_the_pods_nodes_and_the_pod_says_so() -> None:
    cluster = await lifted("a", "b")
    pod = cluster.get_pod("p")
    pod["metadata"]["annotations"][names.NODE] = "a"  # by an earlier build
    cluster.put(PODS, pod)
    cluster.rival("rival", "a", range(8))
    await cluster.settle()
    assert cluster.gpus("p")[0] == "b"
    assert cluster.note("p", "node") is None
    assert cluster.note("p", "allocated") == ",".join(
        cluster.machines["b"].gpus[index].uuid for index in cluster.gpus("p")[1]
    )


async def test_outside_its_nodes_a_pod_cannot_go_and_is_told_so() -> None:
    cluster = await lifted("a")
    cluster.node("new")
    cluster.rival("rival", "a", range(8))
    await cluster.settle()
    reason = cluster.note("p", "reason") or ""
    assert reason.endswith("can use only the nodes of that placement. Delete it to have it placed again.")
    cluster.remove(RESOURCE_CLAIMS, "rival", "default")
    await cluster.settle()
    assert cluster.note("p", "reason") is None
    cluster.schedule()
    assert cluster.get_pod("p")["spec"]["nodeName"] == "a"


async def test_a_reason_does_not_stay_on_a_pod_that_was_bound_after_all() -> None:
    cluster = await lifted("a")
    cluster.rival("rival", "a", range(8))
    await cluster.settle()
    assert cluster.note("p", "reason")
    cluster.remove(RESOURCE_CLAIMS, "rival", "default")
    pod = cluster.get_pod("p")
    cluster.put(PODS, pod | {"spec": pod["spec"] | {"nodeName": "a"}})
    await cluster.settle()
    assert cluster.note("p", "reason") is None


async def test_a_pin_to_a_gpu_that_is_not_listed_any_more_is_renewed() -> None:
    cluster = await lifted("a", gpus=1)
    (index,) = cluster.gpus("p")[1]
    (piece,) = cluster.all(RESOURCE_SLICES)
    lost = cluster.machines["a"].gpus[index].uuid.lower()
    piece["spec"]["devices"] = [device for device in piece["spec"]["devices"] if device["name"] != lost]
    cluster.put(RESOURCE_SLICES, piece)
    await cluster.settle()
    assert cluster.gpus("p")[1] != [index]


async def test_a_pool_that_is_away_for_a_moment_renews_nothing() -> None:
    cluster = await lifted("a", "b")
    before = cluster.claim("p")
    cluster.remove(RESOURCE_SLICES, "00000-gpu.topology-a")
    await cluster.settle()
    assert cluster.claim("p") == before


async def test_an_unschedulable_pod_gives_its_gpus_back_and_is_tried_on_another_of_its_nodes_later() -> None:
    cluster = await lifted("a", "b", unschedulable_s=4)
    say(cluster, conditions=[UNSCHEDULABLE])
    for held_s, free_s, node in ((4, 1, "b"), (14, 1, "a"), (14, 10, "b"), (14, 10, "a"), (14, 20, "b")):
        await cluster.settle()
        before = cluster.gpus("p")
        await asyncio.sleep(held_s - 0.01)
        await cluster.settle()
        assert cluster.gpus("p") == before
        await asyncio.sleep(0.02)
        await cluster.settle()
        assert cluster.claim("p") is None
        assert (cluster.note("p", "reason") or "").startswith("The scheduler finds no room for pod p on its nodes")
        await asyncio.sleep(free_s)
        await cluster.settle()
        assert cluster.gpus("p")[0] == node
        assert (cluster.note("p", "reason") or "").startswith("The scheduler finds no room for pod p on its nodes")


async def test_a_pod_that_no_scheduler_looks_at_holds_gpus_for_thirty_seconds_and_no_more() -> None:
    cluster = GpuCluster(promise_s=30)
    cluster.node("a")
    cluster.pod("p", 8, schedulerName="no-such")
    await cluster.settle()
    cluster.pod("q", 8)
    await asyncio.sleep(29.9)
    await cluster.settle()
    assert cluster.claim("q") is None
    await asyncio.sleep(0.2)
    await cluster.settle()
    assert cluster.gpus("q")[0] == "a"
    assert cluster.claim("p") is None
    assert "no-such" in (cluster.note("p", "reason") or "")


async def test_a_pod_with_a_nominated_node_is_left_alone_but_not_for_ever() -> None:
    cluster = await lifted("a", "b", unschedulable_s=5, promise_s=30)
    before = cluster.claim("p")
    say(cluster, nominatedNodeName="a", conditions=[UNSCHEDULABLE])
    await cluster.settle()
    await asyncio.sleep(29)
    await cluster.settle()
    assert cluster.claim("p") == before
    await asyncio.sleep(2)
    await cluster.settle()
    assert cluster.claim("p") is None


async def test_a_claim_that_a_user_deleted_is_created_again() -> None:
    cluster = await lifted("a")
    gpus = cluster.gpus("p")
    cluster.remove(RESOURCE_CLAIMS, claim_of("p"), "default")
    await cluster.settle()
    assert cluster.gpus("p") == gpus


async def test_a_claim_that_the_scheduler_is_allocating_is_not_deleted() -> None:
    cluster = await lifted("a")
    cluster.rival("rival", "a", cluster.gpus("p")[1][:1])
    cluster.deliver()
    claim = cluster.claim("p")
    assert claim is not None
    cluster.put(RESOURCE_CLAIMS, claim | {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}})
    await cluster.worker.rest()
    assert ("delete", claim_of("p")) in cluster.client.writes
    now = cluster.claim("p")
    assert now is not None
    assert "deletionTimestamp" not in now["metadata"]


async def test_an_allocated_claim_is_never_renewed() -> None:
    cluster = await lifted("a", "b")
    node, gpus = cluster.gpus("p")
    cluster.schedule()
    before = cluster.claim("p")
    pod = cluster.get_pod("p")
    del pod["spec"]["nodeName"]
    pod["status"] = {"phase": "Pending", "conditions": [UNSCHEDULABLE]}
    cluster.put(PODS, pod)
    cluster.rival("rival", node, gpus)
    await cluster.settle()
    assert cluster.claim("p") == before


async def test_a_foreign_claim_under_a_lifted_pods_name_is_not_touched() -> None:
    cluster = await lifted("a")
    cluster.remove(RESOURCE_CLAIMS, claim_of("p"), "default")
    cluster.deliver()
    theirs = cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": claim_of("p"), "namespace": "default"}, "spec": {}})
    await cluster.settle()
    assert cluster.claim("p") == theirs
    assert "does not belong to this pod" in (cluster.note("p", "reason") or "")


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", [3, -3, 4, -4, 5, -5])
async def test_killed_at_any_write_of_a_renewal_the_next_controller_ends_it(kill_at: int) -> None:
    cluster = await lifted("a", "b")
    cluster.rival("rival", "a", range(8))
    cluster.client.kill_at = kill_at
    with pytest.raises(Killed):
        await cluster.settle()
    cluster.restart()
    await cluster.settle()
    assert cluster.gpus("p")[0] == "b"
    cluster.schedule()
    assert cluster.get_pod("p")["spec"]["nodeName"] == "b"


async def test_a_claim_whose_pod_is_gone_is_deleted_unless_another_pod_uses_it() -> None:
    cluster = await lifted("a")
    claim = cluster.claim("p")
    assert claim is not None
    used = {"reservedFor": [{"resource": "pods", "name": "copy", "uid": "other"}]}
    claim["metadata"]["name"] = "gpus-used"
    del claim["metadata"]["uid"]
    cluster.put(RESOURCE_CLAIMS, claim | {"status": used})
    cluster.remove(PODS, "p", "default")
    await cluster.settle()
    assert [left["metadata"]["name"] for left in cluster.all(RESOURCE_CLAIMS)] == ["gpus-used"]


async def test_a_claim_whose_pod_the_server_still_has_is_kept() -> None:
    cluster = await lifted("a")
    cluster.restart()
    cluster.deliver(RESOURCE_CLAIMS)
    await cluster.worker.rest()
    assert cluster.claim("p") is not None


async def test_an_assumed_claim_that_went_unseen_is_forgotten() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 8)
    cluster.deliver()
    await cluster.worker.rest()
    cluster.remove(PODS, "p", "default")
    cluster.remove(RESOURCE_CLAIMS, claim_of("p"), "default")
    cluster.collect()
    cluster.skip(RESOURCE_CLAIMS)  # a relist: neither its coming nor its going is shown
    cluster.pod("q", 8)
    await cluster.settle()
    assert cluster.claim("q") is not None


async def test_only_our_label_makes_a_pod_ours() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p")
    pod = cluster.get_pod("p")
    del pod["metadata"]["labels"][names.LABEL]
    cluster.put(PODS, pod)
    await cluster.settle()
    assert cluster.client.writes == []
