"""Gangs while others act at the same time: what stories that interleave with the controller found, one by one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.api.base import gang_barrier_device, names
from dradriver.controller.writing.reasons import AGAIN_S
from dradriver.kube.client import ApiError
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from dradriver.reason import Cause, Reason
from tests.fakes.apistore import Event, Object
from tests.fakes.gang_pods import bound, claims, gang, lifted, nodes
from tests.fakes.gpucluster import GpuCluster, Killed, claim_of
from tests.unit.controller.test_gang_barrier import cluster_of, filler


async def test_pods_that_another_leader_lifts_at_the_same_time_are_no_error() -> None:
    cluster = nodes("abc")
    pods = gang(cluster, 3)

    def lift(pod: Object) -> None:
        pod["spec"]["schedulingGates"] = []

    def happened(event: Event) -> None:
        nominated = event.new is not None and event.new.get("status", {}).get("nominatedNodeName")
        if event.plural == PODS.plural and nominated and lifted(cluster, pods) == []:
            cluster.store.edit(PODS, ("default", "train-0"), lift)
            cluster.deliver(PODS)

    cluster.store.listeners.append(happened)
    await cluster.settle()
    assert lifted(cluster, pods) == pods
    assert [cluster.note(pod, "reason") for pod in pods] == [None] * 3


async def test_no_gate_opens_while_a_claim_of_the_plan_is_gone_again() -> None:
    cluster = nodes("abc")
    pods = gang(cluster, 3)
    taken: list[str] = []
    there: list[int] = []

    def happened(event: Event) -> None:
        made = [pod for pod in pods if cluster.claim(pod) is not None]
        if event.plural == RESOURCE_CLAIMS.plural and event.old is None and len(made) == 2 and not taken:
            taken.append(made[0])  # as if its GPUs were given to another pod while another creation hung
            cluster.store.remove(RESOURCE_CLAIMS, ("default", claim_of(made[0])))
            cluster.deliver(RESOURCE_CLAIMS)
        if event.plural == PODS.plural and event.new is not None and not event.new["spec"].get("schedulingGates"):
            living = [claim for pod in pods if (claim := cluster.claim(pod)) is not None]
            there.append(sum("deletionTimestamp" not in claim["metadata"] for claim in living))

    cluster.store.listeners.append(happened)
    await cluster.settle()
    assert taken
    assert lifted(cluster, pods) == pods
    assert set(there) == {3}


async def test_a_pod_that_came_to_others_is_not_lifted_where_these_ended_while_its_claim_was_made() -> None:
    cluster = nodes("abc")
    pods = gang(cluster, 2)
    for _ in range(2):
        await cluster.settle()
        cluster.schedule()
    assert bound(cluster, pods) == pods
    cluster.remove(PODS, "train-1", "default")
    cluster.collect()

    def happened(event: Event) -> None:
        if event.plural == RESOURCE_CLAIMS.plural and event.old is None:
            cluster.remove(PODS, "train-0", "default")
            cluster.deliver(PODS)

    cluster.store.listeners.append(happened)
    cluster.pod("train-1", 8, wishes={"gang": "train", "gang-size": "2"})
    await cluster.settle()
    assert lifted(cluster, ["train-1"]) == []
    assert claims(cluster, ["train-1"]) == []


async def test_a_plan_of_fewer_than_the_gang_s_size_is_given_back_before_any_gate_opens() -> None:
    cluster = nodes("ab")
    pods = gang(cluster, 1)
    cluster.client.kill_at = -1
    with pytest.raises(Killed):
        await cluster.settle()
    assert claims(cluster, pods) == pods
    wishes = {"gang": "train", "gang-size": "2"}  # as if a leader that took others for running had placed it alone
    said = cluster.admitted("train-0", 8, wishes=wishes)["metadata"]["annotations"]
    cluster.store.edit(PODS, ("default", "train-0"), lambda pod: pod["metadata"].update(annotations=said))
    cluster.restart()
    await cluster.settle()
    assert (lifted(cluster, pods), claims(cluster, pods)) == ([], [])
    cluster.pod("train-1", 8, wishes=wishes)
    await cluster.settle()
    assert lifted(cluster, [*pods, "train-1"]) == [*pods, "train-1"]


async def test_a_gang_that_cannot_replace_a_lost_member_holds_nothing_after_its_deadline() -> None:
    cluster = cluster_of("abc", promise_s=30.0)
    pods = gang(cluster, 3)
    await cluster.settle()
    cluster.schedule()
    node = cluster.gpus("train-2")[0]
    cluster.remove(PODS, "train-2", "default")
    cluster.collect()
    cluster.rival("theirs", node, range(8))
    cluster.pod("train-2", 8, wishes={"gang": "train", "gang-size": "3"})
    cluster.restart()  # the next leader never saw it waiting for its seats
    await cluster.settle()
    assert claims(cluster, pods) == ["train-0", "train-1"]
    for _ in range(8):
        await asyncio.sleep(5)
        await cluster.settle()
        cluster.schedule()
        cluster.collect()
    await cluster.settle()
    assert claims(cluster, pods) == []
    assert bound(cluster, pods) == []


async def test_what_a_restarted_scheduler_does_not_let_go_of_goes_all_the_same() -> None:
    cluster = cluster_of("ab", promise_s=30.0)
    pods = gang(cluster, 2)
    await cluster.settle()
    cluster.schedule()
    cluster.store.remove(RESOURCE_CLAIMS, ("default", claim_of("train-0")))  # somebody does; it stays while it is used
    await cluster.settle()
    assert [cluster.claim(pod) is not None for pod in pods] == [True, True]
    for _ in range(4):  # the scheduler was started anew, and looks at no pod of such a claim
        await asyncio.sleep(6)
        await cluster.settle()
    assert cluster.claim("train-0") is None or "deletionTimestamp" not in cluster.claim("train-0")["metadata"]  # type: ignore[index]
    for _ in range(8):
        cluster.schedule()
        await cluster.settle()
        await asyncio.sleep(5)
    assert bound(cluster, pods) == pods


async def test_a_leader_that_sees_old_pods_takes_nothing_from_those_that_run() -> None:
    cluster = nodes("abc")
    pods = gang(cluster, 3)
    cluster.deliver(PODS)
    other = cluster.leader
    cluster.restart()
    await cluster.settle()
    cluster.schedule()
    assert bound(cluster, pods) == pods
    cluster.node("a", None, unschedulable=True)  # nobody would be lifted for it now
    cluster.lead_again(other)
    cluster.deliver(*(source.resource for source in cluster.sources if source.resource != PODS))
    await cluster.worker.rest()
    assert all("deletionTimestamp" not in claim["metadata"] for claim in cluster.store.all(RESOURCE_CLAIMS))


async def test_the_claim_of_a_pod_that_is_bound_unseen_is_not_taken_back() -> None:
    cluster = cluster_of("ab", promise_s=30.0)
    pods = gang(cluster, 2)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    cluster.schedule()
    assert bound(cluster, pods) == pods
    for _ in range(8):  # the reflector of pods is frozen
        await asyncio.sleep(10)
        cluster.deliver(RESOURCE_CLAIMS)
        await cluster.worker.rest()
    assert all("deletionTimestamp" not in claim["metadata"] for claim in cluster.store.all(RESOURCE_CLAIMS))
    told = [entry for claim in cluster.store.all(RESOURCE_CLAIMS) for entry in claim["status"]["devices"]]
    assert {met["type"] for entry in told for met in entry["conditions"]} == {gang_barrier_device.GO}


async def test_a_gang_with_a_range_begins_with_fewer_though_some_of_its_pods_were_lifted_before() -> None:
    cluster = cluster_of("abc", promise_s=30.0)
    pods = gang(cluster, 3)
    for pod in pods:
        cluster.remove(PODS, pod, "default")
        cluster.pod(pod, 8, wishes={"gang": "train", "gang-size": "1-3"})
    await cluster.settle()
    cluster.schedule()
    node = cluster.gpus("train-2")[0]
    cluster.remove(PODS, "train-2", "default")
    cluster.collect()
    cluster.rival("theirs", node, range(8))
    cluster.pod("train-2", 8, wishes={"gang": "train", "gang-size": "1-3"})
    for _ in range(16):
        await cluster.settle()
        cluster.schedule()
        cluster.collect()
        await asyncio.sleep(5)
    assert bound(cluster, pods) == ["train-0", "train-1"]


async def test_when_pods_were_told_something_last_is_known_over_the_start_of_their_gang() -> None:
    cluster = cluster_of("a")
    pods = gang(cluster, 2)
    await cluster.settle()
    assert sum(cluster.worker.reasons.counted().values()) == 2
    cluster.node("b")
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()  # they are told to go, and looked at one by one from now on
    assert not any(cluster.worker.reasons.counted().values())
    for pod in pods:
        cluster.worker.reasons.want(cluster.worker.picture.pods["default", pod], Reason(Cause.POD, "the next thing"))
    telling = asyncio.create_task(cluster.worker.reasons.run())
    await asyncio.sleep(AGAIN_S - 1)
    assert [cluster.note(pod, "reason") for pod in pods] == [None, None], "it is not told the next thing at once"
    await asyncio.sleep(2)
    assert [cluster.note(pod, "reason") for pod in pods] == ["the next thing"] * 2
    telling.cancel()


def living(cluster: GpuCluster, pods: list[str]) -> int:
    """How many claims are there that are not on their way out."""
    found = [claim for pod in pods if (claim := cluster.claim(pod)) is not None]
    return sum("deletionTimestamp" not in claim["metadata"] for claim in found)


async def test_no_gate_opens_once_a_claim_was_taken_back_while_a_nomination_hung() -> None:
    cluster = nodes("abc")
    pods = gang(cluster, 3)
    taken: list[str] = []
    there: list[int] = []

    def happened(event: Event) -> None:
        if event.plural != PODS.plural or event.new is None:
            return
        if event.new.get("status", {}).get("nominatedNodeName") and not taken:
            taken.append("train-2")
            cluster.store.remove(RESOURCE_CLAIMS, ("default", claim_of("train-2")))
            cluster.deliver(RESOURCE_CLAIMS)
        if not event.new["spec"].get("schedulingGates"):
            there.append(living(cluster, pods))

    cluster.store.listeners.append(happened)
    await cluster.settle()
    assert taken
    assert lifted(cluster, pods) == pods
    assert set(there) == {3}


async def test_who_is_gated_still_waits_until_the_plan_is_whole_again() -> None:
    cluster = cluster_of("abc")
    pods = gang(cluster, 3)
    cluster.client.kill_at = -4  # three claims, and the first pod is lifted
    with pytest.raises((Killed, BaseExceptionGroup)):
        await cluster.settle()
    (first,) = lifted(cluster, pods)
    gated = [pod for pod in pods if pod != first]
    cluster.store.remove(RESOURCE_CLAIMS, ("default", claim_of(gated[0])))
    cluster.collect()
    there: list[int] = []

    def happened(event: Event) -> None:
        if event.plural == PODS.plural and event.old is not None and event.new is not None:
            gates = [obj["spec"].get("schedulingGates") for obj in (event.old, event.new)]
            if gates[0] and not gates[1]:
                there.append(living(cluster, pods))

    cluster.store.listeners.append(happened)
    cluster.restart()
    await cluster.settle()
    assert lifted(cluster, pods) == pods
    assert there == [3, 3]


async def test_a_gang_that_a_strangers_claim_holds_up_holds_nothing() -> None:
    cluster = cluster_of("abc")
    pods = gang(cluster, 3)
    cluster.client.kill_at = -2
    with pytest.raises((Killed, BaseExceptionGroup)):
        await cluster.settle()
    (lacks,) = [pod for pod in pods if cluster.claim(pod) is None]
    metadata = {"name": claim_of(lacks), "namespace": "default"}
    cluster.put(RESOURCE_CLAIMS, {"metadata": metadata, "spec": {"devices": {}}})
    cluster.restart()
    await cluster.settle()
    assert claims(cluster, pods) == [lacks]
    assert "does not belong to this pod" in (cluster.note(pods[0], "reason") or "")


async def test_a_late_pod_is_tried_again_on_a_node_where_the_scheduler_refused_it() -> None:
    cluster = GpuCluster(promise_s=30.0, unschedulable_s=1.0)
    for node in "ab":
        cluster.node(node)
    pods = gang(cluster, 2)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    node = cluster.gpus("train-1")[0]
    cluster.remove(PODS, "train-1", "default")
    cluster.collect()
    cluster.pod("train-1", 8, wishes={"gang": "train", "gang-size": "2"}, requests={"cpu": "32"})
    await cluster.settle()
    filler(cluster, node)
    for turn in range(30):
        cluster.schedule()
        await cluster.settle()
        cluster.collect()
        await asyncio.sleep(2)
        if turn == 5:
            cluster.remove(PODS, f"filler-{node}", "other")
    assert bound(cluster, pods) == pods


async def test_a_gang_with_a_range_begins_with_those_that_may_go_anywhere_where_others_may_not() -> None:
    cluster = cluster_of("ab", promise_s=30.0)
    pods = ["train-0", "train-1"]
    cluster.pod(
        "train-0", 8, wishes={"gang": "train", "gang-size": "1-2"}, nodeSelector={"kubernetes.io/hostname": "a"}
    )
    cluster.pod("train-1", 8, wishes={"gang": "train", "gang-size": "1-2"})
    cluster.rival("theirs", "a", range(8))
    for _ in range(8):
        await cluster.settle()
        cluster.schedule()
        await asyncio.sleep(5)
    assert bound(cluster, pods) == ["train-1"]


async def test_two_leaders_do_not_undo_each_others_plans_as_fast_as_they_can() -> None:
    cluster = nodes("ab")
    pods = gang(cluster, 2)
    cluster.client.kill_at = -1  # one of two claims
    with pytest.raises((Killed, BaseExceptionGroup)):
        await cluster.settle()
    (made,) = cluster.store.all(RESOURCE_CLAIMS)
    (held,) = claims(cluster, pods)
    cluster.restart()
    cluster.client.refuse["create"] = [ApiError(403, "Forbidden", "it sees an older state")] * 1000
    for _ in range(100):
        cluster.deliver()
        await cluster.worker.rest()
        if cluster.claim(held) is None:  # the other leader makes it anew
            unnamed = {key: text for key, text in made["metadata"].items() if key not in ("uid", "deletionTimestamp")}
            cluster.put(RESOURCE_CLAIMS, made | {"metadata": unnamed})
        await asyncio.sleep(0.05)
    undone = cluster.client.writes.count(("delete", claim_of(held)))
    assert 1 < undone < 10


async def test_no_gate_opens_while_claims_are_being_taken_back_because_a_write_hung() -> None:
    cluster = nodes("abc")
    pods = gang(cluster, 3)
    there: list[int] = []
    create, delete = cluster.client.create, cluster.client.delete
    slow = {claim_of("train-2")}

    async def slow_create(resource: Any, obj: Any, **how: Any) -> Any:
        name = obj["metadata"]["name"]
        if name in slow:
            slow.discard(name)
            await asyncio.sleep(1.05)
        return await create(resource, obj, **how)

    async def slow_delete(resource: Any, name: str, **how: Any) -> bool:
        done = await delete(resource, name, **how)
        cluster.collect()
        await asyncio.sleep(3)  # the answer comes late
        return done

    def happened(event: Event) -> None:
        if event.plural == PODS.plural and event.old is not None and event.new is not None:
            gates = [obj["spec"].get("schedulingGates") for obj in (event.old, event.new)]
            if gates[0] and not gates[1]:
                there.append(living(cluster, pods))

    cluster.client.create, cluster.client.delete = slow_create, slow_delete  # type: ignore[method-assign]
    cluster.store.listeners.append(happened)
    cluster.deliver()
    running = asyncio.create_task(cluster.worker.run())
    for turn in range(300):
        await asyncio.sleep(0.1)
        cluster.deliver(*([PODS] if turn < 30 else []))  # the reflector of claims is late
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert lifted(cluster, pods) == pods
    assert set(there) == {3}


async def test_no_gate_opens_while_a_pod_of_the_plan_is_missing() -> None:
    """Of three pods one is lifted, one was not when its claim was taken back, and one is gone."""
    cluster = cluster_of("abc")
    pods = gang(cluster, 3)
    await cluster.settle()
    assert lifted(cluster, pods) == pods
    gated = cluster.get_pod("train-1")
    gated["spec"]["schedulingGates"] = [{"name": names.GATE}]
    cluster.put(PODS, gated)
    cluster.remove(RESOURCE_CLAIMS, claim_of("train-1"), "default")
    cluster.remove(PODS, "train-0", "default")
    cluster.collect()
    await cluster.settle()
    assert claims(cluster, ["train-1"]) == []
    assert cluster.note("train-1", "reason") == "Waiting for more pods of the gang: 2 of 3 pods exist."
    gang(cluster, 3, there=1)
    await cluster.settle()
    assert lifted(cluster, pods) == pods
