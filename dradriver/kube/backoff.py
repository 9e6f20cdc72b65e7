"""The backoff after failures: the wait doubles with each failure, up to a longest wait."""

from __future__ import annotations

from typing import Final

EARLY_S: Final = 0.001  # a loop's timer may come a moment too early, and then find nothing to do, again and again
_DOUBLINGS: Final = 32  # more would leave the range of floats for who fails for days


def wait_s(times: int, *, first_s: float, longest_s: float) -> float:
    """Return the wait before the next attempt, in seconds; it doubles with each failure.

    Args:
        times: The number of earlier failures; after none the wait is ``first_s``.
        first_s: The shortest wait, in seconds.
        longest_s: The longest wait, in seconds.
    """
    return min(first_s * 2.0 ** min(times, _DOUBLINGS), longest_s)
