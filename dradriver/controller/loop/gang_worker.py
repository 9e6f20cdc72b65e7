"""Looks at gangs that have not started, and has done what their states ask for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from dradriver.allocator.fleet.gang_effort import efforts
from dradriver.allocator.request import NoPlaceError
from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import Key, claim_key
from dradriver.api.gangs import gang_of_pod as gang_members
from dradriver.api.gangs.gang_owners import Alone, Rank
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.pods.gang_pods import Membership
from dradriver.cluster.records.placement import Placement
from dradriver.controller import metrics
from dradriver.controller.loop.preemption import Preemptions
from dradriver.controller.loop.reservations import Reservations
from dradriver.controller.loop.running_gangs import RunningGangs
from dradriver.controller.placing import gang_plan
from dradriver.controller.steps.deadlines import Deadlines
from dradriver.controller.steps.ending import Ending
from dradriver.controller.steps.gang_sizes import Sizes, done_of, size_of
from dradriver.controller.steps.gang_step import GiveBack, Go, Lift, Plan, Wait, gang_step, in_order
from dradriver.controller.steps.withdraw_reasons import WithdrawReason
from dradriver.controller.writing.executor import OBJECT_BACKOFF_S, PROMISE_BACKOFF_S, Executor, longest_backoff_s
from dradriver.controller.writing.gang_writer import GangWriter
from dradriver.controller.writing.reasons import Reasons
from dradriver.queue.agenda import Agenda
from dradriver.queue.caps import CapError, Caps
from dradriver.queue.units import Member, Unit
from dradriver.queue.waiting import Queue
from dradriver.queue.write_lanes import Lanes, Slot
from dradriver.reason import Cause, Reason

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.001  # from one look at a gang to the next, for each of its pods: each looks at all of them
LONGEST_LOOK_S: Final = 0.2
STUCK_S: Final = 60.0  # that a gang whose pods may go to a few nodes only looks for places among these


class GangWorker:
    """One look at a time at one gang; the writes are the executor's."""

    def __init__(
        self,
        picture: Picture,
        agenda: Agenda,
        queue: Queue,
        lanes: Lanes,
        reasons: Reasons,
        executor: Executor,
        writer: GangWriter,
        sizes: Sizes,
        running: RunningGangs,
        caps: Caps,
        reservations: Reservations,
        preemptions: Preemptions,
        deadlines: Deadlines,
    ) -> None:
        """Make one that has looked at nothing.

        Args:
            picture: The cluster.
            agenda: Takes the pods and gangs that have to be looked at, now or later.
            queue: Orders the gangs that wait.
            lanes: Say which unit may be written now.
            reasons: Writes why a pod waits.
            executor: Runs the writes of a gang.
            writer: Makes the writes of a gang.
            sizes: Say how many pods the owner of a gang wants.
            running: Restarts gangs whose plan holds no more.
            caps: Says which GPUs the cap of a tenant leaves to a unit.
            reservations: Says which GPUs are reserved for a unit.
            preemptions: Evicts other pods.
            deadlines: Says how long to wait.
        """
        self._picture, self._agenda, self._queue, self._lanes = picture, agenda, queue, lanes
        self._reasons, self._executor, self._writer, self._sizes = reasons, executor, writer, sizes
        self._running, self._caps, self._reservations, self._preemptions = running, caps, reservations, preemptions
        self._deadlines = deadlines
        self._later: set[Key] = set()

    def looks_later(self, unit: Unit) -> bool:
        """Return whether a gang was looked at a moment ago: later it is looked at once for all that happens meanwhile.

        Each of its pods and claims changes several times on the way to its seat. Not of one that wants a place: it is
        asked with what is so now.
        """
        if unit.key in self._queue or asyncio.get_running_loop().time() >= unit.look_again_at:
            self._later.discard(unit.key)
            return False
        if unit.key not in self._later:
            self._later.add(unit.key)
            self._agenda.add_at(unit.look_again_at, unit.key)
        return True

    def look_now(self, gangs: Mapping[Key, Unit]) -> None:
        """Have those looked at that would be later."""
        for key in self._later:
            if (unit := gangs.get(key)) is not None:
                unit.look_again_at = 0.0
            self._agenda.add(key)
        self._later.clear()

    def forget(self, key: Key) -> None:
        """Forget a unit: one of its name that comes later has nothing planned."""
        self._later.discard(key)
        self._running.forget(key)

    def gathered(self, unit: Unit | None, key: Key, alone: Sequence[Member], highest: int | None = None) -> Unit:
        """Return a gang as it is now: the same unit as before, if there was one, with the pods that live.

        Args:
            unit: The unit that it was; None for none.
            key: The gang.
            alone: Those that each were a unit of its own; they keep what they were promised, and since when.
            highest: The highest priority that counts for it; None for any.
        """
        known = {member.uid: member for member in (*alone, *(() if unit is None else unit.members))}
        members: list[tuple[Member, Rank | None]] = []
        changed = unit is None or bool(alone)
        for pod_key in self._picture.gangs.pods(key):
            pod = self._picture.pods[pod_key]
            template, where = self._picture.templates.of(pod), self._picture.volumes.of(pod)
            if (member := known.get(pod.metadata.uid)) is None:
                member, changed = Member(pod, template, where), True
            elif member.update(pod, template, where):
                changed = True
            member.near = key[1]
            members.append((member, self._picture.gangs.rank(pod_key)))
        ordered = in_order(members)
        if unit is None:
            return Unit(*ordered, key=key, highest=highest)
        unit.members, before = ordered, len(unit.members)
        if changed or len(ordered) != before:
            self._queue.drop(key)  # it asks for something else, and may find a place by now
            unit.forgive()
            unit.trust(highest)
        return unit

    def look(self, unit: Unit) -> None:
        """Do what a gang's state asks for."""
        now = asyncio.get_running_loop().time()
        unit.gathered_at(now)
        unit.look_again_at = now + min(LONGEST_LOOK_S, LOOK_S * len(unit.members))
        if self._picture.barrier is None:
            return  # it is looked at again once that is known
        first = self._picture.gangs.said(unit.key)
        size = size_of(unit.key, first, self._sizes)
        if isinstance(size, Alone) and not gang_members.must_wait(first.wants):
            for pod in self._picture.gangs.dissolve(unit.key):
                self._agenda.add(pod)
            return
        step = gang_step(
            unit,
            self._picture,
            Reason(Cause.GANG, size.why) if isinstance(size, Alone) else size,
            now,
            done=done_of(self._picture.gangs, first, self._sizes),
            promise_s=self._deadlines.promise_s,
            unschedulable_s=self._deadlines.unschedulable_s,
        )
        if isinstance(step, (Plan, Wait)) and (nominated := self._nominated(unit)):
            if self._lanes.writable(unit.key, unit.order):
                self._executor.start(unit, lambda slot: self._writer.unnominate(nominated, slot))
            return
        if isinstance(step, Plan):
            unit.wanting, unit.least = frozenset(step.members), step.least
            if unit.whole(step.least):
                for member in unit.members:
                    self._reasons.soon(member.key)  # they were told how many are there
            if step.until is not None:
                self._agenda.add_at(step.until, unit.key)
            self._want(unit)
            return
        self._queue.drop(unit.key)
        match step:
            case Wait():
                if step.until is not None:
                    self._agenda.add_at(step.until, unit.key)
                if step.reason is not None:
                    self._tell(unit, step.reason)
            case _ if not self._lanes.writable(unit.key, unit.order):
                return  # it is looked at again when it may be written
            case Lift():
                self._lift(unit, step, first)
            case Go():
                self._executor.start(unit, lambda slot: self._writer.go(step.claims, slot))
            case GiveBack():
                self.give_back(unit, step)
            case Ending():
                self._end_others(unit, step, now)

    def _end_others(self, unit: Unit, ending: Ending, now: float) -> None:
        """Have others end for a gang, or give back what it was promised."""
        self._agenda.add_at(ending.look_at(now), unit.key)
        self._tell(unit, ending.why)
        if (why := self._preemptions.stops(unit, ending)) is None:
            self._preemptions.end(unit, ending)
        elif back := tuple(claim for claim in ending.claims if not claim.deleting):
            self.give_back(unit, GiveBack(back, WithdrawReason.UNENDED, why))

    def _plan(self, unit: Unit) -> dict[Member, Placement]:
        """Return places for those of a gang's members that want one.

        Raises:
            NoPlaceError: There are not enough.
            WordError: What one of them asks for cannot be read, or no gang can have it.
        """
        first = self._picture.gangs.said(unit.key)
        left = self._caps.left(unit, self._reservations.whose(unit))
        wanting = frozenset(left.members)
        chosen = [member for member in unit.members if member in wanting or gang_plan.has_claim(self._picture, member)]
        refused = {
            node: None
            for member in chosen
            for node in self._picture.refusals.of(member.pod, asyncio.get_running_loop().time())
        }
        tried = tuple(unit.failures.tried)
        avoids = list(dict.fromkeys(((*tried, *refused), tried, ())))
        for avoid, effort in zip(avoids, efforts(len(avoids)), strict=True):
            try:
                places = gang_plan.plan(
                    left.snapshot.avoiding(avoid), chosen, first.wants,
                    identity=first.member.identity, least=unit.least, effort=effort,
                )  # fmt: skip
            except NoPlaceError as error:
                if not avoid:  # pods are told no figures that change
                    stable = NoPlaceError(error.stable, cause=error.cause)
                    raise (stable.more(left.why, Cause.CAP) if left.why else stable) from None
            else:
                if not avoid:
                    unit.failures.begin_again()
                return places
        raise AssertionError("the last of them avoids nothing")

    def place(self, unit: Unit, _: Bools | None) -> None:
        """Give those of a gang's members their places that want one; it leaves the queue.

        Raises:
            NoPlaceError: There are not enough.
            WordError: What one of them asks for cannot be read, or no gang can have it.
        """
        plan = self._plan(unit)
        unit.finds_place()
        self._queue.leave(unit)
        self._commit(unit, plan)

    def why(self, unit: Unit, error: NoPlaceError, _: Bools | None) -> Reason:
        """Return what to tell the pods of a gang that found no place."""
        if isinstance(error, CapError) or all(member.pod.gated for member in unit.members):
            return error.why
        text = f"some pods of its gang may go to few nodes only, those of an earlier plan, and there: {error}"
        return Reason(error.cause, text)

    def _commit(self, unit: Unit, plan: dict[Member, Placement]) -> None:
        """Write a plan; what it takes is promised from now on."""
        for member, placement in plan.items():
            self._picture.promise(member.wish.claim, member.key, placement)
        nodes = list(dict.fromkeys(placement.node for placement in plan.values()))
        logger.info("gang %s/%s: %d pods on nodes %s", *unit.key, len(plan), nodes[:16])
        self._executor.start(unit, lambda slot: self._writer.commit(plan, slot), creates=True)

    def give_back(self, unit: Unit, step: GiveBack) -> None:
        """Take claims back."""
        self._executor.start(unit, lambda slot: self._give_back(unit, step, slot))

    async def _give_back(self, unit: Unit, step: GiveBack, slot: Slot) -> None:
        await self._writer.give_back(step.claims, slot)
        metrics.WITHDRAWALS.labels(step.cause.value).inc(len(step.claims))
        metrics.GIVEN_BACK.labels(step.cause.value).inc()
        taken = {claim.key for claim in step.claims}
        for member in unit.members:
            if claim_key(member.pod) in taken:
                member.promise.taken_back(member.pod.refused, renewed=False)
        if step.reason is None:
            self._executor.begin_anew(unit, step.cause)
            return
        logger.info("gang %s/%s: its GPUs are free again: %s", *unit.key, step.reason)
        now = asyncio.get_running_loop().time()
        for claim in step.claims:
            for member in step.refused:
                if claim.owned_by(member.uid) and claim.pin is not None:
                    unit.failures.tried.append(claim.pin.choice.node)
                    self._picture.refusals.add(member.pod, claim.pin.choice.node, now)
        quick = step.cause is WithdrawReason.UNSCHEDULABLE and not unit.failures.times
        first_s = OBJECT_BACKOFF_S if quick else PROMISE_BACKOFF_S
        self._executor.fail(unit, step.reason, first_s=first_s, longest_s=longest_backoff_s(step.cause))

    def _lift(self, unit: Unit, step: Lift, first: Membership) -> None:
        have = [member for member in unit.members if gang_plan.has_claim(self._picture, member)]
        places, why = None, None
        try:
            places = gang_plan.revalidate(self._picture, have, step.members, first.wants)
        except WordError as error:
            why = error.why
        if places is not None:
            self._executor.start(unit, lambda slot: self._writer.lift(places, slot))
            return
        wrong = have if all(member.pod.gated for member in have) else step.members
        claims = tuple(claim for member in wrong if (claim := self._picture.claim_of(member.pod)) is not None)
        self.give_back(unit, GiveBack(claims, WithdrawReason.OUTDATED, why))

    def _want(self, unit: Unit) -> None:
        unit.reserved = self._reservations.of(unit)
        try:
            for member in unit.members:
                if member in unit.wanting or gang_plan.has_claim(self._picture, member):
                    _ = member.wish
            reason = self._queue.put(unit)
        except WordError as error:
            self._queue.drop(unit.key)
            self._tell(unit, error.why)
            return
        if reason is not None:
            self.without_place(unit, reason)

    def _nominated(self, unit: Unit) -> tuple[Member, ...]:
        """Return the members for which CPU is kept on nodes that no plan gives them any more."""
        gated = [member for member in unit.members if member.pod.gated and member.may_nominate]
        return tuple(m for m in gated if m.pod.status.nominated_node_name and not gang_plan.has_claim(self._picture, m))

    def without_place(self, unit: Unit, reason: Reason) -> None:
        """Tell a gang's pods why they wait; have those made anew that may go to few nodes only, and wait for long."""
        if any(not member.pod.gated for member in unit.members) and not self._queue.closed(unit.key):
            now = asyncio.get_running_loop().time()
            if now < (until := unit.looks_since(now) + STUCK_S):
                self._agenda.add_at(until, unit.key)
            else:
                pods = [member.pod for member in unit.members]
                self._running.anew(unit.key, pods, f"there is no place for it within its nodes: {reason}")
        self._tell(unit, self._reservations.told(unit, reason))

    def _tell(self, unit: Unit, reason: Reason) -> None:
        for member in unit.members:
            if not (unit.failures.times and self._reasons.insist(member.pod)):  # why it failed says more
                self._reasons.want(member.pod, reason)
