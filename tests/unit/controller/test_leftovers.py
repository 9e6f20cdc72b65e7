"""What a killed controller, another writer or a moment ago has left: found, ended or respected."""

from __future__ import annotations

import pytest

from dradriver.api.base import names
from dradriver.api.policies.fields import MigWord
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes.gpucluster import GpuCluster, Killed, claim_of, note
from tests.kept import entries

QUADS = ([0, 1, 2, 3], [4, 5, 6, 7])


@pytest.mark.parametrize("kill_at", [1, -1, 2, -2])
async def test_killed_at_any_write_the_next_controller_ends_what_was_begun(kill_at: int) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p")
    cluster.client.kill_at = kill_at
    with pytest.raises(Killed):
        await cluster.settle()
    left = cluster.claim("p")
    cluster.restart()
    await cluster.settle()
    claim = cluster.claim("p")
    assert claim is not None
    assert left is None or left["metadata"]["uid"] == claim["metadata"]["uid"]
    assert cluster.get_pod("p")["spec"]["schedulingGates"] == []
    assert cluster.note("p", "allocated")
    assert len(cluster.all(RESOURCE_CLAIMS)) == 1


async def test_a_claim_left_by_a_crash_is_replaced_when_its_gpus_were_given_away() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p")
    cluster.client.kill_at = -1
    with pytest.raises(Killed):
        await cluster.settle()
    cluster.rival("rival", "a", cluster.gpus("p")[1])
    cluster.restart()
    await cluster.settle()
    cluster.schedule()
    assert cluster.get_pod("p")["spec"]["nodeName"] == "a"


async def test_a_claim_left_by_a_crash_goes_when_there_is_no_place_any_more() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", requests={"cpu": "8"})
    cluster.client.kill_at = -1
    with pytest.raises(Killed):
        await cluster.settle()
    cluster.node("a", None, allocatable={"cpu": "1"})
    cluster.restart()
    await cluster.settle()
    assert cluster.claim("p") is None
    assert cluster.note("p", "reason") == "No node with GPUs can run this pod: too little cpu."


async def test_a_claim_left_by_a_conflict_is_replaced_when_the_wish_changed() -> None:
    cluster = GpuCluster()
    cluster.node("a", "rtx4090-x8")
    cluster.pod("p")
    cluster.client.kill_at = -1
    with pytest.raises(Killed):
        await cluster.settle()
    pod = cluster.get_pod("p")
    pod["metadata"]["annotations"][names.REQUEST] = note({"main": 4}, {names.POLICY: "nvlink"})
    cluster.put(PODS, pod)
    cluster.restart()
    await cluster.settle()
    assert cluster.claim("p") is None
    assert "nvlink" in (cluster.note("p", "reason") or "")


@pytest.mark.parametrize(("before", "after"), [("dynamic", "placements"), ("placements", "dynamic")])
async def test_a_claim_left_by_a_crash_is_replaced_when_its_slice_is_another_device_by_now(
    before: MigWord, after: MigWord
) -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=Mode(mig=before))
    cluster.pod("p", ("1g.10gb",))
    cluster.client.kill_at = -1
    with pytest.raises(Killed):
        await cluster.settle()
    left = cluster.claim("p")
    cluster.node("a", "hgx-h100", mode=Mode(mig=after))
    cluster.restart()
    await cluster.settle()
    claim = cluster.claim("p")
    assert left is not None
    assert claim is not None
    assert left["metadata"]["uid"] != claim["metadata"]["uid"]
    cluster.schedule()
    assert cluster.get_pod("p")["spec"]["nodeName"] == "a"


async def test_a_claim_of_another_owner_is_never_touched() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    theirs = cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": claim_of("p"), "namespace": "default"}, "spec": {}})
    cluster.pod("p")
    await cluster.settle()
    assert cluster.claim("p") == theirs
    assert "does not belong to this pod" in (cluster.note("p", "reason") or "")


async def test_a_claim_that_no_reflector_has_shown_is_looked_at_not_doubled() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.deliver()
    theirs = cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": claim_of("p"), "namespace": "default"}, "spec": {}})
    cluster.pod("p")
    cluster.deliver(PODS)
    await cluster.worker.rest()
    await cluster.worker.rest()
    assert cluster.claim("p") == theirs
    assert "does not belong to this pod" in (cluster.note("p", "reason") or "")


async def test_a_pod_that_changed_meanwhile_is_lifted_in_its_new_form() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p")
    cluster.deliver()
    pod = cluster.get_pod("p")
    pod["metadata"]["annotations"]["example.com/note"] = "new"
    cluster.put(PODS, pod)
    await cluster.worker.rest()
    assert cluster.get_pod("p")["spec"]["schedulingGates"] == []
    assert cluster.get_pod("p")["metadata"]["annotations"]["example.com/note"] == "new"
    assert [verb for verb, _ in cluster.client.writes] == ["create", "patch", "patch"]


async def test_gpus_promised_a_moment_ago_are_not_promised_again_before_any_event_came() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("one")
    cluster.deliver()
    await cluster.worker.rest()
    cluster.pod("two")
    cluster.deliver(PODS)
    await cluster.worker.rest()
    assert sorted((cluster.gpus("one")[1], cluster.gpus("two")[1])) == list(QUADS)


@pytest.mark.slow
async def test_of_nodes_that_came_and_went_no_set_of_claims_is_kept() -> None:
    cluster = GpuCluster()
    kept = list[int]()
    for number in range(20):
        cluster.node("a")
        cluster.pod(f"p{number}")
        await cluster.settle()
        node = f"n{number}"
        cluster.node(node)
        cluster.remove(PODS, f"p{number}", "default")
        cluster.collect()
        cluster.pod(f"q{number}", nodeSelector={"kubernetes.io/hostname": node})
        await cluster.settle()
        assert cluster.gpus(f"q{number}")[0] == node
        cluster.remove(PODS, f"q{number}", "default")
        cluster.collect()
        cluster.remove(NODES, node)
        cluster.remove(RESOURCE_SLICES, resource_slices.slice_name(0, node))
        await cluster.settle()
        kept.append(entries(cluster.worker.picture.offered))
    assert set(kept[1:]) == {kept[1]}
