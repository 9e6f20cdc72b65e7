"""Counts the failures of a workload, and sets its back-off: how long the controller does not try it again.

A *tentative placement* is the node and GPUs that are chosen for a pod whose claim the scheduler has not allocated yet.
"""

from __future__ import annotations

import math
from typing import Final

from dradriver.kube.backoff import wait_s

LONGEST_BACKOFF_S: Final = 120.0
LOST_S: Final = 0.25  # the first pause after a claim vanished
MOST_REFUSALS: Final = 3  # nodes that a scheduler refuses before it chooses for itself, or a pod waits for longer
_MOVED_S: Final = 0.1  # usually an event comes first
_LONGEST_MOVED_S: Final = 6.4


class Failures:
    """The failures of a workload by type, and the time of its next try.

    Attributes:
        not_before: When the workload may be tried again, seconds of the event loop's clock.
        times: How many failures count for the next back-off, such as a refused write or a lost tentative placement.
        in_vain: How often the scheduler did not bind the workload in time. ``forgive`` does not forget these failures.
        tried: The nodes on which the workload's tentative placement failed.
        refusals: How often the scheduler has refused the node of a tentative placement, since the workload was created.
    """

    def __init__(self) -> None:
        self.not_before = 0.0
        self.times = self.in_vain = 0
        self.tried: list[str] = []
        self.refusals = 0
        self._moved = 0  # how often in a row another writer was first
        self._again = 0  # how often in a row all was taken back, after the first time
        self._anew_at = -math.inf  # when it might begin anew the last time
        self._forgiven_at = -math.inf  # when it was forgiven last
        self._alone = 0  # how often in a row it met the server's trouble after another's write had gone well
        self._successes: int | None = None  # of all, when it met the server's trouble last

    def pause(self, now: float, seconds: float) -> None:
        """Set the back-off: the workload is not tried again for ``seconds`` from ``now``."""
        self.not_before = now + seconds

    def back_off(self, now: float, *, first_s: float, longest_s: float = LONGEST_BACKOFF_S) -> None:
        """Set the back-off: ``first_s`` seconds, doubled for each earlier failure, at most ``longest_s``.

        ``times`` counts the earlier failures.
        """
        self.pause(now, wait_s(self.times, first_s=first_s, longest_s=longest_s))

    def moved(self, now: float, *, at_once: bool) -> None:
        """Set the back-off after a conflict: another program changed the workload's object before our write.

        Args:
            now: The time, by the loop's clock.
            at_once: If True, the first conflict in a row sets no back-off, and the workload is tried again at once.
        """
        if self._moved or not at_once:
            self.pause(now, wait_s(self._moved, first_s=_MOVED_S, longest_s=_LONGEST_MOVED_S))
        self._moved += 1

    def begins_anew(self, now: float) -> bool:
        """Note that the controller deleted the workload's claims although no placement had failed.

        Return whether this also happened a short time before. Then this method has set a back-off. If the result is
        False, the workload may be tried again at once.
        """
        self._again = self._again + 1 if now - self._anew_at <= LONGEST_BACKOFF_S else 0
        if self._again:
            self.pause(now, wait_s(self._again - 1, first_s=LOST_S, longest_s=LONGEST_BACKOFF_S))
        self._anew_at = max(now, self.not_before)
        return self._again > 0

    def meets_trouble(self, successes: int) -> int:
        """Note that the API server failed a write of the workload; count these failures.

        The result counts the failures in a row for which the workload is the likely cause. A failure counts only if
        another workload's write has succeeded since this workload's previous failure. Otherwise the server itself may
        be the cause.

        Args:
            successes: How many writes of all workloads have succeeded so far.
        """
        if self._successes is not None and successes > self._successes:
            self._alone += 1
        self._successes = successes
        return self._alone

    def written(self) -> None:
        """Forget conflicts and failures of the API server, because the workload's writes succeeded."""
        self._moved = self._alone = 0

    def begin_again(self) -> None:
        """Forget the nodes in ``tried``, because the workload has failed on every possible node.

        The controller then tries these nodes again. This adds one failure to ``times``, unless ``tried`` was empty.
        """
        if self.tried:
            self.tried.clear()
            self.times += 1

    def forgive(self, now: float) -> None:
        """Forget the failures in ``times`` and ``tried``, and the back-off, because the request changed.

        Failures to be bound in time (``in_vain``) are an exception: they still count for the next back-off. If there
        were any, the present back-off ends at most once per ``LONGEST_BACKOFF_S``. Otherwise a pod that changes its
        request all the time could keep GPUs from other workloads nearly all the time.
        """
        if not self.in_vain:
            self.not_before = 0.0
        elif now >= self._forgiven_at + LONGEST_BACKOFF_S:
            self.not_before, self._forgiven_at = 0.0, now
        self.times, self._anew_at = self.in_vain, -math.inf
        self.tried.clear()
