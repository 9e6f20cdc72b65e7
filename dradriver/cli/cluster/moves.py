"""Moves of pods that would free sets of GPUs, simulated with the controller's own decisions. Nothing is moved.

Who moves is taken out of the picture, the set that becomes free is kept from everybody, and all that were taken out are
given places again as the controller would give them: with the CPU, memory and slots that there are, by their own words,
a gang by one plan. Only if all have places it is a move, and the next one is looked for in the state after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from dradriver.allocator.fleet.freeing import Node, Way, ways
from dradriver.allocator.fleet.node_group import NodeGroup
from dradriver.allocator.request import NoPlaceError, Whole
from dradriver.allocator.sets import rings
from dradriver.api.base import affinity, names
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Affinity, Gate, NodeAffinity, Pod, PodStatus
from dradriver.api.claims.pins import Device, Key, Usage, is_set
from dradriver.api.slices import slices
from dradriver.cli.cluster.scene import Scene
from dradriver.cli.cluster.sets import open_nodes
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.derived.ends import given_at
from dradriver.cluster.pods.gpu_time import owner_of
from dradriver.cluster.pods.volumes import Unbound
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.placing import gang_plan
from dradriver.controller.placing.decide import decide
from dradriver.controller.steps.gang_step import in_order
from dradriver.kube.store import Change
from dradriver.queue.units import Member

HOUR_S: Final = 3600.0
MOST_TRIES: Final = 256  # ways that are tried for one set
_KEPT: Final = ("", "the set that becomes free")  # no claim has such a name


class Unit(msgspec.Struct, frozen=True, eq=False):
    """Pods that would go together: one alone, or a gang.

    Attributes:
        key: The pod's, or the gang's.
        pods: Its pods, each with its claim.
        holds: What they hold.
        gpu_hours: GPU-hours since it was given them, which are lost if it cannot go on from where it was.
    """

    key: Key
    pods: tuple[tuple[Pod, ClaimRecord], ...]
    holds: Mapping[Device, Usage]
    gpu_hours: float

    @property
    def owner(self) -> str:
        """What makes its pods anew, as ``Job/train``; empty for nothing."""
        return owner_of(self.pods[0][0])


class Goes(msgspec.Struct, frozen=True):
    """A unit that goes elsewhere, and the nodes that its pods would have then, by their names."""

    unit: Unit
    to: Mapping[str, str]


class Move(msgspec.Struct, frozen=True):
    """A set that becomes free.

    Attributes:
        node: Its node.
        product: Its GPUs' product.
        gpus: The machine's numbers of its GPUs.
        goes: Who goes for it; none where it was free before.
    """

    node: str
    product: str
    gpus: tuple[int, ...]
    goes: tuple[Goes, ...]


async def volumes(scene: Scene, every: Sequence[Unit]) -> dict[Key, object]:
    """Return where each pod's volumes are, of those that have some: ``Where``, or ``Unbound``."""
    found: dict[Key, object] = {}
    for unit in every:
        for pod, _ in unit.pods:
            if pod.spec.volumes and (where := await scene.volumes_of(pod)) != ():
                found[_key(pod)] = where
    return found


def units(scene: Scene, *, now: float) -> list[Unit]:
    """Return all that may move: pods that the controller placed on whole GPUs of their own, gangs of them as wholes.

    Not those whose claim is made by a template or shared with others, who have parts of GPUs, or whom the scheduler
    alone placed: of them nobody here knows where else they could be.
    """
    picture, found, seen = scene.picture, list[Unit](), set[Key]()
    for key, pod in picture.pods.items():
        of = picture.gangs.of(key)
        unit = key if of is None else of.gang
        if unit in seen:
            continue
        seen.add(unit)
        pods = [pod] if of is None else [picture.pods[one] for one in picture.gangs.pods(of.gang)]
        claims = [picture.claim_of(one) for one in pods]
        if all(claim is not None and _movable(one, claim) for one, claim in zip(pods, claims, strict=True)):
            both = tuple((one, claim) for one, claim in zip(pods, claims, strict=True) if claim is not None)
            holds = {device: usage for _, claim in both for device, usage in picture.held(claim.key).items()}
            if holds and all(usage is None for usage in holds.values()):
                lost = sum(len(picture.held(claim.key)) * _age_h(claim, now) for _, claim in both)
                found.append(Unit(unit, both, holds, lost))
    return found


def _movable(pod: Pod, claim: ClaimRecord) -> bool:
    if not (pod.spec.node_name and pod.placed and claim.devices and claim.owned_by(pod.metadata.uid)):
        return False
    if pod.finished or pod.metadata.deletion_timestamp is not None or pod.template is not None or is_set(claim.key):
        return False
    try:
        return isinstance(Member(pod).wish.request, Whole)
    except WordError:
        return False


def _age_h(claim: ClaimRecord, now: float) -> float:
    return max(now - (given_at(claim) or now), 0.0) / HOUR_S


class Simulation:
    """A cluster as it would be after the moves so far; the scene's own picture is changed for it."""

    def __init__(self, scene: Scene, movable: Sequence[Unit], where: Mapping[Key, object]) -> None:
        """Begin with the cluster as it is.

        Args:
            scene: The cluster; nobody else may use it any more.
            movable: Who may move.
            where: Where the volumes of their pods are, of those that have some.
        """
        self._scene, self._picture = scene, scene.picture
        self._units = {
            unit.key: unit
            for unit in movable
            if not any(isinstance(where.get(_key(pod)), Unbound) for pod, _ in unit.pods)
        }
        self._where = where
        self._open = open_nodes(scene)
        self._kept: dict[Device, Usage] = {}

    def moves(self, size: int, most: int) -> Iterator[Move]:
        """Yield moves that free sets of so many GPUs, the one that loses least first, as many as are wanted."""
        for _ in range(most):
            move = self._next(size)
            if move is None:
                return
            yield move

    def end(self) -> None:
        """Let the sets that became free be free."""
        self._kept.clear()
        self._picture.inventory.hold(_KEPT, {})

    def _next(self, size: int) -> Move | None:
        lost = {unit.key: unit.gpu_hours for unit in self._units.values()}
        for way in ways(self._nodes(), lost, size)[:MOST_TRIES]:
            if (move := self._try(way)) is not None:
                return move
        return None

    def _nodes(self) -> Iterator[Node[Key]]:
        by_node: dict[str, dict[Key, set[Device]]] = {}
        for unit in self._units.values():
            for device in unit.holds:
                by_node.setdefault(device[0], {}).setdefault(unit.key, set()).add(device)
        for group in self._picture.inventory.fleet.groups:
            for slot in np.flatnonzero(group.at_rows(self._open)).tolist():
                name = group.names[slot]
                own = by_node.get(name)
                if own is None:
                    continue
                position = self._positions(group, name)
                held = {
                    key: sum(1 << position[device] for device in devices)
                    for key, devices in own.items()
                    if devices <= position.keys()
                }
                free = int(group.free_masks()[slot])
                yield Node(name, group.tables, free, self._usable(position), held)

    def _positions(self, group: NodeGroup, node: str) -> dict[Device, int]:
        """Return where each GPU of a node stands in its group's masks."""
        uuids = self._picture.inventory.uuids(node)
        return {
            (node, slice_name): place
            for place, gpu in enumerate(group.machine.gpus)
            if (slice_name := _device(uuids.get(gpu.index, "")))
        }

    def _usable(self, positions: Mapping[Device, int]) -> int:
        inventory = self._picture.inventory
        return sum(1 << place for device, place in positions.items() if inventory.usable(device, None))

    def _try(self, way: Way[Key]) -> Move | None:
        """Return the move of a way if all its units have places, and keep the state after it; else None."""
        going = [self._units[unit] for unit in way.units]
        group = next(group for group in self._picture.inventory.fleet.groups if way.node in group.names)
        by_place = {place: device for device, place in self._positions(group, way.node).items()}
        gpus = {by_place[place]: None for place in rings.positions(way.gpus)}
        for unit in going:
            self._take_out(unit)
        self._picture.inventory.hold(_KEPT, self._kept | gpus)
        promised: list[Key] = []
        goes = []
        # The largest first: it has fewest places.
        for unit in sorted(going, key=lambda unit: (-len(unit.holds), unit.key)):
            places = self._places(unit, promised)
            if places is None:
                self._put_back(going, promised)
                return None
            goes.append(Goes(unit, places))
        self._kept |= gpus
        for unit in going:  # nobody is asked to move twice
            del self._units[unit.key]
        numbers = tuple(group.machine.gpus[place].index for place in rings.positions(way.gpus))
        return Move(way.node, group.machine.product, numbers, tuple(goes))

    def _take_out(self, unit: Unit) -> None:
        for pod, claim in unit.pods:
            self._picture.claim_changed(Change(claim.key, claim, None))
            self._picture.pod_changed(Change(_key(pod), pod, None))

    def _put_back(self, going: Sequence[Unit], promised: Sequence[Key]) -> None:
        for promise in promised:
            self._picture.release(promise)
        for unit in going:
            for pod, claim in unit.pods:
                self._picture.pod_changed(Change(_key(pod), self._picture.pods.get(_key(pod)), pod))
                self._picture.claim_changed(Change(claim.key, None, claim))
        self._picture.inventory.hold(_KEPT, self._kept)

    def _places(self, unit: Unit, promised: list[Key]) -> dict[str, str] | None:
        """Give a unit its places, if it has any: the claims that are counted for it are added to ``promised``."""
        picture = self._picture
        members = []
        try:
            for pod, _ in unit.pods:
                waiting = _as_new(pod)
                picture.pod_changed(Change(_key(pod), None, waiting))
                where = self._where.get(_key(pod), ())
                members.append(Member(waiting, None, where if isinstance(where, tuple) else ()))
            found = self._placed(members)
        except (NoPlaceError, WordError):
            return None
        for member, place in found.items():
            picture.promise(member.wish.claim, member.key, place)
            promised.append(member.wish.claim)
        return {member.key[1]: place.node for member, place in found.items()}

    def _placed(self, members: Sequence[Member]) -> Mapping[Member, Placement]:
        picture = self._picture
        of = picture.gangs.of(members[0].key)
        if of is None:
            return {members[0]: decide(Snapshot(picture, members[0].key[0]), members[0].wish)}
        said = picture.gangs.said(of.gang)
        picture.fleets.locate(picture.nodes.labels(), members[0].key[0])
        ranked = in_order([(member, picture.gangs.rank(member.key)) for member in members])
        found = gang_plan.plan(Snapshot(picture, members[0].key[0]), ranked, said.wants, identity=of.member.identity)
        if len(found) < len(members):
            raise NoPlaceError("not all of it has a place")
        return found


def _as_new(pod: Pod) -> Pod:
    """Return a pod as it would be if its maker made it anew: at its gate, with its author's own affinity.

    Raises:
        WordError: What was noted of that is damaged.
    """
    required = affinity.required(pod)
    if affinity.is_narrowed(pod.metadata.annotations, required):
        required = affinity.authors(pod.metadata.annotations)
    spec = msgspec.structs.replace(
        pod.spec,
        node_name="",
        scheduling_gates=[Gate(names.GATE)],
        affinity=msgspec.structs.replace(
            pod.spec.affinity or Affinity(),
            node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=required),
        ),
    )
    return msgspec.structs.replace(pod, spec=spec, status=PodStatus(phase="Pending"))


def _device(uuid: str) -> str:
    return slices.device_name(uuid) if uuid else ""


def _key(pod: Pod) -> Key:
    return pod.metadata.namespace, pod.metadata.name
