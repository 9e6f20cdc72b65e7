"""Records the GPUs and resources that the placed members of a gang use.

A *role* is all pods of a gang that are equal. The *name rank* of a node is the position of its name in the sorted names
of the fleet. The searches for the nodes of the other members update the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.gang_nodes import GangNodes, pods_with_resources
from dradriver.allocator.gang_request import Role
from dradriver.allocator.sets.subsets import Ints


class Taken(NamedTuple):
    """The GPUs and resources that the placed members of a gang use.

    Arrays "by name rank" have one entry for each node of the fleet, in the order of the nodes' names.

    Attributes:
        masks: By name rank, the bit mask of the GPUs that are taken although the fleet lists them as free.
        gpus: By name rank, how many GPUs the gang has on the node.
        sites: By name rank, the node's location.
        amounts: The remaining resources other than GPUs, by row; None if they are not counted.
        elsewhere: By name of a node that the fleet does not know, how many GPUs the gang has there.
    """

    masks: Ints
    gpus: Ints
    sites: Ints
    amounts: Ints | None
    elsewhere: Mapping[str, int]

    @property
    def nodes(self) -> int:
        """Return how many nodes have pods of the gang already."""
        return int(np.count_nonzero(self.gpus)) + len(self.elsewhere)

    def copy(self) -> Taken:
        """Return a copy of the record of used GPUs and resources.

        Changes of the copy do not change this object.
        """
        amounts = None if self.amounts is None else self.amounts.copy()
        return Taken(self.masks.copy(), self.gpus.copy(), self.sites, amounts, self.elsewhere)

    def add(self, rank: int, row: int, mask: int, role: Role) -> None:
        """Count the GPUs, CPU, memory and the like of one more pod as used.

        Args:
            rank: Its node, as the position of the node's name in the sorted names of the fleet.
            row: The node's index in ``amounts``, the free CPU, memory and the like.
            mask: The bit mask of the pod's GPUs.
            role: The pod's role.
        """
        self.masks[rank] |= mask
        self.gpus[rank] += mask.bit_count()
        if self.amounts is not None and 0 <= row < len(self.amounts):
            self.amounts[row, : len(role.needs)] -= role.needs

    def subtracted_from(self, nodes: GangNodes, role: Role) -> GangNodes:
        """Return the nodes of a role without the GPUs and resources that placed members use."""
        mask = nodes.mask & ~self.masks[nodes.name_rank]
        return nodes.changed(mask=mask, room=pods_with_resources(nodes.row, role.needs, self.amounts))


def nothing_taken(fleet: Fleet, amounts: Ints | None, elsewhere: Mapping[str, int] | None = None) -> Taken:
    """Return the record for a gang that uses no GPUs of the fleet's nodes.

    ``amounts`` are the free resources other than GPUs, by row (a node's index); None if only GPUs count. ``elsewhere``
    is as in ``Taken``: GPUs of the gang on nodes that the fleet does not know.
    """
    zeros = np.zeros(len(fleet.nodes), dtype=np.int64)
    left = None if amounts is None else amounts.copy()
    return Taken(zeros, zeros.copy(), fleet.sites_by_name(), left, elsewhere or {})
