"""Remembers which nodes lack the GPUs of a request, for all equivalence classes with this request.

Single pods that request the same GPUs can differ in CPU, memory, node selectors and tolerations. Then each is in
another equivalence class. But a node that lacks the GPUs for one of them lacks the GPUs for all of them, until
something becomes free there. ``Rechecks`` asks this module before it tries a class again.

A *group* is the waiting workloads of one class that may use the same GPUs. A *family* is all groups of single pods that
request the same GPUs. A row is the index of a node in the node table.
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
    """For each family of groups (``Group.family``), the nodes that have refused it, and when.

    A family is all groups of single pods that request the same GPUs. The record has at most ``MOST`` families: those
    that were refused last. Times are those of the node table's clock, which counts changes.
    """

    def __init__(self, nodes: NodeTable) -> None:
        """Create an empty record; ``nodes`` is the table of nodes."""
        self._nodes = nodes
        self._groups: Counter[Hashable] = Counter()  # how many groups each family has
        self._refused: OrderedDict[Hashable, Ints] = OrderedDict()  # by family: the clock by row; the latest used last

    def add(self, group: Group) -> None:
        """Add a new group to its family: the groups that request the same GPUs."""
        if group.family is not None:
            self._groups[group.family] += 1

    def drop(self, group: Group) -> None:
        """Remove a group of workloads from its family (the groups with the same GPU request).

        A family without groups is forgotten.
        """
        if group.family is None:
            return
        self._groups[group.family] -= 1
        if not self._groups[group.family]:
            del self._groups[group.family]
            self._refused.pop(group.family, None)

    def refuse(self, group: Group, asked: Bools) -> None:
        """Record, for a group's family, which of the asked nodes lack the requested GPUs.

        Nothing is recorded if the family has no other group, because only the other groups use the record.

        Args:
            group: The group.
            asked: A bool for each row of the node table: whether that node was asked, and so has refused.
        """
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
        """Return whether any node is recorded as lacking the GPUs that this group requests.

        The refusal may have come from another group that requests the same GPUs.
        """
        return group.family is not None and group.family in self._refused

    def others(self, group: Group, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the nodes among ``rows`` that may have the GPUs for a group.

        Rows are those of the node table. A row is left out if its node has refused the group's family, and nothing has
        become free on the node since then.

        Args:
            group: The group.
            rows: The rows to choose from.
        """
        refused = None if group.family is None else self._refused.get(group.family)
        if refused is None:
            return rows
        known = rows[rows < len(refused)]
        left = known[self._nodes.freed[known] > refused[known]]
        return np.concatenate((left, rows[rows >= len(refused)]))
