"""What replaces a workload that had to end is spared for a while, and no other pod of the same owner is."""

from __future__ import annotations

import asyncio
import datetime
import json
import time
from typing import Any, cast

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Queue
from dradriver.controller.writing.reservation_store import ReservationStore
from dradriver.kube.client import Client
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Object
from tests.fakes.preempting import ON, Contested


class _Owned(Contested):
    """A cluster whose pods of priority -10 are one ReplicaSet's; its time goes on only by ``now``."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        super().__init__()

    def restart(self) -> None:
        super().restart()
        self.kept = ReservationStore(cast("Client", self.client), namespace="gpu-topology")
        self.follow()

    def follow(self, workloads_per_minute: int = 100) -> None:
        on = msgspec.structs.replace(
            ON.queue.preemption, back_off_minutes=30.0, workloads_per_minute=workloads_per_minute
        )
        self.worker.follow(Policies(queue=Queue(preemption=on)))

    async def fail_over(self, workloads_per_minute: int = 100) -> None:
        """Let another controller lead, after the last one has written what it keeps."""
        await self.features.reservations.save(self.kept)
        self.restart()
        self.follow(workloads_per_minute)
        self.features.reservations.restore(await self.kept.load())
        await self.settle()

    def admitted(self, name: str, gpus: Any = 4, **changes: Any) -> Object:
        pod = super().admitted(name, gpus, **changes)
        pod["metadata"]["creationTimestamp"] = f"{datetime.datetime.fromtimestamp(self.now, datetime.UTC):%FT%TZ}"
        if pod["spec"].get("priority") == -10:
            owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}
            pod["metadata"]["ownerReferences"] = [owner]
        return pod

    async def end_for(self, name: str, gpus: int = 8) -> list[str]:
        """Let a pod of priority 1000 come, and return who was told to end for it."""
        before = set(self.ending())
        self.pod(name, gpus, priority=1000)
        await self.settle()
        return sorted(set(self.ending()) - before)

    async def replace(self, name: str, by: str) -> None:
        """Let a pod be gone, the one for which it ended come and go, and another of its owner take its place."""
        self.gone(name)
        await self.settle()
        self.schedule()
        await self.settle()
        for pod in self.all(PODS):
            if pod["spec"].get("priority") == 1000:
                self.remove(PODS, pod["metadata"]["name"], "default")
        self.collect()
        await self.settle()
        await self.run((by, 8, -10))


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> _Owned:
    cluster = _Owned()
    monkeypatch.setattr(time, "time", lambda: cluster.now)
    return cluster


async def test_an_owner_of_many_pods_shields_none_of_them(cluster: _Owned) -> None:
    for number in range(4):
        cluster.node(f"n{number}")
    await cluster.run(*((f"web-{number}", 8, -10) for number in range(4)))
    cluster.now += 60
    ended = [pod for number in range(4) for pod in await cluster.end_for(f"me-{number}")]
    assert sorted(ended) == [f"web-{number}" for number in range(4)]


async def test_what_replaces_one_that_had_to_end_is_spared_for_the_back_off(cluster: _Owned) -> None:
    cluster.node("a")
    await cluster.run(("web-0", 8, -10))
    cluster.now += 60
    assert await cluster.end_for("me") == ["web-0"]
    await asyncio.sleep(60)
    cluster.now += 60
    await cluster.replace("web-0", by="web-1")
    assert await cluster.end_for("other") == []
    cluster.now += 27 * 60
    assert await cluster.end_for("third") == []
    cluster.now += 180
    await asyncio.sleep(60)
    await cluster.settle()
    assert cluster.ending() == ["web-1"]


async def test_as_many_are_spared_as_had_to_end_however_many_an_owner_makes(cluster: _Owned) -> None:
    cluster.node("a")
    await cluster.run(("web-0", 8, -10))
    cluster.now += 60
    assert await cluster.end_for("me") == ["web-0"]
    await asyncio.sleep(60)
    cluster.now += 60
    await cluster.replace("web-0", by="web-1")
    cluster.now += 60
    cluster.node("b")
    await cluster.run(("web-2", 8, -10))
    assert await cluster.end_for("other") == ["web-2"]


async def test_the_next_leader_spares_what_the_last_one_had_to_end(cluster: _Owned) -> None:
    cluster.node("a")
    await cluster.run(("web-0", 8, -10))
    cluster.now += 60
    assert await cluster.end_for("me") == ["web-0"]
    await asyncio.sleep(60)
    cluster.now += 60
    await cluster.replace("web-0", by="web-1")  # and with the pod that needed the GPUs its claim is gone
    await cluster.fail_over()
    assert await cluster.end_for("other") == []


async def test_the_next_leader_counts_whom_the_last_one_told_to_end_although_the_claims_are_gone(
    cluster: _Owned,
) -> None:
    for node in "ab":
        cluster.node(node)
    await cluster.run(("web-0", 8, -10), ("web-1", 8, -10))
    cluster.now += 60
    cluster.follow(workloads_per_minute=1)
    assert len(await cluster.end_for("me")) == 1
    cluster.remove(PODS, "me", "default")
    cluster.collect()
    await cluster.settle()
    await cluster.fail_over(workloads_per_minute=1)
    cluster.now += 30
    assert await cluster.end_for("other") == []
    cluster.now += 40
    await asyncio.sleep(60)
    await cluster.settle()
    assert cluster.ending() == ["web-0", "web-1"]


async def test_of_one_plan_for_a_gang_the_next_leader_counts_each_that_was_told_to_end_once(cluster: _Owned) -> None:
    for node in "abc":
        cluster.node(node)
    await cluster.run(*((f"web-{number}", 8, -10) for number in range(3)))
    cluster.now += 60
    cluster.follow(workloads_per_minute=3)
    for number in range(2):
        cluster.pod(f"me-{number}", 8, priority=1000, wishes={"gang": "me", "gang-size": "2"})
    await cluster.settle()
    assert len(cluster.ending()) == 2
    cluster.restart()  # the ConfigMap was not written: the claims tell
    cluster.follow(workloads_per_minute=3)
    await cluster.settle()
    assert len(await cluster.end_for("third")) == 1
    cluster.restart()
    cluster.follow(workloads_per_minute=2)
    cluster.now += 20
    cluster.node("d")
    await cluster.run(("web-4", 8, -10))
    assert await cluster.end_for("fourth") == []


@pytest.mark.slow
@pytest.mark.parametrize("wrote", ["this release", "an earlier release"])
async def test_a_gang_that_was_told_to_end_for_several_claims_counts_once(cluster: _Owned, wrote: str) -> None:
    for node in "abcd":
        cluster.node(node)
    for number in range(3):
        cluster.pod(f"victim-{number}", 8, priority=0, wishes={"gang": "victim", "gang-size": "3"})
    await cluster.run(("web-0", 8, 5))
    cluster.now += 60
    cluster.follow(workloads_per_minute=2)
    for number in range(3):
        cluster.pod(f"me-{number}", 8, priority=1000, wishes={"gang": "me", "gang-size": "3"})
    await cluster.settle()
    victims = cluster.ending()
    assert victims == [f"victim-{number}" for number in range(3)]
    if wrote == "an earlier release":  # it named on each claim what made the victims on the node

        def name_owner(claim: Object) -> None:
            if text := claim["metadata"].get("annotations", {}).get(names.PREEMPTS):
                note = json.loads(text) | {"spare": ["default/victim-0"]}
                claim["metadata"]["annotations"][names.PREEMPTS] = json.dumps(note)

        for claim in cluster.all(RESOURCE_CLAIMS):
            cluster.store.edit(RESOURCE_CLAIMS, (claim["metadata"]["namespace"], claim["metadata"]["name"]), name_owner)
    cluster.gone(*victims)
    cluster.restart()
    cluster.follow(workloads_per_minute=2)
    await cluster.settle()
    assert await cluster.end_for("other") == ["web-0"]
