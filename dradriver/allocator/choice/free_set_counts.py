"""Counts the sets that the free GPUs of one machine form, by size and bandwidth.

A set is *free* if all its GPUs are free. ``gputopo free`` and the controller's metrics show the counts.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from dradriver.allocator.choice.best_set import best_set
from dradriver.allocator.sets.tables import Tables, remembered

SIZES: Final = (1, 2, 4, 8, 16)


@remembered
def free_sets(tables: Tables, free: int) -> Counter[tuple[int, str, float]]:
    """Return how many sets of each size and quality the free GPUs of one machine form.

    The sizes are 1, 2, 4, 8 and 16 GPUs. Each size is counted independently of the other sizes, as if pods of that size
    came one after another. The first pod gets the best set of the free GPUs, the next pod the best set of the remaining
    GPUs. So the counts of one size add up to the number of pods of this size that the machine can hold.

    A key is the size, the level and the predicted bandwidth in GB/s. The level says how far apart the GPUs are, such as
    ``nvlink``; it is empty for a single GPU.

    Args:
        tables: The figures of all sets of the machine's GPUs.
        free: Bit mask of the free GPUs.
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
