"""Plans places for waiting workloads: which GPUs they may have, which nodes to avoid, and why there is no place.

``Placer`` calls it.

A *workload* is a single pod or a gang. A *place* is a node and GPUs for one pod. A *limit*, such as a tenant's cap,
restricts the GPUs of a workload. A *reservation* keeps GPUs for a workload that has waited too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

import msgspec

from dradriver.allocator.fleet.gang_effort import CALL, Effort, efforts
from dradriver.allocator.request import NoPlaceError
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.pods.gang_pods import Membership
from dradriver.cluster.pods.scheduler_refusals import is_about_nodes
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing import gang_plan
from dradriver.controller.placing.decide import FEW_NODES, MOST_NODES
from dradriver.controller.placing.gang_terms import terms_of
from dradriver.controller.placing.late_pod import late_search
from dradriver.controller.placing.plan import plan
from dradriver.controller.steps.actions import Wait
from dradriver.queue.limits import LimitError, Limits, Offer
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.queue.placement_request import is_narrowed, why
from dradriver.queue.waiting import Queue
from dradriver.reason import Cause, Reason

MANY: Final = 16  # waiting workloads, from which on the scheduler's time counts more than a choice of nodes
LOOK_S: Final = 0.25  # between two looks whether a place is free that is about to be
FREE_S: Final = 5.0  # that a pod waits for the place that is kept for it: a scheduler keeps devices no longer

# In evaluations of nodes, as ``Effort`` counts: what a look costs for each pod, whatever the cluster.
POD_WORK: Final = 20 * CALL

Places = dict[Member, Placement]


class Try(NamedTuple):
    """One try to find places for a workload; it can avoid nodes.

    Attributes:
        avoid: Names of the nodes that this try does not use.
        is_one_a_node: Whether each pod of a gang must be on a node of its own.
    """

    avoid: Collection[str]
    is_one_a_node: bool = False


class Planner:
    """Plans places for workloads, within the limits.

    If the place of a lost pod of a gang is kept, the pod that replaces it gets this place.

    Attributes:
        work: The cost of the last search, with or without a result, in evaluations of nodes.
    """

    def __init__(self, picture: Picture, queue: Queue, limits: Limits) -> None:
        """Make a planner.

        Args:
            picture: The cluster cache.
            queue: The waiting workloads.
            limits: Says which GPUs a workload may have.
        """
        self._picture, self._queue, self._limits = picture, queue, limits
        self.work = 0

    def plan(self, workload: PendingWorkload, rows: Bools | None) -> Places:
        """Plan places for those members of a workload that need one.

        The limits, such as caps, first say which members may have a place now and on which GPUs (``Offer``). Then up to
        four tries follow, until one finds places:

        1. Avoid two kinds of nodes: those on which an earlier placement of the workload failed, and those on which the
           scheduler lately refused equal pods. Put one pod on each node. This try is made only for a gang that the
           scheduler refused for a port, a rule or a volume. The controller does not know which pod has this problem.
           With one pod on each node, a refusal of one node concerns fewer pods.
        2. Avoid the same nodes, with any number of pods on a node.
        3. Avoid only the nodes on which an earlier placement of the workload failed.
        4. Avoid no node. This try may spend as much effort as all others together.

        Args:
            workload: The workload.
            rows: A mask of the nodes to try: (rows,), one row per node; None for all. For gangs, and for pods that join
                a running gang, all nodes are tried.

        Raises:
            NoPlaceError: There are not enough places.
            WordError: A member's request cannot be read, or is not possible for a gang.
        """
        self.work = POD_WORK * len(workload.members)
        # 1. What the limits allow. ``search(attempt, effort)`` finds places there for ``members``, or raises.
        offer = self._limits.offer(workload)
        members, search = self._search(workload, offer, rows)

        # 2. The tries, from the most nodes to avoid to none. Tries that would avoid the same nodes are made once.
        now = asyncio.get_running_loop().time()
        tried_nodes = tuple(workload.failures.tried)  # its tentative placements there were not kept
        refused_nodes = {node: None for member in members for node in self._picture.refusals.of(member.pod, now)}
        avoids = list(dict.fromkeys(((*tried_nodes, *refused_nodes), tried_nodes, ())))
        tries = [Try(avoid) for avoid in avoids]
        # ``pod.refused`` is what the scheduler last said about the pod.
        if workload.is_gang and any(is_about_nodes(member.pod.refused or "") for member in members):
            tries.insert(0, Try(avoids[0], is_one_a_node=True))

        # 3. The first try that finds places. ``efforts`` has a full effort for the last try; the others share another.
        for attempt, effort in zip(tries, efforts(len(tries)), strict=True):
            try:
                places = search(attempt, effort)
            except NoPlaceError as error:
                if attempt is tries[-1]:
                    # No figures: they change with every event, and each change would be written to pods.
                    # ``refusal`` adds which GPUs the limits left out.
                    raise offer.refusal(error.without_figures) from None
            else:
                if not attempt.avoid:
                    workload.failures.begin_again()  # all nodes have had their turn: forget ``failures.tried``
                return places
            finally:
                self.work += effort.spent
        raise AssertionError("the last try avoids no node")

    def _search(
        self, workload: PendingWorkload, offer: Offer, rows: Bools | None
    ) -> tuple[Collection[Member], Callable[[Try, Effort], Places]]:
        """Return the members to plan for, and the function that makes one try for them.

        The function takes the ``Try`` and the effort that it may spend. It returns the places, or raises NoPlaceError
        if it finds none.

        Args:
            workload: The workload.
            offer: The members and GPUs that the limits allow.
            rows: A mask of the nodes to try: (rows,), one row per node; None for all.
        """
        if workload.is_gang:
            return self._search_gang(workload, offer)
        if workload.lead.near:
            return workload.members, self._search_late(workload, offer)
        snapshot = offer.snapshot.among(rows, is_few=True)
        most = MOST_NODES if len(self._queue) <= MANY else FEW_NODES

        def search(each: Try, _: Effort) -> Places:
            return plan(snapshot.avoiding(each.avoid), workload.members, most=most)

        return workload.members, search

    def _search_gang(
        self, workload: PendingWorkload, offer: Offer
    ) -> tuple[Collection[Member], Callable[[Try, Effort], Places]]:
        """Return a gang's members to plan for, and the function that searches their places once.

        The result has the members without a place. It also has the members with claims, because the new places are
        planned near them. ``offer`` has the members and GPUs that the limits allow.
        """
        terms = terms_of(self._picture, workload)
        assert terms is not None, "it is a gang"
        members = gang_plan.members_to_plan(self._picture, workload.members, frozenset(offer.members))

        def search(each: Try, effort: Effort) -> Places:
            tried_terms = msgspec.structs.replace(terms, effort=effort, one_a_node=each.is_one_a_node)
            return plan(offer.snapshot.avoiding(each.avoid), members, tried_terms)

        return members, search

    def _search_late(self, workload: PendingWorkload, offer: Offer) -> Callable[[Try, Effort], Places]:
        """Return the function that finds a place for a pod joining a running gang.

        The place is near the gang's other pods. ``offer`` has the GPUs that the limits allow.
        """
        gang = self._gang(workload)
        late, kept_places = late_search(offer.snapshot, workload.lead, gang), self._picture.kept_places
        kept = late.terms.home.get(workload.lead)

        def search(each: Try, effort: Effort) -> Places:
            terms = msgspec.structs.replace(late.terms, effort=effort)
            place = plan(late.snapshot.avoiding(each.avoid), late.members, terms)[workload.lead]
            if (old := kept or kept_places.find(gang.gang, gang.member.rank)) is not None:
                kept_places.let_go(old)
            if place.planned is not None:
                kept_places.trim(gang.gang, place.planned.size - len(late.members))
            return {workload.lead: msgspec.structs.replace(place, seat=False)}  # no other pod waits for it to be bound

        return search

    def enqueue(self, workload: PendingWorkload) -> Reason | None:
        """Put a workload in the queue; return None, or why it has no place now.

        A reason is returned if a workload of the same equivalence class (with the same request) found no place the last
        time.

        Raises:
            WordError: A member's request cannot be read.
        """
        workload.reserved = self._limits.reserved(workload)
        for member in workload.members:
            if member in workload.wanting or gang_plan.has_claim(self._picture, member):
                _ = member.wish
        return self._queue.put(workload)

    def widened(self) -> Iterator[tuple[PendingWorkload, Reason]]:
        """Queue workloads again whose limit was raised.

        Workloads that still have no place are yielded, each with the reason.
        """
        while self._limits.eased:
            yield from self._queue.widen(self._limits.eased.pop())

    def waits(self, workload: PendingWorkload, now: float) -> Wait | None:
        """Return how a pod waits for a lost pod's kept place; None for no wait.

        A pod that replaces a lost pod of a running gang gets the lost pod's place, which is kept for it. A StatefulSet
        creates the new pod while the lost pod's claim still exists, so the GPUs are not free yet. After ``FREE_S``
        seconds the pod waits no longer. If the gang's other pods have ended meanwhile, the pod is processed again at
        once. ``now`` is by the event loop's clock.
        """
        if workload.is_gang or not workload.lead.near:
            return None
        # The gang's other pods have ended meanwhile, so this pod is not late any more.
        if self._picture.gangs.gathers(workload.key):
            return Wait(until=now)
        gang = self._gang(workload)
        kept = self._picture.kept_places.find(gang.gang, gang.member.rank)
        claim = None if kept is None else self._picture.claims.get(kept.claim)
        lost = None if kept is None else self._picture.pods.get(kept.pod)
        if claim is None or not claim.devices or (lost is not None and claim.owned_by(lost.metadata.uid)):
            return None
        if now >= workload.looks_since(now) + FREE_S:
            return None
        return Wait(now + LOOK_S, Reason(Cause.GPUS, "Waiting until the GPUs of the lost pod are free."))

    def why(self, workload: PendingWorkload, error: NoPlaceError, rows: Bools | None) -> Reason | None:
        """Return why a workload has no plan; None if untried nodes may have a place.

        Args:
            workload: The workload.
            error: The error of the search.
            rows: A mask of the nodes that were tried: (rows,), one row per node; None for all.
        """
        if isinstance(error, LimitError):
            return error.why
        if not workload.is_gang:
            return None if rows is not None and not workload.lead.near else why(workload.lead.pod, error)
        if not any(is_narrowed(member.pod) for member in workload.members):
            return error.why
        return error.why.add("Some pods of the gang can use only the nodes of an earlier plan")

    def told(self, workload: PendingWorkload, reason: Reason) -> Reason:
        """Return why a workload waits: ``reason``, and what caps or reservations add to it.

        A reservation adds the GPUs that it reserves for the workload.
        """
        return self._limits.told(workload, reason)

    def _gang(self, workload: PendingWorkload) -> Membership:
        gang = self._picture.gangs.of(workload.key)
        assert gang is not None, "its own annotations say so"
        return gang
