"""How long to leave alone what failed: twice as long each time, up to a longest wait."""

from __future__ import annotations

from typing import Final

EARLY_S: Final = 0.001  # a loop's timer may come a moment too early, and then find nothing to do, again and again
_DOUBLINGS: Final = 32  # more would leave the range of floats for who fails for days


def wait_s(times: int, *, first_s: float, longest_s: float) -> float:
    """Return the seconds of backoff after so many failures before this one: ``first_s`` if there was none."""
    return min(first_s * 2.0 ** min(times, _DOUBLINGS), longest_s)
