"""Whose turn it is: who was whole first; a gang keeps its turn when it is tried in vain, but not for ever."""

from __future__ import annotations

import asyncio

import pytest

from dradriver.queue.pending import IN_TURN
from tests.fakes.gang_pods import gang
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.troubles import working

LONGEST_S = 31  # that a promise lasts here, the gang's pods counted


def of(cluster: GpuCluster, name: str, pods: int) -> None:
    """Create a workload of so many pods, of which each takes a node; no scheduler ever binds one."""
    if pods == 1:
        cluster.pod(f"{name}-0", 8, schedulerName="nobody")
    else:
        gang(cluster, pods, name=name)


async def holder(cluster: GpuCluster, workloads: str, seconds: int, *, but: str = "") -> str:
    """Return which workload is the next to have claims, another one than before."""
    for _ in range(seconds):
        await asyncio.sleep(1)
        have = [workload for workload in workloads if cluster.claim(f"{workload}-0") is not None]
        if have and have != [but]:
            assert len(have) == 1
            return have[0]
    raise AssertionError("nobody had a turn")


@pytest.mark.slow
async def test_a_gang_that_was_tried_in_vain_is_first_again_once_it_has_backed_off() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    for node in "xy":
        cluster.node(node)
    for name in "abc":
        of(cluster, name, 2)
    async with working(cluster):
        turns = [await holder(cluster, "abc", 5)]
        for _ in range(3 * IN_TURN):
            turns.append(await holder(cluster, "abc", 2 * LONGEST_S, but=turns[-1]))
    assert "".join(turns) == "abababc", "another goes first while it backs off, and only then"


@pytest.mark.slow
@pytest.mark.parametrize("pods", [1, 2])
async def test_who_is_always_tried_in_vain_is_behind_all_others_after_a_few_times(pods: int) -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    for node in "xy"[:pods]:
        cluster.node(node)
    for name in "abcdefgh":
        of(cluster, name, pods)
    async with working(cluster):
        assert await holder(cluster, "h", 8 * (IN_TURN + 1) * LONGEST_S) == "h"


async def test_a_gang_is_as_old_as_the_pod_that_made_it_whole() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("x")
    gang(cluster, 2, name="slow", there=1)
    async with working(cluster):
        await asyncio.sleep(5)
        gang(cluster, 2, name="quick")
        await asyncio.sleep(5)
        cluster.pod("slow-1", 8, wishes={"gang": "slow", "gang-size": "2"})
        await asyncio.sleep(5)
        cluster.node("y")
        await asyncio.sleep(2)
        assert cluster.claim("quick-0") is not None
        assert cluster.claim("slow-0") is None


@pytest.mark.slow
async def test_single_pods_that_are_always_tried_in_vain_hold_up_a_good_one_once_each() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    cluster.node("x")
    for name in "abcdefghij":
        of(cluster, name, 1)
    cluster.pod("good", 8)
    async with working(cluster):
        for _ in range(10 * LONGEST_S):
            await asyncio.sleep(1)
            if cluster.claim("good") is not None:
                return
    raise AssertionError("the good one had no turn")
