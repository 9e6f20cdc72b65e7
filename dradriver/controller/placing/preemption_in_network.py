"""Which workloads to preempt for a gang: those of one part of the network, as near and as cheap as there is.

``preemption_plan`` asks for it. The search takes these steps:

1. The lowest priority with which there are places at all decides.
2. The narrowest part of the network that has room comes first, and of several the one that costs least.
3. In a part, the nodes come first that cost least for each pod.
4. The gang is placed as if all workloads of these nodes had ended. Those end that use something of its places.
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
    """A node on which workloads up to a priority have ended: for how many pods it has GPUs, and what each pod costs."""

    name: str
    pods: int
    cost: tuple[float, float]  # workloads and GPU-seconds, for each pod
    pieces: tuple[Piece, ...]


def in_one_part(search: Search) -> Found | None:
    """Return the places of a gang for which least has to end in the narrowest part; None if there are none."""
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
    """Return the nodes that have room for pods although no workload ends there."""
    snapshot, fleet = search.snapshot, search.snapshot.fleet
    rooms = {}
    for row in snapshot.narrowed(snapshot.eligible(search.wish.ask)).nonzero()[0]:
        name = search.picture.nodes.name(int(row))
        if name in fleet.nodes and (pods := len(fleet.free(name)) // search.gpus):
            rooms[name] = _Room(name, pods, (0.0, 0.0), ())
    return rooms


def _room(search: Search, node: PreemptionNode, priority: int) -> _Room:
    """Return the room of a node once the workloads up to a priority have ended there."""
    pieces = sorted((piece for piece in node.pieces if piece.priority <= priority), key=lambda piece: piece.lost_s)
    pods = (node.free + sum(piece.gpus for piece in pieces)) // search.gpus
    if not pods:
        return _Room(node.name, 0, (0.0, 0.0), ())
    cost = len(pieces) / pods, sum(piece.lost_s for piece in pieces) / pods
    return _Room(node.name, pods, cost, tuple(pieces))


def _parts(search: Search, rooms: Mapping[str, _Room], gang: GangTerms, least: int) -> Iterator[list[_Room]]:
    """Yield sets of nodes that may hold a gang, the narrowest part of the network first.

    The last part is the whole cluster. For each part its cheapest nodes come first, and then all of them.

    For each part its cheapest nodes come first, and then all of them.
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
    """Return the cheapest nodes that have room for so many pods, with half as many more; and all, cheapest first."""
    ordered = sorted(rooms, key=lambda room: (room.cost, -room.pods, room.name))
    count = at = 0
    while at < len(ordered) and count < pods:
        count += ordered[at].pods
        at += 1
    return ordered[: at + max(at // 2, 1)], ordered


def _cost(rooms: Sequence[_Room]) -> tuple[float, float, int]:
    """Return the sort key of some nodes: workloads to end, GPU-seconds to lose, nodes."""
    workloads = sum(len(room.pieces) for room in rooms)
    return float(workloads), sum(room.cost[1] * room.pods for room in rooms), len(rooms)


def _in_part(search: Search, rooms: Sequence[_Room]) -> Found | None:
    """Return a gang's places on some nodes for the fewest victims; None if there are none."""

    def simulate(pieces: Collection[Piece]) -> dict[Member, Placement] | None:
        """Return the places once these workloads have ended."""
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
    """Return which of these workloads use GPUs of the places."""
    taken = {device for place in places.values() for device in place.taken}
    return frozenset(workload.key for workload in search.victims(pieces) if not taken.isdisjoint(workload.devices))
