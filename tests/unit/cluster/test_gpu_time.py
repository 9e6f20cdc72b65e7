"""GPU time: the sum over what claims hold, whoever chose it, hour by hour."""

from __future__ import annotations

import asyncio
import math
from time import thread_time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.allocator.request import Amount
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import MigSlice
from dradriver.api.claims.usage_config_maps import MOST_ROWS, Bucket
from dradriver.api.slices import resource_slices
from dradriver.cluster.gpus.gpu_parts import gpus_of
from dradriver.cluster.gpus.pools import Pool
from dradriver.cluster.pods.gpu_time import GpuTime, Who, decayed, owner_of
from dradriver.topology import profiles

DEVICE = ("node", "gpu-1")
OTHER = ("node", "gpu-2")
CLAIM = ("team", "claim")


class Clock:
    def __init__(self) -> None:
        self.now = 100 * 3600.0

    def __call__(self) -> float:
        return self.now


def counting() -> tuple[GpuTime, Clock]:
    clock = Clock()
    time = GpuTime(lambda _: None, lambda _: Who("Job/train"), clock=clock)
    time.begin({}, clock.now, lambda _: clock.now)
    return time, clock


def total(time: GpuTime) -> float:
    return math.fsum(seconds for buckets in time.hours.values() for seconds in buckets.values())


def test_each_hour_has_its_part_of_what_goes_on_over_its_end() -> None:
    time, clock = counting()
    clock.now += 3000
    time.holds(CLAIM, {DEVICE: None, OTHER: None}, given=True)
    clock.now += 5000
    time.settle()
    bucket = Bucket("team", "Job/train", "", "whole")
    assert time.hours == {100: {bucket: 1200.0}, 101: {bucket: 7200.0}, 102: {bucket: 1600.0}}
    assert time.book.grown == {100, 101, 102}


def test_what_is_only_promised_costs_no_time_and_is_charged() -> None:
    time, clock = counting()
    told: list[tuple[str, float, float]] = []
    time.changed.add(lambda *change: told.append(change))
    time.holds(CLAIM, {DEVICE: None}, given=False)
    clock.now += 10
    time.holds(CLAIM, {DEVICE: None}, given=True)
    clock.now += 5
    time.holds(CLAIM, {}, given=False)
    clock.now += 5
    time.settle()
    assert total(time) == 5.0
    assert told == [("team", 0.0, 1.0), ("team", 1.0, 0.0), ("team", -1.0, -1.0)]
    assert not time.now()


def test_what_namespaces_are_charged_is_told_by_product_also_once_that_is_known() -> None:
    pools: dict[str, Pool] = {}
    time = GpuTime(pools.get, lambda _: Who())
    told: list[tuple[str, dict[str, float]]] = []
    time.charged.add(lambda namespace, more: told.append((namespace, dict(more))))
    machine = profiles.load("dgx1-v100", seed="x")
    device = ("node", resource_slices.device_name(machine.gpus[0].uuid))
    time.holds(CLAIM, {device: None}, given=False)
    assert time.charges == {"team": {"": 1.0}}
    pools["node"] = Pool({}, frozenset(), {}, {}, False, machine, machine)
    time.pool_known("node")
    assert time.charges == {"team": {machine.gpus[0].product: 1.0}}
    time.holds(CLAIM, {device: None}, given=True)
    assert len(told) == 2, "to be given what was promised changes nothing"
    time.charges["team"]["forged"] = 3.0
    assert time.recharge() == ["team"]
    assert told[-1] == ("team", {machine.gpus[0].product: 0.0, "forged": -3.0})
    time.holds(CLAIM, {}, given=False)
    assert time.charges == {}
    assert time.recharge() == []


def test_a_replica_that_stands_by_counts_nothing_and_goes_on_from_what_was_counted() -> None:
    time, clock = counting()
    time.end()
    time.holds(CLAIM, {DEVICE: None}, given=True)
    clock.now += 100
    time.settle()
    assert not time.hours
    bucket = Bucket("team", "Job/before", "", "whole")
    time.begin({100: {bucket: 7.0}}, clock.now - 30, lambda _: clock.now - 80)
    time.settle()
    assert total(time) == 37.0, "since the other wrote, not since the claim got its GPUs"
    assert time.now() == {"team": (1.0, 1.0)}


@pytest.mark.parametrize("claims", [1, 1000])
async def test_a_gap_of_weeks_is_added_up_once_an_hour_and_gives_way(claims: int) -> None:
    clock = Clock()
    time = GpuTime(lambda _: None, lambda claim: Who(f"Job/{claim[1]}"), clock=clock)
    given_at: dict[tuple[str, str], float] = {}
    for n in range(claims):
        key = (f"team-{n % 7}", f"c{n}")
        time.holds(key, {("node", f"gpu-{n}"): None}, given=True)
        given_at[key] = clock.now + n % 50 * 1000.0
    clock.now += 30 * 24 * 3600.0 + 100
    begun = clock.now
    time.begin({}, 100 * 3600.0, lambda claim: given_at[claim])
    longest, turns = 0.0, 0
    counting = asyncio.ensure_future(time.catch_up())
    while not counting.done():
        started = thread_time()
        await asyncio.sleep(0)
        longest, turns = max(longest, thread_time() - started), turns + 1
        if turns == 2:
            clock.now += 50.0
            time.holds(("team-0", "c0"), {}, given=False)  # while it is being counted
    await counting
    assert longest < 0.5
    assert turns > 10
    assert total(time) == pytest.approx(sum(begun - since for since in given_at.values()) + 50.0)
    assert all(len(rows) <= MOST_ROWS + 7 for hour, rows in time.hours.items() if 120 < hour < 800)
    assert time.book.grown == set(time.hours) == set(range(100, 821))
    clock.now += 50.0
    time.settle()


def test_a_clock_that_leaps_counts_no_more_than_there_are_days_of() -> None:
    time, clock = counting()
    time.holds(CLAIM, {DEVICE: None}, given=True)
    clock.now += 10 * 365 * 86_400.0
    time.settle()
    assert total(time) == 35 * 86_400.0


def test_parts_count_as_what_they_keep_from_others() -> None:
    assert gpus_of(None, "gpu-1", (Amount(cores=25, memory_mib=100),)) == [("", "share", 0.25)]
    assert gpus_of(None, "gpu-1", (MigSlice("3g.40gb", 4, 4), MigSlice("1g.10gb", 0, 1))) == [
        ("", "slice", 0.5),
        ("", "slice", 0.125),
    ]


@pytest.mark.parametrize(
    ("owners", "labels", "made_by"),
    [
        ([], {}, ""),
        ([{"kind": "Job", "name": "train", "controller": True}], {}, "Job/train"),
        ([{"kind": "Node", "name": "n"}], {}, ""),
        (
            [{"kind": "ReplicaSet", "name": "web-5d4", "controller": True}],
            {"pod-template-hash": "5d4"},
            "Deployment/web",
        ),
        ([{"kind": "ReplicaSet", "name": "alone", "controller": True}], {}, "ReplicaSet/alone"),
        ([{"kind": "K" * 63, "name": "n" * 253, "controller": True}], {}, f"{'K' * 63}/{'n' * 253}"),
        ([{"kind": "K" * 60_000, "name": "n", "controller": True}], {}, ""),
        ([{"kind": "\u0007" * 300, "name": "n", "controller": True}], {}, ""),
    ],
)
def test_who_made_a_pod(owners: list[dict[str, Any]], labels: dict[str, str], made_by: str) -> None:
    pod = msgspec.convert({"metadata": {"name": "p", "labels": labels, "ownerReferences": owners}}, Pod)
    assert owner_of(pod) == made_by


def test_an_hour_counts_as_if_it_was_used_evenly() -> None:
    bucket = Bucket("team", "", "", "whole")
    now = 102 * 3600.0
    found = decayed({100: {bucket: 100.0}, 101: {bucket: 8.0}}, now, half_life_s=3600.0)
    assert found == {"team": pytest.approx(100 * 0.5**1.5 + 8 * 0.5**0.5)}


def test_what_was_too_little_to_be_told_apart_is_no_tenants() -> None:
    hours = {100: {Bucket("", "others", "", "whole"): 5.0, Bucket("team", "", "", "whole"): 1.0}}
    assert set(decayed(hours, 101 * 3600.0, half_life_s=3600.0)) == {"team"}


_STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.booleans(), st.booleans(), st.floats(0, 4000)), min_size=1, max_size=20
)


@given(_STEPS)
def test_usage_is_the_sum_over_holds(steps: list[tuple[int, bool, bool, float]]) -> None:
    """Against the same told as spans: what each claim had, from when to when."""
    time, clock = counting()
    spans: dict[int, float] = {}
    expected = 0.0
    for claim, holds, given_it, seconds in steps:
        if claim in spans:
            expected += clock.now - spans.pop(claim)
        time.holds(("team", f"c{claim}"), {DEVICE: None} if holds else {}, given=given_it)
        if holds and given_it:
            spans[claim] = clock.now
        clock.now += seconds
    time.settle()
    expected += sum(clock.now - since for since in spans.values())
    assert total(time) == pytest.approx(expected)
    held = time.now().get("team", (0.0, 0.0))[0]
    assert held == len(spans)
