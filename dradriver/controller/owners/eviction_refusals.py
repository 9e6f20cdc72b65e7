"""Remembers workloads that could not be ended: how often, and until when no eviction is tried. ``Evictions`` calls it.

Preemption tries workloads first that were never refused, then those that were refused least often. So a pod that can
never end delays a preemption once, and does not stop it.

A *workload* is a gang or a single pod. A *plan* is one preemption: the claims for a waiting workload, and the pods that
must end for them.
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
    """How often in a row a workload's eviction was refused, and the pause after it.

    No eviction of the workload is tried before ``until``, in seconds by the caller's clock.
    """

    times: int
    until: float


class EvictionRefusals:
    """Remembers refused evictions by workload. All times are in seconds by the caller's clock."""

    def __init__(self) -> None:
        """Begin without refusals."""
        self._refusals: dict[Key, _Refusal] = {}

    def add(self, workloads: Iterable[Key], now: float) -> None:
        """Note that evictions were refused; each pause is twice as long as the last.

        No pause is longer than ``LONGEST_S``. A plan that has begun tries its evictions again every few seconds. A
        refusal during a pause does not count again. ``now`` is in seconds, by the caller's clock.
        """
        self._refusals = {key: known for key, known in self._refusals.items() if now < known.until + KEPT_S}
        for workload in workloads:
            known = self._refusals.get(workload, _Refusal(0, now))
            if now >= known.until:
                until = now + wait_s(known.times, first_s=FIRST_S, longest_s=LONGEST_S)
                self._refusals[workload] = _Refusal(known.times + 1, until)

    def forget(self, workload: Key) -> None:
        """Forget the refusals of a workload, because its eviction has succeeded."""
        self._refusals.pop(workload, None)

    def times(self, now: float) -> dict[Key, int]:
        """Return how often in a row the eviction of each workload was refused.

        A refusal is forgotten ``KEPT_S`` seconds after its pause. ``now`` is in seconds, by the caller's clock.
        """
        return {key: known.times for key, known in self._refusals.items() if now < known.until + KEPT_S}

    def left_alone_s(self, workload: Key, now: float) -> float:
        """Return how many seconds of a workload's pause are left; 0 without a pause.

        ``now`` is in seconds, by the caller's clock.
        """
        known = self._refusals.get(workload)
        return 0.0 if known is None else max(known.until - now, 0.0)
