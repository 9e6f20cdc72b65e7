"""GPU-seconds by hour: spans of time are added to each hour that they are in, long ones a slice at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from dradriver.api.claims.usage_config_maps import (
    HOUR_S,
    MOST_PODS,
    MOST_ROWS,
    Bucket,
    Detail,
    Details,
    Hours,
    folds,
    largest_pods,
)
from dradriver.event import Event

_HOURS: Final = 4  # of a gap, before others have their turn
_LEAST: Final = 1e-9  # GPUs; less is what adding up fractions has lost


class Gap(NamedTuple):
    """Hours during all of which something was held.

    Attributes:
        first: The first of them.
        end: The one after the last.
        gpus: How many GPUs, by bucket.
        idle: Whether this tells what did nothing of what others tell.
    """

    first: int
    end: int
    gpus: Mapping[Bucket, float]
    idle: bool


class GpuHours:
    """The GPU-seconds of each hour, as far as they are counted.

    Attributes:
        counts: Whether anything is counted.
        hours: GPU-seconds.
        details: What else is known of them.
        grown: Hours that have grown; whoever writes them down takes them out.
        spent: These GPU-seconds are added to this bucket.
    """

    def __init__(self) -> None:
        """Count nothing yet."""
        self.spent: Event[[Bucket, float]] = Event()
        self.begin({}, {})
        self.counts = False

    def begin(self, hours: Hours, details: Details) -> None:
        """Continue counting GPU-seconds from these hours."""
        self.counts = True
        self.hours: Hours = hours
        self.details: Details = details
        self.grown: set[int] = set()

    def end(self) -> None:
        """Stop counting GPU-seconds."""
        self.begin({}, {})
        self.counts = False

    def forget_before(self, hour: int) -> None:
        """Remove GPU-seconds that are older than an hour."""
        for old in [each for each in self.hours if each < hour]:
            del self.hours[old]
            self.details.pop(old, None)

    def forget_pods_before(self, hour: int) -> None:
        """Keep of older hours' GPU-seconds only the pods that had most."""
        for each, detail in self.details.items():
            if each < hour and len(detail.pods) > MOST_PODS:
                detail.pods = largest_pods(detail.pods, MOST_PODS)

    def add(
        self, since: float, now: float, gpus: Mapping[Bucket, float], pod: str, gaps: list[Gap], *, idle: bool = False
    ) -> None:
        """Add GPU-seconds of a span to the hours at its ends; all hours between are left in ``gaps``.

        Args:
            since: From when, seconds since the epoch.
            now: Until when.
            gpus: How many GPUs, by bucket.
            pod: Whose; empty where that is not known.
            gaps: What ``fill`` adds.
            idle: Whether this tells what did nothing of what was added before.
        """
        first, last = int(since // HOUR_S), int(now // HOUR_S)
        if first == last:
            self._add(first, gpus, now - since, pod, idle=idle)
            return
        self._add(first, gpus, (first + 1) * HOUR_S - since, pod, idle=idle)
        if first + 1 < last:
            gaps.append(Gap(first + 1, last, gpus, idle))
        if last * HOUR_S < now:
            self._add(last, gpus, now - last * HOUR_S, pod, idle=idle)

    def fill(self, gaps: list[Gap]) -> Iterator[None]:
        """Add GPU-seconds that were held for hours, each hour and bucket once, a slice at a time.

        Pods are not told apart there: that is for whoever counts every minute.
        """
        if not gaps or not self.counts:
            return
        gpus: dict[Bucket, float] = {}
        for gap in gaps:
            for bucket, count in () if gap.idle else gap.gpus.items():
                gpus[bucket] = gpus.get(bucket, 0.0) + count
        to = folds(gpus, MOST_ROWS, len(gpus))
        yield
        for idle in (False, True):
            yield from self._fill([gap for gap in gaps if gap.idle is idle], to, idle=idle)

    def _fill(self, gaps: list[Gap], to: Mapping[Bucket, Bucket], *, idle: bool) -> Iterator[None]:
        changes: dict[int, dict[Bucket, float]] = {}
        for gap in gaps:
            for hour, sign in ((gap.first, 1.0), (gap.end, -1.0)):
                change = changes.setdefault(hour, {})
                for bucket, count in gap.gpus.items():
                    row = to.get(bucket, bucket)
                    change[row] = change.get(row, 0.0) + sign * count
        yield
        now: dict[Bucket, float] = {}
        for hour in range(min(changes, default=0), max(changes, default=0)):
            for bucket, count in changes.get(hour, {}).items():
                now[bucket] = now.get(bucket, 0.0) + count
                if now[bucket] < _LEAST:
                    del now[bucket]
            if not self.counts:
                return
            if now:
                self._add(hour, now, float(HOUR_S), "", idle=idle)
            if hour % _HOURS == 0:
                yield

    def _add(self, hour: int, gpus: Mapping[Bucket, float], seconds: float, pod: str, *, idle: bool) -> None:
        buckets = self.hours.setdefault(hour, {})
        self.grown.add(hour)
        if idle or pod:
            detail = self.details.get(hour)
            if detail is None:
                detail = self.details[hour] = Detail({}, {})
            for bucket, count in gpus.items() if pod else ():
                had, did_nothing = detail.pods.get((bucket, pod), (0.0, 0.0))
                part = count * seconds
                detail.pods[bucket, pod] = (had, did_nothing + part) if idle else (had + part, did_nothing)
            if idle:
                buckets = detail.idle
        for bucket, count in gpus.items():
            buckets[bucket] = buckets.get(bucket, 0.0) + count * seconds
            if not idle:
                self.spent(bucket, count * seconds)
