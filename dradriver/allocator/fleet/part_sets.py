"""Places for a pod of several parts: each node that could have one is looked at as a whole.

Fewest empty GPUs that whole requests could have had are opened, then the parts cost least (``part_costs.py``). Where
that is too much to look at, of thousands of nodes or for many different parts, those that have enough in sum are
looked at in the strategy's order until some have a place, and not all of them: a pod must not keep others waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dradriver.allocator.fleet.part_costs import FAR, least_costs, order, steps
from dradriver.allocator.fleet.part_nodes import Nodes, Place, Take, smallest
from dradriver.allocator.parts.part_assignment import MOST_EXACT, assign, work
from dradriver.allocator.parts.part_requests import Ask, Left
from dradriver.allocator.request import Strategy
from dradriver.allocator.sets.masks import positions_of
from dradriver.allocator.sets.subsets import Array, Bools, Ints

_AT_ONCE = 1 << 17  # nodes times steps: about a millisecond
_MOST = 1 << 20  # of these, before a pod is told that there is no place
_FEWEST = 32  # nodes that are looked at, whatever the work
_ENOUGH = 8  # of these that have a place


def several_parts(ask: Ask, all_nodes: Sequence[Nodes], limit: int) -> list[Place]:
    """Return the best nodes for several fractions, each with its best place.

    Small requests are compared exactly on all nodes. For large ones, and once enough nodes have a place, the rest is
    not looked at.

    Args:
        ask: The request for shares or MIG slices.
        all_nodes: The nodes by kind of machine.
        limit: Most places to return.
    """
    is_exact = work(ask) <= MOST_EXACT
    work_per_node = len(steps(ask.wanted)) if is_exact else _AT_ONCE

    # (cost of the node's best place, node name, kind of machine, slot: the node's index in its kind), best first.
    entries: list[tuple[int, str, Nodes, int]] = []
    for nodes in all_nodes:
        places_seen = 0
        for slots in _node_lots(ask, nodes, work_per_node):
            costs = _place_costs(ask, nodes, slots, limit=limit, exact=is_exact)
            places_seen += len(costs) - int(np.count_nonzero(costs == FAR))
            entries += [
                (cost, nodes.group.names[slot], nodes, slot) for slot, cost in _best(nodes, slots, costs, limit)
            ]
            if places_seen >= max(_ENOUGH, limit):
                break
    entries.sort(key=lambda entry: entry[:2])

    # The places are worked out for the best nodes alone, once for nodes whose GPUs have the same free capacity.
    places = []
    place_of_gpus: dict[tuple[object, ...], tuple[int, tuple[Take, ...]] | None] = {}
    for cost, name, nodes, slot in entries[:limit]:
        gpus = _gpus(ask, nodes, slot)
        place_key = (nodes.group, *gpus)
        if place_key not in place_of_gpus:
            place_of_gpus[place_key] = _place(ask, nodes, gpus)
        place = place_of_gpus[place_key]
        assert place is not None, "its cost is known"
        _, takes = place  # what is taken of each GPU
        places.append(Place(cost, name, nodes.group, takes))
    return places


def _node_lots(ask: Ask, nodes: Nodes, each: int) -> Iterator[Ints]:
    """Yield the slots of the nodes that may be taken, in lots that are looked at at once; ascending in each lot.

    All of them, where these are few enough; else those with room in sum, in the strategy's order, up to a number.
    """
    count = len(nodes.group.names)
    slots = np.arange(count) if nodes.eligible is None else np.flatnonzero(nodes.eligible)
    at_once = max(_AT_ONCE // each, _FEWEST)
    if each < _AT_ONCE and len(slots) <= at_once:
        yield slots
        return
    slots = nodes.able(_roomy(ask, nodes))
    slots = slots[np.argsort(_by_strategy(ask, nodes, slots), kind="stable")][: max(_MOST // each, _FEWEST)]
    for at in range(0, len(slots), at_once):
        yield np.sort(slots[at : at + at_once])


def _place_costs(ask: Ask, nodes: Nodes, slots: Ints, *, limit: int, exact: bool) -> Ints:
    """Return the cost of the best place on each node, the smaller the better; ``FAR`` if there is none."""
    best_fit = ask.request.strategy is Strategy.BEST_FIT
    if exact:
        keys = least_costs(ask, nodes, slots, enough=limit if best_fit else len(slots) + 1)
    else:
        places = [_place(ask, nodes, _gpus(ask, nodes, slot)) for slot in slots.tolist()]
        keys = np.array([FAR if place is None else place[0] for place in places], dtype=np.int64)
    return keys if best_fit else np.where(keys < FAR, _by_strategy(ask, nodes, slots), FAR)


def _best(nodes: Nodes, slots: Ints, keys: Ints, limit: int) -> list[tuple[int, int]]:
    """Slot and key of the best of these nodes that have a place, best first; of equal ones the first by name."""
    last = min(int(np.partition(keys, limit - 1)[limit - 1]), FAR - 1) if len(keys) > limit else FAR - 1
    chosen = np.flatnonzero(keys <= last)
    among = np.zeros(len(nodes.group.names), dtype=np.int64)
    among[slots[chosen]] = keys[chosen]
    fits = np.zeros(len(among), dtype=np.bool_)
    fits[slots[chosen]] = True
    by_name = nodes.able(fits)
    return smallest(by_name, among[by_name], limit)


def _roomy(ask: Ask, nodes: Nodes) -> Bools:
    """Which nodes have room for each kind's parts, were there no others, and for all in sum."""
    rooms = nodes.rooms
    rows = _rows(nodes)
    opening = rooms.opening(sliced=ask.sliced) & np.uint16(nodes.openable)
    empty = opening[None, :] >> np.arange(len(rows), dtype=np.uint16)[:, None] & 1
    total, left, whole = ask.volumes(rooms)
    fits: Bools = (left * rows + whole[:, None] * empty).sum(axis=0) >= total
    for kind, count in enumerate(ask.wanted):
        most = (ask.most(rooms, kind) * rows + ask.most_empty(rooms, kind)[:, None] * empty).sum(axis=0)
        fits &= most >= count
    return fits


def _by_strategy(ask: Ask, nodes: Nodes, slots: Ints) -> Ints:
    """A key of each node, the smallest first: the fullest, the emptiest or, where all are equal, by name."""
    sign = {Strategy.SPREAD: -1, Strategy.FIRST_FIT: 0}.get(ask.request.strategy, 1)
    if not sign:
        return np.zeros(len(slots), dtype=np.int64)
    free = np.bitwise_count(nodes.group.free_masks()[slots]).astype(np.int64)
    room: Ints = (ask.room(nodes.rooms) * _rows(nodes)).sum(axis=0, dtype=np.int64)[slots]
    keys: Ints = sign * (free << 32 | room)
    return keys


def _rows(nodes: Nodes) -> Array:
    """1 for each position whose GPU is of the kind that is wanted, else 0: (g, 1)."""
    g = len(nodes.rooms.layouts)
    return np.array([nodes.suitable >> position & 1 for position in range(g)], dtype=np.int32)[:, None]


def _gpus(ask: Ask, nodes: Nodes, slot: int) -> tuple[tuple[int, Left], ...]:
    """What is left of each of a node's GPUs by position, those in use first, then a mask of the empty ones."""
    rooms = nodes.rooms
    used = [
        (position, ask.left(rooms, position, slot))
        for position in positions_of(rooms.mask_with_fractions(slot) & nodes.suitable)
    ]
    opening = int(rooms.opening(sliced=ask.sliced)[slot]) & nodes.openable
    return (*used, (-1, opening))


def _place(ask: Ask, nodes: Nodes, gpus: tuple[tuple[int, Left], ...]) -> tuple[int, tuple[Take, ...]] | None:
    """The cost of the best place on a node, and what is taken of each GPU; None for none."""
    *used, (_, mask) = gpus
    assert isinstance(mask, int)
    empty = order(nodes.group.tables, mask)
    lefts = [*used, *((position, ask.empty(nodes.rooms, position)) for position in empty)]
    cheapest = assign(ask, [left for _, left in lefts], used=len(used))
    if cheapest is None:
        return None
    cost, counts = cheapest
    takes = [Take(*left, count) for left, count in zip(lefts, counts, strict=True) if any(count)]
    return cost, tuple(takes)
