"""Looks at single pods, and at those of gangs that run: has done for each what its state asks for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from dradriver.allocator.request import NoPlaceError
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.claims.claim_builder import digest
from dradriver.api.vocabulary.values import HAND_OVER
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.records.placement import Placement
from dradriver.controller.loop.preemption import Preemptions
from dradriver.controller.loop.reservations import Reservations
from dradriver.controller.loop.running_gangs import RunningGangs
from dradriver.controller.placing.decide import FEW_NODES, MOST_NODES, decide, revalidate
from dradriver.controller.steps.deadlines import Deadlines
from dradriver.controller.steps.ending import Ending
from dradriver.controller.steps.next_step import next_step
from dradriver.controller.steps.pod_steps import Go, Keep, LetGo, Place, Settle, Wait, Withdraw
from dradriver.controller.steps.withdraw_reasons import WithdrawReason
from dradriver.controller.writing.executor import Executor
from dradriver.controller.writing.gang_writer import GangWriter
from dradriver.controller.writing.reasons import Reasons
from dradriver.queue.agenda import Agenda
from dradriver.queue.caps import CapError, Caps, Left
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.placement_request import why
from dradriver.queue.units import Member, Unit
from dradriver.queue.waiting import Queue
from dradriver.queue.write_lanes import Lanes
from dradriver.reason import Cause, Reason

LOOK_S: Final = 0.25  # between two looks whether a place is free that is about to be
_KEPT: Final = (
    "the pod is not handed over to kube-scheduler, which does not know the partition of tenant {}: remove "
    f"{names.WHEN_FULL}: {HAND_OVER}, or write schedulerPlaced: allow for the tenant"
)
MANY: Final = 16  # waiting pods, from which on the scheduler's time counts more than a choice of nodes


class PodWorker:
    """One look at a time at one pod; the writes are the executor's."""

    def __init__(
        self,
        picture: Picture,
        agenda: Agenda,
        queue: Queue,
        lanes: Lanes,
        reasons: Reasons,
        executor: Executor,
        gang_writer: GangWriter,
        running: RunningGangs,
        caps: Caps,
        reservations: Reservations,
        preemptions: Preemptions,
        tenants: Tenants,
        deadlines: Deadlines,
    ) -> None:
        """Make one that has looked at nothing.

        Args:
            picture: The cluster.
            agenda: Takes the pods that have to be looked at later.
            queue: Orders the pods that wait.
            lanes: Say which unit may be written now.
            reasons: Writes why a pod waits.
            executor: Writes for single pods.
            gang_writer: Writes for pods with a gang barrier.
            running: Finds places for pods of gangs that run.
            caps: Says which GPUs the cap of a tenant leaves to a unit.
            reservations: Says which GPUs are reserved for a unit.
            preemptions: Evicts other pods.
            tenants: Say whether kube-scheduler may place the pods of a namespace.
            deadlines: Says how long to wait.
        """
        self._picture, self._agenda, self._queue, self._lanes = picture, agenda, queue, lanes
        self._reasons, self._executor, self._gang_writer, self._running = reasons, executor, gang_writer, running
        self._caps, self._reservations, self._preemptions = caps, reservations, preemptions
        self._tenants, self._deadlines = tenants, deadlines

    def look(self, unit: Unit) -> bool:
        """Do what a pod's state asks for. Returns whether it asks for nothing more, and may be forgotten."""
        member, now = unit.lead, asyncio.get_running_loop().time()
        step = next_step(
            member,
            self._picture,
            now,
            promise_s=self._deadlines.promise_s,
            unschedulable_s=self._deadlines.unschedulable_s,
        )
        if isinstance(step, Place):
            if (times := member.promise.lost()) > 1:
                unit.failures.lost(now, times)
                self._agenda.add_at(unit.failures.not_before, unit.key)
            else:
                self._want(unit)
            return False
        self._queue.drop(unit.key)
        match step:
            case Keep() if self._lanes.writable(unit.key, unit.order):
                self._keep(unit, member, step)
            case Withdraw() if self._lanes.writable(unit.key, unit.order):
                self._executor.withdraw(unit, member, step)
            case Go() if self._lanes.writable(unit.key, unit.order):
                self._executor.start(unit, lambda slot: self._gang_writer.go((step.claim,), slot))
            case LetGo() if self._lanes.writable(unit.key, unit.order):
                self._executor.start(unit, lambda slot: self._gang_writer.give_back((step.claim,), slot))
            case Ending():
                self._end_others(unit, member, step)
            case Settle() | Wait() if step.untrue:
                if self._lanes.writable(unit.key, unit.order):
                    self._executor.settle(unit, member, step)
            case Settle():
                return True
            case Wait():
                if step.until is not None:
                    self._agenda.add_at(step.until, unit.key)
                if step.reason is not None:
                    self._reasons.want(member.pod, step.reason)
        return False

    def place(self, unit: Unit, rows: Bools | None) -> None:
        """Give a pod its place.

        Args:
            unit: The pod; it leaves the queue.
            rows: The nodes to ask about; None for all.

        Raises:
            NoPlaceError: There is none.
            WordError: What it asks for cannot be read.
        """
        now = asyncio.get_running_loop().time()
        if unit.lead.near and self._picture.gangs.gathers(unit.key):  # those that it came to run no more
            self._queue.leave(unit)
            self._agenda.add_at(now, unit.key)
            return
        if unit.lead.near and self._running.comes_free(unit, now):
            self._queue.leave(unit)
            self._reasons.want(unit.lead.pod, Reason(Cause.GPUS, "the lost pod's GPUs are not free yet"))
            self._agenda.add_at(now + LOOK_S, unit.key)
            return
        left = self._caps.left(unit, self._reservations.whose(unit))
        try:
            placement = self._running.late(unit, left) if unit.lead.near else self._decide(unit, rows, left)
        except NoPlaceError as error:
            raise (error.more(left.why, Cause.CAP) if left.why else error) from None
        self._queue.leave(unit)
        self._executor.place(unit, unit.lead, placement)

    def why(self, unit: Unit, error: NoPlaceError, rows: Bools | None) -> Reason | None:
        """Return what to tell a pod that found no place; None if only a few nodes were asked about."""
        if isinstance(error, CapError):
            return error.why
        return None if rows is not None and not unit.lead.near else why(unit.lead.pod, error)

    def _want(self, unit: Unit) -> None:
        unit.reserved = self._reservations.of(unit)
        try:
            reason = self._queue.put(unit)
        except WordError as error:
            self._queue.drop(unit.key)
            self._reasons.want(unit.lead.pod, error.why)
            return
        if reason is not None:
            self.without_place(unit, reason)

    def without_place(self, unit: Unit, reason: Reason) -> None:
        """Tell a unit why it waits, or hand it over once it has waited: the pod before it may just be ending."""
        # The scheduler knows neither caps nor partitions.
        if unit.lead.wish.alone is not None and not self._caps.closed(unit):
            now = asyncio.get_running_loop().time()
            if tenant := self._tenants.kept_from_scheduler(unit.key[0]):
                reason = reason.add(_KEPT.format(tenant), Cause.RESERVED)
            elif now < (until := unit.looks_since(now) + self._deadlines.hand_over_s):
                self._agenda.add_at(until, unit.key)
            elif self._lanes.obstacle(unit.key, unit.order) is None:
                self._queue.drop(unit.key)
                self._executor.hand_over(unit, unit.lead, reason)
                return
        if not (unit.failures.times and self._reasons.insist(unit.lead.pod)):  # its own trouble says more
            self._reasons.want(unit.lead.pod, self._reservations.told(unit, reason))

    def _end_others(self, unit: Unit, member: Member, ending: Ending) -> None:
        """Have others end for a pod, or give back what it was promised."""
        self._agenda.add_at(ending.look_at(asyncio.get_running_loop().time()), unit.key)
        self._reasons.want(member.pod, ending.why)
        if not self._lanes.writable(unit.key, unit.order):
            return
        if (why := self._preemptions.stops(unit, ending)) is not None:
            self._executor.withdraw(unit, member, Withdraw(ending.claims[0], WithdrawReason.UNENDED, why))
        else:
            self._preemptions.end(unit, ending)

    def _keep(self, unit: Unit, member: Member, step: Keep) -> None:
        try:
            alone = member.wish.alone
            kept = self._tenants.kept_from_scheduler(unit.key[0])
            if alone is not None and not kept and step.claim.handed_over == digest(alone):
                self._executor.hand_over(unit, member, Reason(Cause.GPUS, "there was no place for it"), has_claim=True)
                return
            placement = revalidate(self._picture, member.wish, step.claim)
        except WordError as error:
            self._executor.withdraw(unit, member, Withdraw(step.claim, step.cause, error.why))
            return
        if placement is None:
            self._executor.withdraw(unit, member, Withdraw(step.claim, step.cause))
        else:
            self._executor.lift(unit, member, step.claim, placement)

    def _decide(self, unit: Unit, rows: Bools | None, left: Left) -> Placement:
        most = MOST_NODES if len(self._queue) <= MANY else FEW_NODES
        refused = self._picture.refusals.of(unit.lead.pod, asyncio.get_running_loop().time())
        tried = tuple(unit.failures.tried)
        snapshot = left.snapshot.among(rows, is_few=True)
        for avoid in dict.fromkeys(((*tried, *refused), tried)):
            if avoid:
                with contextlib.suppress(NoPlaceError):
                    return decide(snapshot.avoiding(avoid), unit.lead.wish, most=most)
        placement = decide(snapshot, unit.lead.wish, most=most)
        unit.failures.begin_again()
        return placement
