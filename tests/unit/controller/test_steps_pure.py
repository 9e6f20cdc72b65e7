"""A step is decided without changing anything, and single pods and gangs go by the same rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.steps.actions import OpenGates, Place, Release, Step, Wait
from dradriver.controller.steps.deadlines import Deadlines
from dradriver.controller.steps.observe import GangState, PodState, observe, observe_gang
from dradriver.controller.steps.step import step
from dradriver.controller.steps.withdraw_reasons import WithdrawReason
from dradriver.kube.resources import PODS
from dradriver.queue.pending import Member, PendingWorkload
from tests.fakes.gang_pods import gang
from tests.fakes.gpucluster import GpuCluster, Killed

DEADLINES = Deadlines(promise_s=20.0, unschedulable_s=3.0)
REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes: no room"}
KINDS = ["pod", "gang"]


@contextmanager
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Refuse every change of a member or a workload, but for the request that a member reads once."""

    def refuse(self: object, name: str, value: object) -> None:
        if name != "_wish":
            raise AssertionError(f"{type(self).__name__}.{name} was changed")
        object.__setattr__(self, name, value)

    with monkeypatch.context() as patch:
        patch.setattr(Member, "__setattr__", refuse, raising=False)
        patch.setattr(PendingWorkload, "__setattr__", refuse, raising=False)
        yield


def workload(cluster: GpuCluster, kind: str) -> list[str]:
    """Create a pod, or a gang of two, and return the names of the pods."""
    if kind == "gang":
        return gang(cluster, 2)
    cluster.pod("train-0", 8)
    return ["train-0"]


def refuse(cluster: GpuCluster, pods: list[str]) -> None:
    """Have the scheduler say that it finds no room."""
    for name in pods:
        cluster.put(PODS, cluster.get_pod(name) | {"status": {"phase": "Pending", "conditions": [REFUSED]}})
    cluster.deliver()


def looks(cluster: GpuCluster, pods: list[str], kind: str) -> Callable[[float], PodState | GangState]:
    """Return what observes a workload at a time; what is remembered of it stays from one time to the next."""
    picture = cluster.worker.picture
    members = [Member(picture.pods["default", name]) for name in pods]
    if kind == "pod":
        return lambda now: observe(members[0], picture, now)
    key = picture.gangs.of(members[0].key)
    assert key is not None
    workload = PendingWorkload(*members, key=key.gang)
    return lambda now: observe_gang(workload, picture, (2, 2), now, done=0)


def step_at(cluster: GpuCluster, state: PodState | GangState, now: float, monkeypatch: pytest.MonkeyPatch) -> Step:
    """Return the step, decided twice while nothing can be changed."""
    with frozen(monkeypatch):
        first = step(state, cluster.worker.picture, now, DEADLINES)
        assert step(state, cluster.worker.picture, now, DEADLINES) == first
    return first


async def placed(kind: str) -> tuple[GpuCluster, list[str]]:
    """Return a cluster with a workload that has its tentative placement."""
    cluster = GpuCluster()
    for node in "ab":
        cluster.node(node)
    pods = workload(cluster, kind)
    await cluster.settle()
    assert all(cluster.claim(pod) for pod in pods)
    return cluster, pods


@pytest.mark.parametrize("kind", KINDS)
async def test_who_has_no_claims_wants_places(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = GpuCluster()
    pods = workload(cluster, kind)
    cluster.deliver()
    state = looks(cluster, pods, kind)(0.0)
    wanted = step_at(cluster, state, 0.0, monkeypatch)
    assert isinstance(wanted, Place)
    assert [member.pod.metadata.name for member in wanted.members] == pods


@pytest.mark.parametrize("kind", KINDS)
async def test_gated_pods_with_claims_have_their_gates_opened(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = GpuCluster()
    for node in "ab":
        cluster.node(node)
    pods = workload(cluster, kind)
    cluster.client.kill_at = -len(pods)  # the claims are created, no gate is removed
    with pytest.raises((Killed, BaseExceptionGroup)):
        await cluster.settle()
    cluster.restart()
    cluster.deliver()
    state = looks(cluster, pods, kind)(0.0)
    # A controller that begins has no tables of the machines; these are made while it works.
    while isinstance(found := step_at(cluster, state, 0.0, monkeypatch), Wait):
        assert found.reason is not None
        assert "are assessed" in found.reason.text
        cluster.worker.picture.fleets.catch_up(lambda: False)
        state = looks(cluster, pods, kind)(0.0)
    assert isinstance(found, OpenGates)
    assert [member.pod.metadata.name for member in found.members] == pods


@pytest.mark.parametrize("kind", KINDS)
async def test_a_tentative_placement_that_the_scheduler_refuses_is_revoked_in_time(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, pods = await placed(kind)
    refuse(cluster, pods)
    look = looks(cluster, pods, kind)
    assert step_at(cluster, look(100.0), 100.0, monkeypatch) == Wait(until=103.0)
    revoked = step_at(cluster, look(103.0), 103.0, monkeypatch)
    assert isinstance(revoked, Release)
    assert revoked.cause is WithdrawReason.UNSCHEDULABLE
    assert len(revoked.claims) == len(revoked.refused) == len(pods)
    assert revoked.reason is not None
    assert "The scheduler finds no room for pod train-0 on its nodes" in revoked.reason.text


@pytest.mark.parametrize("kind", KINDS)
async def test_a_tentative_placement_that_is_not_bound_is_revoked_in_time(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, pods = await placed(kind)
    look = looks(cluster, pods, kind)
    first = step_at(cluster, look(100.0), 100.0, monkeypatch)
    until = 120.0 if kind == "pod" else 120.2  # a gang has a tenth of a second more for each pod
    assert isinstance(first, Wait)
    assert first.until == pytest.approx(until)
    revoked = step_at(cluster, look(until), until, monkeypatch)
    assert isinstance(revoked, Release)
    assert revoked.cause is WithdrawReason.OVERDUE
    assert not revoked.refused


@pytest.mark.parametrize("kind", KINDS)
async def test_a_placement_whose_gpus_another_claim_was_given_is_revoked_at_once(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, pods = await placed(kind)
    node = cluster.gpus(pods[0])[0]
    cluster.rival("theirs", node, range(8))
    cluster.deliver()
    revoked = step_at(cluster, looks(cluster, pods, kind)(0.0), 0.0, monkeypatch)
    assert isinstance(revoked, Release)
    assert (revoked.cause, revoked.reason) == (WithdrawReason.TAKEN, None)


@pytest.mark.parametrize("size", [8, 40])
async def test_a_look_at_a_gang_reads_each_claim_a_few_times(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = GpuCluster()
    for node in "abcde":
        cluster.node(node)
    pods = gang(cluster, size, gpus=1)
    await cluster.settle()
    picture = cluster.worker.picture
    members = [Member(picture.pods["default", name]) for name in pods]
    membership = picture.gangs.of(members[0].key)
    assert membership is not None
    reads = 0

    def deleting(claim: ClaimRecord) -> bool:
        nonlocal reads
        reads += 1
        return claim.metadata.deletion_timestamp is not None

    monkeypatch.setattr(ClaimRecord, "deleting", property(deleting))
    waiting = PendingWorkload(*members, key=membership.gang)
    step(observe_gang(waiting, picture, (size, size), 0.0, done=0), picture, 0.0)
    assert size <= reads <= 6 * size
