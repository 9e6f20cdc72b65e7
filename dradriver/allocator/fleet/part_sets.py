"""Finds places for a pod with several fractions (shares or MIG slices). All of them are on one node.

``Ask`` is the request for fractions. Equal fractions of a request are of one *kind*. The best place uses as few empty
GPUs as possible, so that they remain for requests for whole GPUs. Among equal places, the place with the least cost of
the fractions is best (``part_costs.py``). For thousands of nodes, or for many different fractions, comparing all nodes
is too much work. Then only nodes with enough capacity in sum are evaluated, in the strategy's order, until enough of
them have a place. So a large pod does not delay other pods.
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

    For small requests, all nodes are compared exactly. For large requests, the search ends once enough nodes have a
    place.

    Args:
        ask: The request for shares or MIG slices.
        all_nodes: The nodes by kind of machine.
        limit: The largest number of places to return.
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
    """Yield the nodes to evaluate, as arrays of slots (indices in the group).

    The nodes of an array are evaluated together.

    If the group has few enough nodes, there is one array with all eligible nodes. Else only nodes with enough capacity
    in sum are in the arrays, in the strategy's order, up to a limit. Each array is ascending. ``each`` is the work for
    one node, on which the limits depend.
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
    """Return the cost of the best place on each node; lower is better.

    The cost is ``FAR`` on a node without a place. With another strategy than ``best-fit``, it is the strategy's number
    of the node (``_by_strategy``). If ``exact`` is set, all nodes are computed together. With ``best-fit``, empty GPUs
    are then evaluated only if fewer than ``limit`` nodes have a place without them. Else the nodes are searched one by
    one.
    """
    best_fit = ask.request.strategy is Strategy.BEST_FIT
    if exact:
        keys = least_costs(ask, nodes, slots, enough=limit if best_fit else len(slots) + 1)
    else:
        places = [_place(ask, nodes, _gpus(ask, nodes, slot)) for slot in slots.tolist()]
        keys = np.array([FAR if place is None else place[0] for place in places], dtype=np.int64)
    return keys if best_fit else np.where(keys < FAR, _by_strategy(ask, nodes, slots), FAR)


def _best(nodes: Nodes, slots: Ints, keys: Ints, limit: int) -> list[tuple[int, int]]:
    """Return the ``limit`` best nodes with a place, as pairs of slot and key.

    The best node comes first. A slot is the index of a node in its group. A key is a number by which nodes are
    compared; the lowest is best. Among equal keys, the first node by name is best.
    """
    last = min(int(np.partition(keys, limit - 1)[limit - 1]), FAR - 1) if len(keys) > limit else FAR - 1
    chosen = np.flatnonzero(keys <= last)
    among = np.zeros(len(nodes.group.names), dtype=np.int64)
    among[slots[chosen]] = keys[chosen]
    fits = np.zeros(len(among), dtype=np.bool_)
    fits[slots[chosen]] = True
    by_name = nodes.able(fits)
    return smallest(by_name, among[by_name], limit)


def _roomy(ask: Ask, nodes: Nodes) -> Bools:
    """Return whether each node has enough capacity for the fractions: (nodes,), bool.

    ``ask`` has the fractions. The capacity is checked for each kind of fraction by itself, and for all fractions in
    sum. So True does not prove that there is a place.
    """
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
    """Return a number for each node by which the strategy orders nodes; the smallest is first.

    ``slots`` are the nodes, as indices in their group. ``spread`` takes the emptiest node first, ``first-fit`` makes
    all nodes equal, and the other strategies take the fullest first.
    """
    sign = {Strategy.SPREAD: -1, Strategy.FIRST_FIT: 0}.get(ask.request.strategy, 1)
    if not sign:
        return np.zeros(len(slots), dtype=np.int64)
    free = np.bitwise_count(nodes.group.free_masks()[slots]).astype(np.int64)
    room: Ints = (ask.room(nodes.rooms) * _rows(nodes)).sum(axis=0, dtype=np.int64)[slots]
    keys: Ints = sign * (free << 32 | room)
    return keys


def _rows(nodes: Nodes) -> Array:
    """Return 1 for each GPU position that the request accepts, else 0: (GPUs, 1).

    Other arrays are multiplied by it, so that only these GPUs count.
    """
    g = len(nodes.rooms.layouts)
    return np.array([nodes.suitable >> position & 1 for position in range(g)], dtype=np.int32)[:, None]


def _gpus(ask: Ask, nodes: Nodes, slot: int) -> tuple[tuple[int, Left], ...]:
    """Return the free capacity of a node's GPUs, as pairs of position and capacity.

    ``slot`` is the index of the node in its group.

    The GPUs in use by fractions come first. The last pair stands for all empty GPUs: position -1, and their bit mask in
    place of a capacity.
    """
    rooms = nodes.rooms
    used = [
        (position, ask.left(rooms, position, slot))
        for position in positions_of(rooms.mask_with_fractions(slot) & nodes.suitable)
    ]
    opening = int(rooms.opening(sliced=ask.sliced)[slot]) & nodes.openable
    return (*used, (-1, opening))


def _place(ask: Ask, nodes: Nodes, gpus: tuple[tuple[int, Left], ...]) -> tuple[int, tuple[Take, ...]] | None:
    """Return the cost of the best place on a node, and the fractions that it takes of each GPU.

    The result is None if there is no place. ``ask`` is the request. ``gpus`` has pairs of a GPU position and the GPU's
    free capacity; the last pair has the bit mask of the node's empty GPUs.
    """
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
