"""``when-full: hand-over``: a pod without a place goes to the scheduler, with a claim that promises nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.api.claims import exclusive
from dradriver.kube.client import ApiError
from dradriver.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tests.fakes.control_plane.devices import result
from tests.fakes.gpucluster import GpuCluster, Killed, claim_of, note
from tests.fakes.troubles import refuse, working

HAND_OVER = {"policy": "nvlink", "when-full": "hand-over"}


def full(*wishing: str, **more: float) -> GpuCluster:
    """A node whose GPUs somebody else has, and pods that are to be handed over."""
    cluster = GpuCluster(**more)
    cluster.node("a")
    cluster.rival("other", "a", range(8))
    for name in wishing:
        cluster.pod(name, wishes=HAND_OVER)
    return cluster


def give(cluster: GpuCluster, pod: str, node: str, gpus: range) -> None:
    """Do what the scheduler does with a claim that it fills by itself."""
    claim = cluster.claim(pod)
    assert claim is not None
    uuids = [cluster.machines[node].gpus[number].uuid for number in gpus]
    claim["status"] = {"allocation": {"devices": {"results": [result(node, uuid) for uuid in uuids]}}}
    cluster.put(RESOURCE_CLAIMS, claim)
    made = cluster.get_pod(pod)
    cluster.put(PODS, made | {"spec": made["spec"] | {"nodeName": node}, "status": {"phase": "Running"}})


async def test_a_pod_without_a_place_is_lifted_with_a_ladder() -> None:
    cluster = full("p")
    await cluster.settle()
    assert cluster.client.writes == [("create", claim_of("p")), ("patch", "p")]
    claim, pod = cluster.claim("p"), cluster.get_pod("p")
    assert claim is not None
    assert claim["metadata"]["labels"] == {names.LABEL: names.LABEL_HANDED_OVER}
    assert claim["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
    assert claim["metadata"]["annotations"].keys() == {names.HANDED_OVER}
    (request,) = claim["spec"]["devices"]["requests"]
    assert (request["name"], request["exactly"]["count"]) == ("main", 4)
    assert pod["spec"]["schedulingGates"] == []
    assert "affinity" not in pod["spec"]
    reason = cluster.note("p", "reason") or ""
    assert reason.startswith("Handed over to the scheduler. ")
    assert "4 GPUs" in reason


async def test_a_pod_that_its_scheduler_never_takes_up_holds_up_no_other_of_that_scheduler() -> None:
    cluster = full()
    for name in ("p", "q"):
        cluster.pod(name, wishes=HAND_OVER, schedulerName="nobody")
    await cluster.settle()
    assert [cluster.get_pod(name)["spec"]["schedulingGates"] for name in ("p", "q")] == [[], []]
    cluster.node("b")
    cluster.pod("placed", schedulerName="nobody")
    await cluster.settle()
    assert cluster.gpus("placed")[0] == "b"


async def test_a_place_that_comes_soon_is_waited_for() -> None:
    cluster = full()
    cluster.hand_over_s = 5.0
    cluster.restart()
    for name in ("p", "q"):
        cluster.pod(name, wishes=HAND_OVER)
    async with working(cluster):
        await asyncio.sleep(4)
        assert [cluster.claim(name) for name in ("p", "q")] == [None, None]
        give_back = cluster.find(RESOURCE_CLAIMS, "other", "default")
        assert give_back is not None
        results = give_back["status"]["allocation"]["devices"]["results"][4:]
        cluster.put(RESOURCE_CLAIMS, give_back | {"status": {"allocation": {"devices": {"results": results}}}})
        await asyncio.sleep(4)
    assert cluster.gpus("p") == ("a", [0, 1, 2, 3])
    claim = cluster.claim("q")
    assert claim is not None
    assert claim["metadata"]["labels"][names.LABEL] == names.LABEL_HANDED_OVER


async def test_with_a_place_it_is_placed_as_any_other() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", wishes=HAND_OVER)
    await cluster.settle()
    assert len(cluster.gpus("p")[1]) == 4


async def test_every_pod_of_a_kind_is_handed_over_and_those_that_wait_wait() -> None:
    cluster = full("p", "q")
    cluster.pod("w", wishes={"policy": "nvlink"})
    await cluster.settle()
    cluster.pod("r", wishes=HAND_OVER)
    await cluster.settle()
    assert [cluster.claim(name) is not None for name in "pqrw"] == [True, True, True, False]
    assert cluster.get_pod("w")["spec"]["schedulingGates"] != []


async def test_its_claim_holds_nothing_until_the_scheduler_fills_it() -> None:
    cluster = full("p")
    await cluster.settle()
    cluster.node("b")
    cluster.pod("q", 8)
    await cluster.settle()
    assert cluster.gpus("q")[0] == "b"


async def test_it_stays_with_the_scheduler_and_counts_once_it_is_bound() -> None:
    cluster = full("p", promise_s=0.0, unschedulable_s=0.0)
    await cluster.settle()
    pod = cluster.get_pod("p")
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
    cluster.put(PODS, pod | {"status": {"phase": "Pending", "conditions": [unscheduled]}})
    writes = len(cluster.client.writes)
    await cluster.settle()
    assert len(cluster.client.writes) == writes
    cluster.node("b")
    cluster.deliver()
    give(cluster, "p", "b", range(4))
    await cluster.settle()
    assert cluster.note("p", "reason") is None
    cluster.promise_s = cluster.unschedulable_s = 1000.0
    cluster.restart()
    cluster.pod("q", 8)
    cluster.pod("r", 4)
    await cluster.settle()
    assert cluster.claim("q") is None
    assert cluster.gpus("r") == ("b", [4, 5, 6, 7])


async def test_a_claim_of_other_words_is_made_again() -> None:
    cluster = full("p")
    cluster.client.kill_at = 2
    with pytest.raises(Killed):
        await cluster.settle()
    left = cluster.claim("p")
    pod = cluster.get_pod("p")
    changed = {"policy": "single-numa", "when-full": "hand-over"}
    pod["metadata"]["annotations"][names.REQUEST] = note({"main": 4}, {names.PREFIX + k: v for k, v in changed.items()})
    cluster.put(PODS, pod)
    cluster.restart()
    await cluster.settle()
    claim = cluster.claim("p")
    assert left is not None
    assert claim is not None
    assert claim["metadata"]["uid"] != left["metadata"]["uid"]
    assert claim["spec"]["devices"]["constraints"][0]["matchAttribute"] == "resource.kubernetes.io/numaNode"


async def test_a_pod_that_is_gone_already_costs_one_claim() -> None:
    """What the controller sees of pods may be old: it must not make and delete claims in a loop."""
    cluster = full("p")
    cluster.deliver()
    cluster.store.delete(cluster.store.collection("", "v1", "pods"), ("default", "p"))
    for _ in range(100):
        cluster.deliver(RESOURCE_CLAIMS)
        await cluster.worker.turn()
        await asyncio.sleep(0)
    assert [verb for verb, _ in cluster.client.writes].count("create") == 1


@pytest.mark.parametrize("kill_at", [1, -1, 2, -2])
async def test_a_controller_that_is_killed_between_loses_nothing(kill_at: int) -> None:
    cluster = full("p")
    cluster.client.kill_at = kill_at
    with pytest.raises(Killed):
        await cluster.settle()
    cluster.restart()
    await cluster.settle()
    assert cluster.get_pod("p")["spec"]["schedulingGates"] == []
    claim = cluster.claim("p")
    assert claim is not None
    assert claim["metadata"]["labels"][names.LABEL] == names.LABEL_HANDED_OVER


async def test_a_claim_whose_pod_is_gone_goes_too() -> None:
    cluster = full("p")
    await cluster.settle()
    cluster.remove(PODS, "p", "default")
    await cluster.settle()
    await cluster.settle()
    assert cluster.claim("p") is None


async def test_a_lift_that_another_webhook_holds_up_takes_no_claim_back() -> None:
    cluster = full("p")
    refuse(cluster, "default", lambda: asyncio.sleep(3), verbs=("patch",))
    async with working(cluster):
        await asyncio.sleep(10)
    assert ("delete", claim_of("p")) not in cluster.client.writes
    assert cluster.get_pod("p")["spec"]["schedulingGates"] == []
    assert cluster.claim("p") is not None


async def test_a_claim_that_a_user_deletes_is_made_again() -> None:
    cluster = full("p", "q")
    await cluster.settle()
    cluster.remove(RESOURCE_CLAIMS, claim_of("p"), "default")
    cluster.restart()
    await cluster.settle()
    claim = cluster.claim("p")
    assert claim is not None
    assert claim["metadata"]["labels"][names.LABEL] == names.LABEL_HANDED_OVER
    assert (cluster.note("p", "reason") or "").startswith("Handed over to the scheduler. Waiting for 4 GPUs")
    cluster.node("b")
    cluster.remove(RESOURCE_CLAIMS, claim_of("q"), "default")
    await cluster.settle()
    assert cluster.gpus("q")[0] == "b"


async def test_a_claim_that_goes_again_and_again_is_made_more_and_more_seldom() -> None:
    cluster = full("p")

    async def meddle() -> None:
        while True:
            if cluster.claim("p") is not None:
                cluster.remove(RESOURCE_CLAIMS, claim_of("p"), "default")
            await asyncio.sleep(0.05)

    async with working(cluster):
        meddling = asyncio.create_task(meddle())
        await asyncio.sleep(60)
        meddling.cancel()
    assert 2 < [verb for verb, _ in cluster.client.writes].count("create") < 15


async def test_a_refused_claim_leaves_the_gate_and_the_reason() -> None:
    cluster = full("p")
    cluster.client.refuse["create"] = [ApiError(403, "Forbidden", "exceeded quota: q")]
    await cluster.settle()
    assert cluster.get_pod("p")["spec"]["schedulingGates"] == [{"name": names.GATE}]
    assert "exceeded quota" in (cluster.note("p", "reason") or "")


@pytest.mark.slow
async def test_a_pod_whose_claim_a_policy_refuses_says_why_and_goes_on_waiting() -> None:
    cluster = full("p")
    denied = "ValidatingAdmissionPolicy 'exclusive' with binding 'exclusive' denied request: parts are of one namespace"
    cluster.client.refuse["create"] = [ApiError(422, "Invalid", denied)] * 1000
    async with working(cluster):
        await asyncio.sleep(60)
        assert cluster.claim("p") is None
        assert cluster.get_pod("p")["spec"]["schedulingGates"] == [{"name": names.GATE}]
        assert "parts are of one namespace" in (cluster.note("p", "reason") or "")
        assert 2 < [verb for verb, _ in cluster.client.writes].count("create") < 15
        cluster.client.refuse["create"].clear()
        await asyncio.sleep(60)
        assert cluster.claim("p") is not None


async def test_by_a_template_it_is_the_templates_claim() -> None:
    cluster = full()
    requests = [{"name": "g", "exactly": {"deviceClassName": "gpu.topology", "count": 2}}]
    constraints = [{"requests": ["g"], "matchAttribute": "gpu.topology/nvlinkGroup2"}]
    spec = {"devices": {"requests": requests, "constraints": constraints}}
    forged = {"team": "a", names.LABEL: names.LABEL_PLACED}
    template = {"spec": spec, "metadata": {"labels": forged, "annotations": {names.HANDED_OVER: "", "note": "b"}}}
    cluster.put(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "t", "namespace": "default"}, "spec": template})
    claims = [{"name": "gpus", "resourceClaimName": claim_of("p")}]
    cluster.pod("p", 1, wishes={"template": "gpus/t"} | HAND_OVER, resourceClaims=claims)
    await cluster.settle()
    claim = cluster.claim("p")
    assert claim is not None
    assert claim["spec"] == spec
    assert claim["metadata"]["labels"] == {"team": "a", names.LABEL: names.LABEL_HANDED_OVER}
    assert claim["metadata"]["annotations"]["note"] == "b"
    assert claim["metadata"]["annotations"][names.HANDED_OVER], "what tells it from a pinned claim is the controller's"


async def test_a_pod_that_had_its_place_is_not_handed_over() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", wishes=HAND_OVER)
    await cluster.settle()
    cluster.rival("other", "a", range(8))
    await cluster.settle()
    assert cluster.claim("p") is None
    assert "The pod was placed before" in (cluster.note("p", "reason") or "")


async def test_by_a_template_it_is_also_what_the_words_demand() -> None:
    cluster = full()
    selector = {"cel": {"expression": 'device.attributes["gpu.topology"].architecture == "volta"'}}
    exactly = {"deviceClassName": "gpu.topology", "count": 3, "selectors": [selector]}
    spec = {"devices": {"requests": [{"name": "g", "exactly": exactly}]}}
    cluster.put(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "t", "namespace": "default"}, "spec": {"spec": spec}})
    claims = [{"name": "gpus", "resourceClaimName": claim_of("p")}]
    words = {"template": "gpus/t", "min-bandwidth": "25", "preferred": "same-numa", "when-full": "hand-over"}
    cluster.pod("p", 1, wishes=words, resourceClaims=claims)
    await cluster.settle()
    claim = cluster.claim("p")
    assert claim is not None
    devices = claim["spec"]["devices"]
    assert devices["constraints"] == [{"requests": ["g"], "matchAttribute": "gpu.topology/nvlinkGroup4"}]
    first, *more = devices["requests"][0]["exactly"]["selectors"]
    assert first == selector
    assert [one["cel"]["expression"].rpartition("?")[2] for one in more] == ["nvlinkGroup4AnyGBps.orValue(0) >= 25"]


A_SHARE = {"deviceClassName": names.SHARE_CLASS, "capacity": {"requests": {"cores": "25", "memory": "4Gi"}}}
A_SLICE = {
    "deviceClassName": names.MIG_CLASS,
    "capacity": {"requests": {"memorySlices": "1", "computeSlices": "1"}},
}
PROFILE = {"mig": {"g": {"profile": "1g.10gb"}}}


def put_template_of_parts(cluster: GpuCluster, exactly: dict[str, Any], told: dict[str, Any]) -> list[dict[str, Any]]:
    """Put a template of a part, under what the driver is told of it, and of a NIC. Returns its requests."""
    selector = {"cel": {"expression": 'device.attributes["gpu.topology"].architecture == "hopper"'}}
    nic = {"name": "n", "exactly": {"deviceClassName": "dranet"}}
    parameters = {"apiVersion": names.CONFIG_API_VERSION, "kind": names.CONFIG_KIND} | told
    config = [{"opaque": {"driver": names.DRIVER, "parameters": parameters}, "requests": ["g"]}]
    requests = [{"name": "g", "exactly": exactly | {"selectors": [selector]}}, nic]
    spec = {"devices": {"requests": requests, "config": config}}
    cluster.put(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "t", "namespace": "default"}, "spec": {"spec": spec}})
    return requests


@pytest.mark.parametrize(
    ("exactly", "told", "word", "demand"),
    [
        (A_SHARE, {}, {"min-memory": "80Gi"}, 'compareTo(quantity("81920Mi")) >= 0'),
        (A_SLICE, PROFILE, {"min-driver": "580"}, 'compareTo(semver("580.0.0")) >= 0'),
    ],
    ids=["share", "slice"],
)
async def test_by_a_template_of_parts_it_keeps_off_gpus_of_one_namespace_and_gets_what_the_words_demand(
    exactly: dict[str, Any], told: dict[str, Any], word: dict[str, str], demand: str
) -> None:
    cluster = full()
    part, nic = put_template_of_parts(cluster, exactly, told)
    claims = [{"name": "gpus", "resourceClaimName": claim_of("p")}]
    words = {"template": "gpus/t", "when-full": "hand-over"} | word
    cluster.pod("p", 1, wishes=words, resourceClaims=claims)
    await cluster.settle()
    claim = cluster.claim("p")
    assert claim is not None
    parts, of_author = claim["spec"]["devices"]["requests"]
    first, elsewhere, demanded = (entry["cel"]["expression"] for entry in parts["exactly"]["selectors"])
    assert (first, elsewhere) == (part["exactly"]["selectors"][0]["cel"]["expression"], exclusive.ELSEWHERE)
    assert demand in demanded
    assert of_author == nic


async def test_a_slice_of_a_gpu_with_so_much_memory_is_not_handed_over() -> None:
    """The capacity ``memory`` of a MIG device is the slice's, and a GPU cut up on demand has none."""
    cluster = full()
    put_template_of_parts(cluster, A_SLICE, PROFILE)
    claims = [{"name": "gpus", "resourceClaimName": claim_of("p")}]
    words = {"template": "gpus/t", "min-memory": "80Gi", "when-full": "hand-over"}
    cluster.pod("p", 1, wishes=words, resourceClaims=claims)
    await cluster.settle()
    assert cluster.claim("p") is None
    assert cluster.note("p", "reason")


async def test_a_template_that_cannot_say_the_words_is_not_handed_over() -> None:
    """As a note of an earlier release may have it: nobody refused the words then."""
    cluster = full()
    exactly = {"deviceClassName": "gpu.topology", "count": 2}
    spec = {"devices": {"requests": [{"name": "g", "exactly": exactly}]}}
    cluster.put(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "t", "namespace": "default"}, "spec": {"spec": spec}})
    claims = [{"name": "gpus", "resourceClaimName": claim_of("p")}]
    words = {"template": "gpus/t", "min-busbw": "10", "when-full": "hand-over"}
    cluster.pod("p", 1, wishes=words, resourceClaims=claims)
    await cluster.settle()
    assert cluster.claim("p") is None
    assert "10 GB/s of bus bandwidth" in (cluster.note("p", "reason") or "")
