"""The best set of free positions of one machine that meets the criteria, as a mask; ``machine_choice`` asks for it."""

from __future__ import annotations

import numpy as np

from dradriver.allocator.choice.set_order import USUAL, Preference, set_order
from dradriver.allocator.sets.criteria import ANY, Criteria
from dradriver.allocator.sets.subsets import Ints
from dradriver.allocator.sets.tables import Tables, remembered

TABULATED = 10  # up to here the choice from every free mask is computed at once


def best_set(
    tables: Tables,
    free: int,
    *,
    gpus: int,
    criteria: Criteria = ANY,
    preference: Preference = USUAL,
) -> int | None:
    """Return the best set of ``gpus`` free positions that meets the criteria, as a mask; None if there is none."""
    if gpus > free.bit_count() or criteria.include & ~free:
        return None
    # Sets with most come first, so their bandwidth is looked at last; unless they are compared by something else.
    general = criteria if tables.shape.socket_gbps_or else criteria.any_busbw
    if tables.size <= TABULATED:
        mask = int(_table(tables, gpus, general, preference)[free])
    else:
        mask = search(tables, free, gpus=gpus, criteria=general, preference=preference)
    if not mask or tables.busbw[mask] < tables.least(gpus, criteria):
        return None
    return mask


def best_sets(
    tables: Tables, free: Ints, *, gpus: int, criteria: Criteria = ANY, preference: Preference = USUAL
) -> Ints:
    """Return for many free masks the best set of ``gpus`` GPUs that meets the criteria: shape of ``free``, int64."""
    general = criteria if tables.shape.socket_gbps_or else criteria.any_busbw
    if tables.size <= TABULATED:
        return _table(tables, gpus, general, preference)[free]
    masks = [search(tables, mask, gpus=gpus, criteria=general, preference=preference) for mask in free.tolist()]
    return np.array(masks, dtype=np.int64)


@remembered
def search(tables: Tables, free: int, *, gpus: int, criteria: Criteria, preference: Preference) -> int:
    """Return the best set inside one mask of free GPUs that meets the criteria, by a search; 0 for none."""
    order = set_order(tables, preference, gpus=gpus)
    sets = tables.row(("sets", gpus, criteria), lambda: _sets(tables, gpus, criteria))
    sets = sets[sets & ~free == 0]
    if not sets.size:
        return 0
    first = order.first[sets]
    sets = sets[first == first.min()]
    return int(sets[np.argmin(order.rest[free ^ sets] << 20 | order.last[sets])])


def _table(tables: Tables, gpus: int, criteria: Criteria, preference: Preference) -> Ints:
    """The best set of every free mask, 0 for none: shape (2**g,), int64."""
    return tables.row(("best set", gpus, criteria, preference), lambda: _tabulate(tables, gpus, criteria, preference))


def _tabulate(tables: Tables, gpus: int, criteria: Criteria, preference: Preference) -> Ints:
    order = set_order(tables, preference, gpus=gpus)
    sets = _sets(tables, gpus, criteria)
    if not sets.size:
        return np.zeros(1 << tables.size, dtype=np.int64)
    free = np.arange(1 << tables.size)[:, None]
    value = (order.first[sets] << 40 | order.last[sets]) + (order.rest[free & ~sets] << 20)
    value[sets & ~free != 0] = np.iinfo(np.int64).max
    best = value.argmin(axis=1)
    inside = value[free[:, 0], best] < np.iinfo(np.int64).max
    out: Ints = np.where(inside, sets[best], 0)
    return out


def _sets(tables: Tables, gpus: int, criteria: Criteria) -> Ints:
    sets = tables.members(gpus)
    return sets[tables.allowed(criteria)[sets]]
