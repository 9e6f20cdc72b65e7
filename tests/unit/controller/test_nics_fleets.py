"""NICs for pods that may have other GPUs than their namespace has: those that are reserved, or that a cap leaves."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.controller.placing import gang_nics, gang_plan, nic_places
from dradriver.controller.placing.decide import decide
from dradriver.controller.placing.gang_terms import GangTerms
from dradriver.controller.placing.nic_refusals import NoNicsError
from dradriver.kube.resources import DEVICE_CLASSES, RESOURCE_SLICES
from dradriver.queue.pending import Member
from dradriver.queue.reservation_rules import Terms
from dradriver.reason import Cause
from tests.fakes import nics
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.fakes.nic_pods import NEAREST, addresses, gpus, pod, template, wanted
from tests.fakes.reserving import Reserving
from tests.unit.controller.test_nics_many import near_node, wish_of

HOUR_S = 3600


def fleet_of(cluster: GpuCluster, numbers: Collection[int], *nodes: str) -> Fleet:
    """Return a copy of the namespace's fleet in which these nodes have these GPUs alone."""
    own = cluster.worker.picture.fleets.of("default")
    return own.narrowed(dict.fromkeys(nodes or own.nodes, frozenset(numbers)))


def seen(cluster: GpuCluster, fleet: Fleet | None = None) -> Snapshot:
    """Return what a decision sees, with other GPUs than there are."""
    return Snapshot(cluster.worker.picture, "default").offering(fleet)


def has(cluster: GpuCluster, node: str, gpus: Collection[int]) -> None:
    """Have NICs at these GPUs of a node, and no others."""
    devices = [nics.device(NEAREST[gpu], number=at) for at, gpu in enumerate(gpus)]
    cluster.put(RESOURCE_SLICES, nics.published(node, devices))


async def waiting(monkeypatch: pytest.MonkeyPatch, *pods: str, count: int = 1, gang_size: str = "") -> GpuCluster:
    """Return a cluster with pods that wait for NICs, and whose controller does not act any more."""
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100")
    cluster.put(DEVICE_CLASSES, nics.device_class())
    template(cluster, gpus(count=count), wanted("nic", count))
    for name in pods:
        pod(cluster, name, near_nic="required", **({"gang": "g", "gang_size": gang_size} if gang_size else {}))
    await cluster.settle()
    assert [cluster.claim(name) for name in pods] == [None] * len(pods)
    monkeypatch.setattr(cluster.worker, "turn", None)
    return cluster


@pytest.mark.parametrize(("offered", "chosen"), [(range(8), 4), (range(6, 8), 6)])
async def test_of_any_gpus_that_are_looked_at_those_are_taken_that_have_nics_near(
    offered: range, chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await waiting(monkeypatch, "p")
    has(cluster, "a", range(4, 8))
    cluster.deliver()
    found = decide(seen(cluster, fleet_of(cluster, offered)), wish_of(cluster, "p"))
    assert found.choice.gpus == (chosen,)
    assert found.nics == {"nic": (NEAREST[chosen],)}


async def test_gpus_that_are_not_looked_at_are_not_chosen_for_their_nics(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await waiting(monkeypatch, "p")
    has(cluster, "a", range(4, 8))
    cluster.deliver()
    with pytest.raises(NoNicsError, match="no eligible node has enough free NICs near its free GPUs"):
        decide(seen(cluster, fleet_of(cluster, range(4))), wish_of(cluster, "p"))
    found = decide(seen(cluster), wish_of(cluster, "p"))
    assert found.choice.gpus == (4,), "what is found out of other GPUs is not remembered of the pod's own"


@pytest.mark.slow
async def test_a_look_at_other_gpus_that_ends_early_promises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nic_places, "MOST_LOOKS", 1)
    cluster = await waiting(monkeypatch, "p", count=2)
    for at in range(40):
        near_node(cluster, f"b{at:02}")
        has(cluster, f"b{at:02}", (4, 5))
    cluster.deliver()
    picture, fleet = cluster.worker.picture, fleet_of(cluster, range(2))
    version = picture.version
    for _ in range(2):
        with pytest.raises(NoNicsError, match="Not all nodes were tried"):
            decide(seen(cluster, fleet), wish_of(cluster, "p"))
    assert picture.version == version, "whoever asks again is told the same"


async def test_a_short_pod_has_those_reserved_gpus_that_have_nics_near() -> None:
    cluster = Reserving()
    cluster.node("a", "hgx-h100")
    cluster.put(DEVICE_CLASSES, nics.device_class())
    await cluster.settle()
    for name in ("first", "second"):
        await cluster.run(name, 4, activeDeadlineSeconds=8 * HOUR_S)
    cluster.pod("big", 8)
    await cluster.settle()
    await cluster.later(Terms().bounded_wait_s + 60)
    _, (*_, last) = cluster.gpus("first")
    await cluster.end("first")
    has(cluster, "a", [last])
    template(cluster, gpus(), wanted())
    claims = [{"name": "gpus", "resourceClaimName": claim_of("brief")}]
    words = {"template": "gpus/t", "near-nic": "required"}
    cluster.pod("brief", 1, wishes=words, resourceClaims=claims, activeDeadlineSeconds=600)
    await cluster.settle()
    await cluster.later(120)
    assert len(cluster.held) == 1, "what is free is reserved for the big one"
    assert cluster.claim("brief") is not None, cluster.note("brief", "reason")
    assert (cluster.gpus("brief"), addresses(cluster, "brief")) == (("a", [last]), [NEAREST[last]])


def gang_of(cluster: GpuCluster) -> list[Member]:
    picture = cluster.worker.picture
    return [Member(pod, picture.templates.of(pod)) for pod in (picture.pods["default", name] for name in "pq")]


async def test_a_gang_takes_of_any_gpus_that_are_looked_at_those_that_have_nics_near(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = await waiting(monkeypatch, *"pq", count=2, gang_size="2")
    for name in "yz":
        near_node(cluster, name)
        has(cluster, name, range(0, 8, 3))
    cluster.deliver()
    fleet = fleet_of(cluster, range(1, 8), *"yz")
    found = gang_plan.plan(seen(cluster, fleet), gang_of(cluster), GangTerms(None, "g"))
    assert sorted((one.choice.node, one.choice.gpus) for one in found.values()) == [("y", (3, 6)), ("z", (3, 6))]


async def test_nothing_is_remembered_of_a_gangs_look_at_other_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_nics, "MOST_LOOKS", 1)
    cluster = await waiting(monkeypatch, *"pq", count=2, gang_size="2")
    for name in "vwxyz":
        near_node(cluster, name)
        has(cluster, name, range(4, 8))
    cluster.deliver()
    picture, fleet = cluster.worker.picture, fleet_of(cluster, range(4))
    version = picture.version
    with pytest.raises(NoNicsError, match="Not all plans for the gang were tried"):
        gang_plan.plan(seen(cluster, fleet), gang_of(cluster), GangTerms(None, "g"))
    assert picture.version == version, "whoever asks again is told the same"
    found = gang_plan.plan(seen(cluster), gang_of(cluster), GangTerms(None, "g"))
    assert {one.choice.gpus for one in found.values()} <= {(4, 5), (6, 7)}


async def test_a_plan_without_nics_ends_with_the_text_and_the_cause_of_the_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = await waiting(monkeypatch, *"pq", gang_size="2")
    cluster.pod("plain", 1, wishes={"gang": "h", "gang-size": "1"})
    cluster.deliver()
    picture, members = cluster.worker.picture, gang_of(cluster)
    uuids = picture.inventory.uuids("a")
    with pytest.raises(gang_nics.ShortError) as short:
        gang_nics.chosen(picture, {member: ("a", {"gpus": (uuids[at],)}) for at, member in enumerate(members)})
    # This search knows no request for NICs, so it has no refusal of its own.
    plain = picture.pods["default", "plain"]
    search = gang_nics.Search(seen(cluster), [Member(plain, picture.templates.of(plain))], None)
    with pytest.raises(NoNicsError) as refusal:
        search.learn(short.value, is_last=True)
    assert str(refusal.value).startswith("No place for 1 NIC of class")
    assert refusal.value.why.text.startswith("Waiting for 1 NIC of class")
    assert refusal.value.cause is Cause.GPUS
