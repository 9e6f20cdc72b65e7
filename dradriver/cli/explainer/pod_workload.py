"""The workload that is one pod, also one that comes to a gang which has started: it gets its place by itself."""

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

_FILLED: Final = 8  # nodes of better sets whose foreign pods are read

_ENDS: Final = {  # by the controller's ``WithdrawReason``: why a promise ends that is still there
    "taken": "its GPUs were given to another claim",
    "gone": "what was promised is not offered any more, or tainted",
    "damaged": "nobody knows any more what its claim was made for",
    "overlooked": "the scheduler overlooks that there is room; the claim is made anew",
}


class PodWorkload(Workload):
    """See ``Workload``. ``pending`` is not marked as near the other pods of a gang that runs."""

    @property
    def searched(self) -> PendingWorkload:
        """Return the workload of one pod for which places are searched, near the others if it comes to a gang."""
        return self.pending if self.gang is None else PendingWorkload(self.asked)

    async def step(self) -> str | None:
        """Return what the controller is about to do for the workload of one pod."""
        pod, picture = self.asked.pod, self.scene.picture
        step = next_step(observe(self.pending.lead, picture, 0.0), picture, 0.0)
        claim = picture.claim_of(pod)
        match step:
            case Place():  # it looks for a place, which the caller does
                return None
            case Settle() if pod.spec.node_name:
                return ""
            case OpenGates():
                return await self._keeping(claim)
            case Release() if step.cause is not None:
                return f"its promise ends: {step.reason or _ENDS.get(step.cause.value, step.cause.value)}"
            case Go() | Release():
                doing = "told that it may be bound" if isinstance(step, Go) else "given back, to be made anew"
                return f"its gang has started; its claim is about to be {doing}"
            case EndOthers():
                return step.why.text
            case Wait() if step.reason:
                return step.reason.text
        if claim is None or not claim.handed_over:
            return f"its GPUs are promised to it; {static_pods.scheduler_message(pod)}"
        return (
            f"it was handed over to the scheduler, and nothing is promised to it; {static_pods.scheduler_message(pod)}"
        )

    async def _keeping(self, claim: ClaimRecord | None) -> str:
        """Return what the controller is about to do with the claim of a gated pod."""
        wish = self._wish()
        if wish is not None and claim is not None and claim.pin is not None:
            await self.scene.fill((claim.pin.choice.node,))
            if revalidate(self.scene.picture, [self.asked], [self.asked]) is None:
                return "its claim is there and not valid any more; the controller is about to make it anew"
        return "its claim is there; the controller is about to lift its gate"

    def plan(self, offer: Offer) -> dict[Member, Placement]:
        """Return the controller's plan for the workload of one pod: a place near the others of its gang."""
        if self.gang is None:
            return plan(offer.snapshot, [self.asked], most=self.most_nodes)
        membership = self.scene.picture.gangs.of(self.asked.key)
        assert membership is not None, "it is of a gang"
        late = late_search(offer.snapshot, self.asked, membership)
        return plan(late.snapshot, late.members, late.terms)

    def places(self, found: Mapping[Member, Placement]) -> str:
        """Return the sentence of ``gputopo explain`` that the workload of one pod has a place."""
        pod, lifted = self.asked.pod, ""
        if not pod.gated:
            refusal = "" if pod.refused is None else f": {scheduler_says(pod, pod.refused)}"
            lifted = f"the promise that it had has ended{refusal}; "
        is_refusable = f"; {self.asked.wish.open}, and may refuse this node" if self.asked.is_open else ""
        return f"{lifted}there is a place for it on {found[self.asked].node} now{is_refusable}"

    async def no_place(self, wish: PlacementRequest, why: NoPlaceError) -> Verdict:
        """Return the verdict on the workload of one pod without a place: why, what is nearest, what would make one."""
        scene, fit = self.scene, self._fit(wish)
        if wish.shared and wish.claim in scene.picture.claims:
            return Verdict(reason=why.stable)  # other GPUs would be of no use to it
        if isinstance(why, NoNicsError) and wish.nics is not None:  # the same
            nodes = [scene.picture.nodes.name(row) for row in np.flatnonzero(fit).tolist()]
            return Verdict(reason=why.stable, nearest=figures(scene.picture, wish.nics, nodes))
        lifted = ""
        if not self.asked.pod.gated:
            confined = "" if self.asked.is_open else ", and it can go to no other node than its own"
            lifted = f"the promise that it had has ended{confined}: "
        return Verdict(
            reason=f"{lifted}{why.stable}",
            nearest=self._nearest(wish, fit, why.stable),
            free=gpu_sets.free(scene, wish.request, fit, wish.claim[0]) if isinstance(wish.request, Whole) else None,
            helps=self._helps(wish, fit),
        )

    def _nearest(self, wish: PlacementRequest, fit: Bools, stable: str) -> str:
        """Return what is nearest to what is wanted, where the allocator can say."""
        picture = self.scene.picture
        try:
            tenant = picture.inventory.tenant(wish.claim[0])
            picture.fleets.of(wish.claim[0]).rank(wish.request, eligible=fit, limit=1, tenant=tenant)
        except NoPlaceError as error:
            said = str(error)
            return "" if said in stable else said.partition(": no; ")[2] or said
        return ""

    def _helps(self, wish: PlacementRequest, fit: Bools) -> tuple[Help, ...]:
        """Return what would make a place: claims that end, and nodes that are left out though their GPUs are free."""
        scene = self.scene
        if not isinstance(wish.request, Whole):
            return tuple(gpu_sets.parts_helps(scene, self.asked, fit)[:HELPS])
        ends = gpu_sets.helps(scene, wish, wish.request, fit)[:HELPS]
        return (*ends, *gpu_sets.left_out(scene, wish, wish.request, fit)[:HELPS])

    async def having(self, doing: str) -> Verdict:
        """Return the verdict on the workload of one pod that has, or is promised, GPUs: which, and better sets."""
        verdict, wish, own = await super().having(doing), self._wish(), self.claim
        if own is None or wish is None:
            return verdict
        if own.pin is None and own.handed_over:
            pod = self.asked.pod
            looks = not (own.devices or own.deleting or pod.gated or pod.spec.node_name)
            free = await static_pods.free(self.scene, pod, wish.request) if looks else None
            place = place_by_scheduler(self.scene, wish.claim, wish.request)
            return msgspec.structs.replace(verdict, place=place, free=free)
        if own.pin is None or not isinstance(own.pin.choice, Choice) or not isinstance(wish.request, Whole):
            return verdict
        return msgspec.structs.replace(verdict, better=await self._better(wish, own.pin.choice))

    async def _better(self, wish: PlacementRequest, choice: Choice) -> tuple[Help, ...]:
        """Return the sets that would be better than the one that the pod has."""
        nodes, mine = self.scene.picture.nodes, self.scene.picture.node_usage.by(wish.pod)
        ask, freed = ask_of(_as_written(self.asked.pod), wish.ask.key.volumes), {} if mine is None else dict([mine])
        options = gpu_sets.better(self.scene, wish, choice, nodes.eligible(ask, freed))[:_FILLED]
        await self.scene.fill([option.node for option in options])
        fit = nodes.eligible(ask, freed)
        return tuple(option for option in options if self._is_at(option.node, fit))[:HELPS]

    def _wish(self) -> PlacementRequest | None:
        """Return what the pod asks for; None if that cannot be read, which only a pod with GPUs survives."""
        try:
            return self.asked.wish
        except WordError:
            return None

    def _fit(self, wish: PlacementRequest) -> Bools:
        """Return the nodes with all that the pod needs beside GPUs, where its rules about other pods hold: (rows,)."""
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
    """Return a pod as it was before it was narrowed to its nodes: it might have gone to any other then."""
    if not affinity.is_narrowed(pod.metadata.annotations, affinity.required(pod)):
        return pod
    try:
        required = affinity.authors(pod.metadata.annotations)
    except WordError:
        return pod
    own = Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=required))
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, affinity=own))
