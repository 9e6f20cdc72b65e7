"""The time by the API server's clock. The controller counts GPU time by it: a node's own clock can be hours late."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable
from typing import Final

_CLOSE_S: Final = 2.0  # a header ``Date`` has whole seconds, and an answer takes a while


class ServerClock:
    """Seconds since the epoch. After ``set`` it goes on as the monotonic clock does, whatever becomes of others."""

    def __init__(
        self,
        told: Callable[[], tuple[str, float]],
        *,
        own: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with this machine's clock.

        Args:
            told: Returns the header ``Date`` of the API server's last answer, empty if it had none, and when the answer
                came, by the monotonic clock.
            own: Returns seconds since the epoch by this machine's clock.
            monotonic: Returns seconds that only grow.
        """
        self._told, self._own, self._monotonic = told, own, monotonic
        self._ahead_s = own() - monotonic()  # of the monotonic clock

    def __call__(self) -> float:
        """Return the time, seconds since the epoch."""
        return self._monotonic() + self._ahead_s

    def set(self) -> None:
        """Set the clock by the API server's last answer; by this machine's clock if that says the same, or nothing."""
        date, at = self._told()
        own_ahead_s = self._own() - self._monotonic()
        try:
            ahead_s = email.utils.parsedate_to_datetime(date).timestamp() - at
        except ValueError:
            ahead_s = own_ahead_s
        self._ahead_s = own_ahead_s if abs(ahead_s - own_ahead_s) <= _CLOSE_S else ahead_s
