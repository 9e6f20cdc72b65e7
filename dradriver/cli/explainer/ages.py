"""Times of the API as people say them."""

from __future__ import annotations

import datetime


def age(time: str, now: datetime.datetime | None = None) -> str:
    """Return how long ago a time was, in its largest unit: ``3 h``; empty where that is no time.

    Args:
        time: As Kubernetes writes it, ``2026-01-31T12:00:00Z``.
        now: The time now, by this machine's clock where none is given; a server's that runs ahead makes ``0 s``.
    """
    try:
        then = datetime.datetime.fromisoformat(time)
        seconds = int(((now or datetime.datetime.now(datetime.UTC)) - then).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return ""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{max(0, seconds)} s"
