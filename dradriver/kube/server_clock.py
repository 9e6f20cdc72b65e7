"""A clock that shows the API server's time.

The controller counts GPU time by it, because a node's clock can be hours off.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable
from typing import Final

_CLOSE_S: Final = 2.0  # a header ``Date`` has whole seconds, and an answer takes a while


class ServerClock:
    """A clock of the API server's time, in seconds since the epoch.

    ``set`` sets the clock. Between calls of ``set`` it advances with the monotonic clock.
    """

    def __init__(
        self,
        told: Callable[[], tuple[str, float]],
        *,
        own: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a clock that starts with this machine's time.

        Args:
            told: Returns the ``Date`` header of the API server's last answer (empty if it had none), and the time at
                which the answer came, by the monotonic clock.
            own: Returns seconds since the epoch by this machine's clock.
            monotonic: Returns seconds that only grow.
        """
        self._told, self._own, self._monotonic = told, own, monotonic
        self._ahead_s = own() - monotonic()  # of the monotonic clock

    def __call__(self) -> float:
        """Return the API server's time as far as it is known, in seconds since the epoch."""
        return self._monotonic() + self._ahead_s

    def set(self) -> None:
        """Set the clock to the API server's time, from its last answer.

        This machine's time is used instead if the two differ by at most 2 s, or if the answer has no time.
        """
        date, at = self._told()
        own_ahead_s = self._own() - self._monotonic()
        try:
            ahead_s = email.utils.parsedate_to_datetime(date).timestamp() - at
        except ValueError:
            ahead_s = own_ahead_s
        self._ahead_s = own_ahead_s if abs(ahead_s - own_ahead_s) <= _CLOSE_S else ahead_s
