"""Finds the place of a single fraction (a share or MIG slice) on a node.

``Ask`` is the request for fractions. Equal fractions of a request are of one *kind*. By default the fraction is placed
on a GPU that has fractions already. Among these GPUs, the one on which it costs least is taken. For a share this is the
fullest GPU that still fits. For a MIG slice it is the GPU on which the slice blocks the fewest other slices. If no such
GPU fits, an empty GPU is taken, chosen like a whole GPU. For example, a GPU whose linked partner is in use is taken
before one of four free linked GPUs. The fractions of one pod may be on several GPUs of one node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dradriver.allocator.fleet import node_order
from dradriver.allocator.fleet.candidates import Candidates
from dradriver.allocator.fleet.node_group import NodeGroup
from dradriver.allocator.parts.free_capacity import Rooms
from dradriver.allocator.parts.layouts import NONE
from dradriver.allocator.parts.part_requests import Ask, Counts, Left
from dradriver.allocator.request import Part, PartChoice, Strategy, Whole
from dradriver.allocator.sets.criteria import ANY
from dradriver.allocator.sets.subsets import Bools, Ints


class Nodes(NamedTuple):
    """The nodes of one node group that offer GPUs as fractions.

    Attributes:
        group: The node group: all nodes with the same kind of machine.
        rooms: The free capacity of their GPUs for shares and MIG slices.
        eligible: (nodes,) bool, which of them may be taken; None for all.
        suitable: Bit mask of the GPUs that the request accepts.
        openable: Bit mask of the GPUs that can hold at least one requested fraction if they are empty.
    """

    group: NodeGroup
    rooms: Rooms
    eligible: Bools | None
    suitable: int
    openable: int

    def able(self, fits: Bools) -> Ints:
        """Return the slots of the eligible nodes for which ``fits`` is true, sorted by the nodes' names.

        A slot is the index of a node in its group.
        """
        by_name = self.group.by_name()
        return by_name[(fits if self.eligible is None else fits & self.eligible)[by_name]]


class Take(NamedTuple):
    """The fractions of one GPU that a pod would get at a place.

    ``position`` is the GPU's index in the machine, ``left`` its free capacity before the pod gets the fractions.
    ``counts`` is the number of fractions of each kind; equal fractions are of one kind.
    """

    position: int
    left: Left
    counts: Counts


class Place(NamedTuple):
    """A place for a pod's fractions: a node, and what the pod takes there.

    ``key`` is a number by which places are compared; the smallest is best.
    """

    key: int
    name: str
    group: NodeGroup
    takes: tuple[Take, ...]

    def choice(self, ask: Ask) -> PartChoice:
        """Return the choice for the request ``ask`` at this place, with GPU numbers."""
        made: list[list[Part]] = [[] for _ in ask.wanted]
        for position, left, counts in self.takes:
            for kind, part in ask.parts(left, counts, gpu=self.group.machine.gpus[position].index):
                made[kind].append(part)
        dealt = [iter(parts) for parts in made]
        return PartChoice(
            containers=tuple(tuple(next(dealt[kind]) for kind in kinds) for kinds in ask.containers), node=self.name
        )


def one_part(ask: Ask, every: Sequence[Nodes], limit: int) -> list[Place]:
    """Return places for a single fraction (``ask``) on the ``limit`` best nodes.

    The best place comes first. The result is empty if no node has a place. There is one place for each node: the best
    GPU. ``every`` are the nodes, by kind of machine.
    """
    strategy = ask.request.strategy
    lists = [_in_use, _opened] if strategy is not Strategy.SPREAD else [_opened, _in_use]
    places: list[Place] = []
    for find in lists:
        places += find(ask, every, limit)
        if len(places) >= limit and strategy is not Strategy.FIRST_FIT:
            break
    if strategy is Strategy.FIRST_FIT:
        places.sort(key=lambda place: (place.name, place.takes[0].position))
    first: dict[str, Place] = {}
    for place in places:
        first.setdefault(place.name, place)
    return list(first.values())[:limit]


def _in_use(ask: Ask, every: Sequence[Nodes], limit: int) -> list[Place]:
    """Return the best places for a fraction on GPUs that have fractions already.

    ``ask`` is the request. An empty GPU counts like these if no pod can get it as a whole GPU. There is one place per
    node, on the ``limit`` best nodes, best first. ``every`` are the nodes, by kind of machine.
    """
    places = [place for nodes in every for place in _in_use_of(ask, nodes, limit)]
    return sorted(places, key=lambda place: (place.key, place.name))[:limit]


def _in_use_of(ask: Ask, nodes: Nodes, limit: int) -> Iterator[Place]:
    """Yield the best places for a fraction on GPUs that have fractions already.

    ``ask`` is the request. The GPUs are those of ``nodes``, the nodes of one kind. At most ``limit`` places are
    yielded.
    """
    # 1. The cost of the part on each GPU that is in use by parts, (g, nodes): by what it takes from others, or by the
    # strategy. ``NONE`` if it does not fit, or if the GPU is not of the requested kind.
    rooms, strategy = nodes.rooms, ask.request.strategy
    costs = ask.costs(rooms, 0)
    if strategy is Strategy.SPREAD:
        costs = np.where(costs < NONE, -ask.room(rooms), NONE)
    elif strategy is Strategy.FIRST_FIT:
        costs = np.where(costs < NONE, np.arange(len(costs), dtype=np.int32)[:, None], NONE)
    for position in range(len(costs)):
        if not nodes.suitable >> position & 1:
            costs[position] = NONE

    # 2. The key of each node, the smallest first: its cheapest GPU, and the number of its free GPUs.
    least = costs.min(axis=0)
    slots = nodes.able(least < NONE)
    if strategy is Strategy.FIRST_FIT:
        keys = np.zeros(len(slots), dtype=np.int64)
    else:
        keys = least[slots].astype(np.int64)
        free = np.bitwise_count(nodes.group.free_masks()[slots]).astype(np.int64)
        keys = free << 32 | keys if strategy is Strategy.PACK else keys << 8 | free

    # 3. The places on the best nodes.
    for slot, key in smallest(slots, keys, limit):
        position = int(np.argmin(costs[:, slot]))
        take = Take(position, ask.left(rooms, position, slot), ask.wanted)
        yield Place(key, nodes.group.names[slot], nodes.group, (take,))


def smallest(slots: Ints, keys: Ints, limit: int) -> list[tuple[int, int]]:
    """Return the ``limit`` best nodes, as pairs of a node's slot and its key.

    A slot is the index of a node in its group. A key is a number by which nodes are compared; the smallest comes first.
    """
    if len(slots) > limit:
        last = np.partition(keys, limit - 1)[limit - 1]
        below, equal = np.flatnonzero(keys < last), np.flatnonzero(keys == last)
        chosen = np.concatenate((below, equal[: limit - len(below)]))
        slots, keys = slots[chosen], keys[chosen]
    order = np.argsort(keys, kind="stable")
    return list(zip(slots[order].tolist(), keys[order].tolist(), strict=True))


def _opened(ask: Ask, every: Sequence[Nodes], limit: int) -> list[Place]:
    """Return the best places for a fraction on empty GPUs, one per node.

    ``ask`` is the request. First come the GPUs that later requests for whole GPUs can best do without. At most
    ``limit`` nodes of ``every`` are returned.
    """
    single_gpu = Whole(containers=(1,), strategy=ask.request.strategy)
    rooms = {nodes.group: nodes.rooms for nodes in every}
    candidates = []
    for nodes in every:
        free = nodes.rooms.opening(sliced=ask.sliced) & np.uint16(nodes.openable)
        if free.any():
            candidates.append(Candidates(nodes.group, request=single_gpu, eligible=nodes.eligible, free=free))
    places: list[Place] = []
    for tie in node_order.ties(candidates, single_gpu, fallback_level=ANY, passed=[]):
        for name, group, taken in node_order.named(tie, limit - len(places)):
            position = taken.bit_length() - 1
            take = Take(position, ask.empty(rooms[group], position), ask.wanted)
            places.append(Place(len(places), name, group, (take,)))
        if len(places) >= limit:
            break
    return places
