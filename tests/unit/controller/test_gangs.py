"""Gangs: pods that get their places together or not at all, whatever happens between two writes."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import REGISTRY

from dradriver.api.base import names
from dradriver.cluster.pods.kept_places import KEPT_S
from dradriver.kube.client import ApiError
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.effort import sampled
from tests.fakes.gang_pods import bound, claims, gang, lifted, nodes, running
from tests.fakes.gpucluster import GpuCluster, Killed
from tests.fakes.troubles import respell


async def test_a_gang_waits_until_all_its_pods_are_there() -> None:
    cluster = nodes("abc")
    pods = gang(cluster, 3, there=2)
    await cluster.settle()
    assert claims(cluster, pods) == []
    assert cluster.note("train-0", "reason") == "Waiting for more pods of the gang: 2 of 3 pods exist."
    cluster.pod("train-2", 8, wishes={"gang": "train", "gang-size": "3"})
    await cluster.settle()
    pods.append("train-2")
    assert lifted(cluster, pods) == pods
    assert sorted(cluster.gpus(pod)[0] for pod in pods) == ["a", "b", "c"]
    cluster.schedule()
    await cluster.settle()
    assert bound(cluster, pods) == pods
    assert [cluster.note(pod, "rank-hint") for pod in pods] == ["0", "1", "2"]
    assert cluster.note("train-0", "reason") is None
    assert cluster.note("train-0", "gang-nodes") == ",".join(cluster.gpus(pod)[0] for pod in pods)


async def test_a_gang_is_one_however_the_json_of_its_notes_is_written() -> None:
    cluster = nodes("abc")
    pods = gang(cluster, 3, there=2)
    for pod in pods:
        respell(cluster, pod, "gang")
    await cluster.settle()
    assert claims(cluster, pods) == []
    assert cluster.note("train-0", "reason") == "Waiting for more pods of the gang: 2 of 3 pods exist."


async def test_without_places_for_all_no_pod_gets_one() -> None:
    cluster = nodes("ab")
    pods = gang(cluster, 3)
    await cluster.settle()
    assert claims(cluster, pods) == []
    assert all(cluster.note(pod, "reason") for pod in pods)
    cluster.pod("single", 8)
    await cluster.settle()
    assert cluster.claim("single") is not None, "what no gang can have is kept from nobody"
    cluster.remove(PODS, "single", "default")
    cluster.collect()
    cluster.node("c")
    await cluster.settle()
    assert lifted(cluster, pods) == pods


@pytest.mark.parametrize("kill_at", sampled([1, 2, 3, 4, 5, 6, -1, -2, -3, -4, -5, -6]))
async def test_a_leader_that_is_killed_at_any_write_leaves_what_the_next_goes_on_from(kill_at: int) -> None:
    cluster = nodes("abcd")
    pods = gang(cluster, 3)
    cluster.client.kill_at = kill_at
    with pytest.raises((Killed, BaseExceptionGroup)):
        await cluster.settle()
    cluster.restart()
    await cluster.settle()
    assert lifted(cluster, pods) == pods
    cluster.schedule()
    await cluster.settle()
    assert bound(cluster, pods) == pods
    told = {cluster.claim(pod)["metadata"]["annotations"][names.PLAN] for pod in pods}  # type: ignore[index]
    assert len(told) == 3
    assert len({text.split('"plan":"')[1][:16] for text in told}) == 1


async def test_two_gangs_of_which_one_has_room_do_not_hold_halves() -> None:
    cluster = nodes("abc")
    one, two = gang(cluster, 3, name="one"), gang(cluster, 3, name="two")
    await cluster.settle()
    have = [claims(cluster, one), claims(cluster, two)]
    assert sorted(map(len, have)) == [0, 3]
    cluster.schedule()
    await cluster.settle()
    assert len(bound(cluster, one)) == 3


async def test_a_pod_that_comes_later_gets_its_place_near_the_others() -> None:
    cluster = GpuCluster()
    for node, zone in zip("abcdef", "xxxyyy", strict=True):
        cluster.node(node, labels={"topology.kubernetes.io/zone": zone})
    pods = gang(cluster, 2)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    zones = {"x" if cluster.gpus(pod)[0] in "abc" else "y" for pod in pods}
    assert len(zones) == 1
    cluster.remove(PODS, "train-1", "default")
    cluster.collect()
    cluster.pod("train-1b", 8, wishes={"gang": "train", "gang-size": "2"})
    await cluster.settle()
    node = cluster.gpus("train-1b")[0]
    assert {"x" if node in "abc" else "y"} == zones
    cluster.schedule()
    await cluster.settle()
    assert bound(cluster, ["train-0", "train-1b"]) == ["train-0", "train-1b"]


async def test_a_refused_claim_takes_all_back() -> None:
    cluster = nodes("abc")
    pods = gang(cluster, 3)
    cluster.client.refuse["create"] = [ApiError(403, "Forbidden", "exceeded quota: q")]
    await cluster.settle()
    assert cluster.store.all(RESOURCE_CLAIMS) == []
    assert [cluster.note(pod, "reason") for pod in pods] == [
        "The API server refuses a claim of the gang: exceeded quota: q. End pods of the namespace, or raise the "
        "ResourceQuota."
    ] * 3
    assert lifted(cluster, pods) == []


async def test_a_lost_pods_place_is_kept_for_the_pod_that_comes_for_it() -> None:
    cluster, pods = await running("abc")
    lost = cluster.gpus("train-0")[0]
    (free,) = set("abc") - {cluster.gpus(pod)[0] for pod in pods}
    cluster.remove(PODS, "train-0", "default")
    cluster.collect()
    cluster.pod("first", 8)
    cluster.pod("second", 8)
    await cluster.settle()
    assert cluster.gpus("first")[0] == free
    assert cluster.claim("second") is None, "its place is kept"
    cluster.pod("train-0b", 8, wishes={"gang": "train", "gang-size": "2"})
    await cluster.settle()
    assert cluster.gpus("train-0b")[0] == lost
    assert cluster.note("train-0b", "rank-hint") == "0"


async def test_a_pod_that_comes_at_once_waits_until_its_place_is_free() -> None:
    """A StatefulSet makes it as soon as the lost one is gone, whose claim is not yet."""
    cluster, pods = await running("abc")
    lost = cluster.gpus("train-0")
    (free,) = set("abc") - {cluster.gpus(pod)[0] for pod in pods}
    cluster.remove(PODS, "train-0", "default")
    cluster.pod("train-0b", 8, wishes={"gang": "train", "gang-size": "2"})
    await cluster.settle()
    assert cluster.claim("train-0b") is None
    assert cluster.note("train-0b", "reason") == "Waiting until the GPUs of the lost pod are free."
    cluster.collect()
    await cluster.settle()
    assert cluster.gpus("train-0b") == lost
    cluster.pod("other", 8)
    await cluster.settle()
    assert cluster.gpus("other")[0] == free


async def test_a_pod_does_not_wait_for_one_that_is_long_in_ending() -> None:
    """As those of a lost node are."""
    cluster, pods = await running("abc")
    (free,) = set("abc") - {cluster.gpus(pod)[0] for pod in pods}
    going = cluster.get_pod("train-0")
    going["metadata"] |= {"deletionTimestamp": "2026-11-01T00:00:00Z", "finalizers": ["example.com/kubelet"]}
    cluster.put(PODS, going)
    cluster.pod("train-0b", 8, wishes={"gang": "train", "gang-size": "2"})
    await cluster.settle()
    assert cluster.gpus("train-0b")[0] == free


async def test_a_kept_place_ends_with_the_gang() -> None:
    cluster, pods = await running("ab")
    cluster.pod("other", 8)
    cluster.remove(PODS, pods[0], "default")
    cluster.collect()
    await cluster.settle()
    assert cluster.claim("other") is None
    cluster.remove(PODS, pods[1], "default")
    cluster.collect()
    await cluster.settle()
    assert cluster.claim("other") is not None


async def test_a_kept_place_ends_after_a_while() -> None:
    cluster, pods = await running("ab")
    cluster.pod("other", 8)
    cluster.remove(PODS, pods[0], "default")
    cluster.collect()
    await cluster.settle()
    assert cluster.claim("other") is None
    await asyncio.sleep(KEPT_S + 1)
    await cluster.worker.sweep()
    await cluster.settle()
    assert cluster.claim("other") is not None


async def test_of_a_gang_that_is_to_start_again_no_place_is_kept() -> None:
    cluster = nodes("ab")
    for i in range(2):
        cluster.pod(f"train-{i}", 8, wishes={"gang": "train", "gang-size": "2", "on-member-loss": "restart"})
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    cluster.pod("other", 8)
    cluster.remove(PODS, "train-0", "default")
    cluster.collect()
    await cluster.settle()
    assert cluster.claim("other") is not None


@pytest.mark.timeout(20)
async def test_a_pod_that_its_kept_place_does_not_suit_waits_and_is_asked_about_once() -> None:
    cluster, pods = await running("ab")
    cluster.remove(PODS, pods[0], "default")
    cluster.collect()
    await cluster.settle()
    cluster.pod(pods[0], 8, wishes={"gang": "train", "gang-size": "2"}, nodeSelector={"example.com/rack": "none"})
    await cluster.settle()
    assert cluster.claim(pods[0]) is None
    reason = cluster.note(pods[0], "reason") or ""
    assert "there is no place now for 1 of the pods. Nodes left out for pod train-0: " in reason


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"gpu_topology_{name}", labels) or 0.0


async def test_gangs_are_counted_by_state_and_how_long_they_take_and_why_they_are_given_back() -> None:
    cluster = GpuCluster(promise_s=1.0)
    for node in "ab":
        cluster.node(node)
    gang(cluster, 2, name="one", there=1)
    await cluster.settle()
    assert [counted("gangs", state=state) for state in ("waiting", "started")] == [1, 0]
    before = counted("gang_start_duration_seconds_count"), counted("gang_start_duration_seconds_sum")
    given_back = counted("gangs_released_total", cause="overdue")
    cluster.pod("one-1", 8, wishes={"gang": "one", "gang-size": "2"})
    await cluster.settle()
    await asyncio.sleep(2)
    await cluster.settle()
    assert counted("gangs_released_total", cause="overdue") == given_back + 1
    assert counted("gang_start_duration_seconds_count") == before[0]
    await asyncio.sleep(60)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    assert [counted("gangs", state=state) for state in ("waiting", "started")] == [0, 1]
    assert counted("gang_start_duration_seconds_count") == before[0] + 1
    assert counted("gang_start_duration_seconds_sum") - before[1] == pytest.approx(62)


async def test_a_late_pod_that_finds_no_place_is_told_of_its_own_kind_alone() -> None:
    cluster = nodes("ab")
    gang(cluster, 2)
    await cluster.settle()
    cluster.schedule()
    cluster.pod("train-2", 8, wishes={"gang": "train", "gang-size": "2"})
    await cluster.settle()
    reason = cluster.note("train-2", "reason")
    assert reason is not None
    assert " and " not in reason, reason
