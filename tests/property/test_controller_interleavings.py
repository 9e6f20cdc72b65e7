"""The controller keeps its promises however events, faults, kills and strangers interleave; see ``tests.simulator``."""

from __future__ import annotations

import pytest

from tests.effort import sampled
from tests.simulator.campaigns import BY_TENANTS, DRAWN
from tests.simulator.run import run

SEEDS = 300
FEW = 15
GROUPS = 30  # so that a failure names few seeds, and no test is long
FOUND = (  # faults once: what is drawn changes with the stories, so each has a unit test, too
    ("gangs", 8098),  # all went on writing though the server asked for a pause at the end of an old claim
    ("gangs_before", 8520),  # a pod's time to find room began anew whenever its gang started or ended
    ("gangs_owned", 300019),  # who began to lead looked at no gang that ran, and had none that lost a pod start anew
    ("gangs_before", 201183),  # a pod that came to a gang was lifted though the others ended while its claim hung
    ("gangs_before", 203079),  # a gang that went and came again was looked at by nobody
    ("gangs_before", 600181),  # all went on writing though one write of a gang was asked for a pause, as another hung
    ("gangs_before", 600383),  # two pods that came late at once went beyond the gang's limit of nodes
    ("gangs", 800046),  # a pod was lifted while another of its plan was gone and not made anew yet
    ("caps", 628),  # of a GPU with a slice of which nobody knows where it lies all counts
    ("caps_gangs", 1037),  # what was given of devices that no node has counts as any product
    ("preempting", 1019),  # a refused owner made its promise wait past its time: the workload was in its back-off
    ("preempting", 1034),  # a promise named who had to end for another, and would have had it ended in its own name
    ("preempting", 6107),  # one that was gone, which a watch had not shown yet, was told to end again and again
    ("gangs_owned", 312144),  # a late pod was placed below another leaf than others on a node of unknown GPUs
    ("gangs_owned", 1000337),  # whom a predecessor suspended when the next led already was found five minutes later
    ("preempting", 59000097),  # two asked for a Job that may not be suspended, and neither saw the other's refusal
    ("preempting", 68100013),  # a gang for which others ended keeps its promises for the scheduler's pause, rightly
    ("idle", 133),  # what is noted on a suspended owner had the machine's time, not the controller's
    ("preempting", 6000033),  # a pod of a gang that had begun had others ended while another's gate stayed, rightly
    ("idle_preempting", 6000040),  # a claim was made for a pod whose deletion was seen while the server was asked
    ("preempting", 55),  # another leader took a promise back while the server told the first that it stands
    ("adversaries", 0),  # the next leader forgot who had been told to end in the last minute for pods that were gone
    ("adversaries", 27),  # the same
)
# Of stories about reservations those in which a controller without one of their rules is found out.
RESERVED = (3, 4, 12, 30, 31, 36, 37)


@pytest.mark.parametrize("group", sampled(range(GROUPS), fast=1))
def test_every_invariant_holds_in_every_story(group: int) -> None:
    found = [found for seed in range(group, SEEDS, GROUPS) if (found := run(seed).violation) is not None]
    # To see all that happened: python -m tests.bench.interleavings --seed N --trace
    assert not found, "\n".join(f"seed {v.seed} at {v.at_s:.1f} s: {v.name}: {v.text}" for v in found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled(range(FEW), fast=1))
@pytest.mark.parametrize("campaign", [*DRAWN, *BY_TENANTS])
def test_every_invariant_holds_during_endless_disturbance(campaign: str, seed: int) -> None:
    assert run(seed, campaigns=[campaign]).violation is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled(range(FEW), fast=1))
def test_no_pod_is_ended_for_another_without_a_promise_nor_twice(seed: int) -> None:
    assert run(seed, campaigns=["preempting"]).violation is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled(range(FEW), fast=1))
def test_who_can_preempt_is_served_in_time_against_all_obstacles(seed: int) -> None:
    assert run(seed, campaigns=["adversaries"]).violation is None


@pytest.mark.parametrize("campaign", ["idle", "idle_gangs"])
@pytest.mark.parametrize("seed", sampled(range(FEW), fast=1))
def test_no_pod_is_ended_for_being_idle_unless_told_in_time(seed: int, campaign: str) -> None:
    assert run(seed, campaigns=[campaign]).violation is None


@pytest.mark.slow
@pytest.mark.parametrize(("campaign", "seed"), FOUND)
def test_what_was_found_once_holds(campaign: str, seed: int) -> None:
    assert run(seed, campaigns=[campaign]).violation is None


@pytest.mark.parametrize("seed", sampled(RESERVED, fast=1))
def test_what_is_reserved_stays_so_and_costs_what_it_may(seed: int) -> None:
    assert run(seed, campaigns=["reservations"]).violation is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled(range(FEW), fast=1))
def test_two_sets_of_gangs_are_of_one_story(seed: int) -> None:
    assert run(seed, campaigns=["gangs_owned", "gangs_owned"]).violation is None


def test_a_seed_replays_exactly() -> None:
    once: list[str] = []
    again: list[str] = []
    run(7, show=once.append)
    run(7, show=again.append)
    assert once == again
