"""Chooses which workloads to preempt for a gang: in one section of the network, as near and cheap as possible.

``preemption_plan`` calls it. The search takes these steps:

1. Find the lowest priority with which there are places: only running workloads up to this priority may end.
2. Try the narrowest section of the network with enough room first. Of equally narrow sections, try the cheapest first.
3. In a section, take the nodes first that cost least for each pod.
4. Place the gang as if all workloads of these nodes had ended. Then only those workloads really end whose GPUs, or
   other resources, the places need.

A *piece* is the part of a running workload on one node. A *section* of the network is nodes that are close to each
other, such as those of one rack.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from dradriver.api.claims.pins import Key
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing.gang_terms import GangTerms
from dradriver.controller.placing.preemption_cost import Piece, cost_of
from dradriver.controller.placing.preemption_search import Found, PreemptionNode, Search, spared
from dradriver.queue.pending import Member

MOST_TRIES: Final = 16  # parts of the network that are tried for one gang
MOST_SPARED: Final = 16  # workloads of a part that are tried to be spared
MOST_NODES: Final = 1024  # nodes of a part that are looked at
CLUSTER: Final = "cluster"


class _Room(msgspec.Struct):
    """How many pods of a gang a node can take after some workloads have ended.

    All workloads of the node up to a certain priority end. ``pods`` counts by GPUs alone. ``cost`` has two numbers,
    each divided by ``pods``: workloads to end and GPU-seconds lost. ``pieces`` are the workloads to end, each with its
    part on the node.
    """

    name: str
    pods: int
    cost: tuple[float, float]  # workloads and GPU-seconds, for each pod
    pieces: tuple[Piece, ...]


def in_one_part(search: Search) -> Found | None:
    """Return the cheapest places of a gang in the narrowest network section that has any.

    ``search`` has the gang, and simulates that workloads end. Returns None if there are no places.
    """
    gang = search.gang
    assert gang is not None, "single pods are searched for on one node"
    least = gang.least or len(search.members)
    nodes, free, tries = search.candidates(), _free_rooms(search), MOST_TRIES
    for priority in sorted({priority for _, priority in search.scene.workloads}):
        rooms = free | {room.name: room for node in nodes if (room := _room(search, node, priority)).pods}
        if sum(room.pods for room in rooms.values()) < least or not any(room.pieces for room in rooms.values()):
            continue
        for part in _parts(search, rooms, gang, least):
            if tries <= 0:
                return None
            tries -= 1
            if (found := _in_part(search, part)) is not None:
                return found
    return None


def _free_rooms(search: Search) -> dict[str, _Room]:
    """Return the nodes that have free GPUs for pods of the gang now, by name.

    The cost of these nodes is 0, because no workload has to end. ``search`` has the gang.
    """
    snapshot, fleet = search.snapshot, search.snapshot.fleet
    rooms = {}
    for row in snapshot.narrowed(snapshot.eligible(search.wish.ask)).nonzero()[0]:
        name = search.picture.nodes.name(int(row))
        if name in fleet.nodes and (pods := len(fleet.free(name)) // search.gpus):
            rooms[name] = _Room(name, pods, (0.0, 0.0), ())
    return rooms


def _room(search: Search, node: PreemptionNode, priority: int) -> _Room:
    """Return how many pods of a gang a node can take after some workloads end.

    The result also has the cost. The workloads with a priority up to ``priority`` end. ``node`` has the workloads that
    can end, ``search`` the gang.
    """
    pieces = sorted((piece for piece in node.pieces if piece.priority <= priority), key=lambda piece: piece.lost_s)
    pods = (node.free + sum(piece.gpus for piece in pieces)) // search.gpus
    if not pods:
        return _Room(node.name, 0, (0.0, 0.0), ())
    cost = len(pieces) / pods, sum(piece.lost_s for piece in pieces) / pods
    return _Room(node.name, pods, cost, tuple(pieces))


def _parts(search: Search, rooms: Mapping[str, _Room], gang: GangTerms, least: int) -> Iterator[list[_Room]]:
    """Yield lists of nodes that may have room for a gang, narrow network sections first.

    For each section there are up to two lists: its cheapest nodes, and all its nodes. The last section is the whole
    cluster.

    Args:
        search: The search.
        rooms: For each node by name, how many pods it can have, and at what cost.
        gang: What the gang requests as a whole. If it requires a network level, no wider section is used.
        least: How many pods a section must have room for.
    """
    picture, namespace = search.picture, search.wish.claim[0]
    picture.fleets.locate(picture.nodes.labels(), namespace)
    fleet = picture.fleets.of(namespace)
    # A site is a location in the network that several nodes can share. ``sites`` has each node's site by the rank of
    # its name among all nodes of the fleet. ``part_of_site`` is -1 for a site without the label of the level.
    sites, ranks = fleet.sites_by_name(), {name: fleet.name_rank(name) for name in rooms}
    near = None if gang.wants is None else gang.wants.near
    for level in (*fleet.levels, CLUSTER):
        # 1. The nodes by their part on this level. A node without the label of the level is in none.
        parts: dict[int, list[_Room]] = {}
        part_of_site = None if level == CLUSTER else fleet.sites.domains(level)
        for name, room in rooms.items():
            rank = ranks[name]
            if part_of_site is None:
                part = 0
            elif rank is None:
                continue
            else:
                part = int(part_of_site[sites[rank]])
            if part >= 0:
                parts.setdefault(part, []).append(room)

        # 2. The parts with room for the gang, the cheapest first.
        with_room = [part_rooms for part_rooms in parts.values() if sum(room.pods for room in part_rooms) >= least]
        cheapest = [_cheapest(part_rooms, len(search.members)) for part_rooms in with_room]
        for cheapest_rooms, all_rooms in sorted(cheapest, key=lambda pair: _cost(pair[0])):
            yield cheapest_rooms
            if len(all_rooms) > len(cheapest_rooms):
                yield all_rooms[:MOST_NODES]
        # A gang that requires to be within this level gets no wider part.
        if near is not None and not near.preferred and level == near.level:
            return


def _cheapest(rooms: list[_Room], pods: int) -> tuple[list[_Room], list[_Room]]:
    """Return the cheapest nodes with room for ``pods`` pods, and all nodes, cheapest first.

    ``rooms`` has a node's room and cost in each entry. The first list has 1.5 times as many nodes as are needed.
    """
    ordered = sorted(rooms, key=lambda room: (room.cost, -room.pods, room.name))
    count = at = 0
    while at < len(ordered) and count < pods:
        count += ordered[at].pods
        at += 1
    return ordered[: at + max(at // 2, 1)], ordered


def _cost(rooms: Sequence[_Room]) -> tuple[float, float, int]:
    """Return a sort key of some nodes: workloads to end, GPU-seconds lost, number of nodes.

    ``rooms`` has an entry for each node.
    """
    workloads = sum(len(room.pieces) for room in rooms)
    return float(workloads), sum(room.cost[1] * room.pods for room in rooms), len(rooms)


def _in_part(search: Search, rooms: Sequence[_Room]) -> Found | None:
    """Return a gang's places on some nodes, and few victims; None if there are no places.

    ``rooms`` has the nodes, and the workloads to end there. First ``search`` simulates that all of these end. Then it
    spares the workloads whose GPUs or other resources the places do not need.
    """

    def simulate(pieces: Collection[Piece]) -> dict[Member, Placement] | None:
        """Return the gang's places after the workloads of ``pieces`` have ended, or None."""
        ended = [pod for victim in search.victims(pieces) for pod in victim.pods]
        return search.places(search.snapshot, [*search.scene.ending, *ended])

    # 1. Places as if all workloads had ended. Those that use GPUs of the places are the first victims. A piece is a
    #    workload as far as it is on one node, and has its key. ``search.victims`` returns the workloads themselves.
    pieces = list({piece.key: piece for room in rooms for piece in room.pieces}.values())
    if not pieces or (places := simulate(pieces)) is None:
        return None
    users, nodes = _users(search, pieces, places), {place.node for place in places.values()}
    victims = [piece for piece in pieces if piece.key in users]

    # 2. More victims on the nodes of the places, the cheapest first, until there are places. Workloads that use no GPU
    #    of the places can still use CPU or memory that the gang needs.
    others = [
        piece
        for piece, workload in zip(pieces, search.victims(pieces), strict=True)
        if piece.key not in users and any(pod.node in nodes for pod in workload.pods)
    ]
    others.sort(key=lambda piece: cost_of([piece]))
    while (places := simulate(victims)) is None:
        if not others:
            return None
        victims.append(others.pop(0))

    # 3. These places can differ from the first ones: victims whose GPUs they do not use are spared if possible.
    # ``spared`` simulates that one of them runs on, then the next, and returns the remaining victims and their places.
    users = _users(search, victims, places)
    unused = [piece for piece in victims if piece.key not in users][:MOST_SPARED]
    victims, places = spared(victims, places, unused, simulate)
    if places is None or not victims:
        return None
    # Pods on these nodes that end already are named in the claims, too: the gang waits for them as for the victims.
    on_nodes = dict.fromkeys(place.node for place in places.values())
    ending = tuple(pod for node in on_nodes for pod in search.ending.get(node, ()))
    # A claim can name only so many pods that have to end.
    return None if search.is_too_many(victims, ending) else Found(places, tuple(search.victims(victims)), ending)


def _users(search: Search, pieces: Collection[Piece], places: Mapping[Member, Placement]) -> frozenset[Key]:
    """Return the workloads that use GPUs of the places, so that they must end.

    ``pieces`` are the parts of workloads on single nodes.
    """
    taken = {device for place in places.values() for device in place.taken}
    return frozenset(workload.key for workload in search.victims(pieces) if not taken.isdisjoint(workload.devices))
