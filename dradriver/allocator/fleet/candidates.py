"""Candidates: the nodes that a request may be placed on, and what it could use of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from dradriver.allocator.fleet.node_group import NodeGroup
from dradriver.allocator.request import Whole
from dradriver.allocator.sets.subsets import Bools, Ints


class Candidates:
    """Some nodes of one group as a request sees them; good until a node of the group changes.

    Attributes:
        group: The group.
        masks: The different sets of free positions of the wanted kind that occur, ascending; empty without nodes.
    """

    def __init__(
        self, group: NodeGroup, *, request: Whole, eligible: Bools | None, free: NDArray[np.uint16] | None = None
    ) -> None:
        """Find the masks that occur, in one look at each node.

        Args:
            group: The group.
            request: What is wanted.
            eligible: Which nodes may be taken, by slot; None for all.
            free: Mask of the positions that may be taken of each node; None for all that whole requests may take.
        """
        self.group = group
        free = group.free_masks() if free is None else free
        suitable = group.suitable(request)
        self._usable = free if suitable == group.tables.everything else free & np.uint16(suitable)
        self._eligible = eligible
        self.masks: Ints = np.flatnonzero(np.bincount(self._usable if eligible is None else self._usable[eligible]))

    def first(self, masks: Collection[int] | Ints, limit: int) -> list[tuple[str, int]]:
        """Return the first candidate nodes by name that have one of these masks, and which mask each has."""
        if len(masks) == 1:
            (mask,) = masks
            matching = self._usable == mask
        else:
            among = np.zeros(1 << self.group.tables.size, dtype=np.bool_)
            among[list(masks)] = True
            matching = among[self._usable]
        if self._eligible is not None:
            matching &= self._eligible
        by_name = self.group.by_name()
        slots = by_name[np.flatnonzero(matching[by_name])[:limit]]
        return [(self.group.names[slot], mask) for slot, mask in zip(slots.tolist(), self.masks_of(slots), strict=True)]

    def first_name(self, masks: Collection[int] | Ints | None = None) -> str:
        """Return the first candidate node by name that has one of these masks; of all, if no masks are given."""
        return self.first(self.masks if masks is None else masks, 1)[0][0]

    def slots(self) -> Ints:
        """Return the slots of all candidate nodes, ascending."""
        if self._eligible is None:
            return np.arange(len(self.group.names))
        return np.flatnonzero(self._eligible)

    def masks_of(self, slots: Sequence[int] | Ints) -> Ints:
        """Return the mask of positions that the request can use on the node in each of these slots: int64."""
        out: Ints = self._usable[slots].astype(np.int64)
        return out
