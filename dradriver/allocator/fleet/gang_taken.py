"""What the placed members of a gang use of their nodes. The searches for places of the other members keep it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.gang_nodes import GangNodes, pods_with_resources
from dradriver.allocator.gang_request import Role
from dradriver.allocator.sets.subsets import Ints


class Taken(NamedTuple):
    """What the placed members of a gang use.

    Attributes:
        masks: By ``GangNodes.name_rank``, positions that are taken although the fleet lists them as free.
        gpus: By ``GangNodes.name_rank``, how many GPUs the gang has on the node.
        sites: By ``GangNodes.name_rank``, the node's location.
        amounts: What is left of resources other than GPUs, by row; None if they are not counted.
        elsewhere: GPUs of the gang by node on nodes that the fleet does not know.
    """

    masks: Ints
    gpus: Ints
    sites: Ints
    amounts: Ints | None
    elsewhere: Mapping[str, int]

    @property
    def nodes(self) -> int:
        """Return how many nodes the gang's search has put pods on."""
        return int(np.count_nonzero(self.gpus)) + len(self.elsewhere)

    def copy(self) -> Taken:
        """Return a copy of what the gang's search has taken, which may be changed."""
        amounts = None if self.amounts is None else self.amounts.copy()
        return Taken(self.masks.copy(), self.gpus.copy(), self.sites, amounts, self.elsewhere)

    def add(self, rank: int, row: int, mask: int, role: Role) -> None:
        """Take positions, CPU, memory and the like for one pod in the gang's search."""
        self.masks[rank] |= mask
        self.gpus[rank] += mask.bit_count()
        if self.amounts is not None and 0 <= row < len(self.amounts):
            self.amounts[row, : len(role.needs)] -= role.needs

    def subtracted_from(self, nodes: GangNodes, role: Role) -> GangNodes:
        """Return the nodes without what the gang's search has taken of them."""
        mask = nodes.mask & ~self.masks[nodes.name_rank]
        return nodes.changed(mask=mask, room=pods_with_resources(nodes.row, role.needs, self.amounts))


def nothing_taken(fleet: Fleet, amounts: Ints | None, elsewhere: Mapping[str, int] | None = None) -> Taken:
    """Return an empty record of what the gang's search has taken."""
    zeros = np.zeros(len(fleet.nodes), dtype=np.int64)
    left = None if amounts is None else amounts.copy()
    return Taken(zeros, zeros.copy(), fleet.sites_by_name(), left, elsewhere or {})
