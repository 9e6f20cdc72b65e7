"""A workload, one pod or the pods of a gang, and its verdict: the place that it has, or gets, or why there is none.

All workloads take this one path. ``PodWorkload`` and ``GangWorkload`` say what differs: the controller's next step, its
plan, and what would help.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from dradriver.allocator.request import NoPlaceError
from dradriver.api.base.errors import WordError
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.explainer import gang_shown
from dradriver.cli.explainer.gang_shown import GangPods
from dradriver.cli.explainer.model import Verdict
from dradriver.cli.explainer.queue_position import position, read_volumes
from dradriver.cli.explainer.shown_places import place_of
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.placing.decide import MOST_NODES
from dradriver.queue.limits import LimitError, Offer
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.queue.placement_request import PlacementRequest

HELPS: Final = 3
_ROUNDS: Final = 8


class Workload(abc.ABC):
    """A workload that ``gputopo explain`` is asked about: what the controller makes of a pod, alone or with its gang.

    Attributes:
        scene: The cluster.
        asked: The pod that is asked about, as the controller plans it.
        pending: What has a position in the queue: the pod, or all of its gang.
        gang: The gang that the pod is of; None for a pod of no gang.
        most_nodes: How many nodes the place of a single pod may name.
    """

    def __init__(self, scene: Scene, asked: Member, pending: PendingWorkload, gang: GangPods | None) -> None:
        self.scene, self.asked, self.pending, self.gang = scene, asked, pending, gang
        self.most_nodes = MOST_NODES

    @abc.abstractmethod
    async def step(self) -> str | None:
        """Return what the workload waits for, or the controller is about to do; None if it looks for a place."""

    @abc.abstractmethod
    def plan(self, offer: Offer) -> dict[Member, Placement]:
        """Return the places that the controller would give the explained workload, of what it may use.

        Raises:
            NoPlaceError: There is no place.
            WordError: What a pod asks for cannot be read.
        """

    @abc.abstractmethod
    def places(self, found: Mapping[Member, Placement]) -> str:
        """Return the sentence of ``gputopo explain`` that there are places for the workload."""

    @abc.abstractmethod
    async def no_place(self, wish: PlacementRequest, why: NoPlaceError) -> Verdict:
        """Return the verdict on a workload without a place: why, what is free, what is nearest and what would help."""

    @property
    def searched(self) -> PendingWorkload:
        """Return the workload for which places are searched; caps and reservations are asked about it."""
        return self.pending

    @property
    def claim(self) -> ClaimRecord | None:
        """Return the claim of the pod whose workload is explained; None without one that is its own."""
        claim = self.scene.picture.claim_of(self.asked.pod)
        return claim if claim is not None and claim.owned_by(self.asked.uid) else None

    async def having(self, doing: str) -> Verdict:
        """Return the verdict on a workload for which no place is looked for: what its pod has, or is promised."""
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
        await read_volumes(self.scene, self.pending)
        queue_position = position(self.scene, self.pending)
        placements = await self._placements()
        if isinstance(placements, LimitError):  # what is free, and whose end would make a place, says nothing of it
            return Verdict(reason=str(placements), turn=queue_position)
        if isinstance(placements, NoPlaceError):
            return msgspec.structs.replace(await self.no_place(pod_request, placements), turn=queue_position)
        gang = self.gang if self.gang is not None and self.pending is self.gang.pending else None
        own_place = placements.get(self.asked)
        ahead = "" if queue_position.position == 1 else "; older pods have their turn first"
        return Verdict(
            reason=f"{self.places(placements)}{ahead}",
            gang=None if gang is None else gang_shown.described(self.scene, gang, self.asked.pod, placements),
            place=None if own_place is None else place_of(own_place.choice, own_place.uuids),
            turn=queue_position,
        )

    async def _placements(self) -> dict[Member, Placement] | NoPlaceError:
        """Return the places that the controller would give now, or why there are none.

        The controller knows the foreign pods of all nodes. Here they are read on the nodes that the places name. If
        there is no place, they are read on all nodes that the workload may use, because each may add a cause.
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
        """Return the places for the workload by what was read so far, or why there are none.

        The search for a gang may cost what the controller's last try may, which avoids no node.
        """
        offer: Offer | None = None
        try:
            offer = self.scene.limits.offer(self.searched)
            return self.plan(offer)
        except NoPlaceError as error:
            return error if offer is None else offer.refusal(error)
        except WordError as error:
            return NoPlaceError(str(error))

    def _open_nodes(self) -> set[str]:
        """Return the nodes with GPUs that a pod of the workload may run on, whatever is free there."""
        nodes, names = self.scene.picture.nodes, set[str]()
        for member in self.searched.members:
            with contextlib.suppress(WordError):
                names.update(map(nodes.name, np.flatnonzero(nodes.open(member.wish.ask)).tolist()))
        return names
