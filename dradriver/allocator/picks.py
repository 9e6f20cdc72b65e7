"""The best admissible set of one machine's free positions."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dradriver.allocator.demands import PLAIN, USUAL, Demand, Taste
from dradriver.allocator.subsets import Ints
from dradriver.allocator.tables import SAME, Tables
from dradriver.allocator.tastes import ranks

_TABULATED = 10  # up to here the choice from every free mask is computed at once


def pick(
    tables: Tables,
    free: int,
    *,
    gpus: int,
    demand: Demand = PLAIN,
    taste: Taste = USUAL,
    exclude: frozenset[int] = frozenset(),
) -> int | None:
    """The mask of the best admissible set of ``gpus`` free positions, or None where there is none."""
    if gpus > free.bit_count() or demand.include & ~free:
        return None
    general = demand.any_busbw  # sets with most come first, so their bandwidth is looked at last
    if tables.size <= _TABULATED and not exclude:
        found = int(_table(tables, gpus, general, taste)[free])
    else:
        found = _search(tables, free, gpus=gpus, demand=general, taste=taste, exclude=exclude)
    if not found or (gpus > 1 and tables.busbw[found] < demand.min_busbw_gbps * SAME):
        return None
    return found


def picks(tables: Tables, free: Ints, *, gpus: int, demand: Demand = PLAIN, taste: Taste = USUAL) -> Ints:
    """``pick`` for many free masks that have a fitting set: shape of ``free``, int64."""
    general = demand.any_busbw
    if tables.size <= _TABULATED:
        return _table(tables, gpus, general, taste)[free]
    found = [
        _search(tables, mask, gpus=gpus, demand=general, taste=taste, exclude=frozenset()) for mask in free.tolist()
    ]
    return np.array(found, dtype=np.int64)


def forget() -> None:
    """Drop what is remembered of single choices; for measurements."""
    _search.cache_clear()


@lru_cache(maxsize=65536)
def _search(tables: Tables, free: int, *, gpus: int, demand: Demand, taste: Taste, exclude: frozenset[int]) -> int:
    """The best set of one free mask, 0 for none."""
    rank = ranks(tables, taste, gpus=gpus)
    sets = tables.row(("sets", gpus, demand), lambda: _sets(tables, gpus, demand))
    sets = sets[sets & ~free == 0]
    if exclude:
        sets = sets[~np.isin(sets, list(exclude))]
    if not sets.size:
        return 0
    first = rank.first[sets]
    sets = sets[first == first.min()]
    return int(sets[np.argmin(rank.rest[free ^ sets] << 20 | rank.last[sets])])


def _table(tables: Tables, gpus: int, demand: Demand, taste: Taste) -> Ints:
    """The best set of every free mask, 0 for none: shape (2**g,), int64."""
    return tables.row(("pick", gpus, demand, taste), lambda: _tabulate(tables, gpus, demand, taste))


def _tabulate(tables: Tables, gpus: int, demand: Demand, taste: Taste) -> Ints:
    rank = ranks(tables, taste, gpus=gpus)
    sets = _sets(tables, gpus, demand)
    if not sets.size:
        return np.zeros(1 << tables.size, dtype=np.int64)
    free = np.arange(1 << tables.size)[:, None]
    value = (rank.first[sets] << 40 | rank.last[sets]) + (rank.rest[free & ~sets] << 20)
    value[sets & ~free != 0] = np.iinfo(np.int64).max
    best = value.argmin(axis=1)
    inside = value[free[:, 0], best] < np.iinfo(np.int64).max
    out: Ints = np.where(inside, sets[best], 0)
    return out


def _sets(tables: Tables, gpus: int, demand: Demand) -> Ints:
    sets = tables.members(gpus)
    return sets[tables.allowed(demand)[sets]]
