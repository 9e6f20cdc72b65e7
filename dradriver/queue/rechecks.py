"""When blocked kinds are asked whether they may find a place by now: in rounds, and all are served between two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from dradriver.kube.backoff import EARLY_S
from dradriver.queue.waiting import Queue

LONG_S: Final = 0.01  # of asking, after which others get a rest of it
REST: Final = 4.0  # times as long as a round took
_LOOK: Final = 8  # kinds that are asked between two looks at the clock


class Asking:
    """Asks a queue's blocked kinds.

    Thousands of kinds take long to ask, and something becomes free all the time: most of the time is for others.
    """

    def __init__(self, queue: Queue, wake: Callable[[], None]) -> None:
        """``wake`` is called when a rest is over."""
        self._queue = queue
        self._wake = wake
        self._not_before = self._spent_s = 0.0
        self._answered = False  # a round is over, and not all that it found a place for are served

    def some(self) -> bool:
        """Ask some blocked kinds. Returns whether it did: not in a rest, with somebody to serve or none to ask."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if self._answered or began < self._not_before or not self._queue.outdated:
            return False
        self._answered = not self._queue.look(_LOOK)
        self._spent_s += loop.time() - began
        if self._answered:
            if self._spent_s > LONG_S:
                self._not_before = loop.time() + self._spent_s * REST
                loop.call_at(self._not_before + EARLY_S, self._wake)
            self._spent_s = 0.0
        return True

    def again(self) -> bool:
        """Take in that all who could be served have been. Returns whether blocked kinds may be asked again for that."""
        answered, self._answered = self._answered, False
        return answered
