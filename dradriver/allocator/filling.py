"""How many pods of a gang each node can hold, which nodes to take, and which sets on them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from dradriver.allocator import demands, subsets
from dradriver.allocator.alike import Looked
from dradriver.allocator.demands import Demand
from dradriver.allocator.fleet import Fleet
from dradriver.allocator.request import Request
from dradriver.allocator.subsets import Floats, Ints
from dradriver.allocator.tables import Tables
from dradriver.allocator.tastes import ranks


class Nodes(NamedTuple):
    """The nodes that may be looked at, of all kinds, as arrays of shape (nodes,), int64.

    Attributes:
        looked: By kind.
        demand: By kind, what each pod's set must be.
        request: The pod's request.
        kind: Number in ``looked``.
        slot: Slot there.
        mask: Usable positions.
        free: How many they are.
        capacity: Pods that find disjoint sets.
        site: Number of the location.
        name_rank: Place of the name among all.
    """

    looked: list[Looked]
    demand: list[Demand]
    request: Request
    kind: Ints
    slot: Ints
    mask: Ints
    free: Ints
    capacity: Ints
    site: Ints
    name_rank: Ints

    def name(self, at: int) -> str:
        """A node's name."""
        return self.looked[int(self.kind[at])].alike.names[int(self.slot[at])]

    def tables(self, at: int) -> Tables:
        """A node's tables."""
        return self.looked[int(self.kind[at])].alike.tables

    def bandwidths(self, gpus: int) -> Floats:
        """All predicted bandwidths that sets of this size can have on these nodes, ascending."""
        values = [
            np.unique(each.alike.tables.busbw[each.alike.tables.members(gpus)])
            for each in self.looked
            if gpus <= each.alike.tables.size
        ]
        return np.unique(np.concatenate(values)) if values else np.zeros(0, dtype=np.float32)

    def demanding(self, busbw_gbps: float) -> Nodes:
        """The same nodes for pods that demand this much bandwidth."""
        demand = [msgspec.structs.replace(each, min_busbw_gbps=busbw_gbps) for each in self.demand]
        return self._replace(demand=demand, capacity=_capacity(self._replace(demand=demand)))


def nodes_of(fleet: Fleet, looked: list[Looked], request: Request, rung: Demand) -> Nodes:
    """All nodes that may be looked at as arrays; on which GPUs of which number must be in a set cannot be asked."""
    slots = [each.all_slots() for each in looked]
    kind = np.repeat(np.arange(len(looked)), [len(own) for own in slots])
    slot = np.concatenate(slots) if slots else np.zeros(0, dtype=np.int64)
    empty = np.zeros(0, dtype=np.int64)
    mask = np.concatenate([each.masks_of(own) for each, own in zip(looked, slots, strict=True)] or [empty])
    site = np.concatenate(
        [each.alike.sites()[own].astype(np.int64) for each, own in zip(looked, slots, strict=True)] or [empty]
    )
    nodes = Nodes(
        looked=looked,
        demand=[rung] * len(looked),
        request=request,
        kind=kind,
        slot=slot,
        mask=mask,
        free=np.bitwise_count(mask).astype(np.int64),
        capacity=mask,
        site=site,
        name_rank=fleet.name_ranks(looked, slots),
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


def tightest(nodes: Nodes, order: Ints, pods: int, *, number: int, least: int) -> Ints:
    """``number`` nodes that hold all pods, none larger than it must be.

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


def sets(nodes: Nodes, at: int, count: int, *, request: Request) -> list[int]:
    """Disjoint sets for ``count`` pods on one node, the best first, never one that leaves too few for the others."""
    tables, demand = nodes.tables(at), nodes.demand[int(nodes.kind[at])]
    rank = ranks(tables, demands.taste(request), gpus=request.gpus)
    room = held(tables, request.gpus, demand)
    every = tables.members(request.gpus)
    every = every[tables.allowed(demand)[every]]
    free = int(nodes.mask[at])
    found = []
    for left in range(count - 1, -1, -1):
        inside = every[every & ~free == 0]
        inside = inside[room[free ^ inside] >= left]
        value = (rank.first[inside] << 40 | rank.last[inside]) + (rank.rest[free ^ inside] << 20)
        found.append(int(inside[value.argmin()]))
        free ^= found[-1]
    return found


def _capacity(nodes: Nodes) -> Ints:
    out = np.zeros(len(nodes.mask), dtype=np.int64)
    for number, (each, demand) in enumerate(zip(nodes.looked, nodes.demand, strict=True)):
        tables, gpus = each.alike.tables, nodes.request.gpus
        if gpus <= tables.size:
            own = nodes.kind == number
            out[own] = held(tables, gpus, demand)[nodes.mask[own]]
    return out


def held(tables: Tables, gpus: int, demand: Demand) -> Ints:
    """Most disjoint admissible sets inside each free mask: shape (2**g,), int64."""
    return tables.row(("held", gpus, demand), lambda: _count(tables, gpus, demand))


def _count(tables: Tables, gpus: int, demand: Demand) -> Ints:
    allowed = tables.allowed(demand)[tables.members(gpus)]
    if allowed.all():
        return (tables.count // gpus).astype(np.int64)
    values = np.zeros(1 << tables.size, dtype=np.float32)
    values[tables.members(gpus)] = allowed
    return subsets.packed(values, tables.size, gpus).astype(np.int64)
