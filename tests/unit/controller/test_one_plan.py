"""One plan for pods and gangs: who asks for places asks ``plan``, and a single pod never costs a gang search."""

from __future__ import annotations

from typing import Any

import pytest

from dradriver.allocator.request import NoPlaceError
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.controller.placing import gang_plan
from dradriver.controller.placing.gang_terms import GangTerms, terms_of
from dradriver.controller.placing.plan import plan, revalidate
from dradriver.controller.placing.preemption_plan import plan_preemption
from dradriver.queue.pending import PendingWorkload
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.preempting import NOW, contested, scene, waiting


class GangSearchError(AssertionError):
    """The gang search was asked."""


@pytest.fixture
def no_gang_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise GangSearchError

    for name in ("plan", "revalidate", "place_gang"):
        monkeypatch.setattr(gang_plan, name, refuse)


def gang(cluster: GpuCluster, *pods: str, gpus: int = 4, **changes: Any) -> None:
    """Create the pods of a gang."""
    for name in pods:
        cluster.pod(name, gpus, wishes={"gang": "train", "gang-size": str(len(pods))}, **changes)
    cluster.deliver()


@pytest.mark.usefixtures("no_gang_search")
async def test_a_single_pod_is_planned_and_checked_again_without_the_gang_search() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 4)
    cluster.deliver()
    picture, member = cluster.worker.picture, waiting(cluster, "p")
    assert terms_of(picture, PendingWorkload(member)) is None
    placement = plan(Snapshot(picture, "default"), [member])[member]
    await cluster.settle()
    member = waiting(cluster, "p")
    places = revalidate(picture, [member], [member])
    assert places is not None
    assert list(places) == [member]
    assert places[member].choice == placement.choice
    assert cluster.gpus("p") == ("a", list(placement.choice.gpus))


@pytest.mark.usefixtures("no_gang_search")
async def test_preemption_for_a_single_pod_never_asks_the_gang_search() -> None:
    cluster = await contested(("low", 8, 0))
    cluster.pod("high", 8, priority=10)
    cluster.deliver()
    found = plan_preemption(cluster.worker.picture, [waiting(cluster, "high")], scene(cluster.worker.picture, 10))
    assert found is not None
    assert [workload.key for workload in found.victims] == [("default", "low")]


async def test_the_pods_of_a_gang_are_planned_and_checked_again_together() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    gang(cluster, "p", "q")
    picture, members = cluster.worker.picture, [waiting(cluster, "p"), waiting(cluster, "q")]
    (key,) = picture.gangs
    workload = PendingWorkload(*members, key=key)
    workload.want(members, 2)
    terms = terms_of(picture, workload)
    assert terms is not None
    assert (terms.identity, terms.least) == (picture.gangs.said(key).member.identity, 2)
    planned = plan(Snapshot(picture, "default"), members, terms)
    await cluster.settle()
    members = [waiting(cluster, "p"), waiting(cluster, "q")]
    again = revalidate(picture, members, members, terms)
    assert again is not None
    assert [place.choice for place in again.values()] == [place.choice for place in planned.values()]
    assert [place.planned for place in again.values()] == [place.planned for place in planned.values()]


async def test_claims_on_a_node_that_takes_no_pods_any_more_are_not_valid() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("alone", 4)
    gang(cluster, "p", "q", gpus=2)
    await cluster.settle()
    cluster.node("a", None, unschedulable=True)
    cluster.deliver()
    picture, alone = cluster.worker.picture, waiting(cluster, "alone")
    assert revalidate(picture, [alone], [alone]) is None
    members = [waiting(cluster, "p"), waiting(cluster, "q")]
    assert revalidate(picture, members, members, GangTerms(None, "train")) is None


async def test_a_gang_and_a_pod_are_refused_alike() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("alone", 16)
    gang(cluster, "p", "q", gpus=8)
    snapshot = Snapshot(cluster.worker.picture, "default")
    with pytest.raises(NoPlaceError):
        plan(snapshot, [waiting(cluster, "alone")])
    with pytest.raises(NoPlaceError):
        plan(snapshot, [waiting(cluster, "p"), waiting(cluster, "q")], GangTerms(None, "train"))


async def test_preemption_for_a_gang_names_workloads_of_each_node_that_it_gets() -> None:
    cluster = await contested(("a", 8, 0), ("b", 8, 0), ("c", 8, 20), nodes="abc")
    gang(cluster, "p", "q", gpus=8, priority=10)
    picture, members = cluster.worker.picture, [waiting(cluster, "p"), waiting(cluster, "q")]
    found = plan_preemption(picture, members, scene(picture, 10, now=NOW), GangTerms(None, "train", least=2))
    assert found is not None
    assert sorted(workload.key[1] for workload in found.victims) == ["a", "b"]
    assert len({place.node for place in found.places.values()}) == 2
