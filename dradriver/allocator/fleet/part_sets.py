"""Places for a pod of several parts: each node that could have one is looked at as a whole.

Fewest empty GPUs that whole requests could have had are opened, then the parts cost least (``assign.py``). Alike nodes
are looked at once. Of a large cluster not all that differ are looked at: the fullest first, until some have a place,
and of thousands that have none, although they have enough in sum, not all: a pod must not keep others waiting.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from dradriver.allocator.choice.best_set import best_set
from dradriver.allocator.fleet.part_nodes import Nodes, Place, Take
from dradriver.allocator.parts.asks import Ask, Left
from dradriver.allocator.parts.assign import assign, work
from dradriver.allocator.request import Strategy
from dradriver.allocator.sets import rings

_MOST_WORK = 1 << 13  # over all nodes that differ, before a pod is told that there is no place
_FEWEST = 32  # nodes that are looked at, whatever the work
_ENOUGH = 8  # of these that have a place


def several_parts(ask: Ask, every: Sequence[Nodes], limit: int) -> list[Place]:
    """The best place on each of the best nodes, best first; empty where there is none."""
    ordered = heapq.merge(*(_able(ask, nodes) for nodes in every), key=lambda each: each[:2])
    looked: dict[tuple[object, ...], tuple[int, tuple[Take, ...]] | None] = {}
    places: list[Place] = []
    good = 0
    most = max(_MOST_WORK // work(ask), _FEWEST)
    for _, name, nodes, slot in ordered:
        gpus = _gpus(ask, nodes, slot)
        key = (nodes.group, *gpus)
        if key not in looked:
            if len(looked) >= most or good >= max(_ENOUGH, limit):
                break
            looked[key] = _place(ask, nodes, gpus)
            good += looked[key] is not None
        if (found := looked[key]) is not None:
            places.append(Place(found[0], name, nodes.group, found[1]))
            if len(places) >= 64 * limit:
                break
    if ask.request.strategy is Strategy.BEST_FIT:
        places.sort(key=lambda place: (place.key, place.name))
    return places[:limit]


def _able(ask: Ask, nodes: Nodes) -> Iterator[tuple[int, str, Nodes, int]]:
    """The nodes that have room for each kind's parts, were there no others, in the strategy's order, then by name."""
    rooms, suitable = nodes.rooms, nodes.suitable
    g = len(rooms.layouts)
    rows = np.array([suitable >> position & 1 for position in range(g)], dtype=np.int32)[:, None]
    opening = rooms.opening(sliced=ask.sliced) & np.uint16(suitable)
    empty = opening[None, :] >> np.arange(g, dtype=np.uint16)[:, None] & 1
    total, left, whole = ask.volumes(rooms)
    fits = (left * rows + whole[:, None] * empty).sum(axis=0) >= total
    for kind, count in enumerate(ask.wanted):
        most = (ask.most(rooms, kind) * rows + ask.most_empty(rooms, kind)[:, None] * empty).sum(axis=0)
        fits &= most >= count
    slots = nodes.able(fits)
    free = np.bitwise_count(nodes.group.free_masks()[slots]).astype(np.int64)
    emptiness = free << 32 | (ask.room(rooms) * rows).sum(axis=0, dtype=np.int64)[slots]
    sign = {Strategy.SPREAD: -1, Strategy.FIRST_FIT: 0}.get(ask.request.strategy, 1)
    keys = sign * emptiness
    for at in np.argsort(keys, kind="stable"):
        slot = int(slots[at])
        yield int(keys[at]), nodes.group.names[slot], nodes, slot


def _gpus(ask: Ask, nodes: Nodes, slot: int) -> tuple[tuple[int, Left], ...]:
    """What is left of each of a node's GPUs by position, those in use first, then a mask of the empty ones."""
    rooms = nodes.rooms
    used = [
        (position, ask.left(rooms, position, slot)) for position in rings.positions(rooms.told(slot) & nodes.suitable)
    ]
    opening = int(rooms.opening(sliced=ask.sliced)[slot]) & nodes.openable
    return (*used, (-1, opening))


def _place(ask: Ask, nodes: Nodes, gpus: tuple[tuple[int, Left], ...]) -> tuple[int, tuple[Take, ...]] | None:
    """The cost of the best place on a node, and what is taken of each GPU; None for none."""
    *used, (_, mask) = gpus
    assert isinstance(mask, int)
    empty = _order(nodes, mask)
    lefts = [*used, *((position, ask.empty(nodes.rooms, position)) for position in empty)]
    found = assign(ask, [left for _, left in lefts], used=len(used))
    if found is None:
        return None
    cost, counts = found
    takes = [Take(*left, count) for left, count in zip(lefts, counts, strict=True) if any(count)]
    return cost, tuple(takes)


def _order(nodes: Nodes, mask: int) -> list[int]:
    """The empty GPUs in the order in which losing them one after the other costs whole requests least."""
    order: list[int] = []
    while mask:
        taken = best_set(nodes.group.tables, mask, gpus=1)
        assert taken is not None, "a GPU is free"
        order += rings.positions(taken)
        mask &= ~taken
    return order
