"""``shared-claim``: pods that say one name get one set, chosen once for the first of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.api.base import names
from dradriver.kube.errors import Unreadable
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS, Resource
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.sharing import SHARED, cluster_of, drop, gates, nodes_of, owners, settled, the_claim


async def test_pods_of_one_name_get_one_set_the_first_of_them_chooses() -> None:
    cluster = cluster_of("trainer", "sampler", nodes="abc")
    await cluster.settle()
    assert cluster.client.writes == [("create", "duo"), ("patch", "trainer"), ("patch", "sampler")]
    assert gates(cluster, "sampler")
    assert (
        cluster.note("sampler", "reason")
        == "Waiting for pod trainer, which gets a place for the shared claim duo first."
    )
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
    for key in ("allocated", "ring-order", "busbw", "level"):
        assert cluster.note("sampler", key) == cluster.note("trainer", key) is not None, key
    assert cluster.note("sampler", "reason") is None


async def test_a_pod_that_comes_while_others_run_has_their_set() -> None:
    cluster = cluster_of("trainer")
    await settled(cluster)
    cluster.pod("late", {"one": 4, "two": 4}, wishes=SHARED)
    await settled(cluster)
    assert owners(cluster) == ["trainer", "late"]
    assert cluster.note("late", "allocated") == cluster.note("trainer", "allocated")


async def test_a_pod_that_asks_for_something_else_is_told_what_the_set_is() -> None:
    cluster = cluster_of("trainer")
    cluster.pod("other", 2, wishes=SHARED)
    await settled(cluster)
    reason = cluster.note("other", "reason") or ""
    assert reason.startswith(
        "The shared claim duo was chosen for 4 GPUs with nvlink, this pod requests 2 GPUs with nvlink. "
    )
    assert gates(cluster, "other")
    drop(cluster, "trainer")
    await settled(cluster)
    assert owners(cluster) == ["other"]


async def test_wishes_that_differ_in_words_only_the_set_shows_are_told_apart_too() -> None:
    cluster = cluster_of("trainer")
    cluster.pod("other", wishes=SHARED | {"strategy": "pack"})
    await settled(cluster)
    assert "was chosen for 4 GPUs with nvlink with other annotations than this pod's" in (
        cluster.note("other", "reason") or ""
    )


async def test_a_pod_that_its_node_cannot_run_waits_until_it_can() -> None:
    cluster = cluster_of("trainer")
    await settled(cluster)
    cluster.pod("big", wishes=SHARED, requests={"cpu": "65"})
    await settled(cluster)
    assert (
        cluster.note("big", "reason") == "The shared claim duo is on node a, which cannot run this pod: too little cpu."
    )
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


async def test_sets_of_other_names_find_a_place_together_or_not_at_all_where_their_pods_wish_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand of them would be asked one by one whenever a GPU becomes free."""
    searches, rank = 0, Fleet.rank

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal searches
        searches += 1
        return rank(*args, **more)

    monkeypatch.setattr(Fleet, "rank", counted)
    cluster = cluster_of()
    cluster.rival("other", "a", range(8))
    for number in range(20):
        cluster.pod(f"p{number}", wishes=SHARED | {"shared-claim": f"set{number}"})
    await cluster.settle()
    assert searches < 20
    assert "4 GPUs" in (cluster.note("p19", "reason") or "")
    cluster.remove(RESOURCE_CLAIMS, "other", "default")
    searches = 0
    await cluster.settle()
    assert [claim["metadata"]["name"] for claim in cluster.all(RESOURCE_CLAIMS)] == ["set0", "set1"]
    assert searches < 20


async def test_a_claim_of_another_owner_is_left_alone() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    theirs = cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": "duo", "namespace": "default"}, "spec": {}})
    cluster.pod("trainer", wishes=SHARED)
    await cluster.settle()
    assert (cluster.note("trainer", "reason") or "").startswith("Claim duo exists, but the driver did not create it ")
    assert the_claim(cluster) == theirs
    cluster.remove(RESOURCE_CLAIMS, "duo", "default")
    await cluster.settle()  # nothing but a sweep tells that such a claim is gone
    await settled(cluster)
    assert owners(cluster) == ["trainer"]


async def test_a_claim_of_another_owner_that_had_gpus_and_has_none_is_told_of_too() -> None:
    cluster = cluster_of()
    cluster.rival("duo", "a", range(2))
    await cluster.settle()
    cluster.put(RESOURCE_CLAIMS, the_claim(cluster) | {"status": {}})
    cluster.pod("trainer", wishes=SHARED)
    await cluster.settle()
    assert (cluster.note("trainer", "reason") or "").startswith("Claim duo exists, but the driver did not create it ")
    cluster.remove(RESOURCE_CLAIMS, "duo", "default")
    await cluster.settle()  # nothing but a sweep tells that such a claim is gone
    await settled(cluster)
    assert owners(cluster) == ["trainer"]


async def test_claims_of_other_owners_are_asked_about_side_by_side() -> None:
    """Whoever has thousands of them would hold up what else a sweep does."""
    cluster = cluster_of()
    for number in range(40):
        name = f"set{number}"
        cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": name, "namespace": "default"}, "spec": {}})
        cluster.pod(f"p{number}", wishes=SHARED | {"shared-claim": name})
    await cluster.settle()
    for number in range(40):
        cluster.remove(RESOURCE_CLAIMS, f"set{number}", "default")
    cluster.deliver()
    answer, under_way = cluster.client.get, [0]

    async def counted(resource: Resource, name: str, **more: Any) -> Any:
        under_way.append(under_way[-1] + 1)
        await asyncio.sleep(0)
        under_way.append(under_way[-1] - 1)
        return await answer(resource, name, **more)

    cluster.client.get = counted  # type: ignore[method-assign]
    await cluster.worker.sweep()
    assert max(under_way) == 16
    assert not cluster.worker.picture.accounts.assumed


async def test_an_assumed_claim_that_cannot_be_read_holds_up_no_sweep() -> None:
    cluster = cluster_of()
    for name in ("odd", "other"):
        cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": name, "namespace": "default"}, "spec": {}})
        cluster.pod(f"p-{name}", wishes=SHARED | {"shared-claim": name})
    await cluster.settle()
    for name in ("odd", "other"):
        cluster.remove(RESOURCE_CLAIMS, name, "default")
    cluster.deliver()
    answer = cluster.client.get

    async def odd(resource: Resource, name: str, **more: Any) -> Any:
        if name == "odd":
            raise Unreadable(200, "Unreadable", "metadata.labels: Expected `object`, got `int`")
        return await answer(resource, name, **more)

    cluster.client.get = odd  # type: ignore[method-assign]
    await cluster.worker.sweep()
    assert not cluster.worker.picture.accounts.assumed


async def test_a_claim_that_is_one_pods_own_is_not_shared() -> None:
    cluster = cluster_of()
    cluster.pod("single", 2)
    await settled(cluster)
    made = cluster.claim("single")
    assert made is not None
    cluster.put(RESOURCE_CLAIMS, made | {"metadata": made["metadata"] | {"name": "duo", "uid": "another"}})
    cluster.pod("trainer", 2, wishes=SHARED)
    await cluster.settle()
    assert "the driver did not create it for sharing" in (cluster.note("trainer", "reason") or "")
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
    assert "Create the pod again" in (cluster.note("trainer", "reason") or "")
    assert cluster.all(RESOURCE_CLAIMS) == []


async def test_a_pod_that_another_gate_holds_does_not_lead() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    both = [{"name": names.GATE}, {"name": "tenant.example.com/budget"}]
    cluster.pod("held", wishes=SHARED, schedulingGates=both)
    cluster.pod("sampler", wishes=SHARED)
    await settled(cluster)
    assert owners(cluster) == ["sampler"]
    assert (cluster.note("held", "reason") or "").startswith(
        "Waiting until another controller removes scheduling gate tenant.example.com/budget"
    )
    pod = cluster.get_pod("held")
    cluster.put(PODS, pod | {"spec": pod["spec"] | {"schedulingGates": both[:1]}})
    await settled(cluster)
    assert owners(cluster) == ["sampler", "held"]
