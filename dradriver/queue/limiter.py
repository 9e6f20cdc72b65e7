"""How many writes may be under way at once: fewer when the server says so, and no namespace delays another."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from typing import Final

from dradriver.errors import DriverError
from dradriver.kube.backoff import EARLY_S, wait_s
from dradriver.kube.client import ApiError

MOST: Final = 16
SLOW_S: Final = 1.0  # a write that takes longer gives its slot to another, and goes on beside it
MOST_SLOW: Final = 8  # of one namespace; its next writes wait for them
MOST_SLOW_IN_ALL: Final = 128  # beyond, a namespace that has any waits for them
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
LONGEST_ASKED_S: Final = 30.0  # that a server's own wish is heeded for


class Limiter:
    """Slots for writes.

    Trouble with the server shrinks their number to one and pauses all, twice as long with every failure in a row; each
    success lets one more in.
    """

    def __init__(self, on_room: Callable[[], None]) -> None:
        """``on_room`` is called whenever there may be room again."""
        self._on_room = on_room
        self._limit = float(MOST)
        self._fast = 0
        self._slow: collections.Counter[str] = collections.Counter()
        self._under_way: collections.Counter[str] = collections.Counter()
        self._failures = 0
        self._paused_until = 0.0
        self.successes = 0  # writes that were answered well

    @property
    def idle(self) -> bool:
        """Whether no write is under way but slow ones."""
        return not self._fast

    def paused(self) -> bool:
        """Return whether the server is in trouble, or has asked for a pause, that is not over yet."""
        return asyncio.get_running_loop().time() < self._paused_until

    def room(self) -> bool:
        """Return whether another write may begin now."""
        return self._fast < int(self._limit) and not self.paused()

    def clogged(self, namespace: str) -> bool:
        """Return whether so many writes in a namespace are slow that its next ones must wait."""
        slow = self._slow[namespace]
        if slow and (slow >= MOST_SLOW or self._slow.total() >= MOST_SLOW_IN_ALL):
            return True
        # Once some are slow, the next ones are likely to be: few are tried at a time.
        return bool(slow) and self._under_way[namespace] >= MOST_SLOW

    def take(self, namespace: str, on_slow: Callable[[], object]) -> Callable[[], None]:
        """Take a slot for the writes of one unit, from now on; ask ``room`` and ``clogged`` first.

        Args:
            namespace: The unit's.
            on_slow: Called once they have taken so long that the slot is another's.

        Returns:
            What gives the slot back; call it once.
        """
        slow = False

        def overdue() -> None:
            nonlocal slow
            slow = True
            self._fast -= 1
            self._slow[namespace] += 1
            on_slow()
            self._on_room()

        def give_back() -> None:
            timer.cancel()
            self._under_way[namespace] -= 1
            if slow:
                self._slow[namespace] -= 1
            else:
                self._fast -= 1
            for counts in (self._under_way, self._slow):
                if not counts[namespace]:
                    del counts[namespace]
            self._on_room()

        self._fast += 1
        self._under_way[namespace] += 1
        timer = asyncio.get_running_loop().call_later(SLOW_S, overdue)
        return give_back

    def succeeded(self) -> None:
        """Say that the server answered a write well."""
        self.successes += 1
        self._failures = 0
        self._limit = min(self._limit + 1, MOST)

    def failed(self, error: DriverError) -> None:
        """Say that the server is in trouble. What was under way when the pause began says nothing new."""
        loop = asyncio.get_running_loop()
        self._limit = 1.0
        asked = (error.retry_after_s if isinstance(error, ApiError) else None) or 0.0
        pause_s = min(asked, LONGEST_ASKED_S)
        if loop.time() >= self._paused_until:
            pause_s = max(pause_s, wait_s(self._failures, first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S))
            self._failures += 1
        self._paused_until = max(self._paused_until, loop.time() + pause_s)
        loop.call_at(self._paused_until + EARLY_S, self._on_room)
