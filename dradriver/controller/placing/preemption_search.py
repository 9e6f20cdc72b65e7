"""What the searches for a preemption share: the running workloads, what they free on each node, and the simulation.

``preemption_on_node`` and ``preemption_in_network`` choose which workloads to try. Pure.
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
    """What runs, as far as it can be preempted for one workload that waits.

    Attributes:
        workloads: Workloads that can be preempted, each with the priority that counts. All are below the waiting one's.
        ending: Pods that end already.
        now: The time, seconds since the epoch.
        whose: For whom the GPUs are reserved that the waiting workload may have.
    """

    workloads: Sequence[tuple[Workload, int]]
    ending: Sequence[WorkloadPod]
    now: float
    whose: tuple[str, ...] = ()

    @property
    def grace_s(self) -> float:
        """The longest termination grace period of the workloads that the preemption search chose."""
        return max((workload.grace_s for workload, _ in self.workloads), default=0.0)


class Found(msgspec.Struct, frozen=True):
    """Places that are free once some workloads have ended.

    Attributes:
        places: The place of each pod.
        victims: The workloads to preempt.
        ending: Pods that end already and use something on the nodes of the places.
    """

    places: dict[Member, Placement]
    victims: tuple[Workload, ...]
    ending: tuple[WorkloadPod, ...]


class PreemptionNode(msgspec.Struct):
    """A node on which a pod can have a place once workloads have ended.

    Attributes:
        name: The name of the node.
        free: The number of GPUs that the pod may have and that are free, or used by pods that end already.
        lacks: How much is missing of each amount of which the node has too little: 0 stands for GPUs, 1 for the first
            amount of the request.
        closed: GPUs that the pod may not have: of other partitions, or reserved for others.
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
        picture: The cluster.
        snapshot: The cluster without the nodes to avoid.
        members: The pods that want places.
        gang: What the pods of a gang ask for as a whole; None for a single pod.
        wish: What the pod asks for that wants the most GPUs.
        gpus: How many GPUs that pod wants.
        scene: What runs; ``ending`` has the pods whose GPUs these members can have.
        ending: The same pods, by node.
    """

    def __init__(
        self,
        picture: Picture,
        members: Sequence[Member],
        scene: Scene,
        gang: GangTerms | None,
        avoid: Collection[str],
    ) -> None:
        """See ``plan_preemption``."""
        self.picture, self.members, self.gang = picture, members, gang
        self.scene = msgspec.structs.replace(scene, ending=_ending_for(picture, members, scene.ending))
        self.wish = max((member.wish for member in members), key=_gpus)
        self.gpus = _gpus(self.wish)
        self.snapshot = Snapshot(picture, self.wish.claim[0], whose=scene.whose).avoiding(avoid)
        self.ending = by_node(self.scene.ending)
        self._workloads = {workload.key: workload for workload, _ in scene.workloads}

    def places(self, snapshot: Snapshot, ended: Sequence[WorkloadPod]) -> dict[Member, Placement] | None:
        """Return the places that the preemption search finds once some pods have ended; None if there are none."""
        try:
            return plan(without(snapshot, ended), self.members, self.gang, most=1)
        except (NoPlaceError, WordError):
            return None

    def victims(self, pieces: Iterable[Piece]) -> list[Workload]:
        """Return the workloads of these pieces of a preemption search."""
        return [self._workloads[piece.key] for piece in pieces]

    def is_too_many(self, pieces: Iterable[Piece], ending: Collection[WorkloadPod]) -> bool:
        """Return whether a claim cannot name all pods of these workloads and those that end already."""
        return sum([len(victim.pods) for victim in self.victims(pieces)]) + len(ending) > MOST_VICTIMS

    def candidates(self) -> list[PreemptionNode]:
        """Return the nodes that can have the largest pod, each with the workloads that can be preempted there."""
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
        """Return a node with what it lacks for the largest pod, without workloads; None if the pod cannot use it.

        Args:
            name: The node.
            fleet: The GPUs.
            is_open: The nodes that the pod may use, whatever is free there: (rows,).
            left: What nodes have left of the requested resources: (rows, resources).
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
        """Return the GPUs of a node that the pods may not have: of other partitions, or reserved for others."""
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
    """Return the snapshot of a preemption search as if some pods were gone."""
    claims = (pod.claim.key for pod in pods if pod.claim is not None)
    return snapshot.without(claims, ((pod.node, pod.amounts) for pod in pods))


def spared(
    pieces: list[Piece],
    places: dict[Member, Placement] | None,
    order: Iterable[Piece],
    simulate: Callable[[list[Piece]], dict[Member, Placement] | None],
) -> tuple[list[Piece], dict[Member, Placement] | None]:
    """Let workloads run on, one by one, as long as there are places; return those that have to end, and the places.

    Args:
        pieces: The workloads that end at first.
        places: The places that there are then.
        order: Those that are tried, in this order.
        simulate: Returns the places once some workloads have ended; None if there are none.
    """
    for piece in order:
        fewer = [other for other in pieces if other is not piece]
        if (fewer_places := simulate(fewer)) is not None:
            pieces, places = fewer, fewer_places
    return pieces, places


def _ending_for(picture: Picture, members: Sequence[Member], ending: Sequence[WorkloadPod]) -> list[WorkloadPod]:
    """Return the ending pods whose GPUs some members can have.

    The GPUs of a lost pod are kept while its gang runs on. Only the pod that replaces it can have them.
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
    """Return how many GPUs are free once some pods have ended, without those that are closed."""
    return sum([len(pod.devices.keys() - closed) if closed else len(pod.devices) for pod in pods])


def _amount_of(pods: Sequence[WorkloadPod], resource: str) -> int:
    """Return how much of a resource of its node is free once some pods have ended."""
    return sum([pod.amounts.get(resource, 0) for pod in pods])
