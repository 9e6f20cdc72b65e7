"""Whoever is passed by for too long gets GPUs reserved: who may still use them, what it costs, and that it lasts."""

from __future__ import annotations

import pytest

from dradriver.api.base import names
from dradriver.api.policies.policies_reader import read
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Cap, Preemption, Queue, Tenant
from dradriver.api.policies.tenant_policies import Reservation as Section
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS
from dradriver.queue.reservation_rules import Terms
from tests.fakes.reserving import HOUR_S, WAIT_S, Reserving, passed_by


async def test_who_waits_for_too_long_gets_gpus_that_no_younger_one_is_given() -> None:
    cluster = await passed_by()
    (held,) = cluster.held
    assert (held.who, len(held.gpus)) == (f"default/big/{cluster.get_pod('big')['metadata']['uid']}", 8)
    await cluster.end("s0")
    cluster.pod("late", 4)
    await cluster.settle()
    assert not cluster.runs("late")
    assert "GPUs that are reserved for a workload that has waited" in (cluster.note("late", "reason") or "")
    await cluster.end("s1")
    assert cluster.runs("big")
    await cluster.start()
    await cluster.look()
    assert not cluster.held
    assert not cluster.runs("late")


async def test_before_that_younger_ones_go_on_being_served() -> None:
    cluster = Reserving()
    cluster.node("a")
    await cluster.settle()
    await cluster.run("s0")
    await cluster.run("s1")
    cluster.pod("big", 8)
    await cluster.settle()
    await cluster.later(Terms().bounded_wait_s - 60)
    assert not cluster.held
    await cluster.end("s0")
    cluster.pod("late", 4)
    await cluster.settle()
    assert cluster.runs("late")


async def test_the_reason_names_the_gpus_and_who_is_in_the_way() -> None:
    cluster = await passed_by(s0=4 * HOUR_S)
    reason = cluster.note("big", "reason") or ""
    assert (
        "8 GPUs on a are reserved for this workload. It is not known when they are free: no max-duration on default/s1."
        in reason
    )
    await cluster.end("s1")
    await cluster.look()
    reason = cluster.note("big", "reason") or ""
    assert "8 GPUs on a are reserved for this workload and free by 2027-01-15 " in reason


@pytest.mark.slow
@pytest.mark.parametrize(("deadline_s", "runs"), [(HOUR_S, True), (4 * HOUR_S, False), (None, False)])
async def test_a_younger_one_runs_there_if_it_is_ended_before_the_others_are(
    deadline_s: int | None, runs: bool
) -> None:
    cluster = await passed_by(s1=3 * HOUR_S)
    await cluster.end("s0")
    (held,) = cluster.held
    assert held.expected_at is None, "as it was last looked at"
    await cluster.look()
    cluster.pod("late", 4, **({} if deadline_s is None else {"activeDeadlineSeconds": deadline_s}))
    await cluster.settle()
    assert cluster.runs("late") is runs
    before = cluster.held[0].expected_at
    await cluster.start()
    await cluster.look()
    assert cluster.held[0].expected_at == before, "nobody keeps them for longer"


async def test_while_it_is_unknown_when_the_others_end_only_short_ones_run_there() -> None:
    cluster = await passed_by()
    await cluster.end("s0")
    await cluster.look()
    cluster.pod("long", 4, activeDeadlineSeconds=HOUR_S)
    await cluster.settle()
    assert not cluster.runs("long")
    cluster.pod("short", 4, activeDeadlineSeconds=60)
    await cluster.settle()
    assert cluster.runs("short")


async def test_only_a_higher_priority_goes_first() -> None:
    cluster = await passed_by()
    await cluster.end("s0")
    cluster.pod("low", 4, priority=-1)
    cluster.pod("equal", 4)
    await cluster.settle()
    cluster.pod("high", 4, priority=1)
    await cluster.settle()
    assert [cluster.runs(name) for name in ("low", "equal", "high")] == [False, False, True]


async def test_that_one_might_be_preempted_opens_no_reserved_gpus_to_it() -> None:
    """A budget that its author writes later would keep it there for as long as it runs."""
    cluster = await passed_by()
    preemption = Preemption(enabled=True, min_run_minutes=0)
    cluster.worker.follow(Policies(queue=Queue(preemption=preemption)))
    await cluster.end("s0")
    await cluster.look()
    cluster.pod("low", 4, priority=-1)
    await cluster.settle()
    assert not cluster.runs("low")
    await cluster.end("s1")
    assert cluster.runs("big")


async def test_the_set_is_the_one_that_is_free_first() -> None:
    cluster = await passed_by("a", "b", "c", s0=9 * HOUR_S, s2=2 * HOUR_S, s3=3 * HOUR_S, s4=4 * HOUR_S, s5=HOUR_S)
    assert {node for node, _ in cluster.held[0].gpus} == {cluster.gpus("s2")[0]}


async def test_a_set_of_a_node_is_that_of_its_gpus_that_are_free_first() -> None:
    cluster = Reserving()
    cluster.node("a")
    await cluster.settle()
    for name, ends_s in (("w", None), ("x", 2 * HOUR_S), ("y", None), ("z", 3 * HOUR_S)):
        await cluster.run(name, 2, **({} if ends_s is None else {"activeDeadlineSeconds": ends_s}))
    cluster.pod("big", 4)
    await cluster.settle()
    await cluster.later(WAIT_S)
    (held,) = cluster.held
    uuids = {
        gpu.uuid.lower() for name in "xz" for gpu in cluster.machines["a"].gpus if gpu.index in cluster.gpus(name)[1]
    }
    assert {device for _, device in held.gpus} == uuids
    assert held.expected_at is not None


async def test_who_gets_a_place_elsewhere_frees_what_was_reserved() -> None:
    cluster = await passed_by()
    await cluster.end("s0")
    cluster.node("b")
    await cluster.settle()
    assert cluster.gpus("big")[0] == "b"
    await cluster.start()
    await cluster.look()
    cluster.pod("late", 4)
    await cluster.settle()
    assert (cluster.held, cluster.runs("late")) == ((), True)


@pytest.mark.slow
async def test_gpus_stand_idle_for_no_longer_than_they_may_and_the_next_wait_is_twice_as_long() -> None:
    cluster = await passed_by()
    terms = Terms()
    await cluster.end("s0")
    bound = terms.idle_s * 8
    await cluster.later(bound / 4 - 60)
    assert cluster.held[0].idle_gpu_s == pytest.approx(bound - 4 * 60, abs=4 * 60)
    cluster.pod("late", 4)
    await cluster.settle()
    assert not cluster.runs("late")
    await cluster.later(120)
    assert (cluster.held, cluster.runs("late")) == ((), True)
    await cluster.later(2 * terms.bounded_wait_s - 180)
    assert not cluster.held
    await cluster.later(300)
    assert cluster.held


@pytest.mark.slow
async def test_when_it_has_cost_too_much_it_moves_to_a_place_that_is_free_sooner() -> None:
    cluster = await passed_by("a", "b", s0=9 * HOUR_S, s1=9 * HOUR_S)
    first = {node for node, _ in cluster.held[0].gpus}
    gone = [name for name in ("s0", "s1") if cluster.gpus(name)[0] in first]
    assert len(gone) == 2
    await cluster.end("s0")
    (other,) = {"a", "b"} - first
    for before, name in (("s2", "t"), ("s3", "u")):
        await cluster.end(before)
        there = {"nodeSelector": {"kubernetes.io/hostname": other}}
        await cluster.run(name, 4, activeDeadlineSeconds=4 * HOUR_S, **there)
    await cluster.later(Terms().idle_s * 2 + 60)
    (held,) = cluster.held
    assert {node for node, _ in held.gpus}.isdisjoint(first)
    assert (held.moved, held.idle_gpu_s) == (1, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["gone", "cordoned"])
async def test_when_a_node_goes_it_is_planned_again_and_the_account_goes_on(how: str) -> None:
    cluster = await passed_by("a", "b")
    (first,) = {node for node, _ in cluster.held[0].gpus}
    (on_it,) = [name for name in ("s0", "s2") if cluster.gpus(name)[0] == first]
    await cluster.end(on_it)
    await cluster.later(600)
    cost = cluster.held[0].idle_gpu_s
    assert cost == pytest.approx(2400, abs=240)
    if how == "gone":
        cluster.remove(NODES, first, "")
    else:
        cluster.node(first, None, unschedulable=True)
    await cluster.look()
    (held,) = cluster.held
    assert {node for node, _ in held.gpus} == {"a", "b"} - {first}
    assert held.idle_gpu_s >= cost


async def test_what_lacks_something_else_than_gpus_gets_none_reserved() -> None:
    cluster = Reserving()
    cluster.node("a")
    await cluster.settle()
    await cluster.run("s0", 4)
    cluster.pod("huge", 8, requests={"cpu": "65"})
    cluster.pod("part", {"main": ("1g.10gb",)})
    await cluster.settle()
    await cluster.later(WAIT_S)
    assert not cluster.held


async def test_one_for_whom_there_is_no_set_keeps_no_other_from_one() -> None:
    cluster = Reserving()
    cluster.node("a")
    await cluster.settle()
    await cluster.run("s0", 8)
    cluster.pod("nowhere", 8, nodeSelector={"no": "such"})
    cluster.pod("big", 8)
    await cluster.settle()
    await cluster.later(WAIT_S + 60)
    assert [held.who.split("/")[1] for held in cluster.held] == ["big"]


async def test_where_the_file_says_so_nothing_is_reserved() -> None:
    cluster = await passed_by()
    await cluster.end("s0")
    cluster.worker.follow(Policies(queue=Queue(reservation=Section(after_minutes=0))))
    await cluster.look()
    assert not cluster.held
    await cluster.run("late", 4)
    assert cluster.runs("late")
    cluster.pod("next", 4)
    await cluster.settle()
    await cluster.later(WAIT_S)
    assert not cluster.held


async def test_a_pod_of_that_name_that_comes_later_gets_nothing_of_it() -> None:
    cluster = await passed_by()
    await cluster.end("s0", "big")
    cluster.pod("big", 8)
    await cluster.settle()
    await cluster.look()
    assert not cluster.held


async def test_a_word_alone_declares_nothing() -> None:
    cluster = await passed_by()
    await cluster.end("s0")
    cluster.pod("forged", 4, wishes={"max-duration": "1m"})
    await cluster.settle()
    assert not cluster.runs("forged")
    cluster.store.edit(PODS, ("default", "forged"), lambda pod: pod["spec"].update(activeDeadlineSeconds=60))
    await cluster.settle()
    assert cluster.runs("forged"), names.MAX_DURATION


async def test_whom_its_tenants_cap_parks_nothing_is_reserved_for_any_more() -> None:
    cluster = Reserving()
    file = "tenants: {team: {namespaces: [default], cap: [{gpus: 8}]}, rest: {namespaces: [other]}}"
    cluster.worker.follow(read(file.encode(), source="x"))
    for node in "ab":
        cluster.node(node)
    for number in range(4):
        await cluster.run(f"s{number}", 4, namespace="other")
    cluster.pod("big", 8)
    await cluster.settle()
    await cluster.later(WAIT_S)
    assert len(cluster.held) == 1
    cluster.node("c")
    cluster.rival("by-hand", "c", [0, 1, 2, 3])  # what others chose counts for the cap, too
    await cluster.settle()
    await cluster.look()
    assert "quota: tenant" in (cluster.note("big", "reason") or "")
    assert not cluster.held


async def test_a_grace_without_measure_is_no_end() -> None:
    cluster = Reserving()
    cluster.node("a")
    await cluster.settle()
    for name in ("s0", "s1"):
        await cluster.run(name, 4, activeDeadlineSeconds=60, terminationGracePeriodSeconds=(1 << 63) - 1)
    cluster.pod("big", 8)
    await cluster.settle()
    await cluster.later(WAIT_S)
    assert cluster.held[0].expected_at is None
    assert "no max-duration on default/s0, default/s1." in (cluster.note("big", "reason") or "")
    await cluster.fail_over()
    assert cluster.held, "what is written can be read"


async def test_a_clock_that_is_set_back_keeps_no_pod_waiting() -> None:
    cluster = Reserving()
    cluster.node("a")
    await cluster.settle()
    await cluster.run("s0")
    await cluster.run("s1")
    cluster.pod("big", 8)
    await cluster.settle()
    cluster.now += 30 * 24 * HOUR_S
    await cluster.look()
    cluster.now -= 30 * 24 * HOUR_S
    await cluster.later(WAIT_S)
    assert cluster.held


async def test_gpus_are_reserved_of_the_products_that_a_cap_leaves() -> None:
    cluster = Reserving()
    cluster.node("h", "dgx-h100")
    await cluster.settle()
    cluster.pod("mine", 8, namespace="team")
    await cluster.settle()
    await cluster.start()
    cluster.node("v")
    await cluster.settle()
    await cluster.run("s0", 4)
    await cluster.run("s1", 4)
    tenant = Tenant(namespaces=("team",), cap=(Cap(gpus=8, products=("NVIDIA H100*",)),))
    cluster.worker.follow(Policies(tenants={"t": tenant}))
    cluster.pod("big", 8, namespace="team")
    await cluster.settle()
    await cluster.later(WAIT_S)
    assert [{node for node, _ in held.gpus} for held in cluster.held] == [{"v"}]
    for name in ("s0", "s1"):
        await cluster.end(name)
    assert cluster.find(RESOURCE_CLAIMS, "gpus-big", "team") is not None


async def test_a_claim_that_another_pod_has_too_has_no_end() -> None:
    cluster = await passed_by()
    await cluster.end("s0")
    await cluster.look()
    cluster.pod("short", 4, activeDeadlineSeconds=60)
    await cluster.settle()
    await cluster.start()
    entry = {"name": "x", "resourceClaimName": "gpus-short"}
    squat = {
        "metadata": {"name": "squat", "namespace": "default"},
        "spec": {"nodeName": "a", "resourceClaims": [entry], "containers": [{"name": "m", "image": "i"}]},
        "status": {"phase": "Running"},
    }
    cluster.put(PODS, squat)
    uid = cluster.get_pod("squat")["metadata"]["uid"]
    user = {"resource": "pods", "name": "squat", "uid": uid}
    cluster.store.edit(
        RESOURCE_CLAIMS,
        ("default", "gpus-short"),
        lambda claim: claim["status"].setdefault("reservedFor", []).append(user),
    )
    cluster.store.edit(PODS, ("default", "short"), lambda pod: pod["status"].update(phase="Failed"))
    await cluster.settle()
    await cluster.look()
    assert ", default/short." in (cluster.note("big", "reason") or "")
