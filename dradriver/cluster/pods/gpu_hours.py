"""GPU-seconds by hour. Time spans are added to each hour that they overlap. Long spans are added in small steps.

Within an hour the GPU-seconds are counted by bucket: namespace, owner, product and kind (whole GPU, share or MIG
slice). ``gpu_time`` uses this module.

An hour is given as its number since the epoch. GPU time is *idle* while all devices of the claim are idle.
"""

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
    """A span of whole hours during which GPUs were allocated all the time.

    Attributes:
        first: The first hour.
        end: The hour after the last.
        gpus: The number of GPUs by bucket: namespace, owner, product and kind.
        idle: Whether this span is idle time. Idle time is counted twice: here, and as allocated time in a span without
            ``idle``.
    """

    first: int
    end: int
    gpus: Mapping[Bucket, float]
    idle: bool


class GpuHours:
    """The GPU-seconds of each hour, as far as they are counted.

    Attributes:
        counts: Whether GPU-seconds are counted at present.
        hours: The GPU-seconds by hour and by bucket (namespace, owner, product and kind).
        details: For each hour the idle GPU-seconds, and the GPU-seconds of each pod.
        grown: Hours that have changed. The code that stores them removes them from this set.
        spent: Is called with a bucket and the GPU-seconds that were added to it.
    """

    def __init__(self) -> None:
        """Make an object that counts nothing before ``begin``."""
        self.spent: Event[[Bucket, float]] = Event()
        self.begin({}, {})
        self.counts = False

    def begin(self, hours: Hours, details: Details) -> None:
        """Continue counting from the GPU-seconds in ``hours``.

        ``details`` has for each hour the idle GPU-seconds, and the GPU-seconds of each pod.
        """
        self.counts = True
        self.hours: Hours = hours
        self.details: Details = details
        self.grown: set[int] = set()

    def end(self) -> None:
        """Stop counting GPU-seconds, and forget those that were counted."""
        self.begin({}, {})
        self.counts = False

    def forget_before(self, hour: int) -> None:
        """Remove the GPU-seconds of all hours before ``hour``."""
        for old in [each for each in self.hours if each < hour]:
            del self.hours[old]
            self.details.pop(old, None)

    def forget_pods_before(self, hour: int) -> None:
        """Forget the GPU-seconds of most single pods in each hour before ``hour``.

        Only the few pods with the most GPU-seconds are kept.
        """
        for each, detail in self.details.items():
            if each < hour and len(detail.pods) > MOST_PODS:
                detail.pods = largest_pods(detail.pods, MOST_PODS)

    def add(
        self, since: float, now: float, gpus: Mapping[Bucket, float], pod: str, gaps: list[Gap], *, idle: bool = False
    ) -> None:
        """Count the GPU-seconds of a time span in its first and last hour.

        The hours between them, which the span covers completely, are appended to ``gaps`` and not counted here.

        Args:
            since: Start of the span, seconds since the epoch.
            now: End of the span, seconds since the epoch.
            gpus: The number of GPUs, by bucket.
            pod: The name of the pod that used them; empty if it is unknown.
            gaps: The list to which the hours between are appended. The caller must add them with ``fill``.
            idle: Whether this is idle time. The same time must also be added once without ``idle``.
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
        """Add the GPU-seconds of ``gaps`` (spans of whole hours) in small steps.

        The iterator yields after each step. For each hour and bucket (namespace, owner, product and kind) one number is
        added. In these hours, GPU-seconds are not recorded by pod.
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
