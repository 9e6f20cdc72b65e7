"""Counts of the sets that the free positions of one machine form, by size and quality."""

from __future__ import annotations

from collections import Counter
from typing import Final

from dradriver.allocator.choice.best_set import best_set
from dradriver.allocator.sets.tables import Tables, remembered

SIZES: Final = (1, 2, 4, 8, 16)


@remembered
def free_sets(tables: Tables, free: int) -> Counter[tuple[int, str, float]]:
    """Return how many sets of each size, level and predicted bandwidth (GB/s) the free GPUs of one machine form.

    Each size is counted for itself, as pods would get their sets one after another: the best one of what is free, then
    the best one of the rest. So there are as many as such pods would have places.
    """
    counts: Counter[tuple[int, str, float]] = Counter()
    for size in SIZES:
        left = free
        while size <= tables.size and (chosen := best_set(tables, left, gpus=size)) is not None:
            # A single GPU talks to nobody: its level says what it could be joined by, not what it has.
            level = tables.level(chosen).value if size > 1 else ""
            counts[size, level, tables.busbw_gbps(chosen)] += 1
            left &= ~chosen
    return counts
