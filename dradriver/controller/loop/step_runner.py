"""Finds the next step of a workload, a single pod or a gang, and does it. ``Dispatcher`` calls it.

A *place* is a node and GPUs for one pod. The *agenda* lists the pods and gangs that the controller processes next.
"""

from __future__ import annotations

import asyncio

from dradriver.api.base.errors import WordError
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.records.placement import Placement
from dradriver.controller.loop.hand_over import HandOver
from dradriver.controller.loop.placer import Placer
from dradriver.controller.loop.preemption import Preemptions
from dradriver.controller.placing import gang_plan
from dradriver.controller.placing.gang_terms import terms_of
from dradriver.controller.placing.plan import revalidate
from dradriver.controller.steps.actions import EndOthers, Go, OpenGates, Place, Release, Settle, Wait
from dradriver.controller.steps.deadlines import Deadlines
from dradriver.controller.steps.observe import GangState, PodState
from dradriver.controller.steps.step import step as next_step
from dradriver.controller.steps.withdraw_reasons import WithdrawReason
from dradriver.controller.writing.executor import Executor
from dradriver.queue.agenda import Agenda
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.reason import Cause, Reason


class StepRunner:
    """Does the next step of a workload: lets it wait, looks for places, or starts writes.

    If the write lanes (the limits on concurrent writes) allow no write now, nothing is done. The next step is then
    decided again later.
    """

    def __init__(
        self,
        picture: Picture,
        agenda: Agenda,
        executor: Executor,
        placer: Placer,
        preemptions: Preemptions,
        hand_over: HandOver,
        deadlines: Deadlines,
    ) -> None:
        """Make a step runner.

        Args:
            picture: The cluster cache.
            agenda: Takes the workloads that have to be processed later.
            executor: Runs writes.
            placer: Finds places.
            preemptions: Evicts other pods.
            hand_over: Says which pods are handed over to kube-scheduler.
            deadlines: Says how long to wait for the scheduler.
        """
        self._picture, self._agenda, self._executor, self._placer = picture, agenda, executor, placer
        self._preemptions, self._hand_over, self._deadlines = preemptions, hand_over, deadlines

    def run(self, workload: PendingWorkload, state: PodState | GangState) -> bool:
        """Do the next step of a workload; return whether the workload can be forgotten.

        ``state``, as just observed, decides the step.
        """
        step = next_step(state, self._picture, asyncio.get_running_loop().time(), self._deadlines)
        if isinstance(step, Place):
            self._placer.want(workload, step)
            return False
        self._placer.leave(workload.key)
        match step:
            case Wait():
                self._placer.wait(workload, step)
            case Settle() if step.is_done:
                return True
            case EndOthers():
                self._end_others(workload, step)
            case _ if not self._executor.can_write(workload):
                pass
            case Settle():
                self._executor.settle(workload, step)
            case OpenGates():
                self._open_gates(workload, step)
            case Release():
                self._executor.release(workload, step)
            case Go():
                self._executor.go(workload, step.claims)
        return False

    def _open_gates(self, workload: PendingWorkload, step: OpenGates) -> None:
        """Remove the gates of members that have claims.

        ``step`` names the members. If one of their claims is not valid any more, the claims are deleted instead.
        """
        have = [member for member in workload.members if gang_plan.has_claim(self._picture, member)]
        places: dict[Member, Placement] | None = None
        why: Reason | None = None
        try:
            if not workload.is_gang and self._hand_over.has_claim(workload, self._picture.claim_of(workload.lead.pod)):
                reason = Reason(Cause.GPUS, "No place was free.")
                self._executor.hand_over(workload, reason, has_claim=True)
                return
            places = revalidate(self._picture, have, step.members, terms_of(self._picture, workload))
        except WordError as error:
            why = error.why
        if places is not None:
            self._executor.open_gates(workload, places)
            return
        wrong = have if all(member.pod.gated for member in have) else step.members
        claims = tuple(claim for member in wrong if (claim := self._picture.claim_of(member.pod)) is not None)
        self._executor.release(workload, Release(claims, WithdrawReason.OUTDATED, why))

    def _end_others(self, workload: PendingWorkload, ending: EndOthers) -> None:
        """Tell the victims of a workload's preemption to end.

        If the preemption must stop, delete the workload's claims instead. ``ending`` has the claims and the victims.
        """
        self._agenda.add_at(ending.look_at(asyncio.get_running_loop().time()), workload.key)
        self._placer.tell(workload, ending.why)
        if not self._executor.can_write(workload):
            return
        if (why := self._preemptions.stops(workload, ending)) is None:
            self._preemptions.end(workload, ending)
        elif back := tuple(claim for claim in ending.claims if not claim.deleting):
            self._executor.release(workload, Release(back, WithdrawReason.UNENDED, why))
