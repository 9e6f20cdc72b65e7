"""Preemption: whom others end for, what stands before anybody is told so, and what a crash in between leaves."""

from __future__ import annotations

import asyncio
import datetime
import json
from typing import Any

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Cap, Queue, Tenant
from dradriver.kube.client import ApiError
from dradriver.kube.resources import POD_DISRUPTION_BUDGETS, PODS, RESOURCE_CLAIMS
from tests.fakes.gpucluster import Killed, claim_of
from tests.fakes.preempting import ON, Contested, contested, runs_since
from tests.fakes.sharing import nodes_of
from tests.fakes.troubles import working


async def test_one_of_lower_priority_ends_and_its_gpus_are_the_others() -> None:
    cluster = await contested(("low", 4, 0), ("high", 4, 50))
    cluster.pod("me", 4, priority=10)
    await cluster.settle()
    assert cluster.ending() == ["low"]
    assert cluster.gpus("me") == cluster.gpus("low")
    assert cluster.get_pod("me")["spec"]["schedulingGates"] == []
    assert "preemption of default/low (priority 0), which ends by" in (cluster.note("me", "reason") or "")
    cluster.schedule()
    await cluster.settle()
    assert not cluster.get_pod("me")["spec"].get("nodeName")
    assert cluster.claim("me") is not None
    cluster.gone("low")
    cluster.deliver()
    cluster.schedule()
    await cluster.settle()
    assert cluster.get_pod("me")["spec"]["nodeName"] == "a"
    assert cluster.note("me", "reason") is None
    assert cluster.evicted() == ["low"]


async def test_the_promise_stands_and_the_gate_is_gone_before_anybody_is_told_to_end() -> None:
    cluster = await contested(("low", 8, 0))
    before = len(cluster.client.writes)
    cluster.pod("me", 4, priority=10)
    await cluster.settle()
    assert cluster.client.writes[before:][:3] == [("create", claim_of("me")), ("patch", "me"), ("evict", "low")]
    claim = cluster.claim("me")
    assert claim is not None
    said = json.loads(claim["metadata"]["annotations"][names.PREEMPTS])
    assert [victim[1] for victim in said["victims"]] == ["low"]
    conditions = cluster.get_pod("low")["status"]["conditions"]
    assert ("DisruptionTarget", "EvictionByEvictionAPI") in [(one["type"], one.get("reason")) for one in conditions]


@pytest.mark.parametrize("changes", [{"priority": 0}, {"priority": 10, "preemptionPolicy": "Never"}, {}])
async def test_no_pod_ends_for_an_equal_nor_for_one_that_never_preempts(changes: dict[str, object]) -> None:
    cluster = await contested(("low", 8, 0))
    cluster.pod("me", 4, **changes)
    await cluster.settle()
    assert cluster.ending() == []
    assert cluster.claim("me") is None


async def test_no_pod_ends_while_it_is_off() -> None:
    cluster = await contested(("low", 8, 0))
    cluster.worker.follow(Policies())
    cluster.pod("me", 4, priority=10)
    await cluster.settle()
    assert cluster.ending() == []


@pytest.mark.parametrize("write", range(1, 5))
@pytest.mark.parametrize("stored", [True, False])
async def test_a_leader_that_dies_at_any_write_leaves_what_the_next_goes_on_with(write: int, stored: bool) -> None:
    cluster = await contested(("one", 4, 0), ("two", 4, 0))
    cluster.pod("me", 8, priority=10)
    cluster.client.kill_at = (len(cluster.client.writes) + write) * (-1 if stored else 1)
    with pytest.raises(Killed):
        await cluster.settle()
    ended = cluster.ending()
    assert not ended or cluster.claim("me") is not None
    cluster.restart()
    await cluster.settle()
    assert sorted(cluster.ending()) == ["one", "two"]
    assert not set(ended) & set(cluster.evicted())  # nobody twice
    cluster.gone("one", "two")
    cluster.deliver()
    cluster.schedule()
    await cluster.settle()
    assert cluster.get_pod("me")["spec"]["nodeName"] == "a"


async def test_what_is_free_goes_to_no_other_meanwhile() -> None:
    cluster = await contested(("one", 4, 0), ("two", 4, 0))
    cluster.pod("me", 8, priority=10)
    await cluster.settle()
    cluster.gone("one")
    cluster.pod("other", 4, priority=5)
    await cluster.settle()
    assert cluster.claim("other") is None
    cluster.gone("two")
    cluster.deliver()
    cluster.schedule()
    await cluster.settle()
    assert cluster.get_pod("me")["spec"]["nodeName"] == "a"


async def test_where_another_is_given_the_gpus_the_promise_ends() -> None:
    cluster = await contested(("low", 8, 0))
    cluster.pod("me", 8, priority=10)
    await cluster.settle()
    cluster.gone("low")
    cluster.rival("static", "a", [0])  # what only the scheduler decides was faster
    await cluster.settle()
    assert cluster.claim("me") is None
    assert cluster.evicted() == ["low"]


async def test_a_preemptor_that_vanishes_ends_no_other_pod() -> None:
    cluster = await contested(("one", 4, 0), ("two", 4, 0))
    cluster.pod("me", 8, priority=10)
    cluster.client.kill_at = -(len(cluster.client.writes) + 3)
    with pytest.raises(Killed):
        await cluster.settle()
    assert len(cluster.ending()) == 1
    cluster.remove(PODS, "me", "default")
    cluster.collect()
    cluster.restart()
    await cluster.settle()
    assert len(cluster.ending()) == 1
    assert cluster.claim("me") is None


async def test_switched_off_in_between_no_other_is_told_and_what_is_whole_is_given_back() -> None:
    cluster = await contested(("one", 4, 0), ("two", 4, 0))
    cluster.pod("me", 8, priority=10)
    cluster.client.kill_at = -(len(cluster.client.writes) + 2)  # lifted, and nobody told
    with pytest.raises(Killed):
        await cluster.settle()
    cluster.restart()
    cluster.worker.follow(Policies())
    await cluster.settle()
    assert cluster.ending() == []
    assert cluster.claim("me") is None
    assert "switched off" in (cluster.note("me", "reason") or "")


async def test_a_disruption_budget_keeps_its_pods_and_is_named() -> None:
    cluster = await contested(("low", 8, 0))
    cluster.store.edit(PODS, ("default", "low"), lambda pod: pod["metadata"]["labels"].update(app="kept"))
    cluster.put(
        POD_DISRUPTION_BUDGETS,
        {
            "metadata": {"name": "kept", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "kept"}}},
            "status": {"disruptionsAllowed": 0},
        },
    )
    cluster.pod("me", 8, priority=10)
    await cluster.settle()
    assert cluster.ending() == []
    assert cluster.claim("me") is None
    assert "PodDisruptionBudget 'kept' allows 0" in (cluster.note("me", "reason") or "")


async def test_a_budget_that_forbids_it_only_when_it_is_asked_has_another_chosen() -> None:
    cluster = await contested(("one", 8, 0), ("two", 8, 5), nodes="ab")
    cluster.client.refuse["evict"] = [
        ApiError(429, "TooManyRequests", "it would violate the budget", request="POST /pods/one/eviction")
    ]
    cluster.pod("me", 8, priority=10)
    async with working(cluster):
        await asyncio.sleep(40)
    assert cluster.ending() == ["two"]
    assert cluster.evicted() == ["one", "two"]


async def test_one_that_is_gone_and_was_not_seen_to_go_is_told_once() -> None:
    cluster = await contested(("low", 8, 0))
    cluster.client.refuse["evict"] = [ApiError(404, "NotFound", "it is gone", request="POST /pods/low/eviction")] * 50
    cluster.pod("me", 8, priority=10)
    async with working(cluster):
        await asyncio.sleep(10)
    assert cluster.evicted() == ["low"]


async def test_without_the_right_no_pod_is_a_victim_and_it_says_so() -> None:
    cluster = await contested(("low", 8, 0))
    cluster.client.refuse["evict"] = [ApiError(403, "Forbidden", "may not")]
    cluster.pod("me", 8, priority=10)
    async with working(cluster):
        await asyncio.sleep(40)
    assert cluster.ending() == []
    assert cluster.claim("me") is None
    assert "controller.preemption" in (cluster.note("me", "reason") or "")
    assert [claim["metadata"]["name"] for claim in cluster.all(RESOURCE_CLAIMS)] == [claim_of("low")]


def terms(cluster: Contested, **changes: Any) -> None:
    on = msgspec.structs.replace(ON.queue.preemption, **changes)
    tenants = {"team": Tenant(namespaces=("default",), highest_priority=changes.get("highest"))}
    cluster.worker.follow(Policies(queue=Queue(preemption=on), tenants=tenants))


async def test_no_more_end_within_a_minute_than_the_file_says_but_for_one_who_needs_more() -> None:
    cluster = await contested(("one", 4, 0), ("two", 4, 0))
    terms(cluster, workloads_per_minute=1)
    cluster.pod("me", 4, priority=10)
    cluster.pod("other", 4, priority=10)
    await cluster.settle()
    assert len(cluster.ending()) == 1
    cluster = await contested(("one", 4, 0), ("two", 4, 0))
    terms(cluster, workloads_per_minute=1)
    cluster.pod("me", 8, priority=10)
    await cluster.settle()
    assert len(cluster.ending()) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"min_run_minutes": 10.0},
        {"unpreemptable_classes": ("serving",)},
        {"unpreemptable_tenants": ("team",)},
    ],
)
async def test_whom_the_file_spares(changes: dict[str, Any]) -> None:
    cluster = await contested()
    await cluster.run(("low", 8, 0), priorityClassName="serving")
    began = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
    cluster.store.edit(PODS, ("default", "low"), lambda pod: pod["status"].update(startTime=began))
    terms(cluster, **changes)
    cluster.pod("me", 8, priority=10)
    await cluster.settle()
    assert cluster.ending() == []
    terms(cluster)
    cluster.pod("another", 8, priority=20)
    await cluster.settle()
    assert cluster.ending() == ["low"]


async def test_a_tenants_highest_priority_bounds_for_whom_others_end_and_what_makes_them_safe() -> None:
    cluster = await contested(("low", 8, 50))
    on = ON.queue.preemption
    cluster.worker.follow(
        Policies(
            queue=Queue(preemption=on),
            tenants={"a": Tenant(namespaces=("team-a",), highest_priority=40), "d": Tenant(namespaces=("default",))},
        )
    )
    cluster.pod("me", 8, priority=1000, namespace="team-a")
    await cluster.settle()
    assert cluster.ending() == []
    cluster.worker.follow(
        Policies(
            queue=Queue(preemption=on),
            tenants={"d": Tenant(namespaces=("default",), highest_priority=40)},
        )
    )
    await cluster.settle()
    assert cluster.ending() == ["low"]


async def test_no_pod_ends_while_it_is_not_known_whether_its_tenant_is_spared() -> None:
    cluster = await contested()
    await cluster.run(("low", 8, 0))
    on = msgspec.structs.replace(ON.queue.preemption, unpreemptable_tenants=("serving",))
    tenants = {"serving": Tenant(namespace_labels={"team": "serving"}), "ours": Tenant(namespaces=("ours",))}
    cluster.worker.follow(Policies(queue=Queue(preemption=on), tenants=tenants))
    cluster.pod("me", 8, priority=10, namespace="ours")
    await cluster.settle()
    assert cluster.ending() == []
    cluster.worker.namespace_changed("default", {"team": "other"})
    cluster.worker.follow(Policies(queue=Queue(preemption=on), tenants=tenants))
    await cluster.settle()
    assert cluster.ending() == ["low"]


@pytest.mark.parametrize(
    ("limits", "ends"),
    [((), ["low-a"]), ((Cap(gpus=8, products=("NVIDIA H100*",)),), ["low-b"]), ((Cap(gpus=8),), [])],
)
async def test_a_cap_saves_only_workloads_that_have_gpus_of_its_products(
    limits: tuple[Cap, ...], ends: list[str]
) -> None:
    cluster = Contested()
    for node, profile, priority in (("a", "dgx-h100", 0), ("b", "dgx-a100", 5)):
        cluster.node(node, profile)
        await cluster.run((f"low-{node}", 8, priority))
    cluster.worker.follow(msgspec.structs.replace(ON, tenants={"mine": Tenant(namespaces=("default",), cap=limits)}))
    cluster.pod("me", 8, priority=10)
    await cluster.settle()
    assert cluster.ending() == ends


async def test_nodes_of_a_preemption_are_in_the_place_where_pods_must_be_with_the_pod() -> None:
    zone = "topology.kubernetes.io/zone"
    cluster = Contested()
    for node, of in (("a", "z1"), ("b", "z2"), ("c", "z1")):
        cluster.node(node, labels={zone: of})
    await cluster.run(("low-0", 8, 0), ("low-1", 8, 0), ("low-2", 8, 0))
    for low in ("low-0", "low-1", "low-2"):
        runs_since(cluster, low, 700)  # equally long, so that the first node by name is chosen
    rule = {"topologyKey": zone, "labelSelector": {"matchLabels": {"app": "leader"}}}
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}
    cluster.pod("follower", 1, affinity=near)
    leader = cluster.admitted("leader", 8, priority=100)
    leader["metadata"]["labels"]["app"] = "leader"
    cluster.put(PODS, leader)
    await cluster.settle()
    assert cluster.evicted() == ["low-0"]
    assert nodes_of(cluster, "leader") == ["a", "c"]
