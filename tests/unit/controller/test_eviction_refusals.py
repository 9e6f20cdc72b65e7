"""For how long preemption leaves a workload alone that could not be ended."""

from __future__ import annotations

from dradriver.controller.owners.eviction_refusals import EvictionRefusals

ONE, OTHER = ("default", "one"), ("default", "other")


def test_it_is_twice_as_long_each_time_up_to_ten_minutes() -> None:
    refusals = EvictionRefusals()
    now, times = 0.0, []
    for _ in range(9):
        refusals.add([ONE], now)
        times.append(refusals.left_alone_s(ONE, now))
        now += times[-1]
        assert refusals.left_alone_s(ONE, now) == 0
    assert times == [60, 120, 240, 480, 600, 600, 600, 600, 600]
    assert refusals.times(now) == {ONE: 9}
    assert refusals.left_alone_s(OTHER, now) == 0


def test_what_a_plan_that_goes_on_is_answered_meanwhile_is_the_same_time() -> None:
    refusals = EvictionRefusals()
    for now in (0, 5, 10):
        refusals.add([ONE], now)
    assert refusals.left_alone_s(ONE, 10) == 50
    assert refusals.times(10) == {ONE: 1}
    refusals.add([ONE], 70)
    assert refusals.left_alone_s(ONE, 70) == 120


def test_it_begins_from_the_first_again_once_it_was_not_refused_or_not_asked_for_long() -> None:
    refusals = EvictionRefusals()
    refusals.add([ONE], 0)
    refusals.forget(ONE)
    assert refusals.left_alone_s(ONE, 0) == 0
    refusals.add([ONE], 0)
    refusals.add([ONE], 60)
    assert refusals.left_alone_s(ONE, 60) == 120
    assert not refusals.times(60 + 120 + 3600)
    refusals.add([ONE], 60 + 120 + 3600)
    assert refusals.left_alone_s(ONE, 60 + 120 + 3600) == 60
