"""Preemption as time goes by, and beside reservations: who may end a while later, or of reserved GPUs, does."""

from __future__ import annotations

import time

import pytest

from dradriver.api.policies.policies_reader import read
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Preemption, Queue
from dradriver.controller.loop import preemption_turns
from dradriver.controller.owners import eviction_refusals, evictions
from dradriver.kube.resources import POD_DISRUPTION_BUDGETS, PODS
from dradriver.queue.reservation_rules import Terms
from tests.fakes.preempting import Contested
from tests.fakes.reserving import Reserving

WAIT_S = Terms().bounded_wait_s + 60
HOUR_S = 3600


class _Passing(Reserving, Contested):  # type: ignore[misc]
    """A cluster with both, in which time goes on only by ``later``."""

    def __init__(self, min_run_minutes: float = 0.0) -> None:
        self.suspendable = ()
        self.policies = Policies(
            queue=Queue(preemption=Preemption(enabled=True, min_run_minutes=min_run_minutes, margin_seconds=60))
        )
        Reserving.__init__(self)

    def restart(self) -> None:
        super().restart()
        self.client.ends = lambda key: Contested.end(self, key)
        self.worker.follow(self.policies)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption_turns, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(eviction_refusals, "FIRST_S", 0.0)
    monkeypatch.setattr(evictions, "REASON_S", 0.0)


async def full(monkeypatch: pytest.MonkeyPatch, min_run_minutes: float = 0.0) -> _Passing:
    cluster = _Passing(min_run_minutes)
    monkeypatch.setattr(time, "time", lambda: cluster.now)
    cluster.node("a")
    for name in ("one", "two"):
        await cluster.run(name, 4)
    return cluster


async def test_who_has_run_for_long_enough_ends_although_nothing_else_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await full(monkeypatch, min_run_minutes=20)
    cluster.pod("me", 8, priority=10)
    await cluster.settle()
    version = cluster.worker.picture.version
    cluster.now += 19 * 60
    await cluster.settle()
    assert cluster.ending() == []
    cluster.now += 120
    assert cluster.worker.picture.version == version
    await cluster.settle()
    assert sorted(cluster.ending()) == ["one", "two"]


async def test_a_reservation_of_less_priority_saves_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await full(monkeypatch)
    cluster.pod("big", 8)
    await cluster.settle()
    await cluster.later(WAIT_S)
    assert len(cluster.held) == 1
    cluster.pod("equal", 4)
    cluster.pod("me", 8, priority=10)
    await cluster.settle()
    assert sorted(cluster.ending()) == ["one", "two"]
    assert not cluster.runs("equal")


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["me", "first"])
@pytest.mark.parametrize("pods", [("me",), ("me-0", "me-1")])
async def test_others_end_on_gpus_that_are_reserved_for_it_or_for_less_priority(
    monkeypatch: pytest.MonkeyPatch, whose: str, pods: tuple[str, ...]
) -> None:
    cluster = _Passing()
    monkeypatch.setattr(time, "time", lambda: cluster.now)
    cluster.worker.follow(Policies())
    for node, _ in zip("ab", pods, strict=False):
        cluster.node(node)
        await cluster.run(f"low-{node}", 8)
    names = {"me": pods, "first": ("first",)}
    for name in (whose, *(names.keys() - {whose})):
        for pod in names[name]:
            wishes = {"gang": "me", "gang-size": "2"} if len(names[name]) > 1 else {}
            cluster.pod(pod, 8, priority=10 if name == "me" else 0, wishes=wishes)
        await cluster.settle()
        if name == whose:
            await cluster.later(WAIT_S)
    (held,) = cluster.held
    assert (whose in held.who, len(held.gpus)) == (True, 8 * len(names[whose]))
    assert cluster.ending() == []
    cluster.worker.follow(cluster.policies)
    await cluster.settle()
    assert sorted(cluster.ending()) == [f"low-{node}" for node, _ in zip("ab", pods, strict=False)]


async def test_its_own_reservation_keeps_no_pod_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await full(monkeypatch, min_run_minutes=60)
    cluster.pod("me", 8, priority=10)
    await cluster.settle()
    await cluster.later(WAIT_S)
    assert len(cluster.held) == 1
    assert cluster.ending() == []
    await cluster.later(WAIT_S)
    assert sorted(cluster.ending()) == ["one", "two"]


async def test_of_gpus_that_are_reserved_for_one_of_more_priority_no_pod_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await full(monkeypatch, min_run_minutes=60)
    cluster.pod("first", 8, priority=20, preemptionPolicy="Never")
    await cluster.settle()
    await cluster.later(WAIT_S)
    assert len(cluster.held) == 1
    cluster.pod("me", 4, priority=10)
    await cluster.later(WAIT_S)
    assert cluster.ending() == []


async def test_whom_a_budget_kept_from_ending_is_not_spared_as_one_that_has(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await full(monkeypatch)
    cluster.store.edit(PODS, ("default", "one"), lambda pod: pod["metadata"]["labels"].update(app="kept"))
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
    allowed = ("default", "kept")
    cluster.store.edit(POD_DISRUPTION_BUDGETS, allowed, lambda budget: budget["status"].update(disruptionsAllowed=1))
    cluster.remove(PODS, "me", "default")
    cluster.pod("again", 8, priority=10)
    await cluster.later(120)
    assert sorted(cluster.ending()) == ["one", "two"]


async def test_a_gang_ends_the_cheapest_of_its_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = _Passing()
    monkeypatch.setattr(time, "time", lambda: cluster.now)
    ours = "{namespaces: [default], partition: {nodeSelector: {pool: red}}}"
    file = f"queue: {{preemption: {{enabled: true, minRunMinutes: 0}}}}\ntenants: {{ours: {ours}}}"
    cluster.worker.follow(read(file.encode(), source="x"))
    for node in "abcdef":
        cluster.node(node, labels={"pool": "red"})
        await cluster.run(f"on-{node}", 8, nodeSelector={"kubernetes.io/hostname": node})
        cluster.now += HOUR_S
    for node in "xyz":
        cluster.node(node)  # free, and of no use to it
    for pod in ("me-0", "me-1"):
        cluster.pod(pod, 8, priority=10, wishes={"gang": "me", "gang-size": "2"})
    await cluster.settle()
    assert len(cluster.ending()) == 2
    assert set(cluster.ending()) <= {"on-d", "on-e", "on-f"}
