"""Whom a gang would have to have ended to get its places: a part of the network first, then nodes, then units. Pure.

The lowest priority with which there are places at all decides; then the narrowest part of the network that has them,
and of several the one that costs least; then the nodes in it that cost least. The gang is placed there by ``gang_plan``
on the picture as it would be without those units, and whoever has nothing of what it gets is spared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from dradriver.allocator.fleet.gang_effort import Effort
from dradriver.allocator.request import NoPlaceError, Whole
from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import Device, Key
from dradriver.api.claims.preemption_note import MOST as MOST_VICTIMS
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.derived.workloads import Workload, WorkloadPod, by_node
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing import gang_plan
from dradriver.controller.placing.preemption_cost import Piece, cost_of
from dradriver.controller.placing.preemption_plan import PreemptionNode, Scene, candidates, without
from dradriver.queue.placement_request import PlacementRequest
from dradriver.queue.units import Member

MOST_TRIES: Final = 16  # simulations for one gang
MOST_SPARED: Final = 16  # units that are tried to be spared
MOST_NODES: Final = 1024  # that are looked at in one of them
CLUSTER: Final = "cluster"


class FoundTogether(msgspec.Struct, frozen=True):
    """Places that there are once some have ended.

    Attributes:
        places: The places.
        victims: The units that have to end.
        beside: Pods that end already and have something of what the places need.
    """

    places: dict[Member, Placement]
    victims: tuple[Workload, ...]
    beside: tuple[WorkloadPod, ...]


class _Room(msgspec.Struct):
    """A node, as far as units of up to some priority have ended there: for how many pods, and what each costs."""

    name: str
    pods: int
    cost: tuple[float, float]  # units and GPU-seconds, for each pod
    gone: tuple[Key, ...]


def place_together(
    picture: Picture,
    members: Sequence[Member],
    wants: Gang | None,
    scene: Scene,
    *,
    identity: str,
    least: int,
    avoid: Collection[str] = (),
) -> FoundTogether | None:
    """Return places that cost least of a gang that finds none; None where nobody's end would help.

    Args:
        picture: The cluster.
        members: All that are to have places, in the order of their ranks; none has a claim.
        wants: What its author says of it; None for nothing.
        scene: Who may have to end.
        identity: The gang's.
        least: With how few it may begin.
        avoid: Nodes that are left out.
    """
    if not all(_whole(member.wish) for member in members):
        return None
    wish = max((member.wish for member in members), key=_gpus)
    ending = by_node(scene.ending)
    snapshot = Snapshot(picture, wish.claim[0], whose=scene.whose)
    nodes = candidates(snapshot, wish, scene, ending, avoid)
    search = _Search(snapshot.avoiding(avoid), members, wants, scene, ending, identity=identity, least=least)
    if ending and search.places(()) is not None:
        return None  # there are places once those have ended who end already
    tries = MOST_TRIES
    free = _free_rooms(snapshot, wish, avoid)
    for priority in sorted({priority for _, priority in scene.units}):
        rooms = free | {room.name: room for node in nodes if (room := _room(node, wish, priority)).pods}
        if sum(room.pods for room in rooms.values()) < least or not any(room.gone for room in rooms.values()):
            continue
        for some in _parts(picture, wish.claim[0], rooms, len(members), least, wants):
            if tries <= 0:
                return None
            tries -= 1
            if (found := search.among(some)) is not None:
                return found
    return None


def _gpus(wish: PlacementRequest) -> int:
    return wish.request.gpus if isinstance(wish.request, Whole) else 0


def _whole(wish: PlacementRequest) -> bool:
    return isinstance(wish.request, Whole) and not wish.shared


def _free_rooms(snapshot: Snapshot, wish: PlacementRequest, avoid: Collection[str]) -> dict[str, _Room]:
    """Return the nodes on which there is room for pods although nobody ends there."""
    assert isinstance(wish.request, Whole), "asked of these"
    picture, fit, fleet = snapshot.picture, snapshot.eligible(wish.ask), snapshot.fleet
    found = {}
    for row in fit.nonzero()[0]:
        name = picture.nodes.name(int(row))
        if name not in avoid and name in fleet.nodes and (pods := len(fleet.free(name)) // wish.request.gpus):
            found[name] = _Room(name, pods, (0.0, 0.0), ())
    return found


def _room(node: PreemptionNode, wish: PlacementRequest, priority: int) -> _Room:
    """Return for how many pods a node has GPUs if units up to a priority end there, and what each pod costs."""
    assert isinstance(wish.request, Whole), "asked of these"
    within = sorted((one for one in node.pieces if one.priority <= priority), key=lambda one: one.lost_s)
    have = node.free + sum(one.gpus for one in within)
    pods = have // wish.request.gpus
    if not pods:
        return _Room(node.name, 0, (0.0, 0.0), ())
    cost = len(within) / pods, sum(one.lost_s for one in within) / pods
    return _Room(node.name, pods, cost, tuple(one.key for one in within))


def _parts(
    picture: Picture, namespace: str, rooms: Mapping[str, _Room], pods: int, least: int, wants: Gang | None
) -> Iterator[list[_Room]]:
    """Give nodes that may hold a gang: of the narrowest part of the network first, and the cheapest nodes of each."""
    picture.fleets.locate(picture.nodes.labels(), namespace)
    fleet = picture.fleets.of(namespace)
    sites, ranks = fleet.sites_by_name(), {name: fleet.name_rank(name) for name in rooms}
    near = None if wants is None else wants.near
    for level in (*fleet.levels, CLUSTER):
        parts: dict[int, list[_Room]] = {}
        numbers = None if level == CLUSTER else fleet.sites.domains(level)
        for name, room in rooms.items():
            rank = ranks[name]
            part = 0 if numbers is None else -1 if rank is None else int(numbers[sites[rank]])
            if part >= 0:
                parts.setdefault(part, []).append(room)
        enough = [_cheapest(own, pods) for own in parts.values() if sum(room.pods for room in own) >= least]
        for some, every in sorted(enough, key=lambda each: _sum(each[0])):
            yield some
            if len(every) > len(some):
                yield every[:MOST_NODES]
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


def _sum(rooms: Sequence[_Room]) -> tuple[float, float, int]:
    units = sum(len(room.gone) for room in rooms)
    return float(units), sum(room.cost[1] * room.pods for room in rooms), len(rooms)


class _Search:
    """Simulates a gang's start without some units."""

    def __init__(
        self,
        snapshot: Snapshot,
        members: Sequence[Member],
        wants: Gang | None,
        scene: Scene,
        ending: Mapping[str, Sequence[WorkloadPod]],
        *,
        identity: str,
        least: int,
    ) -> None:
        self._snapshot, self._scene, self._ending = snapshot, scene, ending
        self._units = {unit.key: (unit, priority) for unit, priority in scene.units}
        effort = Effort()
        self._plan: Callable[[Snapshot], dict[Member, Placement]] = lambda snapshot: gang_plan.plan(
            snapshot, members, wants, identity=identity, least=least, effort=effort
        )

    def places(self, units: Collection[Workload]) -> dict[Member, Placement] | None:
        """Return the places that there are without some units, and those pods that end already; None for none."""
        gone = [one for pods in self._ending.values() for one in pods] + [one for unit in units for one in unit.pods]
        try:
            return self._plan(without(self._snapshot, gone))
        except (NoPlaceError, WordError):
            return None

    def among(self, rooms: Sequence[_Room]) -> FoundTogether | None:
        """Return places where those end that some nodes name, as few of them as there can be."""
        units = [self._units[key][0] for key in dict.fromkeys(key for room in rooms for key in room.gone)]
        if not units or (places := self.places(units)) is None:
            return None
        taken = _taken(places)
        nodes = {place.node for place in places.values()}
        victims = [unit for unit in units if _has(unit, taken)]
        others = sorted(
            (unit for unit in units if not _has(unit, taken) and any(one.node in nodes for one in unit.pods)),
            key=lambda unit: cost_of([Piece(unit.key, self._units[unit.key][1], unit.lost_gpu_s(self._scene.now), ())]),
        )
        while (
            found := self.places(victims)
        ) is None:  # those that have none of its GPUs may have the CPU that it needs
            if not others:
                return None
            victims.append(others.pop(0))
        for unit in [unit for unit in victims if not _has(unit, _taken(found))][:MOST_SPARED]:
            fewer = [one for one in victims if one is not unit]
            if (other := self.places(fewer)) is not None:
                victims, found = fewer, other
        beside = [one for node in {place.node for place in found.values()} for one in self._ending.get(node, ())]
        if not victims or sum(len(unit.pods) for unit in victims) + len(beside) > MOST_VICTIMS:
            return None
        return FoundTogether(found, tuple(victims), tuple(beside))


def _taken(places: Mapping[Member, Placement]) -> set[Device]:
    return {device for place in places.values() for device in place.taken}


def _has(unit: Workload, taken: Collection[Device]) -> bool:
    return any(device in taken for one in unit.pods for device in one.devices)
