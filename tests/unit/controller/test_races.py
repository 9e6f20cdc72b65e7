"""What the controller sees late, twice, or in an order that nobody expects; and what strangers write."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.base.pods import Pod
from dradriver.controller.loop.worker import RECHECK_S
from dradriver.kube.reflector import Change
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests import schema
from tests.fakes.gpucluster import GpuCluster, Killed, claim_of, note
from tests.fakes.troubles import working

KEY = ("default", "p")


def see(cluster: GpuCluster) -> Pod:
    """Return the pod ``p`` as a reflector would decode it now."""
    return msgspec.json.decode(msgspec.json.encode(cluster.get_pod("p")), type=Pod)


async def test_what_is_written_is_valid_in_every_supported_kubernetes() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", {"left": 2, "right": 2})
    await cluster.settle()
    claim = cluster.claim("p")
    assert claim is not None
    assert claim["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]  # the scheduler's own write
    schema.check(claim)
    schema.check(cluster.get_pod("p") | {"apiVersion": "v1", "kind": "Pod"})


async def test_an_event_from_before_the_gate_was_lifted_does_not_bring_it_back() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p")
    cluster.deliver()
    gated = see(cluster)
    await cluster.worker.rest()
    cluster.worker.picture.pod_changed(Change(KEY, gated, gated))
    await cluster.worker.rest()
    assert [verb for verb, _ in cluster.client.writes] == ["create", "patch"]


async def test_a_binding_that_is_seen_before_our_own_patch_returns_is_not_undone() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p")
    cluster.deliver()
    gated = cluster.worker.picture.pods[KEY]
    cluster.deliver()
    await cluster.worker.rest()
    lifted = see(cluster)
    cluster.schedule()
    cluster.deliver()
    bound = cluster.worker.picture.pods[KEY]
    assert bound.spec.node_name == "a"
    cluster.worker.picture.assume_pod(lifted, was=gated)
    assert cluster.worker.picture.pods[KEY] is bound


async def test_the_end_of_an_earlier_claim_does_not_free_the_gpus_of_the_one_that_took_its_name() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p")
    await cluster.settle()
    cluster.rival("rival", "a", cluster.gpus("p")[1][:1])
    cluster.deliver()
    old = cluster.worker.picture.claims[("default", claim_of("p"))]
    await cluster.worker.rest()
    held = cluster.worker.picture.inventory.fleet.free("a")
    cluster.worker.picture.claim_changed(Change(old.key, old, None))
    assert cluster.worker.picture.inventory.fleet.free("a") == held


async def test_a_reason_never_lands_on_a_pod_that_took_the_name_of_another() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 9)
    cluster.deliver()
    cluster.remove(PODS, "p", "default")
    cluster.pod("p", 1)
    await cluster.worker.rest()
    assert cluster.note("p", "reason") is None


async def test_a_claim_left_by_a_crash_is_replaced_before_its_pod_is_lifted() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p")
    cluster.client.kill_at = -1
    with pytest.raises(Killed):
        await cluster.settle()
    cluster.rival("rival", "a", cluster.gpus("p")[1])
    cluster.restart()
    await cluster.settle()
    unprotect = lift = "patch"
    assert [write for write in cluster.client.writes if write != ("patch", "p")] == [
        ("delete", claim_of("p")),
        (unprotect, claim_of("p")),
        ("create", claim_of("p")),
    ]
    assert cluster.client.writes[-1] == (lift, "p")


async def test_a_claim_left_by_a_crash_is_replaced_when_the_same_gpus_go_to_other_containers() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", {"left": 3, "right": 1})
    cluster.client.kill_at = -1
    with pytest.raises(Killed):
        await cluster.settle()
    pod = cluster.get_pod("p")
    pod["metadata"]["annotations"][names.REQUEST] = note({"left": 1, "right": 3}, {})
    cluster.put(PODS, pod)
    cluster.restart()
    await cluster.settle()
    claim = cluster.claim("p")
    assert claim is not None
    assert [request["exactly"]["count"] for request in claim["spec"]["devices"]["requests"]] == [1, 3]


async def test_a_renewal_may_keep_the_gpus_that_the_claim_still_holds() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 6)
    await cluster.settle()
    taken = cluster.gpus("p")[1][0]
    cluster.rival("rival", "a", [taken])
    await cluster.settle()
    assert len(cluster.gpus("p")[1]) == 6
    assert taken not in cluster.gpus("p")[1]


async def test_a_claim_that_another_pod_uses_gives_no_gpus_to_its_owner_too() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p")
    cluster.client.kill_at = -1
    with pytest.raises(Killed):
        await cluster.settle()
    claim = cluster.claim("p")
    assert claim is not None
    claim["status"] = {"reservedFor": [{"resource": "pods", "name": "copy", "uid": "other"}]}
    cluster.put(RESOURCE_CLAIMS, claim)
    cluster.restart()
    await cluster.settle()
    assert "is used by another pod" in (cluster.note("p", "reason") or "")
    assert cluster.get_pod("p")["spec"]["schedulingGates"] == [{"name": names.GATE}]


async def test_only_the_newest_generation_of_a_pool_counts() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    (old,) = cluster.all(RESOURCE_SLICES)
    new = cluster.find(RESOURCE_SLICES, old["metadata"]["name"]) or {}
    new["metadata"] = {"name": "00001-other", "annotations": old["metadata"]["annotations"]}
    new["spec"]["pool"]["generation"] += 1
    new["spec"]["devices"] = old["spec"]["devices"][:3]
    cluster.put(RESOURCE_SLICES, new)
    cluster.pod("p", 8)
    await cluster.settle()
    assert "no eligible node has such a free set" in (cluster.note("p", "reason") or "")


async def test_a_node_cannot_offer_gpus_in_anothers_name() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    (piece,) = cluster.all(RESOURCE_SLICES)
    piece["spec"]["nodeName"] = "b"
    cluster.put(RESOURCE_SLICES, piece)
    cluster.pod("p")
    await cluster.settle()
    assert cluster.claim("p") is None


@pytest.mark.parametrize("choice", ["{", '{"x":' + "[" * 100_000, '{"gpus":"all"}'])
async def test_a_strangers_choice_holds_nothing_and_does_no_harm(choice: str) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    metadata = {
        "name": "gpus-x",
        "namespace": "default",
        "labels": {names.LABEL: names.LABEL_PLACED},
        "annotations": {names.CHOICE: choice},
    }
    cluster.put(RESOURCE_CLAIMS, {"metadata": metadata, "spec": {"devices": {"config": []}}})
    cluster.pod("p", 8)
    await cluster.settle()
    assert cluster.gpus("p")[0] == "a"


async def test_a_monitoring_claim_with_admin_access_takes_nothing_from_anybody() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.rival("monitor", "a", range(8))
    monitor = cluster.find(RESOURCE_CLAIMS, "monitor", "default") or {}
    for result in monitor["status"]["allocation"]["devices"]["results"]:
        result["adminAccess"] = True
    cluster.put(RESOURCE_CLAIMS, monitor)
    cluster.pod("p", 8)
    await cluster.settle()
    assert cluster.gpus("p")[0] == "a"


async def test_a_binding_that_is_seen_before_its_allocation_frees_nothing() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("one", 8)
    await cluster.settle()
    cluster.schedule()
    cluster.pod("two", 8)
    cluster.deliver(PODS)
    await cluster.worker.rest()
    assert cluster.claim("two") is None


async def test_a_pod_goes_on_when_a_foreign_claim_under_its_name_is_gone() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": claim_of("p"), "namespace": "default"}, "spec": {}})
    cluster.pod("p")
    async with working(cluster):
        await asyncio.sleep(RECHECK_S + 0.1)
        assert cluster.get_pod("p")["spec"]["schedulingGates"]
        cluster.remove(RESOURCE_CLAIMS, claim_of("p"), "default")
        await asyncio.sleep(RECHECK_S - 0.2)  # so that only this event can have woken the controller
        assert cluster.gpus("p")[0] == "a"


async def test_an_allocated_claim_is_never_deleted_however_old_our_picture_of_its_pod() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", requests={"cpu": "8"})
    await cluster.settle()
    cluster.schedule()
    before = cluster.claim("p")
    gated = cluster.get_pod("p")
    gated["spec"] |= {"schedulingGates": [{"name": names.GATE}], "nodeName": ""}
    cluster.put(PODS, gated)
    cluster.node("a", None, allocatable={"cpu": "1"})
    cluster.restart()
    await cluster.settle()
    assert cluster.claim("p") == before


async def test_a_claim_that_went_before_its_creation_was_answered_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p")
    create = cluster.client.create

    async def answered_late(*args: Any, **kwargs: Any) -> Any:
        answer = await create(*args, **kwargs)
        cluster.remove(PODS, "p", "default")
        cluster.remove(RESOURCE_CLAIMS, claim_of("p"), "default")
        cluster.deliver()
        return answer

    monkeypatch.setattr(cluster.client, "create", answered_late)
    cluster.deliver()
    await cluster.worker.rest()
    assert len(cluster.worker.picture.inventory.fleet.free("a")) == 8
    assert [verb for verb, _ in cluster.client.writes] == ["create"]


async def test_an_event_from_before_our_own_deletion_does_not_bring_a_claim_back() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 8)
    await cluster.settle()
    picture = cluster.worker.picture
    claim = picture.claims["default", claim_of("p")]
    picture.assume_deleted(claim)
    picture.claim_changed(Change(claim.key, None, claim))
    assert len(picture.inventory.fleet.free("a")) == 8


async def test_a_claim_that_is_being_deleted_no_more_holds_what_it_is_given() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 8)
    await cluster.settle()
    picture = cluster.worker.picture
    claim = picture.claims["default", claim_of("p")]
    bound = {"resource_version": "6000", "deletion_timestamp": None}
    dying = {"resource_version": "5000", "deletion_timestamp": "2026-01-01T00:00:00Z"}
    for change in (dying, bound):  # the server was put back to a backup, and goes on from there
        now = msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, **change))
        picture.claim_changed(Change(claim.key, None, now))
    assert not picture.inventory.fleet.free("a")
