"""A workload, one pod or the pods of a gang, and the verdict on it: its place, or why it has none.

``verdict`` works the same way for all workloads. ``PodWorkload`` and ``GangWorkload`` define what differs: the
controller's next step, its plan, and what would help.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
from collections.abc import Collection, Mapping
from typing import Final

import msgspec
import numpy as np

from dradriver.allocator.request import NoPlaceError
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import Key
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.explainer import gang_shown
from dradriver.cli.explainer.gang_shown import GangPods
from dradriver.cli.explainer.model import Verdict
from dradriver.cli.explainer.queue_position import position, read_what_pods_name
from dradriver.cli.explainer.shown_places import place_of
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.placing.decide import MOST_NODES
from dradriver.controller.writing.write_outcome import refusal_in
from dradriver.queue.equivalence_classes import Closed
from dradriver.queue.limits import Allowance, LimitError, NeverAllowedError, Offer
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.queue.placement_request import PlacementRequest
from dradriver.reason import sentences

HELPS: Final = 3
_ROUNDS: Final = 8
_FAILED: Final = "But the controller's last try failed"


class Workload(abc.ABC):
    """The workload that ``gputopo explain`` explains: a pod alone, or with its gang.

    Attributes:
        scene: The cluster.
        asked: The pod that the user asks about, as the controller plans it.
        pending: The workload that has a position in the queue: the pod, or all of its gang.
        gang: The pod's gang; None for a pod without a gang.
        most_nodes: The most nodes that the place of a single pod may name.
    """

    def __init__(self, scene: Scene, asked: Member, pending: PendingWorkload, gang: GangPods | None) -> None:
        self.scene, self.asked, self.pending, self.gang = scene, asked, pending, gang
        self.most_nodes = MOST_NODES

    @abc.abstractmethod
    async def step(self) -> str | None:
        """Return what the workload waits for, or the controller's next step.

        The result is None if the controller's next step is to search a place.
        """

    @abc.abstractmethod
    def plan(self, offer: Offer) -> dict[Member, Placement]:
        """Return the places that the controller would give the explained workload, within ``offer``.

        Args:
            offer: The GPUs that the workload may use.

        Raises:
            NoPlaceError: There is no place.
            WordError: The request of a pod cannot be read.
        """

    @abc.abstractmethod
    def places(self, found: Mapping[Member, Placement]) -> str:
        """Return the sentence of ``gputopo explain`` that the workload has the places ``found``."""

    @abc.abstractmethod
    async def no_place(self, wish: PlacementRequest, why: NoPlaceError) -> Verdict:
        """Return the verdict on a workload without a place: reason, free GPUs, what would help.

        ``wish`` is the explained pod's request, ``why`` the refusal of the search.
        """

    @property
    def searched(self) -> PendingWorkload:
        """Return the workload for which places are searched, and caps and reservations are checked.

        This workload differs from ``pending`` if it must be near other pods, such as the other pods of its gang.
        """
        return self.pending

    @property
    def claim(self) -> ClaimRecord | None:
        """Return the claim of the explained pod.

        The result is None if the pod has no claim that it owns.
        """
        claim = self.scene.picture.claim_of(self.asked.pod)
        return claim if claim is not None and claim.owned_by(self.asked.uid) else None

    @property
    def allowance(self) -> Allowance:
        """Return the members and GPUs that the limits leave to the explained workload.

        If the request of a member cannot be read, these are all members and all GPUs.

        Raises:
            LimitError: The limits leave none of the GPUs that the workload requests.
        """
        try:
            return self.scene.limits.allow(self.searched)
        except WordError:
            return Allowance(self.searched.asking)

    def has_place(self, members: tuple[Member, ...], closed: Closed, ended: Collection[Key] = ()) -> bool:
        """Return whether some members have a place by the controller's own plan.

        Args:
            members: The members.
            closed: The GPU products that they may not use.
            ended: Claims that count as ended.
        """
        try:
            self.plan(Offer(members, self.scene.limits.view(self.searched, closed, ended)))
        except (NoPlaceError, WordError):
            return False
        return True

    def _higher_cap(self) -> str:
        """Return which higher cap gives the workload a place now, in sentences; empty if none does."""
        members = self.allowance.members
        try:
            return self.scene.caps.raising_helps(self.searched, members, lambda closed: self.has_place(members, closed))
        except WordError:
            return ""

    async def having(self, doing: str) -> Verdict:
        """Return the verdict on a workload that needs no search: the place that its pod has or is tentatively given.

        ``doing`` is the sentence about the controller's next step; it becomes the verdict's reason.
        """
        pin = None if self.claim is None else self.claim.pin
        return Verdict(reason=doing, place=None if pin is None else place_of(pin.choice, pin.uuids))

    async def verdict(self) -> Verdict:
        """Return the verdict of ``gputopo explain`` on the workload."""
        # 1. If the controller is not about to place the workload, say what it does instead.
        if (next_action := await self.step()) is not None:
            return await self.having(next_action)
        try:
            pod_request = self.asked.wish
        except WordError as error:
            return Verdict(reason=str(error))

        # 2. Else, plan as the controller does: the places, or why there are none.
        await read_what_pods_name(self.scene, self.pending)
        placements = await self._placements()
        if isinstance(placements, NeverAllowedError):  # it has no position in the queue
            return Verdict(reason=placements.why.text, quota_help=self.scene.caps.helps(self.searched))
        queue_position = position(self.scene, self.pending)
        if isinstance(placements, LimitError):  # what is free, and whose end would make a place, says nothing of it
            quota_help = self.scene.caps.helps(self.searched)
            return Verdict(reason=placements.why.text, quota_help=quota_help, turn=queue_position)
        if isinstance(placements, NoPlaceError):
            verdict = await self.no_place(pod_request, placements)
            return msgspec.structs.replace(verdict, quota_help=self._higher_cap(), turn=queue_position)
        gang = self.gang if self.gang is not None and self.pending is self.gang.pending else None
        own_place = placements.get(self.asked)
        ahead = "" if queue_position.position == 1 else "Other pods are before it in the queue"
        # The cluster does not show whether the API server would refuse the claim again. The pod says that it did.
        refusal, quota_help = refusal_in(self.asked.pod.metadata.annotations.get(names.REASON, ""))
        return Verdict(
            reason=sentences(self.places(placements), refusal and _FAILED, refusal, ahead),
            gang=None if gang is None else gang_shown.described(self.scene, gang, self.asked.pod, placements),
            place=None if own_place is None else place_of(own_place.choice, own_place.uuids),
            quota_help=quota_help,
            turn=queue_position,
        )

    async def _placements(self) -> dict[Member, Placement] | NoPlaceError:
        """Return the places that the controller would give now, or why there are none.

        The controller knows all pods of all nodes. Here, pods that this driver does not place are read only on the
        nodes that the places name. If there is no place, they are read on all nodes that the workload may use, because
        each may add a cause.
        """
        for number in itertools.count(1):
            found = self._planned()
            if isinstance(found, NoPlaceError) or number > _ROUNDS:
                nodes = self._open_nodes()
            else:
                nodes = {node for place in found.values() for node in (place.node, *place.hostnames)}
            if not await self.scene.fill(nodes):
                return found
            self.most_nodes *= 2
        raise AssertionError("each round reads a node more")

    def _planned(self) -> dict[Member, Placement] | NoPlaceError:
        """Return the workload's places by the objects read so far, or why there are none.

        For a gang, the search runs as long as the controller's most thorough one, and leaves no node out.
        """
        offer: Offer | None = None
        try:
            offer = self.scene.limits.offer(self.searched)
            return self.plan(offer)
        except NoPlaceError as error:
            if offer is None or (why := offer.why) is None:
                return error
            # With the figures of the limit in its sentence: ``nearest`` is the nearest place here.
            return error.more(why.stable, why.nearest, cause=why.cause)
        except WordError as error:
            return NoPlaceError(str(error))

    def _open_nodes(self) -> set[str]:
        """Return the nodes with GPUs that a pod of the workload may run on, even if no GPU is free there."""
        nodes, open_nodes = self.scene.picture.nodes, set[str]()
        for member in self.searched.members:
            with contextlib.suppress(WordError):
                open_nodes.update(map(nodes.name, np.flatnonzero(nodes.open(member.wish.ask)).tolist()))
        return open_nodes
