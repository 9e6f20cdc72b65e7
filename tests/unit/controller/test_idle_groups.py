"""Idle pods that belong together, as gangs and jobs: all of them end, and only once all of them are idle."""

from __future__ import annotations

from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.api.gangs import suspendable_owners
from dradriver.kube.client import ApiError
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.control_plane.jobs import JOBS, JOBSETS
from tests.fakes.idling import END, SINCE, START, WISH, Idling, end

GANG = {"gang": "auto", "idle-timeout": "1h"}


async def test_a_gang_ends_as_a_whole_by_suspending_what_made_it_and_it_is_not_resumed() -> None:
    world = Idling()
    await world.job(pods=3, wishes=GANG)
    world.rest()
    assert len(world.names) == 3
    await world.later(62)
    assert world.names == []
    job = world.cluster.find(JOBS, "train", "default")
    assert job is not None
    assert job["spec"]["suspend"] is True
    assert names.RESTARTING not in job["metadata"].get("labels", {})
    assert SINCE in job["metadata"]["annotations"][names.IDLE]
    world.lead()
    for _ in range(3):
        await world.start()
    assert world.names == [], "neither this leader nor the next resumes it"
    assert job["spec"]["suspend"] is True


@pytest.mark.slow
@pytest.mark.parametrize("others", [{}, {"idle-timeout": "9h"}])
async def test_a_gangs_single_member_is_never_ended(others: dict[str, str]) -> None:
    world = Idling()
    await world.job(pods=3, wishes=GANG if not others else {"gang": "auto", **others})
    first, *rest = world.names
    world.rest(*(rest if not others else world.names))
    await world.later(5 * 60)
    assert len(world.names) == 3
    assert all(end(world, pod) == (None, None) for pod in world.names)
    if not others:
        world.rest(first)
        await world.later(62)
        assert world.names == []


async def test_a_gang_of_which_one_pod_does_not_ask_for_it_is_not_ended() -> None:
    world = Idling()
    wishes = {"gang": "g", "gang-size": "2"}
    await world.start(
        world.cluster.admitted("a", 1, wishes=wishes | WISH), world.cluster.admitted("b", 1, wishes=wishes)
    )
    world.rest()
    await world.later(300)
    assert world.names == ["a", "b"]
    assert end(world, "a") == (None, None)


@pytest.mark.slow
async def test_a_gang_that_nothing_can_suspend_is_warned_and_stays_whole() -> None:
    world = Idling()
    wishes = {"gang": "g", "gang-size": "2", **WISH}
    await world.start(*(world.cluster.admitted(name, 1, wishes=wishes) for name in "ab"))
    world.rest()
    await world.later(300)
    assert world.names == ["a", "b"]
    assert "This owner cannot be suspended. Delete it." in world.said[-1][1]


async def test_a_jobs_pods_end_together_and_only_once_all_are_idle() -> None:
    world = Idling()
    await world.job()
    first, second = world.names
    world.rest(first)
    await world.later(300)
    assert world.names == [first, second]
    world.rest(second)
    await world.later(62)
    assert world.names == []
    job = world.cluster.find(JOBS, "train", "default")
    assert job is not None
    assert job["spec"]["suspend"] is True
    assert job["status"].get("failed", 0) == 0


@pytest.mark.slow
async def test_of_a_jobset_all_pods_have_to_be_idle() -> None:
    world = Idling()
    await world.job(JOBSETS, pods=1)
    first, second = world.names
    world.rest(first)
    await world.later(300)
    assert sorted(world.names) == sorted([first, second])
    assert "has other pods, which must not end now" in world.said[-1][1]
    world.rest(second)
    await world.later(62)
    assert world.names == []


async def test_without_the_right_to_suspend_a_job_none_of_its_pods_is_ended() -> None:
    world = Idling()
    await world.job()
    world.rest()
    await world.later(59)
    world.cluster.client.refuse["patch"] = [ApiError(403, "Forbidden", "no")] * 1000
    await world.later(30)
    assert len(world.names) == 2
    assert suspendable_owners.grant("Job", "suspend") in world.said[-1][1]


async def test_what_kueue_has_admitted_is_left_to_it() -> None:
    world = Idling()
    await world.job()
    world.cluster.store.edit(
        JOBS, ("default", "train"), lambda job: job["metadata"].update(labels={"kueue.x-k8s.io/queue-name": "q"})
    )
    world.rest()
    await world.later(120)
    assert len(world.names) == 2
    assert "queue of Kueue" in world.said[-1][1]


async def test_pods_that_share_a_claim_are_told_and_not_ended() -> None:
    world = Idling()
    wishes = {"shared-claim": "set", **WISH}
    await world.start(*(world.cluster.admitted(name, 1, wishes=wishes) for name in "ab"))
    assert world.cluster.find(PODS, "a", "default") is not None
    claim = world.cluster.find(RESOURCE_CLAIMS, "set", "default")
    assert claim is not None
    told = {"idleSince": SINCE, "idleSeen": END}
    world.tell(claim, told)
    world.now = START + 7200
    await world.later(60)
    assert world.names == ["a", "b"]
    assert {pod for pod, _ in world.said} == {"a", "b"}
    assert all(world.cluster.note(pod, "idle-end") is None for pod in "ab"), "they are not warned either"


async def test_a_job_whose_pods_work_again_while_budgets_are_read_is_not_suspended() -> None:
    world = Idling()
    world.cluster.suspendable = ("Job",)
    await world.job(pods=2)
    world.rest()
    await world.later(59)
    client = world.cluster.client
    read, patched = client.list, list[str]()
    patch = client.patch

    async def slowly(resource: Any, **options: Any) -> Any:
        world.now += 50
        for name in world.names:
            world.quiet.pop(name, None)
        world.agents()
        return await read(resource, **options)

    async def noted(resource: Any, name: str, body: Any, **options: Any) -> Any:
        patched.append(resource.plural)
        return await patch(resource, name, body, **options)

    client.list, client.patch = slowly, noted  # type: ignore[method-assign]
    await world.later(3)
    assert "jobs" not in patched
