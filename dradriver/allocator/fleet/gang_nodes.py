"""The nodes that a gang's pods may be placed on, as arrays.

The arrays have the free GPUs, and how many pods each node can hold. The searches of ``place_gang`` read these arrays. A
*role* is all pods of a gang that are equal. A *row* is the index of a node in the arrays that the caller passes, such
as its free CPU and memory.
"""

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
    """The nodes that pods of one role may be placed on, of all kinds of machines, as a table.

    The first three attributes are about kinds of machines or the role. The others are arrays with one entry for each
    node, int64.

    Attributes:
        candidates: By kind of machine, the candidate nodes.
        criteria: By kind of machine, the properties that each pod's set of GPUs must have.
        request: The pod's request.
        kind: The index of the node's kind in ``candidates``.
        slot: The node's index in its group, the nodes with the same kind of machine.
        mask: The bit mask of the GPUs that the role can use.
        room: How many pods the CPU, memory and other counted resources of the node allow.
        capacity: How many pods the node can hold: each needs its own set of GPUs, and these resources.
        site: The number of the node's location.
        name_rank: The position of the node's name in the sorted names of the fleet. It does not depend on the request.
        row: The node's row in the caller's arrays.
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
        """Return how many free GPUs of each node the role can use: (nodes,), int64."""
        return np.bitwise_count(self.mask).astype(np.int64)

    def name(self, at: int) -> str:
        """Return the name of the node at index ``at`` of the table."""
        return self.group(at).names[int(self.slot[at])]

    def group(self, at: int) -> NodeGroup:
        """Return the node group of the node at index ``at`` of the table.

        A group has all nodes with the same kind of machine.
        """
        return self.candidates[int(self.kind[at])].group

    def worths(self) -> Floats:
        """Return all predicted bandwidths that sets of the requested size can have, ascending.

        All sets of the nodes' machines count, free or not. If bandwidth cannot be predicted, the strength of the links
        is used (``Tables.busbw``).
        """
        gpus = self.request.gpus
        values = [
            np.unique(each.group.tables.busbw[each.group.tables.members(gpus)])
            for each in self.candidates
            if gpus <= each.group.tables.size
        ]
        return np.unique(np.concatenate(values)) if values else np.zeros(0, dtype=np.float32)

    def only(self, at: Ints) -> GangNodes:
        """Return a table with only the nodes at the indices ``at``."""
        arrays = self.kind, self.slot, self.mask, self.room, self.capacity, self.site, self.name_rank, self.row
        return GangNodes(self.candidates, self.criteria, self.request, *(array[at] for array in arrays))

    def changed(self, *, criteria: list[Criteria] | None = None, mask: Ints | None = None, room: Ints | None = None
                ) -> GangNodes:  # fmt: skip
        """Return the table of nodes with other criteria, usable GPUs or free resources.

        ``mask`` are the usable GPUs of each node, ``room`` is how many pods its CPU, memory and the like allow. What is
        None stays the same. ``capacity``, the number of pods that each node can hold, is computed again.
        """
        nodes = self._replace(
            criteria=self.criteria if criteria is None else criteria,
            mask=self.mask if mask is None else mask,
            room=self.room if room is None else room,
        )
        return nodes._replace(capacity=np.minimum(_sets(nodes), nodes.room))

    def with_worth(self, worth: float) -> GangNodes:
        """Return the table of nodes with a criterion: each pod's set of GPUs has at least the bandwidth ``worth``.

        ``worth`` is in GB/s, and is compared with the predicted bandwidth of a set. For a machine without a prediction
        it is compared with the strength of the set's links (``Tables.busbw``).
        """
        return self.changed(criteria=[msgspec.structs.replace(each, min_worth=worth) for each in self.criteria])

    def all_free(self) -> GangNodes:
        """Return the table as if all GPUs of the nodes were free, and all other resources unlimited."""
        suitable = np.array([each.group.suitable(self.request) for each in self.candidates], dtype=np.int64)
        return self.changed(mask=suitable[self.kind], room=np.full(len(self.kind), _NO_LIMIT))

    def by_gpus_alone(self) -> GangNodes:
        """Return the table as if all resources other than GPUs were unlimited."""
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
    """Return the table of the nodes that pods of a gang's role may be placed on.

    Requests for GPUs with certain numbers are not supported. The fleet stores nodes in groups of one kind of machine,
    with a slot (index) in the group; the table joins all groups.

    Args:
        fleet: The cluster.
        role: The role.
        criteria: The properties that each pod's set must have.
        eligible: The nodes that may be taken: names, or a bool for each row of the caller's arrays; None for all.
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
    """Return how many of a gang's pods each node can hold by CPU, memory and the like: (nodes,), int64.

    For each resource this is the free amount divided by the need of a pod, rounded down; the smallest result counts. A
    resource with a need of 0 does not count, even if its free amount is negative. Worked example: 64 CPUs and 110 GiB
    free, 8 CPUs and 30 GiB for a pod: min(8, 3) = 3.

    Args:
        row: (nodes,), the nodes' rows: their indices in ``amounts``. A node without a row, or with a row beyond the
            array, has nothing free.
        needs: The amounts that a pod needs, by column.
        amounts: (rows, resources), int64; None if only GPUs count.
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
    """Return for how many pods each node has sets of GPUs that do not overlap: (nodes,), int64."""
    out = np.zeros(len(nodes.mask), dtype=np.int64)
    for number, (each, criteria) in enumerate(zip(nodes.candidates, nodes.criteria, strict=True)):
        tables, gpus = each.group.tables, nodes.request.gpus
        if gpus <= tables.size:
            own = np.flatnonzero(nodes.kind == number)
            out[own] = pod_capacity(tables, gpus, criteria)[nodes.mask[own]]
    return out


def disjoint_sets(tables: Tables, free: int, count: int, *, request: Whole, criteria: Criteria) -> list[int]:
    """Return the sets of GPUs of ``count`` pods of a gang on one node, as bit masks, the best first.

    The sets do not overlap. Each set is chosen so that enough GPUs remain for the sets of the other pods.

    Args:
        tables: The figures of all sets of the machine's GPUs.
        free: The bit mask of the GPUs that the pods may use.
        count: The number of pods.
        request: The request of each pod.
        criteria: The properties that each set must have.
    """
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
    """Return how many pods have sets that do not overlap, for each bit mask of free GPUs.

    The shape is (2**g,) for g GPUs, int64. ``gpus`` is the number of GPUs of a pod. ``criteria`` are the properties
    that each set must have.
    """
    return tables.row(("pod capacity", gpus, criteria), lambda: _count(tables, gpus, criteria))


def _count(tables: Tables, gpus: int, criteria: Criteria) -> Ints:
    allowed = tables.allowed(criteria)[tables.members(gpus)]
    if allowed.all():
        return (tables.count // gpus).astype(np.int64)
    values = np.zeros(1 << tables.size, dtype=np.float32)
    values[tables.members(gpus)] = allowed
    return subsets.packed(values, tables.size, gpus).astype(np.int64)
