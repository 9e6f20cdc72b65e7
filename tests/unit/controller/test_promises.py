"""A promise ends by itself, whatever keeps it from being kept, and says what it gives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.vocabulary.container_requests import Asked
from dradriver.kube.client import ApiError, Unreachable
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes.apirules import Object
from tests.fakes.gpucluster import GpuCluster, Killed, claim_of
from tests.fakes.troubles import raising, refuse, working


async def test_the_answer_to_a_creation_that_was_lost_is_found_out() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 8)
    original = cluster.client.create

    async def create(*args: Any, **kwargs: Any) -> Any:
        cluster.client.create = original  # type: ignore[method-assign]
        await original(*args, **kwargs)
        raise Unreachable("POST: connection reset")

    cluster.client.create = create  # type: ignore[method-assign]
    async with working(cluster):
        await asyncio.sleep(3)
        assert cluster.gpus("p")[0] == "a"
        assert cluster.get_pod("p")["spec"]["schedulingGates"] == []
        assert [verb for verb, _ in cluster.client.writes] == ["create", "patch"]


@contextlib.asynccontextmanager
async def bound() -> AsyncIterator[GpuCluster]:
    """Give a cluster whose controller works, with a bound pod ``p`` of two GPUs."""
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 2)
    async with working(cluster):
        await asyncio.sleep(1)
        cluster.schedule()
        await asyncio.sleep(1)
        yield cluster


async def test_a_pod_that_says_other_gpus_than_its_claim_holds_is_put_right() -> None:
    async with bound() as cluster:
        true = cluster.note("p", "allocated")
        pod = cluster.get_pod("p")
        pod["metadata"]["annotations"][names.ALLOCATED] = "GPU-of-somebody-else"
        cluster.put(PODS, pod)
        await asyncio.sleep(1)
        assert cluster.note("p", "allocated") == true


async def test_a_pod_that_an_earlier_build_placed_is_not_written_again() -> None:
    async with bound() as cluster:
        pod = cluster.get_pod("p")
        earlier = {names.NODE: "a", names.SCORE: "100", names.BANDWIDTH: "50GB/s", names.AFFINITY: "null"}
        pod["metadata"]["annotations"] |= earlier
        cluster.put(PODS, pod)
        await asyncio.sleep(1)
        assert cluster.get_pod("p")["metadata"]["annotations"] == pod["metadata"]["annotations"]


async def test_a_label_taken_off_a_waiting_pod_ends_its_promise() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 8, schedulerName="nobody")
    async with working(cluster):
        await asyncio.sleep(1)
        assert cluster.claim("p") is not None
        pod = cluster.get_pod("p")
        del pod["metadata"]["labels"]
        cluster.put(PODS, pod)
        await asyncio.sleep(30)
        assert cluster.claim("p") is None


@pytest.mark.slow
async def test_pods_that_never_bind_let_others_have_their_turn() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    for number in range(7):
        cluster.pod(f"bad{number}", 8, schedulerName="nobody")
    cluster.pod("good", 8)
    async with working(cluster):
        for _ in range(8 * 31):
            await asyncio.sleep(1)
            if cluster.claim("good") is not None:
                return
    raise AssertionError("the youngest never had its turn")


@pytest.mark.slow
async def test_pods_that_their_scheduler_never_looks_at_hold_up_their_own_namespace_only() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    for number in range(40):
        cluster.node(f"n{number}", "dgx-h100")
    for number in range(300):
        cluster.pod(f"silent{number}", 1, namespace="silent")
    cluster.pod("good", 1)
    async with working(cluster):
        await asyncio.sleep(5)
        assert cluster.claim("good") is not None
        told = [pod["metadata"]["annotations"].get(names.REASON, "") for pod in cluster.all(PODS)]
        assert any("until the pod's scheduler has bound" in text for text in told)


async def test_a_claim_that_is_being_deleted_for_ever_holds_nothing() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    cluster.pod("p", 8, schedulerName="nobody")
    async with working(cluster):
        await asyncio.sleep(1)
        claim: Object = cluster.claim("p") or {}
        claim["metadata"]["finalizers"] = ["example.com/mine"]
        cluster.put(RESOURCE_CLAIMS, claim)
        cluster.remove(RESOURCE_CLAIMS, claim_of("p"), "default")
        cluster.pod("q", 8)
        await asyncio.sleep(2)
        assert cluster.gpus("q")[0] == "a"


async def test_a_new_leader_asks_for_the_claim_before_it_says_anything_else_of_a_lifted_pod() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 4)
    await cluster.settle()
    said, gpus = cluster.note("p", "allocated"), cluster.gpus("p")
    cluster.restart()
    cluster.deliver(PODS, NODES, RESOURCE_SLICES)
    await cluster.worker.rest()
    assert cluster.client.writes == []
    assert (cluster.note("p", "allocated"), cluster.gpus("p")) == (said, gpus)


async def test_a_lifted_pod_says_what_it_gets_before_its_claim_is_there() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 2)
    await cluster.settle()
    cluster.rival("rival", "a", cluster.gpus("p")[1])
    cluster.client.writes.clear()
    await cluster.settle()
    assert cluster.client.writes[0] == ("delete", claim_of("p"))
    assert cluster.client.writes[-2:] == [("patch", "p"), ("create", claim_of("p"))]


async def test_a_claim_with_our_label_and_no_requests_holds_nothing() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 8)
    await cluster.settle()
    forged: Object = cluster.claim("p") or {}
    cluster.remove(PODS, "p", "default")
    cluster.remove(RESOURCE_CLAIMS, claim_of("p"), "default")
    forged["metadata"] |= {"name": "gpus-forged"}
    del forged["metadata"]["uid"]
    forged["spec"]["devices"]["requests"] = []
    cluster.put(RESOURCE_CLAIMS, forged)
    cluster.pod("q", 8)
    await cluster.settle()
    assert cluster.gpus("q")[0] == "a"


async def test_a_claim_that_was_left_and_whose_pod_cannot_be_lifted_gives_the_gpus_back() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a")
    cluster.pod("p", 8, namespace="strict")
    cluster.client.kill_at = -1
    with pytest.raises(Killed):
        await cluster.settle()
    cluster.restart()
    refuse(cluster, "strict", raising(ApiError(422, "Invalid", "denied by a policy")), verbs=("patch",))
    cluster.pod("good", 8)
    async with working(cluster):
        await asyncio.sleep(5)
        assert cluster.gpus("good")[0] == "a"


@pytest.mark.slow
async def test_claims_that_linger_after_their_promise_ended_hold_up_no_scheduler() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    for number in range(20):
        cluster.node(f"n{number}", "dgx-h100")
    for number in range(130):
        cluster.pod(f"p{number}", 1)
    async with working(cluster):
        await asyncio.sleep(25)
        for claim in cluster.all(RESOURCE_CLAIMS):
            claim["metadata"]["finalizers"] = ["example.com/mine"]
            cluster.put(RESOURCE_CLAIMS, claim)
        await asyncio.sleep(15)
        cluster.pod("good", 1)
        await asyncio.sleep(3)
        assert cluster.claim("good") is not None


async def test_a_claim_that_is_being_deleted_takes_no_cpu() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("a", allocatable={"cpu": "4"})
    cluster.pod("p", 1, schedulerName="nobody", requests={"cpu": "4"})
    async with working(cluster):
        await asyncio.sleep(1)
        claim = cluster.claim("p")
        assert claim is not None
        claim["metadata"]["finalizers"] = ["example.com/mine"]
        cluster.put(RESOURCE_CLAIMS, claim)
        cluster.remove(RESOURCE_CLAIMS, claim_of("p"), "default")
        await asyncio.sleep(1)
        cluster.pod("q", 1, requests={"cpu": "4"})
        await asyncio.sleep(2)
        assert cluster.claim("q") is not None


async def test_a_claim_whose_owner_was_taken_away_is_collected() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 8)
    await cluster.settle()
    cluster.remove(PODS, "p", "default")
    claim = cluster.claim("p")
    assert claim is not None
    claim["metadata"]["ownerReferences"] = []  # kubectl delete pod --cascade=orphan
    cluster.put(RESOURCE_CLAIMS, claim)
    cluster.pod("q", 8)
    await cluster.settle()
    assert cluster.gpus("q")[0] == "a"


@pytest.mark.parametrize("pod_stays", [False, True])
async def test_a_deleted_claim_without_its_pod_loses_what_keeps_it(pod_stays: bool) -> None:
    """The scheduler keeps the GPUs of a pod that was deleted before it was bound while the claim exists."""
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 8)
    await cluster.settle()
    claim = cluster.claim("p")
    assert claim is not None
    claim["metadata"]["finalizers"] = ["foregroundDeletion", "example.com/older"]
    cluster.put(RESOURCE_CLAIMS, claim)
    cluster.remove(RESOURCE_CLAIMS, claim_of("p"), "default")
    if not pod_stays:
        cluster.remove(PODS, "p", "default")
    await cluster.settle()
    assert (cluster.claim("p") is not None) == pod_stays


WHOLE, DYNAMIC, PLACEMENTS = Mode(), Mode(mig="dynamic"), Mode(mig="placements")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wanted", "before", "after", "is_created_again"),
    [
        (("1g.10gb",), DYNAMIC, PLACEMENTS, True),
        (("1g.10gb", "2g.20gb"), PLACEMENTS, DYNAMIC, True),
        (("1g.10gb",), DYNAMIC, DYNAMIC, False),
        (("1g.10gb",), PLACEMENTS, PLACEMENTS, False),
        (4, WHOLE, PLACEMENTS, False),
        (4, PLACEMENTS, DYNAMIC, False),
    ],
)
async def test_a_slice_that_is_another_kind_of_device_now_is_promised_again_at_once(
    wanted: Asked, before: Mode, after: Mode, is_created_again: bool
) -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=before)
    cluster.pod("p", wanted)
    await cluster.settle()
    first = cluster.claim("p")
    cluster.modes["a"] = after
    cluster.publish("a", cluster.machines["a"])
    await cluster.settle()
    second = cluster.claim("p")
    assert first is not None
    assert second is not None
    assert (second["metadata"]["uid"] != first["metadata"]["uid"]) == is_created_again
    cluster.schedule()
    assert cluster.get_pod("p")["spec"].get("nodeName") == "a"


async def test_while_a_pool_is_half_published_no_promise_of_it_ends() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=PLACEMENTS)
    cluster.pod("p", ("1g.10gb",))
    await cluster.settle()
    first = cluster.claim("p")
    assert first is not None
    (name, *_) = [piece["metadata"]["name"] for piece in cluster.all(RESOURCE_SLICES)]
    piece = cluster.find(RESOURCE_SLICES, name)
    assert piece is not None
    piece["spec"]["pool"]["generation"] += 1
    cluster.put(RESOURCE_SLICES, piece)
    await cluster.settle()
    second = cluster.claim("p")
    assert second is not None
    assert second["metadata"]["uid"] == first["metadata"]["uid"]


async def test_a_server_that_wants_a_pause_is_asked_to_let_go_of_no_other_claim() -> None:
    cluster = GpuCluster()
    for node in "ab":
        cluster.node(node)
        cluster.pod(f"p-{node}", 8)
    await cluster.settle()
    for node in "ab":
        cluster.rival(f"theirs-{node}", node, range(8))
    cluster.client.writes.clear()
    cluster.client.refuse["patch"] = [ApiError(429, "TooManyRequests", "later", retry_after_s=20.0)]
    cluster.deliver()
    await cluster.worker.rest()
    claims = [claim_of(f"p-{node}") for node in "ab"]
    written = [write for write in cluster.client.writes if write[1] in claims]
    assert sorted(write for write in written if write[0] == "delete") == [("delete", name) for name in claims]
    assert len([write for write in written if write[0] == "patch"]) == 1


def _meddle(cluster: GpuCluster) -> None:
    """Change each claim that is there."""
    for claim in cluster.all(RESOURCE_CLAIMS):
        claim["metadata"]["annotations"][names.CHOICE] = "{}"
        cluster.put(RESOURCE_CLAIMS, claim)


@pytest.mark.parametrize("gang", [{}, {"gang": "g", "gang-size": "2"}], ids=["alone", "gang"])
async def test_a_promise_that_is_taken_back_again_and_again_costs_a_growing_pause_and_is_told(
    gang: dict[str, str],
) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    for name in "pq":
        cluster.pod(name, 1, wishes=gang)
    told: set[str | None] = set()
    task = asyncio.create_task(cluster.worker.run())
    for step in range(1000):
        cluster.deliver()
        if step < 400:
            _meddle(cluster)
            told |= {cluster.note(name, "reason") for name in "pq"}
        await asyncio.sleep(0.1)
    task.cancel()
    assert told == {
        None,
        "The placement of this pod was revoked several times, the last time because another program changed its claim.",
    }
    assert 8 < cluster.client.writes.count(("create", claim_of("p"))) < 24
    await cluster.settle()
    cluster.schedule()
    assert [cluster.get_pod(name)["spec"].get("nodeName") for name in "pq"] == ["a", "a"]
