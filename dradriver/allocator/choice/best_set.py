"""Finds the best set of free GPUs of one machine that meets the criteria.

``machine_choice`` calls it. *Criteria* are the properties that a set must have, such as NVLink. Sets are bit masks: bit
``i`` is the GPU at position ``i`` of the machine.
"""

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
    """Return the best set of ``gpus`` free GPUs that meets the criteria.

    The set with the most bandwidth is best; ``preference`` decides among equals. The result is None if no set meets the
    criteria.

    Args:
        tables: The bandwidth and other figures of all sets of the machine's GPUs.
        free: Bit mask of the free GPUs.
        gpus: The number of GPUs of the set.
        criteria: The properties that the set must have.
        preference: The rules that order sets of equal bandwidth.

    Returns:
        The bit mask of the set.
    """
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
    """Return the best set of ``gpus`` GPUs for each of many masks of free GPUs.

    ``free`` is an array of bit masks of free GPUs. ``tables`` has the bandwidth and other figures of all sets of the
    machine's GPUs. ``preference`` has the rules that order sets of equal bandwidth.

    Returns:
        The bit masks of the sets, with the shape of ``free``, int64; 0 where no set meets the criteria.
    """
    general = criteria if tables.shape.socket_gbps_or else criteria.any_busbw
    if tables.size <= TABULATED:
        return _table(tables, gpus, general, preference)[free]
    masks = [search(tables, mask, gpus=gpus, criteria=general, preference=preference) for mask in free.tolist()]
    return np.array(masks, dtype=np.int64)


@remembered
def search(tables: Tables, free: int, *, gpus: int, criteria: Criteria, preference: Preference) -> int:
    """Return the best set of free GPUs that meets the criteria, by comparing all sets.

    ``gpus`` is the number of GPUs of the set. ``free`` and the result are bit masks of GPUs; the result is 0 if no set
    meets the criteria. ``preference`` orders sets of equal bandwidth. ``tables`` has the figures of all sets of the
    machine's GPUs.
    """
    order = set_order(tables, preference, gpus=gpus)
    sets = tables.row(("sets", gpus, criteria), lambda: _sets(tables, gpus, criteria))
    sets = sets[sets & ~free == 0]
    if not sets.size:
        return 0
    first = order.first[sets]
    sets = sets[first == first.min()]
    return int(sets[np.argmin(order.rest[free ^ sets] << 20 | order.last[sets])])


def _table(tables: Tables, gpus: int, criteria: Criteria, preference: Preference) -> Ints:
    """Return for each mask of free GPUs the best set of ``gpus`` of them.

    An entry is 0 if no set meets the criteria. The shape is (2**g,) for g GPUs, int64: the index is the mask of free
    GPUs, the value is the mask of the set. ``preference`` orders sets of equal bandwidth. ``tables`` has the figures of
    all sets of the machine's GPUs.
    """
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
