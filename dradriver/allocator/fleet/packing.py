"""How many pods of a gang the free GPUs of a node can hold, and on which sets."""

from __future__ import annotations

import numpy as np

from dradriver.allocator.choice.set_order import preference, set_order
from dradriver.allocator.request import Whole
from dradriver.allocator.sets import subsets
from dradriver.allocator.sets.criteria import Criteria
from dradriver.allocator.sets.subsets import Ints
from dradriver.allocator.sets.tables import Tables


def disjoint_sets(tables: Tables, free: int, count: int, *, request: Whole, criteria: Criteria) -> list[int]:
    """Disjoint sets for ``count`` pods on one node, the best first, never one that leaves too few for the others."""
    order = set_order(tables, preference(request), gpus=request.gpus)
    room = pod_capacity(tables, request.gpus, criteria)
    every = tables.members(request.gpus)
    every = every[tables.allowed(criteria)[every]]
    sets = []
    for left in range(count - 1, -1, -1):
        inside = every[every & ~free == 0]
        inside = inside[room[free ^ inside] >= left]
        value = (order.first[inside] << 40 | order.last[inside]) + (order.rest[free ^ inside] << 20)
        sets.append(int(inside[value.argmin()]))
        free ^= sets[-1]
    return sets


def pod_capacity(tables: Tables, gpus: int, criteria: Criteria) -> Ints:
    """Most disjoint admissible sets inside each free mask: shape (2**g,), int64."""
    return tables.row(("pod capacity", gpus, criteria), lambda: _count(tables, gpus, criteria))


def _count(tables: Tables, gpus: int, criteria: Criteria) -> Ints:
    allowed = tables.allowed(criteria)[tables.members(gpus)]
    if allowed.all():
        return (tables.count // gpus).astype(np.int64)
    values = np.zeros(1 << tables.size, dtype=np.float32)
    values[tables.members(gpus)] = allowed
    return subsets.packed(values, tables.size, gpus).astype(np.int64)
