"""Idle pods: told, warned, ended; who did not ask for it never, no gang in part, and nobody on what was true once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dradriver.api.base import names
from dradriver.api.policies.gpu_modes import Mode
from dradriver.controller.features.idle_step import WARN_S
from dradriver.kube.client import ApiError
from dradriver.kube.resources import POD_DISRUPTION_BUDGETS, PODS
from tests.fakes.idling import END, SINCE, WARNED, WISH, Idling, budget, end, notebook
from tests.fakes.storeclient import Call
from tests.fakes.troubles import respell


async def test_who_does_not_ask_for_it_is_told_once_and_never_ended() -> None:
    world = Idling()
    await notebook(world, wishes={})
    await world.later(40)
    assert world.said == []
    await world.later(24 * 60)
    assert world.said == [("nb", f"The GPUs of this pod have been idle since {SINCE}.")]
    assert end(world) == (None, None)


async def test_where_the_cluster_ends_no_pod_those_who_ask_for_it_are_told_too() -> None:
    world = Idling(ends=False)
    await notebook(world)
    await world.later(24 * 60)
    assert world.names == ["nb"]
    assert world.said == [("nb", f"The GPUs of this pod have been idle since {SINCE}.")]


async def test_it_is_warned_ten_minutes_before_and_then_evicted() -> None:
    world = Idling()
    await notebook(world)
    await world.later(49)
    assert end(world) == (None, None)
    await world.later(2)
    assert end(world) == (END, END)
    assert ("nb", WARNED) in world.said
    await world.later(8)
    assert world.names == ["nb"]
    await world.later(2)
    assert world.names == []
    assert world.said[-1] == ("nb", f"The controller ended the pod, because its GPUs have been idle since {SINCE}.")


async def test_a_warning_stays_on_a_pod_that_has_a_part_of_a_gpu() -> None:
    """What was chosen is written anew on such a pod, where it says something else."""
    world = Idling()
    world.cluster.node("d", mode=Mode(shared="time-slicing"))
    await notebook(world, wishes=WISH | {"share": "0.5"})
    await world.later(51)
    await world.cluster.settle()
    assert end(world) == (END, END)


async def test_it_is_ended_however_the_json_of_its_note_is_written() -> None:
    world = Idling()
    await notebook(world)
    respell(world.cluster, "nb", "idle_timeout_s")
    await world.later(61)
    assert world.names == []


async def test_a_short_time_is_no_shorter_than_the_warning() -> None:
    world = Idling()
    await notebook(world, wishes={"idle-timeout": "1m"})
    await world.later(14)
    assert world.names == ["nb"]
    await world.later(2)
    assert world.names == []


async def test_who_works_again_is_not_ended_and_begins_again() -> None:
    world = Idling()
    await notebook(world)
    await world.later(55)
    del world.quiet["nb"]
    await world.later(2)
    assert end(world) == (None, None)
    assert world.said[-1] == (
        "nb",
        "The controller does not end the pod: some GPUs of the pod, its gang or its job are not idle any more, or "
        "it is unknown whether they are.",
    )
    world.rest("nb")
    await world.later(49)
    assert world.names == ["nb"]
    await world.later(13)
    assert world.names == []


async def test_who_was_idle_again_for_a_moment_is_not_ended_for_what_was_before() -> None:
    """Work between two looks of the controller: it never saw that the warning's reason had gone."""
    world = Idling()
    await notebook(world)
    await world.later(55)
    world.quiet["nb"] = world.now - 300
    await world.later(30)
    assert world.names == ["nb"]


async def test_no_pod_is_ended_once_the_agent_is_silent() -> None:
    world = Idling()
    await notebook(world)
    await world.later(55)
    world.dead = True
    await world.later(24 * 60)
    assert world.names == ["nb"]
    world.dead = False
    await world.later(3)
    assert world.names == []


async def test_no_pod_is_ended_that_was_warned_while_the_agent_was_silent() -> None:
    world = Idling()
    await notebook(world)
    await world.later(10)
    world.dead = True
    await world.later(24 * 60)
    assert end(world) != (None, None)
    assert world.names == ["nb"]


@pytest.mark.slow
@pytest.mark.parametrize("skew", [-7200.0, 7200.0])
async def test_an_agents_clock_that_is_wrong_makes_nothing_fresh(skew: float) -> None:
    world = Idling()
    world.skew(skew)
    await notebook(world)
    await world.later(15)
    world.dead = True
    await world.later(24 * 60)
    assert world.names == ["nb"]
    world.dead = False
    await world.later(24 * 60)
    assert world.names == []


async def test_a_new_leader_goes_on_from_the_warning_but_believes_nothing_that_it_did_not_hear() -> None:
    world = Idling()
    await notebook(world)
    await world.later(59)
    world.dead = True
    await world.later(5)
    world.lead()
    await world.later(60)
    assert world.names == ["nb"]
    assert end(world) == (END, END)
    world.dead = False
    await world.later(3)
    assert world.names == []


async def test_the_server_is_asked_at_last_for_what_a_late_watch_has_not_shown() -> None:
    world = Idling()
    await notebook(world)
    await world.later(59.5)
    world.now += 30
    world.agents()
    world.cluster.deliver()
    del world.quiet["nb"]
    world.agents()
    world.idle.hear()
    await world.idle.once()
    assert world.names == ["nb"]


def slow(world: Idling, what: tuple[str, str], then: Callable[[], None]) -> None:
    """Have something happen while one write, a verb and a name, is under way."""
    left = [what]

    def sent(call: Call) -> None:
        if (call.verb, call.name) in left:
            left.clear()
            then()

    world.cluster.client.on_request = sent


async def test_who_works_again_while_others_are_ended_slowly_is_not_ended() -> None:
    world = Idling()
    for name in ("a", "b"):
        await notebook(world, name)

    def work() -> None:
        world.now += 45
        del world.quiet["b"]
        world.agents()

    slow(world, ("evict", "a"), work)
    await world.later(61)
    assert world.names == ["b"]


async def test_what_was_heard_is_old_once_others_were_warned_slowly() -> None:
    world = Idling()
    await notebook(world)
    await world.later(10)
    await notebook(world, "late")

    def pass_by() -> None:
        world.dead = True
        world.now += 200

    slow(world, ("patch", "late"), pass_by)
    await world.later(70)
    assert sorted(world.names) == ["late", "nb"]


@pytest.mark.parametrize(("verb", "at_minutes"), [("patch", 49), ("evict", 59)])
async def test_the_server_is_left_alone_for_as_long_as_it_asks(verb: str, at_minutes: int) -> None:
    world = Idling()
    await notebook(world)
    await world.later(at_minutes)
    busy = ApiError(429, "TooManyRequests", "later", retry_after_s=300.0)
    world.cluster.client.refuse[verb] = [busy]
    world.cluster.client.writes.clear()
    await world.later(5)
    assert world.cluster.client.writes == [(verb, "nb")]
    await world.later(12)
    assert world.names == []


async def test_a_disruption_budget_is_kept_said_and_asked_again() -> None:
    world = Idling()
    await notebook(world)
    world.cluster.put(POD_DISRUPTION_BUDGETS, budget(names.LABEL, names.LABEL_PLACED))
    await world.later(120)
    assert world.names == ["nb"]
    told = [text for _, text in world.said if "PodDisruptionBudget" in text]
    assert told == [
        f"The controller cannot end the pod, although its GPUs have been idle since {SINCE}: its "
        f"PodDisruptionBudget does not let it end "
        "now: Cannot evict pod as it would violate the pod's disruption budget."
    ]
    world.cluster.store.edit(
        POD_DISRUPTION_BUDGETS, ("default", "keep"), lambda one: one["status"].update(disruptionsAllowed=1)
    )
    await world.later(1)
    assert world.names == []


@pytest.mark.parametrize("is_new_controller", [False, True])
async def test_no_pod_is_ended_later_for_what_was_heard_when_it_was_due(is_new_controller: bool) -> None:
    """Its budget keeps it, its agent falls silent, and then the budget lets it go; by this leader, or the next."""
    world = Idling()
    await notebook(world)
    world.cluster.put(POD_DISRUPTION_BUDGETS, budget(names.LABEL, names.LABEL_PLACED))
    await world.later(70)
    world.dead = True
    await world.later(5)
    world.cluster.remove(POD_DISRUPTION_BUDGETS, "keep", "default")
    if is_new_controller:
        world.lead()
    await world.later(120)
    assert world.names == ["nb"]
    world.dead = False
    await world.later(2)
    assert world.names == []


async def test_without_the_right_it_is_said_which_one_is_missing() -> None:
    world = Idling()
    await notebook(world)
    world.cluster.client.refuse["evict"] = [ApiError(403, "Forbidden", "no")] * 1000
    await world.later(120)
    assert world.names == ["nb"]
    assert "The controller cannot evict pods: set controller.idleEviction" in world.said[-1][1]


@pytest.mark.slow
async def test_who_cannot_be_ended_disturbs_no_pod() -> None:
    world = Idling()
    for number in range(12):
        await notebook(world, f"kept-{number}")
        key = "default", f"kept-{number}"
        world.cluster.store.edit(PODS, key, lambda pod: pod["metadata"]["labels"].update(keep="yes"))
    await notebook(world, "last")
    world.cluster.put(POD_DISRUPTION_BUDGETS, budget("keep", "yes"))
    await world.later(62)
    assert len(world.names) == 12
    assert "last" not in world.names


@pytest.mark.slow
async def test_at_most_eight_are_ended_in_half_a_minute() -> None:
    world = Idling()
    for number in range(12):
        await notebook(world, f"n-{number}")
    for _ in range(240):
        before = len(world.names)
        await world.later(0.5)
        assert before - len(world.names) <= 8
    assert world.names == []


async def test_trouble_with_one_disturbs_no_other() -> None:
    world = Idling()
    for name in ("a", "b"):
        await notebook(world, name)
    await world.later(49)
    world.cluster.client.refuse["patch"] = [ApiError(500, "InternalError", "a webhook of somebody's")]
    await world.later(12)
    assert world.names == []


async def test_a_pod_that_has_not_started_is_not_ended() -> None:
    world = Idling()
    await notebook(world)
    world.cluster.store.edit(PODS, ("default", "nb"), lambda pod: pod["status"].update(phase="Pending"))
    await world.later(120)
    assert end(world) == (None, None)


async def test_a_warning_is_taken_back_where_the_cluster_ends_no_pod_any_more() -> None:
    world = Idling()
    await notebook(world)
    await world.later(55)
    assert end(world) == (END, END)
    world.ends = False
    world.lead()
    await world.later(1)
    assert end(world) == (None, None)
    assert WARN_S == 600


async def test_who_works_again_while_another_is_ended_is_not_ended() -> None:
    world = Idling()
    for name in "ab":
        await notebook(world, name)
    await world.later(59)

    def work() -> None:
        world.now += 5
        del world.quiet["b"]
        world.agents()
        world.cluster.deliver()

    slow(world, ("evict", "a"), work)
    await world.later(3)
    assert world.names == ["b"]


async def test_a_server_that_asks_to_wait_for_years_is_heeded_for_minutes_and_warnings_are_taken_back() -> None:
    world = Idling()
    await notebook(world)
    await world.later(59)
    world.cluster.client.refuse["evict"] = [ApiError(429, "TooManyRequests", "later", retry_after_s=1e9)]
    await world.later(3)
    assert end(world) == (END, END)
    del world.quiet["nb"]
    await world.later(2)
    assert end(world) == (None, None)
    world.rest("nb")
    await world.later(62)
    assert world.names == []
