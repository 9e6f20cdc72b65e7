"""Units that could not be ended, and for how long preemption leaves each alone. ``Evictions`` keeps them."""

from __future__ import annotations

from typing import Final

import msgspec

from dradriver.api.claims.pins import Key
from dradriver.kube.backoff import wait_s

FIRST_S: Final = 60.0  # for which a workload is left alone after the first refusal
LONGEST_S: Final = 3600.0  # the same after many in a row


class _Refusal(msgspec.Struct, frozen=True):
    """How often in a row a workload was refused, not counting the first time, and until when it is left alone."""

    times: int
    until: float


class EvictionRefusals:
    """Refusals by workload. All times are seconds by one clock, which the caller reads."""

    def __init__(self) -> None:
        """Know of no refusal."""
        self._refusals: dict[Key, _Refusal] = {}

    def add(self, workload: Key, now: float) -> None:
        """Note that a workload could not be evicted: it is left alone, each time in a row for twice as long.

        A plan that has begun asks again every few seconds. What it is answered while the workload is left alone anyway
        does not count as one more time.
        """
        # If nobody asked a workload for a long time, what it was answered then says nothing any more.
        self._refusals = {key: known for key, known in self._refusals.items() if now < known.until + LONGEST_S}
        known = self._refusals.get(workload)
        times = 0 if known is None else known.times + (now >= known.until)
        self._refusals[workload] = _Refusal(times, now + wait_s(times, first_s=FIRST_S, longest_s=LONGEST_S))

    def forget(self, workload: Key) -> None:
        """Forget that a workload could not be evicted: nothing prevented it this time."""
        self._refusals.pop(workload, None)

    def left_alone_s(self, workload: Key, now: float) -> float:
        """Return for how many seconds more evictions leave a workload alone; 0 if they do not."""
        known = self._refusals.get(workload)
        return 0.0 if known is None else max(known.until - now, 0.0)
