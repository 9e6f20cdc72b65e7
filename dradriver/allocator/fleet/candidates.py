"""Candidates: the nodes that a request may use, and the usable GPUs there.

``Fleet`` makes them. GPUs are given as bit masks: bit ``i`` is the GPU at position ``i`` of its machine. Many nodes
have the same free GPUs, so figures are computed once per mask.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from dradriver.allocator.fleet.node_group import NodeGroup
from dradriver.allocator.request import Whole
from dradriver.allocator.sets.subsets import Bools, Ints


class Candidates:
    """The nodes of one kind of machine (a group) that a request may use.

    The object is valid until a node of the group changes.

    Attributes:
        group: The node group.
        masks: The different bit masks of free GPUs that the request can use on these nodes, ascending; empty without
            nodes.
    """

    def __init__(
        self, group: NodeGroup, *, request: Whole, eligible: Bools | None, free: NDArray[np.uint16] | None = None
    ) -> None:
        """Find the nodes that a request may use, and the free GPUs that it can use there.

        Args:
            group: The node group.
            request: The GPUs that a pod requests.
            eligible: Which nodes may be taken, by slot (index in the group); None for all.
            free: For each node the bit mask of GPUs that may be taken. None for all GPUs that requests for whole GPUs
                may take.
        """
        self.group = group
        free = group.free_masks() if free is None else free
        suitable = group.suitable(request)
        self._usable = free if suitable == group.tables.everything else free & np.uint16(suitable)
        self._eligible = eligible
        self.masks: Ints = np.flatnonzero(np.bincount(self._usable if eligible is None else self._usable[eligible]))

    def first(self, masks: Collection[int] | Ints, limit: int) -> list[tuple[str, int]]:
        """Return the first ``limit`` candidate nodes by name that have one of these sets of free GPUs.

        ``masks`` are the sets of free GPUs that the request can use, as bit masks. Each node comes with its mask.
        """
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
        """Return the first candidate node by name that has one of these sets of free GPUs.

        ``masks`` are the sets of free GPUs that the request can use, as bit masks. Without them, return the first of
        all candidates.
        """
        return self.first(self.masks if masks is None else masks, 1)[0][0]

    def slots(self) -> Ints:
        """Return the slots of all candidate nodes, ascending: their indices in the node group."""
        if self._eligible is None:
            return np.arange(len(self.group.names))
        return np.flatnonzero(self._eligible)

    def masks_of(self, slots: Sequence[int] | Ints) -> Ints:
        """Return the bit mask of the free GPUs that the request can use on each of some nodes.

        ``slots`` are the indices of these nodes in the arrays of their group of nodes. The result is int64, with the
        shape of ``slots``.
        """
        out: Ints = self._usable[slots].astype(np.int64)
        return out
