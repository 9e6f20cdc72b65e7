"""Preemption and how long it waits: graces of years, pods that are ending already, and those whom nobody ends for."""

from __future__ import annotations

import asyncio
import datetime
import json
from typing import Any

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Queue
from dradriver.kube.resources import PODS
from tests.fakes.control_plane.scheduler import Scheduler
from tests.fakes.preempting import KUBELET, ON, Contested, contested
from tests.fakes.troubles import working


def terms(cluster: Contested, **changes: Any) -> None:
    on = msgspec.structs.replace(ON.queue.preemption, **changes)
    cluster.worker.follow(Policies(queue=Queue(preemption=on)))


FOR_EVER_S = 10 * 365 * 86_400


def leaving(cluster: Contested, name: str, seconds: float) -> None:
    """Let a pod's owner delete it, with so long a grace."""
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    pod = cluster.get_pod(name)
    pod["metadata"] |= {"finalizers": [KUBELET], "deletionTimestamp": f"{until:%Y-%m-%dT%H:%M:%SZ}"}
    cluster.put(PODS, pod)


@pytest.mark.slow
@pytest.mark.parametrize("grace_s", [FOR_EVER_S, 10**17, (1 << 63) - 1])
async def test_a_pod_that_may_take_years_to_end_is_no_victim(grace_s: int, caplog: pytest.LogCaptureFixture) -> None:
    cluster = await contested(nodes="ab")
    await cluster.run(("slow", 8, 0), terminationGracePeriodSeconds=grace_s)
    cluster.pod("me", 8, priority=10)
    cluster.pod("other", 8, priority=10)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    assert cluster.ending() == []
    await cluster.settle()
    assert "internal error" not in caplog.text
    cluster.pod("another", 8, priority=20)
    await cluster.settle()
    assert cluster.ending() in (["me"], ["other"])


async def test_a_gang_with_a_pod_that_may_take_years_to_end_is_no_victim() -> None:
    cluster = await contested(nodes="ab")
    for index, grace_s in enumerate((30, FOR_EVER_S)):
        wishes = {"gang": "train", "gang-size": "2"}
        cluster.pod(f"train-{index}", 8, wishes=wishes, terminationGracePeriodSeconds=grace_s)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    cluster.pod("me", 8, priority=10)
    await cluster.settle()
    assert cluster.ending() == []


@pytest.mark.parametrize(("bound_s", "ends"), [(3600.0, ["leaves"]), (1800.0, ["leaves", "low"])])
async def test_who_is_ending_already_is_waited_for_up_to_the_longest_grace(bound_s: float, ends: list[str]) -> None:
    cluster = await contested(("leaves", 4, 0), ("low", 4, 0))
    terms(cluster, longest_grace_seconds=bound_s)
    leaving(cluster, "leaves", 3000)
    cluster.pod("me", 4, priority=10)
    await cluster.settle()
    assert cluster.ending() == ends


async def test_a_pod_that_its_owner_lets_end_for_years_stops_no_other_preemption() -> None:
    cluster = await contested(("leaves", 4, 0), ("low", 4, 0))
    leaving(cluster, "leaves", FOR_EVER_S)
    cluster.pod("me", 4, priority=10)
    await cluster.settle()
    assert cluster.ending() == ["leaves", "low"]
    promise = json.loads(cluster.claim("me")["metadata"]["annotations"][names.PREEMPTS])  # type: ignore[index]
    assert promise["until"] < promise["at"] + 3600
    assert [victim[1] for victim in promise["victims"]] == ["low"]


async def test_a_gang_for_which_others_end_waits_longer_for_the_scheduler_in_all_its_pods() -> None:
    cluster = Contested()
    cluster.unschedulable_s = 5.0
    cluster.restart()
    for node in "ab":
        cluster.node(node)
    await cluster.run(("low", 8, 0))
    pods = ["me-0", "me-1"]
    for pod in pods:
        cluster.pod(pod, 8, priority=10, wishes={"gang": "me", "gang-size": "2"})
    async with working(cluster):
        await asyncio.sleep(1)
        (other,) = (pod for pod in pods if cluster.gpus(pod)[0] != cluster.gpus("low")[0])
        Scheduler(cluster.store).refuse(cluster.get_pod(other))
        promised = cluster.claim(other)
        await asyncio.sleep(4)
        cluster.gone("low")
        await asyncio.sleep(13)
        assert cluster.claim(other) == promised, "given back sooner, another could have what others ended for"
        await asyncio.sleep(4)
        assert cluster.claim(other) != promised
