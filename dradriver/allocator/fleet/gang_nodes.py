"""The nodes that a gang's pods may go to, as arrays: what is free on each, how many pods it holds, on which sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dradriver.allocator.choice.set_order import preference, set_order
from dradriver.allocator.fleet.candidates import Candidates
from dradriver.allocator.fleet.fleet import Eligible, Fleet
from dradriver.allocator.fleet.node_group import NodeGroup
from dradriver.allocator.gang_request import Role
from dradriver.allocator.request import Whole
from dradriver.allocator.sets import subsets
from dradriver.allocator.sets.criteria import Criteria
from dradriver.allocator.sets.subsets import Floats, Ints
from dradriver.allocator.sets.tables import Tables

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
        """Return how many positions of each of the gang's nodes are free for it: (nodes,), int64."""
        return np.bitwise_count(self.mask).astype(np.int64)

    def name(self, at: int) -> str:
        """Return the name of one of the gang's nodes."""
        return self.group(at).names[int(self.slot[at])]

    def group(self, at: int) -> NodeGroup:
        """Return the node group of one of the gang's nodes."""
        return self.candidates[int(self.kind[at])].group

    def worths(self) -> Floats:
        """Return all bandwidths that sets of this size can have on the gang's nodes, ascending."""
        gpus = self.request.gpus
        values = [
            np.unique(each.group.tables.busbw[each.group.tables.members(gpus)])
            for each in self.candidates
            if gpus <= each.group.tables.size
        ]
        return np.unique(np.concatenate(values)) if values else np.zeros(0, dtype=np.float32)

    def only(self, at: Ints) -> GangNodes:
        """Return the same gang nodes restricted to some of them."""
        arrays = self.kind, self.slot, self.mask, self.room, self.capacity, self.site, self.name_rank, self.row
        return GangNodes(self.candidates, self.criteria, self.request, *(array[at] for array in arrays))

    def changed(self, *, criteria: list[Criteria] | None = None, mask: Ints | None = None, room: Ints | None = None
                ) -> GangNodes:  # fmt: skip
        """Return the gang's nodes with other criteria, other usable positions or another room."""
        nodes = self._replace(
            criteria=self.criteria if criteria is None else criteria,
            mask=self.mask if mask is None else mask,
            room=self.room if room is None else room,
        )
        return nodes._replace(capacity=np.minimum(_sets(nodes), nodes.room))

    def with_worth(self, worth: float) -> GangNodes:
        """Return the gang's nodes for sets that must have this bandwidth, if it can be predicted."""
        return self.changed(criteria=[msgspec.structs.replace(each, min_worth=worth) for each in self.criteria])

    def all_free(self) -> GangNodes:
        """Return the gang's nodes as if all their GPUs, and all else, were free."""
        suitable = np.array([each.group.suitable(self.request) for each in self.candidates], dtype=np.int64)
        return self.changed(mask=suitable[self.kind], room=np.full(len(self.kind), _NO_LIMIT))

    def by_gpus_alone(self) -> GangNodes:
        """Return the gang's nodes as if nothing but GPUs was short."""
        return self if (self.room == _NO_LIMIT).all() else self.changed(room=np.full(len(self.kind), _NO_LIMIT))


def node_table(
    fleet: Fleet,
    role: Role,
    criteria: Criteria,
    *,
    eligible: Eligible | None = None,
    amounts: Ints | None = None,
    is_spared: bool = False,
) -> GangNodes:
    """Return the nodes that pods of a gang's role may be placed on, one entry for each node.

    Requests for GPUs with certain numbers are not supported. Nodes are stored in groups of one kind of machine. A
    *slot* is a node's index in its group; the arrays of all groups are joined here.

    Args:
        fleet: The cluster.
        role: The role.
        criteria: The properties that each pod's set must have.
        eligible: The nodes that may be taken, as for ``Fleet.rank``.
        amounts: Free resources other than GPUs, by the nodes' rows: (rows, resources), int64.
        is_spared: Whether GPUs that can be shared or split by MIG are left out.
    """
    candidates = fleet.candidates(role.pod, eligible, is_spared=is_spared)
    slots = [nodes_of_kind.slots() for nodes_of_kind in candidates]  # of the eligible nodes, by group

    # The empty array gives the result a type if there are no groups.
    def joined(arrays: Sequence[Ints]) -> Ints:
        return np.concatenate([*arrays, np.zeros(0, dtype=np.int64)])

    pairs = list(zip(candidates, slots, strict=True))
    row = joined([nodes_of_kind.group.rows()[group_slots] for nodes_of_kind, group_slots in pairs])
    nodes = GangNodes(
        candidates=candidates,
        criteria=[criteria] * len(candidates),
        request=role.pod,
        kind=np.repeat(np.arange(len(candidates)), [len(group_slots) for group_slots in slots]),
        slot=joined(slots),
        mask=joined([nodes_of_kind.masks_of(group_slots) for nodes_of_kind, group_slots in pairs]),
        room=pods_with_resources(row, role.needs, amounts),
        capacity=row,  # a placeholder: ``changed`` computes it below
        site=joined(
            [nodes_of_kind.group.sites()[group_slots].astype(np.int64) for nodes_of_kind, group_slots in pairs]
        ),
        name_rank=fleet.name_ranks(candidates, slots),
        row=row,
    )
    return nodes.changed()


def pods_with_resources(row: Ints, needs: Sequence[int], amounts: Ints | None) -> Ints:
    """Return for how many of a gang's pods each node has CPU, memory and the like: (nodes,), int64.

    ``min over resources of floor(free / need)``; what nothing is needed of does not count, even where less than nothing
    is left of it. Worked example: 64 CPUs and 110 GiB free, 8 CPUs and 30 GiB for a pod: min(8, 3) = 3.

    Args:
        row: (nodes,), the nodes' rows; those without one, or beyond the array, have nothing free.
        needs: What a pod needs, by column.
        amounts: (rows, resources), int64; None where nothing is counted.
    """
    pods = np.full(len(row), _NO_LIMIT)
    needed = [(column, need) for column, need in enumerate(needs) if need > 0]
    if not needed or amounts is None:
        return pods

    # Nodes without a row have nothing; the row 0 stands in for them in the arrays.
    has_row = (row >= 0) & (row < len(amounts))
    known_row = np.where(has_row, row, 0)
    for column, need in needed:
        pods = np.minimum(pods, amounts[:, column].take(known_row, mode="clip") // need if len(amounts) else 0)
    return np.where(has_row, np.maximum(pods, 0), 0)


def _sets(nodes: GangNodes) -> Ints:
    """Pods that find disjoint sets on each node: (nodes,), int64."""
    out = np.zeros(len(nodes.mask), dtype=np.int64)
    for number, (each, criteria) in enumerate(zip(nodes.candidates, nodes.criteria, strict=True)):
        tables, gpus = each.group.tables, nodes.request.gpus
        if gpus <= tables.size:
            own = np.flatnonzero(nodes.kind == number)
            out[own] = pod_capacity(tables, gpus, criteria)[nodes.mask[own]]
    return out


def disjoint_sets(tables: Tables, free: int, count: int, *, request: Whole, criteria: Criteria) -> list[int]:
    """Return disjoint sets for ``count`` pods of a gang on one node, the best first, leaving enough for the others."""
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
    """Return the most pods with disjoint sets for each free mask on a gang's nodes: shape (2**g,), int64."""
    return tables.row(("pod capacity", gpus, criteria), lambda: _count(tables, gpus, criteria))


def _count(tables: Tables, gpus: int, criteria: Criteria) -> Ints:
    allowed = tables.allowed(criteria)[tables.members(gpus)]
    if allowed.all():
        return (tables.count // gpus).astype(np.int64)
    values = np.zeros(1 << tables.size, dtype=np.float32)
    values[tables.members(gpus)] = allowed
    return subsets.packed(values, tables.size, gpus).astype(np.int64)
