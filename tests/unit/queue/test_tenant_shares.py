"""What tenants have had, decayed, and what they have now."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.queue.tenant_shares import Shares
from tests.kept import entries

HALF_LIFE_S = 1000.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def shares(*, ahead_s: float = 0.0) -> tuple[Shares, Clock]:
    clock = Clock()
    return Shares(clock, half_life_s=HALF_LIFE_S, ahead_s=ahead_s), clock


def test_what_was_used_counts_half_after_a_half_life() -> None:
    all_of_them, clock = shares()
    all_of_them.restart({"a": 800.0}, {})
    clock.now = HALF_LIFE_S
    assert all_of_them.used("a") == pytest.approx(400.0)
    assert all_of_them.share("a", weight=2.0) == pytest.approx(200.0)


def test_a_gpu_that_is_held_for_a_second_is_a_gpu_second() -> None:
    all_of_them, clock = shares()
    all_of_them.holds("a", held=8.0, charged=8.0)
    clock.now = 1e-3
    assert all_of_them.used("a") == pytest.approx(8e-3, rel=1e-6)


def test_a_tenant_that_is_given_gpus_pays_at_once_and_a_promise_that_ends_leaves_nothing() -> None:
    all_of_them, clock = shares(ahead_s=60.0)
    before = entries(all_of_them)
    all_of_them.holds("a", held=0.0, charged=4.0)
    assert entries(all_of_them) > before
    assert all_of_them.share("a") == pytest.approx(240.0)
    clock.now = 30.0
    all_of_them.holds("a", held=0.0, charged=-4.0)
    assert all_of_them.share("a") == 0.0
    assert entries(all_of_them) == before, "the tenant is forgotten"


def test_what_is_used_with_another_half_life_counts_by_it_from_then_on() -> None:
    all_of_them, clock = shares()
    all_of_them.restart({"a": 800.0}, {})
    clock.now = HALF_LIFE_S
    all_of_them.decay_by(10 * HALF_LIFE_S)
    clock.now += 10 * HALF_LIFE_S
    assert all_of_them.used("a") == pytest.approx(200.0)


@given(st.lists(st.tuples(st.floats(0, 5000), st.integers(0, 16)), min_size=1, max_size=12))
def test_it_is_the_integral_of_what_was_held(steps: list[tuple[float, int]]) -> None:
    """Against a sum over the steps: each from its own start to its own end, decayed to the last moment."""
    all_of_them, clock = shares()
    held, spans = 0, []
    for seconds, gpus in steps:
        all_of_them.holds("a", held=float(gpus - held), charged=float(gpus - held))
        spans.append((clock.now, clock.now + seconds, gpus))
        held = gpus
        clock.now += seconds
    rate = math.log(2) / HALF_LIFE_S
    expected = sum(
        gpus / rate * (math.exp(-rate * (clock.now - end)) - math.exp(-rate * (clock.now - begin)))
        for begin, end, gpus in spans
    )
    assert all_of_them.used("a") == pytest.approx(expected, rel=1e-6, abs=2e-3)


def test_a_tenant_has_what_its_namespaces_have_now() -> None:
    all_of_them, clock = shares(ahead_s=10.0)
    all_of_them.restart({"a": 100.0, "b": 50.0}, {"a": (2.0, 3.0)})
    assert all_of_them.share("a") == pytest.approx(130.0)
    all_of_them.regroup(lambda _: "both")
    assert all_of_them.share("both") == pytest.approx(180.0)
    assert all_of_them.share("a") == 0.0
    clock.now = 1e-3
    all_of_them.holds("b", 1.0, 1.0)
    assert all_of_them.held("both") == (3.0, 4.0)
    all_of_them.regroup(lambda namespace: namespace)
    assert all_of_them.held("b") == (1.0, 1.0)


def test_what_was_counted_wrong_is_put_right() -> None:
    all_of_them, _ = shares()
    all_of_them.holds("a", 2.0, 2.0)
    all_of_them.holds("b", 1.0, 1.0)
    assert all_of_them.correct({"a": (2.0, 2.0), "c": (0.5, 1.0)}) == ["b", "c"]
    assert all_of_them.correct({"a": (2.0, 2.0), "c": (0.5, 1.0)}) == []
    assert (all_of_them.held("b"), all_of_them.held("c")) == ((0.0, 0.0), (0.5, 1.0))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([-1.0, 0.0, 1.0, 4.0]), st.floats(0, 300)), max_size=30)
)
def test_turns_compare_as_shares_do_and_fall_only_where_that_is_told(steps: list[tuple[str, float, float]]) -> None:
    now = [0.0]
    shares = Shares(lambda: now[0], half_life_s=1000.0)
    held = dict.fromkeys("abc", 0.0)
    before: dict[str, float] = dict.fromkeys("abc", 0.0)

    def lowered(tenant: str | None) -> None:
        for each in "abc" if tenant is None else tenant:
            before[each] = shares.turn(each)

    shares.lowered.add(lowered)
    for tenant, change, seconds in steps:
        more = max(change, -held[tenant])
        held[tenant] += more
        shares.holds(tenant, more, more)
        now[0] += seconds
        turns = {each: shares.turn(each) for each in "abc"}
        for each, turn in turns.items():
            assert turn >= before[each] * (1 - 1e-6), "it grows unless somebody was told"
        before = turns
        found = {each: shares.share(each) for each in "abc"}
        for one, other in itertools.combinations("abc", 2):
            if found[one] > found[other] * (1 + 1e-6):
                assert turns[one] > turns[other]


def test_turns_begin_again_before_they_are_too_large_to_compare() -> None:
    now = [0.0]
    shares = Shares(lambda: now[0], half_life_s=1.0)
    shares.holds("a", 1.0, 1.0)
    now[0] = 10_000.0
    told: list[str | None] = []
    shares.lowered.add(told.append)
    assert math.isfinite(shares.turn("a"))
    shares.holds("b", 2.0, 2.0)
    assert told == [None]
    assert shares.turn("b") > shares.turn("a")
    shares.holds("b", 1.0, 1.0)
    assert told == [None], "of more nobody is told"
    shares.holds("b", 0.0, -1.0)
    assert told == [None, "b"]
