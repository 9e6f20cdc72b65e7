"""Workloads that could not be ended, how often, and until when they are left alone. ``Evictions`` keeps them.

Whoever may be ended and was never refused is tried first, then who was refused least often. So pods that can never end
delay a preemption, each once, and do not stop it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from dradriver.api.claims.pins import Key
from dradriver.kube.backoff import wait_s

FIRST_S: Final = 60.0  # for which a workload is left alone after the first refusal
LONGEST_S: Final = 600.0  # the same after many in a row: as late it can be noticed that a budget lets the pod end now
KEPT_S: Final = 3600.0  # after which a refusal says nothing any more, if the workload was not tried since


class _Refusal(msgspec.Struct, frozen=True):
    """How often in a row a workload was refused, and until when it is left alone."""

    times: int
    until: float


class EvictionRefusals:
    """Refusals by workload. All times are seconds by one clock, which the caller reads."""

    def __init__(self) -> None:
        """Know of no refusal."""
        self._refusals: dict[Key, _Refusal] = {}

    def add(self, workloads: Iterable[Key], now: float) -> None:
        """Note that workloads could not be evicted: they are left alone, each time in a row for twice as long.

        A plan that has begun asks again every few seconds. What it is answered while a workload is left alone anyway
        does not count as one more time.
        """
        self._refusals = {key: known for key, known in self._refusals.items() if now < known.until + KEPT_S}
        for workload in workloads:
            known = self._refusals.get(workload, _Refusal(0, now))
            if now >= known.until:
                until = now + wait_s(known.times, first_s=FIRST_S, longest_s=LONGEST_S)
                self._refusals[workload] = _Refusal(known.times + 1, until)

    def forget(self, workload: Key) -> None:
        """Forget that a workload could not be evicted: nothing prevented it this time."""
        self._refusals.pop(workload, None)

    def times(self, now: float) -> dict[Key, int]:
        """Return how often in a row each workload could not be evicted, as far as that still says something."""
        return {key: known.times for key, known in self._refusals.items() if now < known.until + KEPT_S}

    def left_alone_s(self, workload: Key, now: float) -> float:
        """Return for how many seconds more evictions leave a workload alone; 0 if they do not."""
        known = self._refusals.get(workload)
        return 0.0 if known is None else max(known.until - now, 0.0)
