"""Moves of pods that would free sets of GPUs, simulated with the controller's own decisions. No pod is moved.

``gputopo defrag`` calls this module. For each set the simulation does this:

1. It removes the workloads that use the set from the cluster cache.
2. It blocks the set, so that no workload gets it.
3. It places the removed workloads again with the controller's functions, within the CPU, memory and number of pods that
  are free on each node. A gang is placed by one plan.

If all workloads have places, this is a move. The next set is searched in the cluster after the move.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from dradriver.allocator.fleet.freeing import Node, Way, ways
from dradriver.allocator.fleet.node_group import NodeGroup
from dradriver.allocator.request import NoPlaceError, Whole
from dradriver.allocator.sets.masks import positions_of
from dradriver.api.base import affinity, names
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Affinity, Gate, NodeAffinity, Pod, PodStatus
from dradriver.api.claims.pins import Device, Key, Usage, is_set
from dradriver.api.slices import resource_slices
from dradriver.cli.cluster.free_gpus import open_nodes
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.derived.end_times import given_at
from dradriver.cluster.derived.workloads import Workload, WorkloadPod, Workloads
from dradriver.cluster.pods.volumes import Unbound
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.placing.gang_terms import GangTerms, in_order
from dradriver.controller.placing.plan import plan
from dradriver.kube.store import Change
from dradriver.queue.pending import Member

HOUR_S: Final = 3600.0
MOST_TRIES: Final = 256  # ways that are tried for one set
_KEPT: Final = ("", "the set that becomes free")  # no claim has such a name


class Goes(msgspec.Struct, frozen=True):
    """A workload that moves to other nodes.

    Attributes:
        workload: The workload.
        to: The node of each of its pods after the move, by the pod's name.
        gpu_hours: Its GPU-hours since its claims were allocated. These hours are lost if the workload cannot resume its
            work.
    """

    workload: Workload
    to: Mapping[str, str]
    gpu_hours: float


class Move(msgspec.Struct, frozen=True):
    """A set that becomes free, and the workloads that move for it.

    Attributes:
        node: The node of the set.
        product: The product of its GPUs.
        gpus: The numbers of its GPUs on the node.
        goes: The workloads that move; empty if the set was free before.
    """

    node: str
    product: str
    gpus: tuple[int, ...]
    goes: tuple[Goes, ...]


async def volumes(scene: Scene, movable: Sequence[Workload]) -> dict[Key, object]:
    """Return the nodes that the volumes of each movable pod allow, by pod.

    A value is ``Where`` (the nodes), or ``Unbound`` if a claim of the pod for a volume is not bound yet. Pods without
    volumes are left out.
    """
    volumes_of: dict[Key, object] = {}
    for member in (member for workload in movable for member in workload.pods):
        if member.pod.spec.volumes and (where := await scene.volumes_of(member.pod)) != ():
            volumes_of[member.key] = where
    return volumes_of


def movable_workloads(scene: Scene) -> list[Workload]:
    """Return the pods and gangs that ``gputopo defrag`` can move.

    These use whole GPUs that the controller chose. ``scene`` is the listed cluster. A pod cannot move if a template
    makes its claim, if it shares its claim, or if it uses fractions of GPUs. It cannot move either if the scheduler
    alone placed it. The command does not know on which other nodes such a pod can run.
    """
    return [workload for workload in Workloads(scene.picture).of(scene.picture.pods) if _is_movable(workload)]


def _is_movable(workload: Workload) -> bool:
    if not all(map(_can_move, workload.pods)):
        return False
    devices = workload.devices
    return bool(devices) and all(usage is None for usage in devices.values())


def _can_move(member: WorkloadPod) -> bool:
    pod, claim = member.pod, member.claim
    if claim is None or not (member.node and pod.placed and claim.devices and claim.owned_by(pod.metadata.uid)):
        return False
    if pod.finished or member.is_ending or pod.template is not None or is_set(claim.key):
        return False
    try:
        return isinstance(Member(pod).wish.request, Whole)
    except WordError:
        return False


def _gpu_hours(workload: Workload, now: float) -> float:
    """Return the GPU-hours of a workload since its claims were allocated; ``now`` is in seconds since the epoch."""
    return sum(len(member.devices) * _age_h(member.claim, now) for member in workload.pods)


def _age_h(claim: ClaimRecord | None, now: float) -> float:
    return max(now - (given_at(claim) or now), 0.0) / HOUR_S


class Simulation:
    """A simulated cluster after the moves so far. The simulation changes the cluster cache of ``Scene``."""

    def __init__(self, scene: Scene, movable: Sequence[Workload], where: Mapping[Key, object], *, now: float) -> None:
        """Begin with the cluster in its present state.

        Args:
            scene: The cluster; the caller must not use it any more.
            movable: The workloads that can move.
            where: The nodes that the pods' volumes allow, as ``volumes`` returns them.
            now: The time, seconds since the epoch.
        """
        self._scene, self._picture = scene, scene.picture
        self._movable = {
            workload.key: workload
            for workload in movable
            if not any(isinstance(where.get(member.key), Unbound) for member in workload.pods)
        }
        self._gpu_hours = {key: _gpu_hours(workload, now) for key, workload in self._movable.items()}
        self._where = where
        self._open = open_nodes(scene)
        self._kept: dict[Device, Usage] = {}  # GPUs that the moves so far have freed, which stay free

    def moves(self, size: int, most: int) -> Iterator[Move]:
        """Yield at most ``most`` simulated moves, each of which frees a set of ``size`` GPUs.

        The set whose workloads lose the fewest GPU-hours is tried first.
        """
        for _ in range(most):
            move = self._next(size)
            if move is None:
                return
            yield move

    def end(self) -> None:
        """End the simulation of moves: make the sets that they freed available again."""
        self._kept.clear()
        self._picture.inventory.hold(_KEPT, {})

    def _next(self, size: int) -> Move | None:
        for way in ways(self._nodes(), self._gpu_hours, size)[:MOST_TRIES]:
            if (move := self._simulate_way(way)) is not None:
                return move
        return None

    def _nodes(self) -> Iterator[Node[Key]]:
        by_node: dict[str, dict[Key, set[Device]]] = {}
        for workload in self._movable.values():
            for device in workload.devices:
                by_node.setdefault(device[0], {}).setdefault(workload.key, set()).add(device)
        for group in self._picture.inventory.fleet.groups:
            for slot in np.flatnonzero(group.at_rows(self._open)).tolist():
                name = group.names[slot]
                workloads = by_node.get(name)
                if workloads is None:
                    continue
                position = self._positions(group, name)
                held = {
                    key: sum(1 << position[device] for device in devices)
                    for key, devices in workloads.items()
                    if devices <= position.keys()
                }
                free = int(group.free_masks()[slot])
                yield Node(name, group.tables, free, self._usable(position), held)

    def _positions(self, group: NodeGroup, node: str) -> dict[Device, int]:
        """Return the position of each GPU of a node in bit masks of GPU sets.

        In such a mask, a bit stands for a GPU. ``group`` has the node and others with an equal machine.
        """
        uuids = self._picture.inventory.uuids(node)
        return {
            (node, slice_name): place
            for place, gpu in enumerate(group.machine.gpus)
            if (slice_name := _device(uuids.get(gpu.index, "")))
        }

    def _usable(self, positions: Mapping[Device, int]) -> int:
        inventory = self._picture.inventory
        return sum(1 << place for device, place in positions.items() if inventory.usable(device, None))

    def _simulate_way(self, way: Way[Key]) -> Move | None:
        """Return the move that frees the set of a way, if all its workloads find other places; else None.

        A way is a set of a node's GPUs, with the workloads that use them. After a move, the simulated cluster stays in
        the new state.
        """
        # 1. A way names a node, a set of its GPUs as a bit mask, and the workloads that use them.
        workloads = [self._movable[key] for key in way.units]
        group = next(group for group in self._picture.inventory.fleet.groups if way.node in group.names)
        gpu_of_position = {position: device for device, position in self._positions(group, way.node).items()}
        gpus = {gpu_of_position[position]: None for position in positions_of(way.gpus)}

        # 2. Remove the workloads, and hold the set so that they do not get it again.
        for workload in workloads:
            self._take_out(workload)
        self._picture.inventory.hold(_KEPT, self._kept | gpus)
        promised: list[Key] = []
        moved_workloads = []

        # 3. Place them elsewhere. The largest workload comes first: it fits in the fewest places.
        for workload in sorted(workloads, key=lambda workload: (-len(workload.devices), workload.key)):
            places = self._places(workload, promised)
            if places is None:
                self._put_back(workloads, promised)
                return None
            moved_workloads.append(Goes(workload, places, self._gpu_hours[workload.key]))
        self._kept |= gpus
        for workload in workloads:  # no workload moves twice
            del self._movable[workload.key]
        gpu_numbers = tuple(group.machine.gpus[position].index for position in positions_of(way.gpus))
        return Move(way.node, group.machine.product, gpu_numbers, tuple(moved_workloads))

    def _take_out(self, workload: Workload) -> None:
        for member in workload.pods:
            assert member.claim is not None, "a pod without a claim cannot move"
            self._picture.claim_changed(Change(member.claim.key, member.claim, None))
            self._picture.pod_changed(Change(member.key, member.pod, None))

    def _put_back(self, going: Sequence[Workload], promised: Sequence[Key]) -> None:
        for promise in promised:
            self._picture.release(promise)
        for member in (member for workload in going for member in workload.pods):
            assert member.claim is not None, "a pod without a claim cannot move"
            self._picture.pod_changed(Change(member.key, self._picture.pods.get(member.key), member.pod))
            self._picture.claim_changed(Change(member.claim.key, None, member.claim))
        self._picture.inventory.hold(_KEPT, self._kept)

    def _places(self, workload: Workload, promised: list[Key]) -> dict[str, str] | None:
        """Return the new node of each pod of a workload, or None if there is no place.

        The claims of the new places are appended to ``promised``. The GPUs of these claims count as used from now on.
        """
        picture = self._picture
        members = []
        try:
            for member in workload.pods:
                waiting = _as_new(member.pod)
                picture.pod_changed(Change(member.key, None, waiting))
                where = self._where.get(member.key, ())
                members.append(Member(waiting, None, where if isinstance(where, tuple) else ()))
            placements = self._placed(members)
        except (NoPlaceError, WordError):
            return None
        for waiting_member, placement in placements.items():
            picture.promise(waiting_member.wish.claim, waiting_member.key, placement)
            promised.append(waiting_member.wish.claim)
        return {waiting_member.key[1]: placement.node for waiting_member, placement in placements.items()}

    def _placed(self, members: Sequence[Member]) -> Mapping[Member, Placement]:
        picture, gang = self._picture, None
        if (membership := picture.gangs.of(members[0].key)) is not None:
            gang = GangTerms(picture.gangs.said(membership.gang).wants, membership.member.identity)
        ranked = in_order([(member, picture.gangs.rank(member.key)) for member in members])
        placements = plan(Snapshot(picture, members[0].key[0]), ranked, gang)
        if len(placements) < len(members):
            raise NoPlaceError("not all of it has a place")
        return placements


def _as_new(pod: Pod) -> Pod:
    """Return a pod as its owner would create it again: with its scheduling gate and its author's node affinity.

    Raises:
        WordError: The annotation with the author's affinity is damaged.
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
    return resource_slices.device_name(uuid) if uuid else ""
