"""The nodes that a gang's pods may go to, as arrays: what is free on each, and how many pods it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dradriver.allocator.fleet.candidates import Candidates
from dradriver.allocator.fleet.fleet import Eligible, Fleet
from dradriver.allocator.fleet.node_group import NodeGroup
from dradriver.allocator.fleet.packing import pod_capacity
from dradriver.allocator.gang_request import Role
from dradriver.allocator.request import Whole
from dradriver.allocator.sets.criteria import Criteria
from dradriver.allocator.sets.subsets import Floats, Ints

_NO_LIMIT = np.iinfo(np.int64).max


class GangNodes(NamedTuple):
    """The nodes that pods of one role may go to, of all kinds, as arrays of shape (nodes,), int64.

    Attributes:
        candidates: By kind.
        criteria: By kind, what each pod's set must be.
        request: The pod's request.
        kind: Number in ``candidates``.
        slot: Slot there.
        mask: Usable positions.
        room: Pods for which there is CPU, memory and whatever else the caller counts.
        capacity: Pods that find disjoint sets, and this room.
        site: Number of the location.
        name_rank: Where the name stands among all of the fleet: the node's number, whatever the request.
        row: Row in the caller's arrays.
    """

    candidates: list[Candidates]
    criteria: list[Criteria]
    request: Whole
    kind: Ints
    slot: Ints
    mask: Ints
    room: Ints
    capacity: Ints
    site: Ints
    name_rank: Ints
    row: Ints

    @property
    def free(self) -> Ints:
        """How many positions are usable: (nodes,), int64."""
        return np.bitwise_count(self.mask).astype(np.int64)

    def name(self, at: int) -> str:
        """A node's name."""
        return self.group(at).names[int(self.slot[at])]

    def group(self, at: int) -> NodeGroup:
        """The group that a node is of."""
        return self.candidates[int(self.kind[at])].group

    def bandwidths(self) -> Floats:
        """All predicted bandwidths that sets of this size can have on these nodes, ascending."""
        gpus = self.request.gpus
        values = [
            np.unique(each.group.tables.busbw[each.group.tables.members(gpus)])
            for each in self.candidates
            if gpus <= each.group.tables.size
        ]
        return np.unique(np.concatenate(values)) if values else np.zeros(0, dtype=np.float32)

    def only(self, at: Ints) -> GangNodes:
        """Some of the nodes."""
        arrays = self.kind, self.slot, self.mask, self.room, self.capacity, self.site, self.name_rank, self.row
        return GangNodes(self.candidates, self.criteria, self.request, *(array[at] for array in arrays))

    def changed(self, *, criteria: list[Criteria] | None = None, mask: Ints | None = None, room: Ints | None = None
                ) -> GangNodes:  # fmt: skip
        """These nodes with other criteria, other usable positions or another room."""
        nodes = self._replace(
            criteria=self.criteria if criteria is None else criteria,
            mask=self.mask if mask is None else mask,
            room=self.room if room is None else room,
        )
        return nodes._replace(capacity=np.minimum(_sets(nodes), nodes.room))

    def with_busbw(self, busbw_gbps: float) -> GangNodes:
        """These nodes for pods whose sets must have this much bandwidth."""
        return self.changed(
            criteria=[msgspec.structs.replace(each, min_busbw_gbps=busbw_gbps) for each in self.criteria]
        )

    def all_free(self) -> GangNodes:
        """These nodes as if all their GPUs were free, and all else."""
        suitable = np.array([each.group.suitable(self.request) for each in self.candidates], dtype=np.int64)
        return self.changed(mask=suitable[self.kind], room=np.full(len(self.kind), _NO_LIMIT))

    def by_gpus_alone(self) -> GangNodes:
        """These nodes as if nothing else was short."""
        return self if (self.room == _NO_LIMIT).all() else self.changed(room=np.full(len(self.kind), _NO_LIMIT))


def node_table(
    fleet: Fleet, role: Role, criteria: Criteria, *, eligible: Eligible | None = None, amounts: Ints | None = None
) -> GangNodes:
    """The nodes that pods of a role may go to; that GPUs of certain numbers must be in a set cannot be asked of them.

    Args:
        fleet: The cluster.
        role: The role.
        criteria: What each pod's set must be.
        eligible: The nodes that may be taken, as for ``Fleet.rank``.
        amounts: What is free beside GPUs, by the nodes' rows: (rows, resources), int64.
    """
    candidates = fleet.candidates(role.pod, eligible)
    slots = [each.slots() for each in candidates]

    def joined(arrays: Sequence[Ints]) -> Ints:
        return np.concatenate([*arrays, np.zeros(0, dtype=np.int64)])

    pairs = list(zip(candidates, slots, strict=True))
    row = joined([each.group.rows()[own] for each, own in pairs])
    nodes = GangNodes(
        candidates=candidates,
        criteria=[criteria] * len(candidates),
        request=role.pod,
        kind=np.repeat(np.arange(len(candidates)), [len(own) for own in slots]),
        slot=joined(slots),
        mask=joined([each.masks_of(own) for each, own in pairs]),
        room=room(row, role.needs, amounts),
        capacity=row,
        site=joined([each.group.sites()[own].astype(np.int64) for each, own in pairs]),
        name_rank=fleet.name_ranks(candidates, slots),
        row=row,
    )
    return nodes.changed()


def room(row: Ints, needs: Sequence[int], amounts: Ints | None) -> Ints:
    """Pods that what is free beside GPUs is enough for: (nodes,), int64.

    ``min over resources of floor(free / need)``; what nothing is needed of does not count, even where less than nothing
    is left of it. Worked example: 64 CPUs and 110 GiB free, 8 CPUs and 30 GiB for a pod: min(8, 3) = 3.

    Args:
        row: (nodes,), the nodes' rows; those without one, or beyond the array, have nothing free.
        needs: What a pod needs, by column.
        amounts: (rows, resources), int64; None where nothing is counted.
    """
    out = np.full(len(row), _NO_LIMIT)
    wanted = [(column, need) for column, need in enumerate(needs) if need > 0]
    if not wanted or amounts is None:
        return out
    known = (row >= 0) & (row < len(amounts))
    there = np.where(known, row, 0)
    for column, need in wanted:
        out = np.minimum(out, amounts[:, column].take(there, mode="clip") // need if len(amounts) else 0)
    return np.where(known, np.maximum(out, 0), 0)


def _sets(nodes: GangNodes) -> Ints:
    """Pods that find disjoint sets on each node: (nodes,), int64."""
    out = np.zeros(len(nodes.mask), dtype=np.int64)
    for number, (each, criteria) in enumerate(zip(nodes.candidates, nodes.criteria, strict=True)):
        tables, gpus = each.group.tables, nodes.request.gpus
        if gpus <= tables.size:
            own = np.flatnonzero(nodes.kind == number)
            out[own] = pod_capacity(tables, gpus, criteria)[nodes.mask[own]]
    return out
