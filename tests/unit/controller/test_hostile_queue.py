"""Tenants whose workloads can never start, and what they cost others: looks, time, and GPUs that stand idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Tenant
from dradriver.cluster.nodes.columns import Bools
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from dradriver.queue.pending import PendingWorkload
from tests.fakes.apistore import Object
from tests.fakes.gang_pods import bound, claims, gang, nodes
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.troubles import working

HOSTILE = "hostile"
Adversary = Callable[[GpuCluster], None]


def shared(called: int) -> GpuCluster:
    """Return a cluster of two tenants: one who has had nothing yet, and one who has had much."""
    cluster = nodes([f"n{number:02}" for number in range(called)], promise_s=30, unschedulable_s=5)
    cluster.barrier()
    tenants = {"new": Tenant(namespaces=(HOSTILE,)), "old": Tenant(namespaces=("default",))}
    cluster.worker.follow(Policies(tenants=tenants))
    cluster.worker.tenants.shares.restart({"default": 1e6}, {})
    return cluster


def looks(cluster: GpuCluster) -> list[str]:
    """Return the list of workloads that are looked at for a place from now on."""
    found: list[str] = []
    next_of = cluster.worker.queue.next

    def seen() -> tuple[PendingWorkload, Bools | None] | None:
        if (due := next_of()) is not None:
            found.append(due[0].key[1])
        return due

    cluster.worker.queue.next = seen  # type: ignore[method-assign]
    return found


async def until_all_are_asked(cluster: GpuCluster) -> None:
    """Let the controller see what has happened, and ask all whom that may concern."""
    cluster.deliver()
    while cluster.worker.rechecks_due or cluster.worker.busy:
        await cluster.worker.turn()
        await asyncio.sleep(0.01)


def for_no_scheduler(cluster: GpuCluster) -> None:
    """Have no adversary."""


def unknown_schedulers(cluster: GpuCluster) -> None:
    """Make forty gangs with one pod each that no scheduler binds, each of another name."""
    for number in range(40):
        for rank, scheduler in enumerate(("", f"nobody-{number}")):
            cluster.pod(
                f"{HOSTILE}-{number}-{rank}", 8, namespace=HOSTILE, schedulerName=scheduler,
                wishes={"gang": f"g{number}", "gang-size": "2"},
            )  # fmt: skip


def pods_of_unknown_schedulers(cluster: GpuCluster) -> None:
    """Make forty pods that no scheduler binds."""
    for number in range(40):
        cluster.pod(f"{HOSTILE}-{number}", 8, namespace=HOSTILE, schedulerName="nobody")


def impossible(cluster: GpuCluster) -> None:
    """Make four hundred pods and gangs that fit nowhere, all different."""
    for number in range(200):
        cluster.pod(f"{HOSTILE}-{number}", 8, namespace=HOSTILE, requests={"cpu": f"{65_000 + number}m"})
        for rank in range(2):
            cluster.pod(
                f"{HOSTILE}-{number}-{rank}", 8, namespace=HOSTILE, requests={"cpu": f"{64_000 + number - rank}m"},
                wishes={"gang": f"g{number}", "gang-size": "2", "max-nodes": "1"},
            )  # fmt: skip


async def started_in(adversary: Adversary) -> float:
    """Return after how many seconds the last of three pods and a gang of another tenant is bound."""
    cluster = shared(10)
    adversary(cluster)
    async with working(cluster):
        await asyncio.sleep(5)
        waiting = [*gang(cluster, 2, name="good"), "a", "b", "c"]
        for name in waiting[2:]:
            cluster.pod(name, 4)
        for tenth in range(1, 3000):
            await asyncio.sleep(0.1)
            cluster.schedule()
            if len(bound(cluster, waiting)) == len(waiting):
                return tenth / 10
    raise AssertionError("they never start")


@pytest.mark.parametrize(
    "adversary",
    [unknown_schedulers, pods_of_unknown_schedulers, pytest.param(impossible, marks=pytest.mark.slow)],
)
async def test_a_workload_that_can_never_start_doubles_the_time_of_no_other(adversary: Adversary) -> None:
    assert await started_in(adversary) <= 2 * await started_in(for_no_scheduler)


def labelled(second: int) -> Callable[[Object], object]:
    """Return what gives a pod another label each second."""
    return lambda pod: pod["metadata"]["labels"].update(now=str(second))


@pytest.mark.slow
@pytest.mark.parametrize("changes", ["nothing", "a label", "the pod"])
async def test_a_gang_that_is_always_tried_in_vain_keeps_its_gpus_from_others_for_a_part_of_the_time(
    changes: str,
) -> None:
    cluster = nodes("abc", promise_s=30, unschedulable_s=5)
    cluster.barrier()

    def member(rank: int, **spec: Any) -> None:
        cluster.pod(f"bad-{rank}", 8, wishes={"gang": "bad", "gang-size": "3"}, **spec)

    for rank in range(2):
        member(rank)
    member(2, schedulerName="nobody")
    held_s, lasts_s = 0, 600
    async with working(cluster):
        for second in range(lasts_s):
            await asyncio.sleep(1)
            cluster.schedule()
            if second % 10 == 0 and changes == "a label":
                cluster.store.edit(PODS, ("default", "bad-2"), labelled(second))
            elif second % 10 == 0 and changes == "the pod" and cluster.claim("bad-2") is None:
                cluster.remove(PODS, "bad-2", "default")
                cluster.collect()
                member(2, schedulerName="nobody")
            held_s += bool(claims(cluster, ["bad-0", "bad-1", "bad-2"]))
    assert held_s / lasts_s < 0.4


async def test_a_gang_is_woken_by_what_any_of_its_pods_needs_before_younger_pods() -> None:
    cluster = nodes("ab")
    cluster.rival("of-b", "b", range(8))
    for name, node in (("train-0", "a"), ("train-1", "b")):
        where = {"kubernetes.io/hostname": node}
        cluster.pod(name, 2, wishes={"gang": "train", "gang-size": "2"}, nodeSelector=where)
    await cluster.settle()
    cluster.pod("younger", 2, nodeSelector={"kubernetes.io/hostname": "b"})
    await cluster.settle()
    assert not claims(cluster, ["train-0", "train-1", "younger"])
    cluster.rival("of-b", "b", range(6))
    await until_all_are_asked(cluster)
    await cluster.settle()
    assert claims(cluster, ["train-0", "train-1", "younger"]) == ["train-0", "train-1"]


@pytest.mark.slow
@pytest.mark.parametrize("priority", [0, 1000])
async def test_a_gang_that_costs_much_in_vain_keeps_no_gpus_from_a_small_gang_of_its_namespace(priority: int) -> None:
    cluster = nodes("a")
    for number in range(4):
        cluster.pod(f"runs-{number}", 2)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    for minute, (name, size) in enumerate({"large": 100, "small": 2}.items()):
        wishes = {"gang": name, "gang-size": str(size)}
        for rank in range(size):
            pod = cluster.admitted(f"{name}-{rank}", 1, namespace="other", priority=priority, wishes=wishes)
            pod["metadata"]["creationTimestamp"] = f"2025-12-31T00:0{minute}:00Z"
            cluster.store.put(PODS, pod)
        await cluster.settle()
    for number in range(20):
        cluster.pod(f"single-{number}", 1)
    for number in range(2):
        await cluster.settle()
        cluster.remove(PODS, f"runs-{number}", "default")
        cluster.collect()
    await cluster.settle()
    assert {claim["metadata"]["namespace"] for claim in cluster.all(RESOURCE_CLAIMS)} == {"default", "other"}


async def test_of_pods_that_differ_in_cpu_and_nodes_alone_one_is_looked_at_for_each_change() -> None:
    cluster = shared(2)
    for node in ("n00", "n01"):
        cluster.rival(f"of-{node}", node, range(8))
    for number in range(100):
        cluster.pod(
            f"p{number}", 4, namespace=HOSTILE, requests={"cpu": f"{1000 - number}m"}, wishes={"policy": "nvlink"},
            nodeSelector={"kubernetes.io/hostname": "n00"} if number % 2 else {},
        )  # fmt: skip
    await cluster.settle()
    looked_at = looks(cluster)
    for _ in range(3):
        cluster.rival("of-n00", "n00", (2, 3, 4, 5))  # four GPUs are free, and two of them have no link to the others
        await until_all_are_asked(cluster)
        cluster.rival("of-n00", "n00", range(8))
        await until_all_are_asked(cluster)
    assert len(looked_at) == 3
    assert len(set(looked_at)) == 1, "the oldest"
    cluster.rival("of-n00", "n00", (4, 5, 6, 7))
    await until_all_are_asked(cluster)
    await cluster.settle()
    assert len([claim for claim in cluster.all(RESOURCE_CLAIMS) if claim["metadata"]["namespace"] == HOSTILE]) == 1
