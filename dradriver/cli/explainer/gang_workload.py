"""The workload of a gang that has not started: all its pods get their places together.

The *verdict* is what the controller would decide now about the workload.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dradriver.allocator.request import NoPlaceError, Whole
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.explainer import gang_shown, gang_ways, gpu_sets
from dradriver.cli.explainer.gang_shown import GangPods
from dradriver.cli.explainer.model import Verdict
from dradriver.cli.explainer.workload import HELPS, Workload
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing import gang_plan, member_rules
from dradriver.controller.placing.gang_terms import terms_of
from dradriver.controller.placing.plan import plan
from dradriver.controller.placing.ranking import eligible
from dradriver.controller.steps.actions import EndOthers, Go, OpenGates, Place, Release, Step, Wait
from dradriver.controller.steps.deadlines import GATHER_S
from dradriver.controller.steps.observe import observe_gang
from dradriver.controller.steps.rules import scheduler_says
from dradriver.controller.steps.step import step as next_step
from dradriver.counted import counted, first_of
from dradriver.queue.limits import Offer
from dradriver.queue.pending import Member
from dradriver.queue.placement_request import PlacementRequest
from dradriver.reason import sentences


class GangWorkload(Workload):
    """The workload that ``gputopo explain`` explains, if it is a gang that has not started."""

    def __init__(self, scene: Scene, asked: Member, gang: GangPods) -> None:
        super().__init__(scene, asked, gang.pending, gang)
        self.pods = gang

    async def step(self) -> str | None:
        """Return a sentence on the controller's next step for a gang, as if it had waited long enough for more pods.

        None if the next step is to search places.
        """
        step = self._step_at(0.0)
        if isinstance(step, Wait) and step.reason is None and self.pending.memory.placed_at is None:
            step = self._step_at(GATHER_S)
        if not isinstance(step, Place):
            return self._doing(step)
        self.pending.want(step.members, step.least)
        return None

    def _step_at(self, now: float) -> Step:
        picture = self.scene.picture
        return next_step(observe_gang(self.pending, picture, self.pods.size, now, done=self.pods.done), picture, now)

    def _doing(self, step: Step) -> str:
        """Return a sentence on ``step``: what the controller waits for, or is about to do."""
        match step:
            case OpenGates():
                return "The claims of the gang exist. The controller is about to remove the scheduling gates."
            case Go():
                return "All pods of the gang have a place. The controller is about to let them be bound."
            case Release():
                return f"The claims of the gang are released. {step.reason or f'The cause is {step.cause}.'}"
            case EndOthers():
                return step.why.text
            case Wait() if step.reason is not None:
                return step.reason.text
        have = [member for member in self.pending.members if gang_plan.has_claim(self.scene.picture, member)]
        seats = sum(gang_shown.state(self.scene, member) == "allocated" for member in have)
        return (
            f"{seats} of {counted(len(have), 'pod')} of the gang have a place. The scheduler has not placed the others "
            "yet."
        )

    def plan(self, offer: Offer) -> dict[Member, Placement]:
        """Return the controller's plan for a gang: places near its pods that already have one.

        ``offer`` has the GPUs that the gang may use, and the pods to place.
        """
        picture = self.scene.picture
        members = gang_plan.members_to_plan(picture, self.pending.members, offer.members)
        return plan(offer.snapshot, members, terms_of(picture, self.pending))

    def places(self, found: Mapping[Member, Placement]) -> str:
        """Return the sentence of ``gputopo explain`` that a gang has the places ``found``."""
        pods = (member.pod for member in found if not member.pod.gated)
        refused = next((pod for pod in pods if pod.refused is not None), None)
        refusal = "" if refused is None else scheduler_says(refused, refused.refused).text
        return sentences(refusal, f"There are places for {counted(len(found), 'pod')} of the gang now")

    async def no_place(self, wish: PlacementRequest, why: NoPlaceError) -> Verdict:
        """Return the verdict on a gang without places: reason, room, and what would help.

        ``wish`` is the explained pod's request, ``why`` the refusal of the search.
        """
        scene = self.scene
        # The rules about the other members do not say which nodes are left out.
        wish = msgspec.structs.replace(wish, rules=None if wish.rules is None else member_rules.alone(wish.rules))
        fit = eligible(Snapshot(scene.picture, wish.claim[0]), wish)
        whole = wish.request if isinstance(wish.request, Whole) else None
        gang = msgspec.structs.replace(
            gang_shown.described(scene, self.pods, self.asked.pod),
            room=gang_ways.room(self),
            helps=gang_ways.ways(self),
        )
        # A cap leaves out products for the whole gang, also if single pods would fit under it.
        closed = first_of(sorted(self.allowance.closed), HELPS)
        left_out = f"The room does not count GPUs of {closed}: a cap leaves them out for the gang as a whole"
        return Verdict(
            reason=why.without_figures.why.text,
            nearest=sentences(why.nearest, left_out if closed else ""),
            gang=gang,
            free=None if whole is None else gpu_sets.free(scene, whole, fit, self.pending.key[0]),
            helps=() if whole is None else tuple(gpu_sets.left_out(scene, wish, whole, fit)[:HELPS]),
        )
