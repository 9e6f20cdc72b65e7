"""How many pods of a gang each node can hold, which nodes to take, and which sets on them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from dradriver.allocator.choice.set_order import preference, set_order
from dradriver.allocator.fleet.candidates import Candidates
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.node_group import NodeGroup
from dradriver.allocator.request import Whole
from dradriver.allocator.sets import subsets
from dradriver.allocator.sets.criteria import Criteria
from dradriver.allocator.sets.subsets import Floats, Ints
from dradriver.allocator.sets.tables import Tables


class GangNodes(NamedTuple):
    """The nodes that may be taken, of all kinds, as arrays of shape (nodes,), int64.

    Attributes:
        candidates: By kind.
        criteria: By kind, what each pod's set must be.
        request: The pod's request.
        kind: Number in ``candidates``.
        slot: Slot there.
        mask: Usable positions.
        free: How many they are.
        capacity: Pods that find disjoint sets.
        site: Number of the location.
        name_rank: Where the name stands among all.
    """

    candidates: list[Candidates]
    criteria: list[Criteria]
    request: Whole
    kind: Ints
    slot: Ints
    mask: Ints
    free: Ints
    capacity: Ints
    site: Ints
    name_rank: Ints

    def name(self, at: int) -> str:
        """A node's name."""
        return self.candidates[int(self.kind[at])].group.names[int(self.slot[at])]

    def group(self, at: int) -> NodeGroup:
        """The group that a node is of."""
        return self.candidates[int(self.kind[at])].group

    def bandwidths(self, gpus: int) -> Floats:
        """All predicted bandwidths that sets of this size can have on these nodes, ascending."""
        values = [
            np.unique(each.group.tables.busbw[each.group.tables.members(gpus)])
            for each in self.candidates
            if gpus <= each.group.tables.size
        ]
        return np.unique(np.concatenate(values)) if values else np.zeros(0, dtype=np.float32)

    def with_busbw(self, busbw_gbps: float) -> GangNodes:
        """These nodes for pods whose sets must have this much bandwidth."""
        criteria = [msgspec.structs.replace(each, min_busbw_gbps=busbw_gbps) for each in self.criteria]
        return self._replace(criteria=criteria, capacity=_capacity(self._replace(criteria=criteria)))

    def all_free(self) -> GangNodes:
        """These nodes as if all their GPUs were free."""
        suitable = np.array([each.group.suitable(self.request) for each in self.candidates], dtype=np.int64)
        mask = suitable[self.kind]
        nodes = self._replace(mask=mask, free=np.bitwise_count(mask).astype(np.int64))
        return nodes._replace(capacity=_capacity(nodes))


def node_table(fleet: Fleet, candidates: list[Candidates], request: Whole, rung: Criteria) -> GangNodes:
    """The candidates as arrays; that GPUs of certain numbers must be in a set cannot be asked of them."""
    slots = [each.slots() for each in candidates]
    kind = np.repeat(np.arange(len(candidates)), [len(own) for own in slots])
    slot = np.concatenate(slots) if slots else np.zeros(0, dtype=np.int64)
    empty = np.zeros(0, dtype=np.int64)
    mask = np.concatenate([each.masks_of(own) for each, own in zip(candidates, slots, strict=True)] or [empty])
    site = np.concatenate(
        [each.group.sites()[own].astype(np.int64) for each, own in zip(candidates, slots, strict=True)] or [empty]
    )
    nodes = GangNodes(
        candidates=candidates,
        criteria=[rung] * len(candidates),
        request=request,
        kind=kind,
        slot=slot,
        mask=mask,
        free=np.bitwise_count(mask).astype(np.int64),
        capacity=mask,
        site=site,
        name_rank=fleet.name_ranks(candidates, slots),
    )
    return nodes._replace(capacity=_capacity(nodes))


def evenly(capacity: Ints, pods: int, *, least: int) -> Ints:
    """Pods on each node, as equal as capacities allow: shape of ``capacity``."""
    out = np.full(len(capacity), least, dtype=np.int64)
    left = pods - int(out.sum())
    while left:
        open_ = np.flatnonzero(out < capacity)
        emptiest = open_[out[open_] == out[open_].min()][:left]
        out[emptiest] += 1
        left -= len(emptiest)
    return out


def fullest(capacity: Ints, pods: int, *, least: int) -> Ints:
    """Pods on each node, the first ones filled up, every one with ``least``: shape of ``capacity``."""
    out = np.full(len(capacity), least, dtype=np.int64)
    left = pods - int(out.sum())
    for at, room in enumerate((capacity - least).tolist()):
        more = min(left, room)
        out[at] += more
        left -= more
    return out


def tightest(nodes: GangNodes, order: Ints, pods: int, *, number: int, least: int) -> Ints:
    """Choose ``number`` nodes that together hold all pods, none larger than it must be: their places in ``nodes``.

    Args:
        nodes: All nodes.
        order: Those of a domain, the largest capacity first, each at least ``least``.
        pods: How many to hold.
        number: How many nodes; the first so many hold all pods.
        least: Fewest pods on a node.
    """
    chosen = order[:number]
    spare = int(nodes.capacity[chosen].sum()) - pods
    if not spare:
        return chosen
    # The smallest of them gives way to the smallest node that holds what it must.
    last = chosen[-1]
    need = max(least, int(nodes.capacity[last]) - spare)
    fitting = order[nodes.capacity[order] >= need]
    fitting = fitting[~np.isin(fitting, chosen[:-1])]
    smallest = np.lexsort((nodes.name_rank[fitting], nodes.free[fitting], nodes.capacity[fitting]))[0]
    return np.append(chosen[:-1], fitting[smallest])


def disjoint_sets(nodes: GangNodes, at: int, count: int, *, request: Whole) -> list[int]:
    """Disjoint sets for ``count`` pods on one node, the best first, never one that leaves too few for the others."""
    tables, criteria = nodes.group(at).tables, nodes.criteria[int(nodes.kind[at])]
    order = set_order(tables, preference(request), gpus=request.gpus)
    room = pod_capacity(tables, request.gpus, criteria)
    every = tables.members(request.gpus)
    every = every[tables.allowed(criteria)[every]]
    free = int(nodes.mask[at])
    sets = []
    for left in range(count - 1, -1, -1):
        inside = every[every & ~free == 0]
        inside = inside[room[free ^ inside] >= left]
        value = (order.first[inside] << 40 | order.last[inside]) + (order.rest[free ^ inside] << 20)
        sets.append(int(inside[value.argmin()]))
        free ^= sets[-1]
    return sets


def _capacity(nodes: GangNodes) -> Ints:
    out = np.zeros(len(nodes.mask), dtype=np.int64)
    for number, (each, criteria) in enumerate(zip(nodes.candidates, nodes.criteria, strict=True)):
        tables, gpus = each.group.tables, nodes.request.gpus
        if gpus <= tables.size:
            own = nodes.kind == number
            out[own] = pod_capacity(tables, gpus, criteria)[nodes.mask[own]]
    return out


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
