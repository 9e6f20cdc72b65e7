"""``shared-claim``: pods that say one name get one set, chosen once for the first of them."""

from __future__ import annotations

import asyncio

import pytest

from dradriver.api import names
from dradriver.kube.client import ApiError
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Object
from tests.fakes.gpucluster import GpuCluster, Killed

SHARED = {"shared-claim": "duo", "policy": "nvlink"}


def cluster_of(*pods: str, nodes: str = "a", **more: float) -> GpuCluster:
    cluster = GpuCluster(**more)
    for node in nodes:
        cluster.node(node)
    for name in pods:
        cluster.pod(name, wishes=SHARED)
    return cluster


def the_claim(cluster: GpuCluster) -> Object:
    found = cluster.find(RESOURCE_CLAIMS, "duo", "default")
    assert found is not None
    return found


def owners(cluster: GpuCluster) -> list[str]:
    return [owner["name"] for owner in the_claim(cluster)["metadata"].get("ownerReferences", ())]


def gates(cluster: GpuCluster, pod: str) -> list[Object]:
    found: list[Object] = cluster.get_pod(pod)["spec"].get("schedulingGates", [])
    return found


def nodes_of(cluster: GpuCluster, pod: str) -> list[str]:
    terms = cluster.get_pod(pod)["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [v for t in terms["nodeSelectorTerms"] for e in t["matchFields"] for v in e["values"]]


def finish(cluster: GpuCluster, pod: str) -> None:
    cluster.put(PODS, cluster.get_pod(pod) | {"status": {"phase": "Succeeded"}})


def drop(cluster: GpuCluster, pod: str) -> None:
    cluster.remove(PODS, pod, "default")


async def settled(cluster: GpuCluster) -> None:
    """Let everybody act in turns until nothing changes."""
    for _ in range(12):
        before = cluster.store.version
        await cluster.settle()
        cluster.schedule()
        cluster.collect()
        if cluster.store.version == before:
            return
    raise AssertionError("no end of it")


async def test_pods_of_one_name_get_one_set_the_first_of_them_chooses() -> None:
    cluster = cluster_of("trainer", "sampler", nodes="abc")
    await cluster.settle()
    assert cluster.client.writes == [("create", "duo"), ("patch", "trainer"), ("patch", "sampler")]
    assert gates(cluster, "sampler")
    assert cluster.note("sampler", "reason") == "its set duo is being placed with pod trainer"
    claim = the_claim(cluster)
    assert [owner.get("controller") for owner in claim["metadata"]["ownerReferences"]] == [None]
    (request,) = claim["spec"]["devices"]["requests"]
    assert (request["name"], request["exactly"]["count"]) == (names.SET_REQUEST, 4)

    cluster.schedule()
    await cluster.settle()
    assert not gates(cluster, "sampler")
    assert owners(cluster) == ["trainer", "sampler"]
    node = cluster.get_pod("trainer")["spec"]["nodeName"]
    assert nodes_of(cluster, "sampler") == [node]
    cluster.schedule()
    await cluster.settle()
    assert cluster.get_pod("sampler")["spec"]["nodeName"] == node
    for key in ("allocated", "ring-order", "bandwidth", "busbw", "level", "score", "node"):
        assert cluster.note("sampler", key) == cluster.note("trainer", key) is not None, key
    assert cluster.note("sampler", "reason") is None


async def test_a_pod_that_comes_while_others_run_has_their_set() -> None:
    cluster = cluster_of("trainer")
    await settled(cluster)
    cluster.pod("late", {"one": 4, "two": 4}, wishes=SHARED)
    await settled(cluster)
    assert owners(cluster) == ["trainer", "late"]
    assert cluster.note("late", "allocated") == cluster.note("trainer", "allocated")


async def test_one_goes_on_when_the_first_is_gone_and_with_the_last_the_set_ends() -> None:
    cluster = cluster_of("trainer", "sampler")
    await settled(cluster)
    uid = the_claim(cluster)["metadata"]["uid"]
    drop(cluster, "trainer")
    await settled(cluster)
    assert the_claim(cluster)["metadata"]["uid"] == uid
    assert [user["name"] for user in the_claim(cluster)["status"]["reservedFor"]] == ["sampler"]
    drop(cluster, "sampler")
    await settled(cluster)
    assert cluster.all(RESOURCE_CLAIMS) == []


async def test_a_set_whose_pods_have_finished_ends_and_the_next_of_the_name_gets_another() -> None:
    cluster = cluster_of("trainer", "sampler")
    await settled(cluster)
    uid = the_claim(cluster)["metadata"]["uid"]
    finish(cluster, "trainer")
    await settled(cluster)
    assert the_claim(cluster)["metadata"]["uid"] == uid
    finish(cluster, "sampler")
    cluster.collect()
    assert "allocation" not in the_claim(cluster)["status"]
    await settled(cluster)
    assert cluster.all(RESOURCE_CLAIMS) == []
    cluster.pod("next", 2, wishes=SHARED)
    await settled(cluster)
    assert the_claim(cluster)["metadata"]["uid"] != uid
    assert owners(cluster) == ["next"]


async def test_until_the_set_of_pods_that_have_ended_is_gone_the_next_waits() -> None:
    cluster = cluster_of("trainer")
    await settled(cluster)
    finish(cluster, "trainer")
    cluster.collect()
    cluster.pod("next", wishes=SHARED)
    cluster.deliver()
    await cluster.worker.rest()
    assert cluster.note("next", "reason") == "waits until the earlier claim duo, whose pods have ended, is gone"
    await settled(cluster)
    assert owners(cluster) == ["next"]


async def test_when_the_first_is_gone_before_it_is_bound_another_leads() -> None:
    cluster = cluster_of("trainer", "sampler")
    await cluster.settle()
    drop(cluster, "trainer")
    await settled(cluster)
    assert owners(cluster) == ["sampler"]
    assert cluster.get_pod("sampler")["spec"]["nodeName"] == "a"


async def test_a_pod_that_asks_for_something_else_is_told_what_the_set_is() -> None:
    cluster = cluster_of("trainer")
    cluster.pod("other", 2, wishes=SHARED)
    await settled(cluster)
    reason = cluster.note("other", "reason") or ""
    assert reason.startswith(
        "its set duo was chosen for 4 GPUs with nvlink, and this pod asks for 2 GPUs with nvlink; "
    )
    assert gates(cluster, "other")
    drop(cluster, "trainer")
    await settled(cluster)
    assert owners(cluster) == ["other"]


async def test_wishes_that_differ_in_words_only_the_set_shows_are_told_apart_too() -> None:
    cluster = cluster_of("trainer")
    cluster.pod("other", wishes=SHARED | {"strategy": "pack"})
    await settled(cluster)
    assert "was chosen for 4 GPUs with nvlink with other wishes than this pod's" in (
        cluster.note("other", "reason") or ""
    )


async def test_a_pod_that_its_node_cannot_run_waits_until_it_can() -> None:
    cluster = cluster_of("trainer")
    await settled(cluster)
    cluster.pod("big", wishes=SHARED, requests={"cpu": "65"})
    await settled(cluster)
    assert cluster.note("big", "reason") == "its set duo is on node a, which cannot run this pod: too little cpu"
    cluster.node("a", None, allocatable={"cpu": "128"})
    await settled(cluster)
    assert cluster.get_pod("big")["spec"]["nodeName"] == "a"


async def test_the_set_goes_where_there_is_room_for_all_who_wait_for_it() -> None:
    cluster = GpuCluster()
    cluster.node("a", allocatable={"cpu": "8"})
    cluster.node("b", allocatable={"cpu": "32"})
    for name in ("p", "q", "r"):
        cluster.pod(name, wishes=SHARED, requests={"cpu": "6"})
    await settled(cluster)
    assert {cluster.get_pod(name)["spec"].get("nodeName") for name in "pqr"} == {"b"}


async def test_where_no_node_has_room_for_all_some_have_the_set() -> None:
    cluster = GpuCluster()
    cluster.node("a", allocatable={"cpu": "8"})
    for name in ("p", "q"):
        cluster.pod(name, wishes=SHARED, requests={"cpu": "6"})
    await settled(cluster)
    assert cluster.get_pod("p")["spec"]["nodeName"] == "a"
    assert "too little cpu" in (cluster.note("q", "reason") or "")
    drop(cluster, "p")
    await settled(cluster)
    assert cluster.get_pod("q")["spec"]["nodeName"] == "a"


async def test_what_a_pod_that_comes_takes_counts_for_the_next_at_once() -> None:
    cluster = GpuCluster()
    cluster.node("a", allocatable={"cpu": "16"})
    cluster.pod("p", wishes=SHARED, requests={"cpu": "4"})
    await settled(cluster)
    for name in ("q", "r", "s"):
        cluster.pod(name, wishes=SHARED, requests={"cpu": "6"})
    await cluster.settle()
    assert [bool(gates(cluster, name)) for name in "qrs"] == [False, False, True]


async def test_a_claim_of_somebody_elses_is_left_alone() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    theirs = cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": "duo", "namespace": "default"}, "spec": {}})
    cluster.pod("trainer", wishes=SHARED)
    await cluster.settle()
    assert (cluster.note("trainer", "reason") or "").startswith("claim duo is not one that the driver made for pods ")
    assert the_claim(cluster) == theirs
    cluster.remove(RESOURCE_CLAIMS, "duo", "default")
    await cluster.settle()  # nothing but a sweep tells that such a claim is gone
    await settled(cluster)
    assert owners(cluster) == ["trainer"]


async def test_a_claim_that_is_one_pods_own_is_not_shared() -> None:
    cluster = cluster_of()
    cluster.pod("single", 2)
    await settled(cluster)
    made = cluster.claim("single")
    assert made is not None
    cluster.put(RESOURCE_CLAIMS, made | {"metadata": made["metadata"] | {"name": "duo", "uid": "another"}})
    cluster.pod("trainer", 2, wishes=SHARED)
    await cluster.settle()
    assert "is not one that the driver made for pods to share" in (cluster.note("trainer", "reason") or "")
    assert owners(cluster) == ["single"]


@pytest.mark.parametrize("field", ["shared", "entry"])
async def test_a_pod_whose_note_does_not_fit_its_claim_gets_nothing(field: str) -> None:
    cluster = cluster_of("trainer")
    pod = cluster.get_pod("trainer")
    if field == "shared":
        pod["metadata"]["annotations"][names.REQUEST] = pod["metadata"]["annotations"][names.REQUEST].replace(
            "duo", "x"
        )
    else:
        pod["spec"]["resourceClaims"][0]["resourceClaimName"] = "gpus-somebodys"
    cluster.put(PODS, pod)
    await cluster.settle()
    assert "create the pod anew" in (cluster.note("trainer", "reason") or "")
    assert cluster.all(RESOURCE_CLAIMS) == []


async def test_a_pod_that_another_gate_holds_does_not_lead() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    both = [{"name": names.GATE}, {"name": "tenant.example.com/budget"}]
    cluster.pod("held", wishes=SHARED, schedulingGates=both)
    cluster.pod("sampler", wishes=SHARED)
    await settled(cluster)
    assert owners(cluster) == ["sampler"]
    assert (cluster.note("held", "reason") or "").startswith("waits for scheduling gate tenant.example.com/budget")
    pod = cluster.get_pod("held")
    cluster.put(PODS, pod | {"spec": pod["spec"] | {"schedulingGates": both[:1]}})
    await settled(cluster)
    assert owners(cluster) == ["sampler", "held"]


async def test_a_promise_that_is_not_kept_ends_for_the_set() -> None:
    cluster = cluster_of("trainer", "sampler", promise_s=0.0)
    cluster.deliver()
    await cluster.worker.rest()
    assert [verb for verb, _ in cluster.client.writes][:2] == ["create", "patch"]
    cluster.deliver()
    await cluster.worker.rest()
    assert ("delete", "duo") in cluster.client.writes
    assert gates(cluster, "sampler")
    assert "trainer" in (cluster.note("sampler", "reason") or "")


async def test_a_set_that_was_given_back_is_placed_for_those_that_are_lifted() -> None:
    cluster = cluster_of("trainer", "sampler")
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    assert not gates(cluster, "sampler")
    drop(cluster, "trainer")
    cluster.collect()  # nobody uses the claim any more: it loses its devices, and keeps its other owner
    assert "allocation" not in the_claim(cluster)["status"]
    await settled(cluster)
    assert cluster.get_pod("sampler")["spec"]["nodeName"] == "a"
    assert len(the_claim(cluster)["status"]["reservedFor"]) == 1


async def test_whoever_uses_a_claim_belongs_to_it() -> None:
    cluster = cluster_of("trainer", "sampler")
    await settled(cluster)
    claim = the_claim(cluster)
    claim["metadata"]["ownerReferences"] = claim["metadata"]["ownerReferences"][:1]
    cluster.put(RESOURCE_CLAIMS, claim)
    cluster.restart()
    await settled(cluster)
    assert owners(cluster) == ["trainer", "sampler"]
    claim = the_claim(cluster)
    del claim["metadata"]["ownerReferences"]
    cluster.put(RESOURCE_CLAIMS, claim)
    cluster.restart()
    await settled(cluster)
    assert sorted(owners(cluster)) == ["sampler", "trainer"]


@pytest.mark.parametrize("kill_at", [*range(1, 8), *range(-7, 0)])
async def test_a_crash_at_any_write_loses_nothing(kill_at: int) -> None:
    cluster = cluster_of("trainer", "sampler", "third", nodes="ab")
    cluster.client.kill_at = kill_at
    killed = False
    for _ in range(12):
        try:
            await cluster.settle()
        except Killed:
            killed = True
            cluster.restart()
            continue
        cluster.schedule()
    assert killed or abs(kill_at) > 4
    (claim,) = cluster.all(RESOURCE_CLAIMS)
    assert sorted(owners(cluster)) == ["sampler", "third", "trainer"]
    assert len({cluster.get_pod(name)["spec"]["nodeName"] for name in ("trainer", "sampler", "third")}) == 1
    assert len(claim["status"]["reservedFor"]) == 3


async def test_two_hundred_pods_cost_two_writes_each() -> None:
    cluster = GpuCluster()
    cluster.node("a", allocatable={"pods": "300"})
    every = [f"p{number:03}" for number in range(200)]
    for name in every:
        cluster.pod(name, wishes=SHARED)
    await settled(cluster)
    assert sorted(owners(cluster)) == every
    assert len([name for _, name in cluster.client.writes if name == "duo"]) == 200
    assert all(cluster.get_pod(name)["spec"]["nodeName"] == "a" for name in every)


async def test_a_refusal_of_one_that_comes_costs_the_others_nothing() -> None:
    cluster = cluster_of("trainer")
    await settled(cluster)
    cluster.client.refuse["patch"] = [ApiError(403, "Forbidden", "quota", None)]
    cluster.pod("sampler", wishes=SHARED)
    await cluster.settle()
    assert cluster.note("sampler", "reason") == "quota"
    assert the_claim(cluster)["status"]["allocation"]
    assert cluster.get_pod("trainer")["spec"]["nodeName"] == "a"


async def test_when_the_first_that_has_no_place_is_gone_the_next_is_asked() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("never", wishes=SHARED | {"product": "none of these"})
    cluster.pod("sampler", wishes=SHARED)
    await cluster.settle()
    assert cluster.note("sampler", "reason") == "its set duo is being placed with pod never"
    drop(cluster, "never")
    await cluster.settle()
    assert not gates(cluster, "sampler")


@pytest.mark.looptime
async def test_a_set_that_was_given_back_is_promised_to_its_pods_in_turn() -> None:
    cluster = cluster_of("trainer", "sampler", "third", promise_s=30.0)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    drop(cluster, "trainer")
    cluster.collect()
    await cluster.settle()
    await asyncio.sleep(20)
    drop(cluster, "sampler")
    await cluster.settle()
    await asyncio.sleep(20)
    await cluster.settle()
    assert ("delete", "duo") not in cluster.client.writes
    await asyncio.sleep(11)
    await cluster.settle()
    assert ("delete", "duo") in cluster.client.writes


async def test_who_waits_for_another_set_gets_his_own_when_that_is_gone() -> None:
    cluster = cluster_of("trainer", nodes="ab")
    cluster.pod("other", 2, wishes=SHARED)
    await settled(cluster)
    cluster.node(cluster.get_pod("trainer")["spec"]["nodeName"], None, unschedulable=True)
    await cluster.settle()
    drop(cluster, "trainer")
    cluster.collect()
    cluster.deliver()  # at once: that it is given back, and that it is gone
    for _ in range(5):  # at rest it would ask for all again, as it does every ten seconds
        await cluster.worker.turn()
        await asyncio.sleep(0)
    assert owners(cluster) == ["other"]  # on a node where nothing has become free


async def test_who_uses_a_claim_that_is_going_is_told_what_he_has() -> None:
    cluster = cluster_of("trainer", "sampler")
    await settled(cluster)
    claim = the_claim(cluster)
    claim["metadata"]["ownerReferences"] = claim["metadata"]["ownerReferences"][:1]
    cluster.put(RESOURCE_CLAIMS, claim)
    cluster.remove(RESOURCE_CLAIMS, "duo", "default")  # its pods keep it for as long as they live
    pod = cluster.get_pod("sampler")
    del pod["metadata"]["annotations"][names.ALLOCATED]
    cluster.put(PODS, pod)
    cluster.restart()
    await cluster.settle()
    assert owners(cluster) == ["trainer"]
    assert cluster.note("sampler", "allocated") == cluster.note("trainer", "allocated")
