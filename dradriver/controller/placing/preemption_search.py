"""The common parts of both preemption searches: running workloads, what they free on each node, and the simulation.

A *victim* is a workload that preemption ends. A *piece* is the part of a running workload on one node.
``preemption_on_node`` and ``preemption_in_network`` choose which workloads to try. Pure.

A *place* is a node and GPUs for one pod. A *snapshot* is a read-only view of the cluster cache, for example without
some claims.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence, Set

import msgspec

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.request import NoPlaceError, Whole
from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import Device, Key
from dradriver.api.claims.preemption_note import MOST as MOST_VICTIMS
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.derived.workloads import Workload, WorkloadPod, by_node
from dradriver.cluster.nodes.columns import Bools, Ints
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing.gang_terms import GangTerms
from dradriver.controller.placing.plan import plan
from dradriver.controller.placing.preemption_cost import Piece
from dradriver.queue.pending import Member
from dradriver.queue.placement_request import PlacementRequest


class Scene(msgspec.Struct, frozen=True):
    """The running workloads that may be preempted for one waiting workload.

    Attributes:
        workloads: The workloads, each with its priority, limited to the highest that its tenant may use. It is below
            the priority of the waiting workload.
        ending: Pods that are already being deleted.
        now: The time, seconds since the epoch.
        whose: The names of the reservations whose GPUs the waiting workload may use.
    """

    workloads: Sequence[tuple[Workload, int]]
    ending: Sequence[WorkloadPod]
    now: float
    whose: tuple[str, ...] = ()

    @property
    def grace_s(self) -> float:
        """The longest termination grace period of the scene's workloads, in seconds."""
        return max((workload.grace_s for workload, _ in self.workloads), default=0.0)


class Found(msgspec.Struct, frozen=True):
    """The result of a search: places that are free once some workloads have ended.

    Attributes:
        places: The place of each pod.
        victims: The workloads to preempt.
        ending: Pods on the nodes of the places that are already being deleted. Their resources are needed, too.
    """

    places: dict[Member, Placement]
    victims: tuple[Workload, ...]
    ending: tuple[WorkloadPod, ...]


class PreemptionNode(msgspec.Struct):
    """A node on which a pod can have a place once workloads have ended.

    Attributes:
        name: The name of the node.
        free: How many GPUs the pod could have now. GPUs of pods that are already being deleted count as free.
        lacks: How much of each resource is missing for the pod. The key 0 stands for GPUs, 1 for the first amount of
            the request, and so on. Resources that are not missing are left out.
        closed: GPUs that the pod may not have: they are in other tenants' partitions, or reserved for other workloads.
        pieces: The workloads that can be preempted there.
    """

    name: str
    free: int
    lacks: dict[int, int]
    closed: frozenset[Device]
    pieces: list[Piece]


class Search:
    """Simulates that workloads end, and asks ``plan`` for places.

    Attributes:
        picture: The cluster cache.
        snapshot: The cluster without the nodes to avoid.
        members: The pods that need places.
        gang: What the gang requests as a whole; None for a single pod.
        wish: The request of the pod with the most GPUs.
        gpus: How many GPUs that pod requests.
        scene: The running workloads. Its ``ending`` has only pods whose GPUs these members can have.
        ending: The pods of ``scene.ending``, by node.
    """

    def __init__(
        self,
        picture: Picture,
        members: Sequence[Member],
        scene: Scene,
        gang: GangTerms | None,
        avoid: Collection[str],
    ) -> None:
        """Prepare a search.

        Args:
            picture: The cluster cache.
            members: The pods that need places.
            scene: The workloads that can be preempted, and pods that end already.
            gang: What the gang requests as a whole; None for a single pod.
            avoid: Nodes that are left out.
        """
        self.picture, self.members, self.gang = picture, members, gang
        self.scene = msgspec.structs.replace(scene, ending=_ending_for(picture, members, scene.ending))
        self.wish = max((member.wish for member in members), key=_gpus)
        self.gpus = _gpus(self.wish)
        self.snapshot = Snapshot(picture, self.wish.claim[0], whose=scene.whose).avoiding(avoid)
        self.ending = by_node(self.scene.ending)
        self._workloads = {workload.key: workload for workload, _ in scene.workloads}

    def places(self, snapshot: Snapshot, ended: Sequence[WorkloadPod]) -> dict[Member, Placement] | None:
        """Return the members' places after some pods have ended; None if there are none.

        ``snapshot`` has the nodes to search.
        """
        try:
            return plan(without(snapshot, ended), self.members, self.gang, most=1)
        except (NoPlaceError, WordError):
            return None

    def victims(self, pieces: Iterable[Piece]) -> list[Workload]:
        """Return the workloads to which these pieces belong: their parts on single nodes."""
        return [self._workloads[piece.key] for piece in pieces]

    def is_too_many(self, pieces: Iterable[Piece], ending: Collection[WorkloadPod]) -> bool:
        """Return whether victims and ending pods are too many for a claim to name.

        ``pieces`` are the victims' parts on single nodes.
        """
        return sum([len(victim.pods) for victim in self.victims(pieces)]) + len(ending) > MOST_VICTIMS

    def candidates(self) -> list[PreemptionNode]:
        """Return the nodes on which the largest pod could have a place by preemption.

        Each has the workloads that can be preempted there.
        """
        now, fleet, resources = self.scene.now, self.snapshot.fleet, [resource for resource, _ in self.wish.ask.amounts]
        is_open, left = self.snapshot.narrowed(self.snapshot.open(self.wish.ask)), self.snapshot.left(resources)
        nodes: dict[str, PreemptionNode] = {}
        passed: set[str] = set()
        for workload, priority in self.scene.workloads:
            lost_s, pods = workload.lost_gpu_s(now), workload.pods
            for name, here in by_node(pods).items() if len(pods) > 1 else ((pods[0].node, pods),):
                if name in passed:
                    continue
                if (node := nodes.get(name) or self._node(name, fleet, is_open, left)) is None:
                    passed.add(name)
                    continue
                nodes[name] = node
                gpus = _gpus_of(here, node.closed)
                frees = tuple([_amount_of(here, resources[i - 1]) if i else gpus for i in node.lacks])
                node.pieces.append(Piece(workload.key, priority, lost_s, frees, gpus))
        return list(nodes.values())

    def _node(self, name: str, fleet: Fleet, is_open: Bools, left: Ints) -> PreemptionNode | None:
        """Return a node with the amounts that it lacks for the largest pod.

        Its ``pieces`` are empty. None if the pod may not use the node.

        Args:
            name: The node.
            fleet: The GPUs.
            is_open: A mask of the nodes that the pod may use, even if nothing is free there: (rows,), one row per node.
            left: How much each node has left of the requested resources: (rows, resources).
        """
        row, requested = self.picture.nodes.find(name), self.wish.ask.amounts
        if row is None or not is_open[row] or name in self.picture.inventory.aside or name not in fleet.nodes:
            return None
        closed = self._closed(name)
        # Index 0 stands for GPUs, the others for the requested resources. Pods that end already count as gone.
        available = [len(fleet.free(name)), *map(int, left[row])]
        if ending := self.ending.get(name):
            freed = [_gpus_of(ending, closed), *(_amount_of(ending, resource) for resource, _ in requested)]
            available = [amount + more for amount, more in zip(available, freed, strict=True)]
        needed = self.gpus, *[amount for _, amount in requested]
        lacks = {i: amount - available[i] for i, amount in enumerate(needed) if amount > available[i]}
        return PreemptionNode(name, available[0], lacks, closed, [])

    def _closed(self, node: str) -> frozenset[Device]:
        """Return the GPUs of a node that the members may not have.

        They belong to partitions of other tenants, or are reserved for other workloads.
        """
        inventory, mine = self.picture.inventory, self.picture.fleets.open_to(self.wish.claim[0], node)
        pool, reserved = inventory.pool(node), inventory.reserved
        if pool is None or (mine is None and not reserved.by_node):
            return frozenset()
        return frozenset(
            (node, device)
            for number, (device, _) in pool.devices.items()
            if (mine is not None and number not in mine)
            or reserved.whose((node, device)) not in ("", *self.scene.whose)
        )


def without(snapshot: Snapshot, pods: Sequence[WorkloadPod]) -> Snapshot:
    """Return the snapshot as it would be without some pods and their claims."""
    claims = (pod.claim.key for pod in pods if pod.claim is not None)
    return snapshot.without(claims, ((pod.node, pod.amounts) for pod in pods))


def spared(
    pieces: list[Piece],
    places: dict[Member, Placement] | None,
    order: Iterable[Piece],
    simulate: Callable[[list[Piece]], dict[Member, Placement] | None],
) -> tuple[list[Piece], dict[Member, Placement] | None]:
    """Remove from a list each victim that need not end for the places.

    Returns the victims that are left and must end, and the places.

    Args:
        pieces: All victims.
        places: The places if all victims end; None if there are none.
        order: The victims to remove, in this order.
        simulate: Returns the places after some workloads have ended; None if there are none.
    """
    for piece in order:
        fewer = [other for other in pieces if other is not piece]
        if (fewer_places := simulate(fewer)) is not None:
            pieces, places = fewer, fewer_places
    return pieces, places


def _ending_for(picture: Picture, members: Sequence[Member], ending: Sequence[WorkloadPod]) -> list[WorkloadPod]:
    """Return the ending pods whose GPUs some member can have.

    The GPUs of a lost pod are kept while its gang runs. Only the pod that replaces it can have them.
    """
    memberships = [membership for member in members if (membership := picture.gangs.of(member.key)) is not None]
    places = [picture.kept_places.find(membership.gang, membership.member.rank) for membership in memberships]
    own = {place.claim for place in places if place is not None}

    def is_open(claim: Key) -> bool:
        return claim in own or not picture.accounts.kept(claim)

    return [pod for pod in ending if pod.claim is None or is_open(pod.claim.key)]


def _gpus(wish: PlacementRequest) -> int:
    return wish.request.gpus if isinstance(wish.request, Whole) else 0


def _gpus_of(pods: Sequence[WorkloadPod], closed: Set[Device]) -> int:
    """Return how many GPUs become free when some pods end, without those in ``closed``."""
    return sum([len(pod.devices.keys() - closed) if closed else len(pod.devices) for pod in pods])


def _amount_of(pods: Sequence[WorkloadPod], resource: str) -> int:
    """Return how much of one resource becomes free when some pods of a node end."""
    return sum([pod.amounts.get(resource, 0) for pod in pods])
