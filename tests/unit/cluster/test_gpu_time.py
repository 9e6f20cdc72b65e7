"""GPU time: the sum over what claims hold, whoever chose it, hour by hour."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.allocator.request import Amount
from dradriver.api.pins import MigSlice
from dradriver.api.pods import Pod
from dradriver.api.usage import Bucket
from dradriver.cluster.gpu_time import GpuTime, decayed, gpus_of, owner_of

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
    time = GpuTime(lambda _: None, lambda _: "Job/train", clock=clock)
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
    assert time.grown == {100, 101, 102}


def test_what_is_only_promised_costs_no_time_and_is_charged() -> None:
    time, clock = counting()
    told: list[tuple[str, float, float]] = []
    time.changed = lambda *change: told.append(change)
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


def test_a_replica_that_stands_by_counts_nothing_and_goes_on_from_what_was_counted() -> None:
    time, clock = counting()
    time.end()
    time.holds(CLAIM, {DEVICE: None}, given=True)
    clock.now += 100
    time.settle()
    assert not time.hours
    bucket = Bucket("team", "Job/before", "", "whole")
    time.begin({100: {bucket: 7.0}}, clock.now - 30, lambda _: clock.now - 80)
    assert total(time) == 37.0, "since the other wrote, not since the claim got its GPUs"
    assert time.now() == {"team": (1.0, 1.0)}


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
