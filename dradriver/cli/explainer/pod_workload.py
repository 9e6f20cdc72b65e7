"""The workload of one pod that gets its place by itself, also a pod that joins a gang which has started.

The *verdict* is what the controller would decide now about the workload.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from dradriver.allocator.request import Choice, NoPlaceError, Whole
from dradriver.api.base import affinity
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Affinity, NodeAffinity, Pod
from dradriver.cli.explainer import gpu_sets, static_pods
from dradriver.cli.explainer.model import Help, Verdict
from dradriver.cli.explainer.shown_places import place_by_scheduler
from dradriver.cli.explainer.subject import deletion
from dradriver.cli.explainer.workload import HELPS, Workload
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.nodes.pod_demands import ask_of
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.placing import node_limits
from dradriver.controller.placing.late_pod import late_search
from dradriver.controller.placing.nic_refusals import NoNicsError, figures
from dradriver.controller.placing.plan import plan, revalidate
from dradriver.controller.placing.ranking import eligible
from dradriver.controller.steps.actions import EndOthers, Go, OpenGates, Place, Release, Settle, Wait
from dradriver.controller.steps.observe import observe
from dradriver.controller.steps.rules import scheduler_says
from dradriver.controller.steps.step import step as next_step
from dradriver.queue.limits import Offer
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.queue.placement_request import PlacementRequest
from dradriver.reason import sentences

_FILLED: Final = 8  # nodes of better sets whose foreign pods are read

_ENDS: Final = {  # by the controller's ``WithdrawReason``: why a tentative placement ends
    "taken": "Another claim has its GPUs.",
    "gone": "No node offers its GPUs any more, or they are tainted.",
    "damaged": "Its claim was changed.",
    "overlooked": "The scheduler did not see that there is room, so the claim is created again.",
}


_ENDED: Final = "The tentative placement of the pod has ended"


class PodWorkload(Workload):
    """The workload that ``gputopo explain`` explains, if it is one pod.

    A pod that joins a running gang needs a place near the gang's pods. Only the workload in ``searched``, for which
    places are searched, has this requirement. The workload in ``pending``, which has a position in the queue, does not
    have it.
    """

    @property
    def searched(self) -> PendingWorkload:
        """Return the workload of one pod for which places are searched: near the other pods of its gang, if any."""
        return self.pending if self.gang is None else PendingWorkload(self.asked)

    async def step(self) -> str | None:
        """Return a sentence on the controller's next step for the workload of one pod.

        Empty if the pod is on its node and stays there; None if the next step is to search a place.
        """
        pod, picture = self.asked.pod, self.scene.picture
        step = next_step(observe(self.pending.lead, picture, 0.0), picture, 0.0)
        claim = picture.claim_of(pod)
        match step:
            case Place():  # it looks for a place, which the caller does
                return None
            case Settle() if pod.spec.node_name:
                return deletion(pod)
            case OpenGates():
                return await self._keeping(claim)
            case Release() if step.cause is not None:
                why = step.reason or _ENDS.get(step.cause.value, f"The cause is {step.cause.value}.")
                return f"The tentative placement ends. {why}"
            case Go() | Release():
                doing = "let it be bound" if isinstance(step, Go) else "release its claim and create it again"
                return f"The gang has started. The controller is about to {doing}."
            case EndOthers():
                return step.why.text
            case Wait() if step.reason:
                return step.reason.text
        if claim is None or not claim.handed_over:
            return f"The pod has a tentative placement. {static_pods.scheduler_message(pod)}"
        return f"The pod was handed over to the scheduler, without a placement. {static_pods.scheduler_message(pod)}"

    async def _keeping(self, claim: ClaimRecord | None) -> str:
        """Return the controller's next step for a gated pod that has a claim: use the claim, or create it again."""
        wish = self._wish()
        if wish is not None and claim is not None and claim.pin is not None:
            await self.scene.fill((claim.pin.choice.node,))
            if revalidate(self.scene.picture, [self.asked], [self.asked]) is None:
                return "The claim of the pod is not valid any more. The controller is about to create it again."
        return "The claim of the pod exists. The controller is about to remove the scheduling gate."

    def plan(self, offer: Offer) -> dict[Member, Placement]:
        """Return the controller's plan for one pod: a place near its gang, if any.

        ``offer`` has the GPUs that the pod may use.
        """
        if self.gang is None:
            return plan(offer.snapshot, [self.asked], most=self.most_nodes)
        membership = self.scene.picture.gangs.of(self.asked.key)
        assert membership is not None, "it is of a gang"
        late = late_search(offer.snapshot, self.asked, membership)
        return plan(late.snapshot, late.members, late.terms)

    def places(self, found: Mapping[Member, Placement]) -> str:
        """Return the sentence of ``gputopo explain`` that one pod has the place ``found``."""
        pod, before = self.asked.pod, ""
        if not pod.gated:
            refusal = "" if pod.refused is None else scheduler_says(pod, pod.refused).text
            before = sentences(_ENDED, refusal)
        refusable = f"{self.asked.wish.open} It may refuse this node" if self.asked.is_open else ""
        return sentences(before, f"There is a place for the pod on {found[self.asked].node} now", refusable)

    async def no_place(self, wish: PlacementRequest, why: NoPlaceError) -> Verdict:
        """Return the verdict on one pod without a place: reason, nearest placement, what would help.

        ``wish`` is the pod's request, ``why`` the refusal of the search.
        """
        scene, fit = self.scene, self._fit(wish)
        if wish.shared and wish.claim in scene.picture.claims:
            return Verdict(reason=why.without_figures.why.text)  # other GPUs would be of no use to it
        if isinstance(why, NoNicsError) and wish.nics is not None:  # the same
            nodes = [scene.picture.nodes.name(row) for row in np.flatnonzero(fit).tolist()]
            return Verdict(reason=why.without_figures.why.text, nearest=figures(scene.picture, wish.nics, nodes))
        before = ""
        if not self.asked.pod.gated:
            before = sentences(_ENDED, "" if self.asked.is_open else "The pod can use only the nodes of that placement")
        return Verdict(
            reason=sentences(before, why.without_figures.why.text),
            nearest=self._nearest(wish, fit),
            free=gpu_sets.free(scene, wish.request, fit, wish.claim[0]) if isinstance(wish.request, Whole) else None,
            helps=self._helps(wish, fit),
        )

    def _nearest(self, wish: PlacementRequest, fit: Bools) -> str:
        """Return the possible placement that is nearest to the pod's request, in sentences.

        The result is empty if there is none. ``fit`` has the nodes that the pod can use, (rows,).
        """
        picture = self.scene.picture
        try:
            tenant = picture.inventory.tenant(wish.claim[0])
            picture.fleets.of(wish.claim[0]).rank(wish.request, eligible=fit, limit=1, tenant=tenant)
        except NoPlaceError as error:
            return error.nearest
        return ""

    def _helps(self, wish: PlacementRequest, fit: Bools) -> tuple[Help, ...]:
        """Return what would make a place for the pod.

        These are sets whose users would have to end, and free sets on nodes that the pod cannot use now. ``fit`` has
        the nodes that it can use, (rows,).
        """
        scene = self.scene
        # A cap can leave out all GPUs of a node. The end of other pods does not help there.
        allowed = scene.limits.open_rows(self.allowance.closed)
        usable = fit if allowed is None else fit & allowed
        if not isinstance(wish.request, Whole):
            return tuple(gpu_sets.parts_helps(scene, self.asked, usable)[:HELPS])
        ends = gpu_sets.helps(scene, wish, wish.request, usable)[:HELPS]
        return (*ends, *gpu_sets.left_out(scene, wish, wish.request, fit)[:HELPS])

    async def having(self, doing: str) -> Verdict:
        """Return the verdict on one pod that has GPUs or a tentative placement: its set, and better sets.

        ``doing`` is the sentence about the controller's next step; it becomes the verdict's reason.
        """
        verdict, wish, own = await super().having(doing), self._wish(), self.claim
        if own is None or wish is None or deletion(self.asked.pod):
            return verdict
        if own.pin is None and own.handed_over:
            pod = self.asked.pod
            looks = not (own.devices or own.deleting or pod.gated or pod.spec.node_name)
            free = await static_pods.free(self.scene, pod, wish.request) if looks else None
            place = place_by_scheduler(self.scene, wish.claim, wish.request)
            return msgspec.structs.replace(verdict, place=place, free=free)
        if own.pin is None or not isinstance(own.pin.choice, Choice) or not isinstance(wish.request, Whole):
            return verdict
        if len(own.pin.choice.gpus) < 2:  # one GPU has no links
            return verdict
        if self.scene.picture.gangs.of(self.asked.key) is not None:  # its place is near the other pods of its gang
            return verdict
        better = await self._better(wish, own.pin.choice)
        is_free = any(not (option.owners or option.causes) for option in better)
        return msgspec.structs.replace(verdict, better=better, better_free=is_free)

    async def _better(self, wish: PlacementRequest, choice: Choice) -> tuple[Help, ...]:
        """Return the sets that are better than the set that the pod has."""
        nodes, mine = self.scene.picture.nodes, self.scene.picture.node_usage.by(wish.pod)
        ask, freed = ask_of(_as_written(self.asked.pod), wish.ask.key.volumes), {} if mine is None else dict([mine])
        options = gpu_sets.better(self.scene, wish, choice, nodes.eligible(ask, freed))[:_FILLED]
        await self.scene.fill([option.node for option in options])
        fit = nodes.eligible(ask, freed)
        return tuple(option for option in options if self._is_at(option.node, fit))[:HELPS]

    def _wish(self) -> PlacementRequest | None:
        """Return the pod's placement request; None if it cannot be read.

        A pod with an unreadable request gets this far only if it already has GPUs.
        """
        try:
            return self.asked.wish
        except WordError:
            return None

    def _fit(self, wish: PlacementRequest) -> Bools:
        """Return the nodes that meet all needs of the pod except GPUs: (rows,).

        The needs in ``wish``, the pod's request, include its affinity and spread rules about other pods.
        """
        picture = self.scene.picture
        fit = eligible(Snapshot(picture, wish.claim[0]), wish)
        for limit in node_limits.concerning(wish):
            with contextlib.suppress(NoPlaceError):  # of NICs, which the reason names
                wish, fit = limit.narrowed(picture, wish, fit)
        return fit

    def _is_at(self, node: str, fit: Bools) -> bool:
        row = self.scene.picture.nodes.find(node)
        return row is not None and bool(fit[row])


def _as_written(pod: Pod) -> Pod:
    """Return a pod with its author's node affinity, before the controller narrowed it to the chosen nodes."""
    if not affinity.is_narrowed(pod.metadata.annotations, affinity.required(pod)):
        return pod
    try:
        required = affinity.authors(pod.metadata.annotations)
    except WordError:
        return pod
    own = Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=required))
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, affinity=own))
