"""Which nodes have refused a request for GPUs, of any class. ``Rechecks`` asks before it has a class looked at.

Single pods that request the same GPUs can differ in CPU, memory, node selectors and tolerations: each is a class of its
own. A node that lacks the GPUs for one of them lacks them for all, until something becomes free there.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dradriver.cluster.nodes.columns import Bools, Ints, grown
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.queue.equivalence_classes import NEVER, Group

MOST: Final = 64  # families that are remembered; each takes 8 bytes for each node


class FullNodes:
    """The nodes that have refused families of classes (``Group.family``), and the nodes' clock when they did."""

    def __init__(self, nodes: NodeTable) -> None:
        """Begin with none; ``nodes`` say which nodes were asked."""
        self._nodes = nodes
        self._groups: Counter[Hashable] = Counter()  # how many groups each family has
        self._refused: OrderedDict[Hashable, Ints] = OrderedDict()  # by family: the clock by row; the latest used last

    def add(self, group: Group) -> None:
        """Note that there is a group."""
        if group.family is not None:
            self._groups[group.family] += 1

    def drop(self, group: Group) -> None:
        """Note that a group is gone."""
        if group.family is None:
            return
        self._groups[group.family] -= 1
        if not self._groups[group.family]:
            del self._groups[group.family]
            self._refused.pop(group.family, None)

    def refuse(self, group: Group, asked: Bools) -> None:
        """Note that none of some nodes, (rows,), had the GPUs for a group."""
        if group.family is None or self._groups[group.family] < 2:
            return
        refused = self._refused.get(group.family)
        if refused is None:
            refused = np.full(self._nodes.rows, NEVER, np.int64)
        elif len(refused) < self._nodes.rows:
            refused = grown(refused, self._nodes.rows, NEVER)
        refused[self._nodes.eligible(group.asks[0]) & asked] = self._nodes.clock
        self._refused[group.family] = refused
        self._refused.move_to_end(group.family)
        if len(self._refused) > MOST:
            self._refused.popitem(last=False)

    def knows(self, group: Group) -> bool:
        """Return whether any node has refused the group's family."""
        return group.family is not None and group.family in self._refused

    def others(self, group: Group, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those of some rows that have not refused the group's family since something became free there."""
        refused = None if group.family is None else self._refused.get(group.family)
        if refused is None:
            return rows
        known = rows[rows < len(refused)]
        left = known[self._nodes.freed[known] > refused[known]]
        return np.concatenate((left, rows[rows >= len(refused)]))
