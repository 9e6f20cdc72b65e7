"""Whom a pod would have to have ended to get a place: from the picture to a node, then to units on it. Pure.

It simulates first: the pod is placed by ``decide`` on the picture as it would be without those units, its GPUs, CPU,
memory and pods' slots, and beside all others, pods without GPUs among them. So nobody is ended in vain.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence, Set
from typing import Final

import msgspec

from dradriver.allocator.request import NoPlaceError, Whole
from dradriver.api.claims.pins import Device, Key
from dradriver.api.claims.preemption_note import MOST as MOST_VICTIMS
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.derived.workloads import Workload, WorkloadPod, by_node
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing.decide import decide
from dradriver.controller.placing.preemption_cost import FEW, Cost, Piece, choices, cost_of, least
from dradriver.queue.placement_request import PlacementRequest

MOST_TRIES: Final = 128  # simulations for one pod
MOST_OF_NODE: Final = 24  # of them on one node
# Nodes that a pod is kept to once its gate is gone, which cannot be changed later. If a webhook keeps the pods of the
# first ones from ending, it needs the others. They slow its binding down (``decide.MOST_NODES``); few pods preempt.
MOST_KEPT_TO: Final = 64


class Scene(msgspec.Struct, frozen=True):
    """What runs, for somebody whom others may have to end for.

    Attributes:
        units: The units that may have to end, with what their priority counts: all of it is less than the one's.
        ending: Pods that end already: what they have is free soon, whoever gets it.
        now: The time, seconds since the epoch.
        whose: Those whose reserved GPUs it may have.
    """

    units: Sequence[tuple[Workload, int]]
    ending: Sequence[WorkloadPod]
    now: float
    whose: tuple[str, ...] = ()

    @property
    def grace_s(self) -> float:
        """The longest time that one of the units may take to end."""
        return max((unit.grace_s for unit, _ in self.units), default=0.0)


class Found(msgspec.Struct, frozen=True):
    """A place that there is once some have ended.

    Attributes:
        placement: The place.
        victims: The units that have to end.
        beside: Pods that end already and have something of what the place needs.
    """

    placement: Placement
    victims: tuple[Workload, ...]
    beside: tuple[WorkloadPod, ...]


class PreemptionNode(msgspec.Struct):
    """A node on which a pod may have a place.

    Attributes:
        name: Its name.
        row: Its row.
        free: Its GPUs that are free, or of pods that end already, of those that the pod may have.
        lacks: The amounts that it has too little of: places in the list of all, and how much is missing.
        pieces: Who may have to end there.
    """

    name: str
    row: int
    free: int
    lacks: tuple[tuple[int, int], ...]
    pieces: list[Piece]

    @property
    def lacked(self) -> tuple[int, ...]:
        """How much is missing of each of those amounts."""
        return tuple(amount for _, amount in self.lacks)


def place(picture: Picture, wish: PlacementRequest, scene: Scene, *, avoid: Collection[str] = ()) -> Found | None:
    """Return the place that costs least of all nodes' of a pod that finds none; None where nobody's end would help.

    Args:
        picture: The cluster.
        wish: What is wanted: whole GPUs, and no set that pods share.
        scene: Who may have to end.
        avoid: Nodes that are left out.
    """
    if not isinstance(wish.request, Whole) or wish.shared:
        return None
    ending = by_node(scene.ending)
    snapshot = Snapshot(picture, wish.claim[0], whose=scene.whose)
    nodes = candidates(snapshot, wish, scene, ending, avoid)
    if ending and _placed(without(snapshot, scene.ending).avoiding(avoid), wish) is not None:
        return None  # there is a place once those have ended who end already
    units = {unit.key: unit for unit, _ in scene.units}
    bounds = [(bound, node.name, node) for node in nodes if (bound := least(node.pieces, node.lacked)) is not None]
    heapq.heapify(bounds)
    best: tuple[Cost, float, str, Found] | None = None
    others: list[str] = []
    tries = MOST_TRIES
    while bounds and tries > 0:
        bound, name, node = heapq.heappop(bounds)
        if best is not None and bound > best[0]:
            others += [name, *(one[1] for one in heapq.nsmallest(MOST_KEPT_TO, bounds))]
            break
        search = _Search(snapshot, wish, node, units, ending.get(name, ()), min(tries, MOST_OF_NODE))
        found = search.cheapest()
        tries -= search.tries
        if found is None:
            continue
        cost, own = found
        mine = cost, -float(getattr(own.placement.choice, "score", 0)), name, own
        if best is None or mine[:3] < best[:3]:
            others += [] if best is None else [best[2]]
            best = mine
        else:
            others.append(name)
    return None if best is None else _with_others(picture, best[3], others)


def _with_others(picture: Picture, found: Found, others: Sequence[str]) -> Found:
    """Let the pod be kept to other nodes, too, on which others could end for it: another plan may be about these."""
    names = [found.placement.node, *(name for name in others if not picture.inventory.counted(name))][:MOST_KEPT_TO]
    hostnames = {name: picture.nodes.hostname(name) for name in names}
    return msgspec.structs.replace(found, placement=msgspec.structs.replace(found.placement, hostnames=hostnames))


def _placed(snapshot: Snapshot, wish: PlacementRequest) -> Placement | None:
    try:
        return decide(snapshot, wish, most=1)
    except NoPlaceError:
        return None


def without(snapshot: Snapshot, pods: Sequence[WorkloadPod]) -> Snapshot:
    """Return a snapshot as if some pods were gone."""
    claims = (one.claim.key for one in pods if one.claim is not None)
    return snapshot.without(claims, ((one.node, one.amounts) for one in pods))


def candidates(
    snapshot: Snapshot,
    wish: PlacementRequest,
    scene: Scene,
    ending: dict[str, list[WorkloadPod]],
    avoid: Collection[str],
) -> list[PreemptionNode]:
    """Return the nodes that a pod may go to, with who may have to end there and what they have of what it lacks."""
    picture, fleet, open_ = snapshot.picture, snapshot.fleet, snapshot.open(wish.ask)
    left = snapshot.left([resource for resource, _ in wish.ask.amounts])
    wanted = wish.request.gpus if isinstance(wish.request, Whole) else 0, *(amount for _, amount in wish.ask.amounts)
    found: dict[str, PreemptionNode] = {}
    closed: dict[str, frozenset[Device]] = {}
    passed: set[str] = set(avoid)
    for unit, priority in scene.units:
        lost_s = unit.lost_gpu_s(scene.now)
        for name, pods in by_node(unit.pods).items() if len(unit.pods) > 1 else ((unit.pods[0].node, unit.pods),):
            if name in passed:
                continue
            if (node := found.get(name)) is None:
                row = picture.nodes.find(name)
                if row is None or not open_[row] or name in picture.inventory.aside or name not in fleet.nodes:
                    passed.add(name)
                    continue
                closed[name] = _closed(picture, wish.claim[0], name, scene.whose)
                have = [len(fleet.free(name)), *map(int, left[row])]
                for one in ending.get(name, ()):
                    have = [has + _freed(one, i, wish, closed[name]) for i, has in enumerate(have)]
                lacks = tuple((i, amount - have[i]) for i, amount in enumerate(wanted) if amount > have[i])
                node = found[name] = PreemptionNode(name, row, have[0], lacks, [])
            gpus = sum([_freed(one, 0, wish, closed[name]) for one in pods])
            frees = tuple(
                [sum([_freed(one, i, wish, closed[name]) for one in pods]) if i else gpus for i, _ in node.lacks]
            )
            node.pieces.append(Piece(unit.key, priority, lost_s, frees, gpus))
    return list(found.values())


def _freed(one: WorkloadPod, amount: int, wish: PlacementRequest, closed: Set[Device]) -> int:
    """Return how much of one amount, GPUs first and then as the pod asks of its node, is free once a pod has ended."""
    if amount:
        return one.amounts.get(wish.ask.amounts[amount - 1][0], 0)
    return len(one.devices.keys() - closed) if closed else len(one.devices)


def _closed(picture: Picture, namespace: str, node: str, whose: Collection[str]) -> frozenset[Device]:
    """Return the GPUs of a node that units of a namespace may not have: of other partitions, or reserved for others."""
    own, pool, reserved = (
        picture.fleets.open_to(namespace, node),
        picture.inventory.pool(node),
        picture.inventory.reserved,
    )
    if pool is None or (own is None and not reserved):
        return frozenset()
    every = ((number, (node, device)) for number, (device, _) in pool.devices.items())
    return frozenset(
        gpu
        for number, gpu in every
        if (own is not None and number not in own) or reserved.whose(gpu) not in ("", *whose)
    )


class _Search:
    """Looks for the units of one node that cost least. ``tries`` is how many simulations that took."""

    def __init__(
        self,
        snapshot: Snapshot,
        wish: PlacementRequest,
        node: PreemptionNode,
        units: dict[Key, Workload],
        ending: Sequence[WorkloadPod],
        most: int,
    ) -> None:
        here = snapshot.open(wish.ask)
        here[:] = False
        here[node.row] = True
        self._snapshot, self._wish, self._node = snapshot.among(here, is_few=True), wish, node
        self._units, self._ending, self._most = units, ending, most
        self.tries = 0

    def cheapest(self) -> tuple[Cost, Found] | None:
        """Return the units that cost least, and the place that there is without them; None where there is none."""
        pieces = self._node.pieces
        if len(pieces) > FEW:
            return self._spared()
        best: tuple[Cost, Found] | None = None
        for chosen in choices(pieces, self._node.lacked):
            cost = cost_of(chosen)
            if best is not None and cost > best[0]:
                break
            if self.tries >= self._most:
                return self._spared() if best is None else best
            if self.tries == 1 and best is None and self._try(pieces) is None:
                return None  # what it asks for is not to be had there whoever ends
            found = self._try(chosen)
            if found is not None and (best is None or _score(found) > _score(best[1])):
                best = cost, found
        return best

    def _spared(self) -> tuple[Cost, Found] | None:
        """Let all end, and spare one after the other for as long as there is a place: the dearest first."""
        chosen = sorted(self._node.pieces, key=lambda piece: (-piece.priority, -piece.lost_s, piece.key))
        found = self._try(chosen)
        for piece in list(chosen):
            fewer = [one for one in chosen if one is not piece]
            if fewer and (other := self._try(fewer)) is not None:
                chosen, found = fewer, other
        return None if found is None else (cost_of(chosen), found)

    def _try(self, chosen: Collection[Piece]) -> Found | None:
        """Simulate that these have ended."""
        self.tries += 1
        victims = tuple(self._units[piece.key] for piece in chosen)
        gone = [one for unit in victims for one in unit.pods if one.node == self._node.name]
        if sum(len(unit.pods) for unit in victims) + len(self._ending) > MOST_VICTIMS:
            return None
        placement = _placed(without(self._snapshot, [*gone, *self._ending]), self._wish)
        return None if placement is None else Found(placement, victims, tuple(self._ending))


def _score(found: Found) -> float:
    return float(getattr(found.placement.choice, "score", 0))
