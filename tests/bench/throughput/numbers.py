"""Percentiles and medians."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence


def percentile(values: Sequence[float], part: float) -> float:
    """Return the smallest value that `part` percent of all values do not exceed, 0 where there are none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * part / 100) - 1)] if ordered else 0.0


def middle(values: Iterable[float]) -> float:
    """Return the median, 0 where there are no values."""
    found = list(values)
    return statistics.median(found) if found else 0.0


def spread(values: Iterable[float], digits: int = 0) -> str:
    """Return the median and, in parentheses, the smallest and the largest."""
    found = list(values)
    if not found:
        return "-"
    return f"{middle(found):.{digits}f} ({min(found):.{digits}f}-{max(found):.{digits}f})"
