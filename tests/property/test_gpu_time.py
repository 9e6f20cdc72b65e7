"""GPU time against the truth: over any changes, changes of the leader and steps of the clock no second counts twice.

The truth is told apart from the code under test: for each claim which seconds of the wall clock it was seen to be held
in. A second of a claim counts once, however often the clock shows it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.api.claims import usage_config_maps
from dradriver.api.claims.pins import Key
from dradriver.api.claims.usage_config_maps import Detail
from dradriver.cluster.pods.gpu_time import GpuTime, Who
from tests.effort import examples

_MINUTE = 60.0
_BEGIN = 100 * 3600.0

_CLAIMS = st.integers(0, 3)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), _CLAIMS),
        st.tuples(st.just("free"), _CLAIMS),
        st.tuples(st.just("idle"), _CLAIMS),
        st.tuples(st.just("busy"), _CLAIMS),
        st.tuples(st.just("wait"), st.integers(1, 200)),  # minutes
        st.tuples(st.just("fail"), st.integers(0, 90)),  # minutes without a leader
        st.tuples(st.just("step"), st.integers(-90, 90)),  # minutes that the clock is set to
    ),
    min_size=1,
    max_size=30,
)


class Story:
    """A leader that writes every minute, its successors, and what was really the case."""

    def __init__(self) -> None:
        self.now = _BEGIN
        self.held: dict[Key, float] = {}
        self.given_at: dict[Key, float] = {}
        self.idle: dict[Key, float] = {}
        self.seconds: dict[Key, set[int]] = {}  # the minutes of the clock in which each was held
        self.made: list[dict[str, Any]] = []
        self.time = self.leader()
        self.time.begin({}, self.now, lambda _: self.now)
        self.write()

    def leader(self) -> GpuTime:
        def who(claim: Key) -> Who:
            return Who(f"Job/{claim[1]}", claim[1], self.idle.get(claim))

        return GpuTime(lambda _: None, who, clock=lambda: self.now)

    def tell(self, claim: Key) -> None:
        holds = {("node", claim[1]): None} if claim in self.held else {}
        self.time.holds(claim, holds, given=True)

    def pass_minutes(self, minutes: int, *, led: bool = True) -> None:
        for _ in range(minutes):
            for claim in self.held:
                self.seconds.setdefault(claim, set()).add(int(self.now // _MINUTE))
            self.now += _MINUTE
            if led:
                self.write()

    def write(self) -> None:
        self.time.settle()
        book = self.time.book
        made = usage_config_maps.config_map(
            None, book.hours, until=self.time.until, namespace="x", details=book.details
        )
        self.made = [made | {"metadata": made["metadata"] | {"resourceVersion": "1"}}]

    def fail(self, minutes: int) -> None:
        """Have the leader die, and after so many minutes another begin with what was written."""
        self.pass_minutes(minutes, led=False)
        self.time = self.leader()
        kept = usage_config_maps.read(self.made[0])
        for claim in self.held:
            self.tell(claim)
        details = {hour: kept.details.get(hour, Detail()) for hour in kept.hours}
        self.time.begin(kept.hours, kept.until, lambda claim: self.given_at[claim], details=details)
        self.write()


def run(steps: list[tuple[str, int]]) -> Story:
    story = Story()
    for what, how in steps:
        claim = ("team", f"c{how}")
        if what == "wait":
            story.pass_minutes(how)
        elif what == "fail":
            story.fail(how)
        elif what == "step":
            story.now += how * _MINUTE
        elif what == "hold":
            if claim not in story.held:
                story.held[claim] = story.given_at[claim] = story.now
            story.tell(claim)
        elif what == "free":
            story.held.pop(claim, None)
            story.idle.pop(claim, None)
            story.tell(claim)
        elif claim in story.held:
            if what == "idle":
                story.idle[claim] = story.now - 5 * _MINUTE
            else:
                story.idle.pop(claim, None)
            story.tell(claim)
    story.write()
    return story


def by_claim(story: Story) -> dict[str, float]:
    found: dict[str, float] = {}
    for buckets in usage_config_maps.read(story.made[0]).hours.values():
        for bucket, seconds in buckets.items():
            name = bucket.owner.removeprefix("Job/")
            found[name] = found.get(name, 0.0) + seconds
    return found


@given(_STEPS.filter(lambda steps: all(what != "step" for what, _ in steps)))
@settings(max_examples=examples(60), deadline=None)
def test_what_is_written_is_what_claims_held(steps: list[tuple[str, int]]) -> None:
    """Nothing ends while nobody leads here, so nothing at all may be lost."""
    story = run(steps)
    truth = {claim[1]: len(minutes) * _MINUTE for claim, minutes in story.seconds.items()}
    assert by_claim(story) == truth


@given(_STEPS)
@settings(max_examples=examples(60), deadline=None)
def test_no_second_counts_twice_with_any_clock(steps: list[tuple[str, int]]) -> None:
    story = run(steps)
    leaps = sum(max(how, 0) for what, how in steps if what == "step") * _MINUTE
    for claim, seconds in by_claim(story).items():
        minutes = story.seconds.get(("team", claim), set())
        assert seconds <= len(minutes) * _MINUTE + leaps, "a second that the clock showed twice, or a leap of the clock"


@given(_STEPS)
@settings(max_examples=examples(60), deadline=None)
def test_idle_time_and_time_of_pods_are_no_more_than_what_was_held(steps: list[tuple[str, int]]) -> None:
    kept = usage_config_maps.read(run(steps).made[0])
    for hour, detail in kept.details.items():
        rows = kept.hours[hour]
        for bucket, idle in detail.idle.items():
            assert idle <= rows[bucket] + 1e-3
        for (bucket, _), (had, idle) in detail.pods.items():
            assert idle <= had + 1e-3
            assert had <= rows[bucket] + 1e-3
