"""How a workload has failed, and until when it is left alone for that."""

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
    """How often a workload has failed, in each way, and when it may be tried again.

    Attributes:
        not_before: When it may be tried again, by the loop's clock.
        times: How often in a row it was refused, or its promise not kept.
        in_vain: How often of these its scheduler did not bind it in time.
        tried: Nodes on which its promise was not kept.
        refusals: How often the scheduler refused the node of its tentative placement, since it came.
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
        """Set the back-off of the workload to so many seconds."""
        self.not_before = now + seconds

    def back_off(self, now: float, *, first_s: float, longest_s: float = LONGEST_BACKOFF_S) -> None:
        """Set the back-off: twice as long for each time that the workload failed before, without counting this one."""
        self.pause(now, wait_s(self.times, first_s=first_s, longest_s=longest_s))

    def moved(self, now: float, *, at_once: bool) -> None:
        """Back off because another writer was first; the first time not at all where that does no harm."""
        if self._moved or not at_once:
            self.pause(now, wait_s(self._moved, first_s=_MOVED_S, longest_s=_LONGEST_MOVED_S))
        self._moved += 1

    def begins_anew(self, now: float) -> bool:
        """Take in that what it had was taken back, right as it was. Returns whether it waits, as that was so lately."""
        self._again = self._again + 1 if now - self._anew_at <= LONGEST_BACKOFF_S else 0
        if self._again:
            self.pause(now, wait_s(self._again - 1, first_s=LOST_S, longest_s=LONGEST_BACKOFF_S))
        self._anew_at = max(now, self.not_before)
        return self._again > 0

    def meets_trouble(self, successes: int) -> int:
        """Count for the back-off that the server failed the workload; ``successes`` are all writes that went well.

        Returns how often in a row that was so although others' writes went well.
        """
        if self._successes is not None and successes > self._successes:
            self._alone += 1
        self._successes = successes
        return self._alone

    def written(self) -> None:
        """Forget for the back-off the conflicts and failures of the server: the workload's writes went well."""
        self._moved = self._alone = 0

    def begin_again(self) -> None:
        """Note that a workload that failed on nodes is tried on them again: all nodes have had their turn."""
        if self.tried:
            self.tried.clear()
            self.times += 1

    def forgive(self, now: float) -> None:
        """Forget all failures and the back-off: the workload requests something else now.

        A workload that had kept GPUs from others in vain is forgiven once in a while only, and goes on to wait longer
        each time. Else a pod that changes all the time would have them nearly all the time.
        """
        if not self.in_vain:
            self.not_before = 0.0
        elif now >= self._forgiven_at + LONGEST_BACKOFF_S:
            self.not_before, self._forgiven_at = 0.0, now
        self.times, self._anew_at = self.in_vain, -math.inf
        self.tried.clear()
