"""When pods are ended, and what they hold is free, at the latest: by what the kubelet keeps, and nothing else."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from dradriver.api.base.objects import seconds
from dradriver.cluster.derived.end_times import OVERDUE_S, ends_at, given_at
from dradriver.cluster.nodes.pod_demands import BEGINS_S, FREED_S
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Store
from tests.fakes.gang_pods import gang
from tests.fakes.gpucluster import GpuCluster, claim_of

NOW = 1_800_000_000.0


def said(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat().replace("+00:00", "Z")


def at_now() -> GpuCluster:
    cluster = GpuCluster()
    cluster.store = Store(lambda: datetime.datetime.fromtimestamp(NOW, datetime.UTC))
    cluster.restart()
    return cluster


async def running(**more: Any) -> GpuCluster:
    """Return a cluster with a pod ``p`` that runs with GPUs since a minute ago."""
    cluster = at_now()
    cluster.node("a")
    cluster.pod("p", 4, **more)
    await cluster.settle()
    cluster.schedule()
    cluster.store.edit(PODS, ("default", "p"), lambda pod: pod["status"].update(startTime=said(NOW - 60)))
    await cluster.settle()
    return cluster


def ends(cluster: GpuCluster, name: str = "p") -> float | None:
    return ends_at(cluster.worker.picture, ("default", claim_of(name)), NOW)


async def test_a_pod_counts_from_its_start_on_its_node() -> None:
    assert ends(await running()) is None
    assert ends(await running(activeDeadlineSeconds=600)) == NOW - 60 + 600 + 30 + FREED_S
    assert ends(await running(activeDeadlineSeconds=600, terminationGracePeriodSeconds=1)) == NOW - 60 + 601 + FREED_S


async def test_one_that_is_deleted_ends_with_its_grace() -> None:
    cluster = await running()
    leaving = {"finalizers": ["example.com/a"], "deletionTimestamp": said(NOW + 20)}
    cluster.store.edit(PODS, ("default", "p"), lambda pod: pod["metadata"].update(leaving))
    await cluster.settle()
    assert ends(cluster) == NOW + 20 + FREED_S


async def test_no_plan_counts_on_an_end_that_has_not_come() -> None:
    cluster = await running(activeDeadlineSeconds=1, terminationGracePeriodSeconds=0)
    assert ends(cluster) == NOW - 59 + FREED_S
    picture = cluster.worker.picture
    assert ends_at(picture, ("default", claim_of("p")), NOW - 58 + FREED_S + OVERDUE_S) is None


async def test_one_that_has_not_started_begins_soon_after_it_was_given_gpus() -> None:
    cluster = await running(activeDeadlineSeconds=600)
    cluster.store.edit(PODS, ("default", "p"), lambda pod: pod["status"].pop("startTime"))
    claim = cluster.claim("p")
    assert claim is not None
    claim["status"]["allocation"]["allocationTimestamp"] = said(NOW - 10)
    cluster.put(RESOURCE_CLAIMS, claim)
    await cluster.settle()
    assert ends(cluster) == NOW - 10 + BEGINS_S + 600 + 30 + FREED_S


async def test_a_gang_ends_when_all_of_it_does() -> None:
    cluster = at_now()
    for node in "ab":
        cluster.node(node)
    gang(cluster, 2, name="g")
    cluster.store.edit(PODS, ("default", "g-0"), lambda pod: pod["spec"].update(activeDeadlineSeconds=60))
    await cluster.settle()
    assert ends(cluster, "g-0") is None
    cluster.store.edit(PODS, ("default", "g-1"), lambda pod: pod["spec"].update(activeDeadlineSeconds=600))
    await cluster.settle()
    assert ends(cluster, "g-0") == ends(cluster, "g-1") is not None


async def test_of_a_set_that_pods_share_the_end_is_unknown() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("one", 4, wishes={"shared-claim": "duo"}, activeDeadlineSeconds=60)
    await cluster.settle()
    assert ends_at(cluster.worker.picture, ("default", "duo"), NOW) is None


async def test_a_foreign_claim_has_no_end() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.rival("theirs", "a", [0])
    await cluster.settle()
    assert ends_at(cluster.worker.picture, ("default", "theirs"), NOW) is None


@pytest.mark.parametrize("text", [None, "", "yesterday", "2026-13-01T00:00:00Z"])
def test_an_invalid_time_does_not_count(text: str | None) -> None:
    assert seconds(text) is None
    assert given_at(None) is None
