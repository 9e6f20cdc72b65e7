"""How a set that pods share goes on without some of them, and ends; and what gets between."""

from __future__ import annotations

import asyncio

import pytest

from dradriver.api.base import names
from dradriver.kube.client import ApiError
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.effort import sampled
from tests.fakes.gpucluster import GpuCluster, Killed
from tests.fakes.sharing import SHARED, cluster_of, drop, finish, gates, owners, settled, the_claim


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


@pytest.mark.slow
async def test_pods_that_have_finished_do_not_pile_up_as_owners() -> None:
    """A Job's are there until somebody deletes them: thousands would make the claim longer than the server stores."""
    cluster = cluster_of("p0", "stays")
    await settled(cluster)
    for number in range(1, 100):
        cluster.pod(f"p{number}", wishes=SHARED)
        await settled(cluster)
        finish(cluster, f"p{number - 1}")
    assert {"stays", "p99"} <= {*owners(cluster)}
    assert len(owners(cluster)) <= 40
    for name in ("stays", "p99"):
        finish(cluster, name)
    cluster.collect()
    await cluster.settle()
    await cluster.settle()
    assert cluster.find(RESOURCE_CLAIMS, "duo", "default") is None


async def test_until_the_set_of_pods_that_have_ended_is_gone_the_next_waits() -> None:
    cluster = cluster_of("trainer")
    await settled(cluster)
    finish(cluster, "trainer")
    cluster.collect()
    cluster.pod("next", wishes=SHARED)
    cluster.deliver()
    await cluster.worker.rest()
    assert cluster.note("next", "reason") == "Waiting until claim duo is gone, all its pods have ended."
    await settled(cluster)
    assert owners(cluster) == ["next"]


async def test_when_the_first_is_gone_before_it_is_bound_another_leads() -> None:
    cluster = cluster_of("trainer", "sampler")
    await cluster.settle()
    drop(cluster, "trainer")
    await settled(cluster)
    assert owners(cluster) == ["sampler"]
    assert cluster.get_pod("sampler")["spec"]["nodeName"] == "a"


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


async def test_a_pod_that_uses_a_claim_belongs_to_it() -> None:
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


@pytest.mark.parametrize("kill_at", sampled([*range(1, 8), *range(-7, 0)]))
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


async def test_a_refusal_of_one_that_comes_costs_the_others_nothing() -> None:
    cluster = cluster_of("trainer")
    await settled(cluster)
    cluster.client.refuse["patch"] = [ApiError(403, "Forbidden", "quota", None)]
    cluster.pod("sampler", wishes=SHARED)
    await cluster.settle()
    assert cluster.note("sampler", "reason") == (
        "The API server refuses a write for the pod: quota. Change the pod, or the policy, webhook or right that this "
        "text names."
    )
    assert the_claim(cluster)["status"]["allocation"]
    assert cluster.get_pod("trainer")["spec"]["nodeName"] == "a"


async def test_when_the_first_that_has_no_place_is_gone_the_next_is_asked() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("never", wishes=SHARED | {"product": "none of these"})
    cluster.pod("sampler", wishes=SHARED)
    await cluster.settle()
    assert (
        cluster.note("sampler", "reason") == "Waiting for pod never, which gets a place for the shared claim duo first."
    )
    drop(cluster, "never")
    await cluster.settle()
    assert not gates(cluster, "sampler")


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
