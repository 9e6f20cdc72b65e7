"""Does what was decided, for many pods at once, and sees to whatever comes of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from dradriver.api.claims.pins import claim_key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller import metrics
from dradriver.controller.steps.pod_steps import Settle, Wait, Withdraw
from dradriver.controller.steps.withdraw_reasons import WithdrawReason, again
from dradriver.controller.writing.api_writer import ApiWriter
from dradriver.controller.writing.outcome import (
    CrowdedError,
    MovedOnError,
    Outcome,
    PausedError,
    RefusedError,
    UnsureError,
    outcome,
    reason_of,
)
from dradriver.controller.writing.placed import Placed
from dradriver.controller.writing.reasons import Reasons
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Unreachable
from dradriver.queue.agenda import Agenda
from dradriver.queue.backoffs import LONGEST_BACKOFF_S
from dradriver.queue.unit_register import UnitRegister
from dradriver.queue.units import Member, Unit
from dradriver.queue.write_lanes import SLOW_S, Lanes, Slot
from dradriver.reason import Cause, Reason

logger = logging.getLogger(__name__)

SERVER_BACKOFF_S: Final = 1.0  # for one unit; the lanes pause all
ALONE: Final = 3  # times that one unit met the server's trouble while others' writes went well
OBJECT_BACKOFF_S: Final = 1.0
PROMISE_BACKOFF_S: Final = 5.0
# The longest wait of a unit for which others could not be ended: these are left alone, and it may have others ended.
REFUSED_BACKOFF_S: Final = 8.0
MOST_READS: Final = 16  # at once, of one gang
QUICK: Final = 0.25  # of the time that a write hangs: a server that reads in less is not what holds it up
OWN_ERROR: Final = Reason(Cause.SERVER, "an error in the controller, see its log")

Action = Coroutine[Any, Any, None]
"""Writes for one unit, under way."""


def longest_backoff_s(cause: WithdrawReason) -> float:
    """Return for how many seconds a unit waits at most that was failed so and has lost what it was promised."""
    return REFUSED_BACKOFF_S if cause is WithdrawReason.UNENDED else LONGEST_BACKOFF_S


class Executor:
    """One task for each unit that is written; the unit is busy until it ends, and is then looked at again.

    Whatever goes wrong with one unit (a refusal, somebody's webhook, a bug) costs that unit a pause and a reason, and
    nobody else anything. Only trouble with the server stops all.
    """

    def __init__(
        self,
        writer: ApiWriter,
        lanes: Lanes,
        picture: Picture,
        reasons: Reasons,
        placed: Placed,
        agenda: Agenda,
        units: UnitRegister,
    ) -> None:
        """Make an executor with nothing to do.

        Args:
            writer: Makes single writes.
            lanes: Say how many may be under way; ask them before each step.
            picture: The cluster.
            reasons: Told why a unit has to wait.
            placed: Told of each placement.
            agenda: Takes the units that have to be looked at again, now or later.
            units: The units that are looked after.
        """
        self._writer = writer
        self._lanes = lanes
        self._picture = picture
        self._reasons = reasons
        self._placed = placed
        self._agenda = agenda
        self._units = units
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def one_done(self) -> None:
        """Wait until one of the tasks has ended; raises what is meant to end the process."""
        for task in (await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
            task.result()

    async def stop(self) -> None:
        """End all that is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Steps.

    def place(self, unit: Unit, member: Member, placement: Placement) -> None:
        """Create a pod's claim, or let it share the one of others, and let the scheduler have the pod.

        Its GPUs are promised from now on.
        """
        if placement.joins:
            self._picture.joins(member.key, placement.node)
            self.start(unit, lambda slot: self._join(member, placement, slot))
            return
        self._picture.promise(member.wish.claim, member.key, placement)
        self.start(unit, lambda slot: self.write_place(member, placement, slot), creates=True)

    def hand_over(self, unit: Unit, member: Member, why: Reason, *, has_claim: bool = False) -> None:
        """Let the scheduler have a pod for which there is no place, with a new claim, unless it has one for that."""
        self.start(unit, lambda slot: self._hand_over(member, why, slot, has_claim=has_claim), creates=not has_claim)

    def lift(self, unit: Unit, member: Member, claim: ClaimRecord, placement: Placement) -> None:
        """Lift the gate of a pod that has its claim."""
        self.start(unit, lambda _: self._lift(member, claim, placement))

    def withdraw(self, unit: Unit, member: Member, step: Withdraw) -> None:
        """End the promise that a pod has."""
        self.start(unit, lambda _: self._withdraw(unit, member, step))

    def settle(self, unit: Unit, member: Member, step: Settle | Wait) -> None:
        """Put a pod's annotations right, and make it an owner of the claim that it shares, as the step says."""
        self.start(unit, lambda slot: self._settle(member, step, slot))

    def ask(self, unit: Unit) -> None:
        """Find out whether the claims of a unit's pods were created."""
        self.start(unit, lambda _: self._ask(unit))

    def fail(
        self,
        unit: Unit,
        reason: Reason,
        *,
        first_s: float = OBJECT_BACKOFF_S,
        longest_s: float = LONGEST_BACKOFF_S,
        in_turn: bool = False,
    ) -> None:
        """Let a unit wait, each time twice as long, and say why; ``in_turn``: that costs it no turn."""
        if not in_turn:
            unit.fall_back(self._units.newest)
        unit.failures.back_off(asyncio.get_running_loop().time(), first_s=first_s, longest_s=longest_s)
        unit.failures.times += 1
        self._wait(unit, reason)

    def begin_anew(self, unit: Unit, cause: WithdrawReason) -> None:
        """Let a unit begin anew whose claims were taken back; where that goes on, later each time, and say why."""
        if unit.failures.begins_anew(asyncio.get_running_loop().time()):
            self._wait(unit, again(cause))

    def release(self, unit: Unit) -> None:
        """Forget the claims that were to be created for a unit's pods and are not known to be there."""
        for member in unit.members:
            if (claim := claim_key(member.pod)) is not None:
                self._picture.release(claim)

    def _wait(self, unit: Unit, reason: Reason) -> None:
        self._agenda.add_at(unit.failures.not_before, unit.key)
        for member in unit.members:
            pod = self._picture.pods.get(member.key)
            if pod is not None and pod.metadata.uid == member.uid and not pod.spec.node_name:
                self._reasons.want(pod, reason, own=True)

    # What comes of them.

    def start(self, unit: Unit, action: Callable[[Slot], Action], *, creates: bool = False) -> None:
        """Do something for a unit; ``creates`` says whether claims are made, which a quota counts."""
        unit.busy += 1
        # At once: when the task begins, the next one may have been decided on.
        slot = self._lanes.take(unit.key[0], lambda slot: self._spawn(self._let_go(unit, slot)))
        task = self._spawn(self._run(unit, action(slot), creates=creates))
        task.add_done_callback(lambda _: slot.give_back())

    def _spawn(self, action: Action) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(action)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, unit: Unit, action: Action, *, creates: bool) -> None:
        try:
            await action
            self._lanes.succeeded(created_in=unit.key[0] if creates else "")
            unit.failures.written()
        except MovedOnError as error:
            logger.info("pod %s/%s: %s; looking again", *unit.key, error)
            self._lanes.succeeded()
            # A gated pod may go on with what was read since; the claim of a lifted one the scheduler may be allocating.
            gated = all(member.pod.gated for member in unit.members)
            unit.failures.moved(asyncio.get_running_loop().time(), at_once=gated)
        except CrowdedError as error:
            logger.info("pod %s/%s: %s; trying again in its turn", *unit.key, error)
            self._lanes.succeeded()
            self._lanes.crowded(unit.key[0])
        except PausedError as error:
            logger.info("pod %s/%s: %s; going on after it", *unit.key, error)
        except UnsureError as error:
            logger.warning("pod %s/%s: %s; asking the server what became of it", *unit.key, error)
            if isinstance(error.__cause__, DriverError) and outcome(error.__cause__) is Outcome.SERVER:
                self._lanes.failed(error.__cause__)
            unit.unsure = True
            if not self._units.has(unit):
                self.release(unit)  # nobody asks any more; if a claim is there, the reflector shows it
            unit.failures.pause(asyncio.get_running_loop().time(), SERVER_BACKOFF_S)
        except (ApiError, Unreachable) as error:
            logger.warning("pod %s/%s: %s", *unit.key, error)
            concern = outcome(error)
            if concern is Outcome.SERVER:
                self._lanes.failed(error)
                # The pause of all is its own, too, and then it is in its turn; unless it goes on meeting it alone.
                if unit.failures.meets_trouble(self._lanes.successes) >= ALONE:
                    unit.failures.pause(asyncio.get_running_loop().time(), SERVER_BACKOFF_S)
            else:
                if isinstance(error, ApiError) and error.status < 500:
                    self._lanes.succeeded()
                self.fail(unit, reason_of(error), in_turn=concern is Outcome.MOMENT)
        except RefusedError as error:
            self.fail(unit, Reason(Cause.POD, str(error)), longest_s=REFUSED_BACKOFF_S)
        except DriverError as error:
            self.fail(unit, Reason(Cause.POD, str(error)))
        except Exception:
            logger.exception("pod %s/%s: an error in this program; trying again later", *unit.key)
            self.fail(unit, OWN_ERROR)
        finally:
            unit.busy -= 1
            self._agenda.add(unit.key)

    async def _let_go(self, unit: Unit, slot: Slot) -> None:
        """Take back the GPUs of a unit of which a write hangs: somebody's webhook may hold it up for long.

        Unless it is the server that is slow, for all: then nobody else could have it sooner, and a pod that is lifted
        after all would have lost its GPUs. No webhook is asked about reading, so reading tells the two apart.
        The write goes on. Were it ended after a time, a server that takes longer for each would never have done one.
        """
        clock = asyncio.get_running_loop().time
        write, pause_s = slot.since, SLOW_S
        while write is not None and slot.since == write:
            began = clock()
            try:
                late = await self._late(unit)
                if not late:
                    return  # only the answer is
                quick = clock() - began < (began - write) * QUICK
                if quick and slot.since == write and not self._lanes.paused():
                    unit.busy += 1  # whoever looks at it meanwhile would count on what is being taken back
                    try:
                        for member in late:
                            await self._take_back(member, slot)
                    finally:
                        unit.busy -= 1
                        self._agenda.add(unit.key)
                    return
            except DriverError as error:
                logger.warning("pod %s/%s: a write hangs, and %s", *unit.key, error)
                if outcome(error) is Outcome.SERVER:
                    self._lanes.failed(error)
                pause_s *= 2
            await asyncio.sleep(pause_s)

    async def _late(self, unit: Unit) -> list[Member]:
        """Return the members of a unit whose pods are gated still, as the server has them, all of them asked at once.

        One after another a gang's would take so long that the server seems slow.
        """
        room, members = asyncio.Semaphore(MOST_READS), unit.members  # others may come meanwhile

        async def lifted(member: Member) -> bool:
            async with room:
                return await self._writer.pods.lifted(member.pod) and member.pod.gated

        found = await asyncio.gather(*map(lifted, members), return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return [member for member, one in zip(members, found, strict=True) if not one]

    async def _take_back(self, member: Member, slot: Slot) -> None:
        if (key := claim_key(member.pod)) is None:
            return
        self._picture.release(key)
        claim = self._picture.claims.get(key)
        if (
            member.pod.gated
            and claim is not None
            and not claim.handed_over  # it keeps nothing from anybody
            and claim.owned_by(member.uid)
            and claim.devices is None
            and not claim.deleting
        ):
            slot.revoked = True  # what is still to be written counts on the claim
            await self._writer.withdraw(claim)

    def go_on(self, slot: Slot) -> None:
        """Say that the next write of several begins; raises what ``ApiWriter.go_on`` does."""
        self._writer.go_on(slot)

    async def stand(self, claims: Iterable[ClaimRecord]) -> bool:
        """Ask the server whether promises stand; raises what ``ApiWriter.look`` does."""
        for claim in claims:
            known = await self._writer.look(claim.key)
            if known is None or known.uid != claim.uid or known.deleting or known.devices is not None:
                return False
        return True

    async def write_place(self, member: Member, placement: Placement, slot: Slot) -> None:
        """Write a placement that is promised already: what ``place`` starts."""
        began = asyncio.get_running_loop().time()
        pod, wish = member.pod, member.wish
        try:
            if pod.gated:
                await self._writer.place(pod, wish, placement, slot)
            else:
                await self._writer.place_again(pod, wish, placement, slot)
        except UnsureError:
            raise
        except BaseException:
            self._picture.release(wish.claim)
            raise
        self._lifted(member, placement, began)

    async def _join(self, member: Member, placement: Placement, slot: Slot) -> None:
        began = asyncio.get_running_loop().time()
        try:
            await self._writer.join(member.pod, placement, slot)
        finally:
            self._picture.joined(member.key)
        self._lifted(member, placement, began)

    async def _hand_over(self, member: Member, why: Reason, slot: Slot, *, has_claim: bool) -> None:
        reason = Reason(why.cause, f"handed over to the scheduler: {why}")
        await self._writer.hand_over(member.pod, member.wish, reason.text, slot, has_claim=has_claim)
        if member.pod.gated:
            self._reasons.taken_away(member.key)
        else:
            self._reasons.want(member.pod, reason)
        logger.info("pod %s/%s: handed over to the scheduler: %s", *member.key, why)

    async def _lift(self, member: Member, claim: ClaimRecord, placement: Placement) -> None:
        began = asyncio.get_running_loop().time()
        await self._writer.lift_or_withdraw(member.pod, claim, placement)
        self._lifted(member, placement, began)

    def _lifted(self, member: Member, placement: Placement, began: float) -> None:
        self._reasons.taken_away(member.key)
        if member.pod.gated:
            self._placed.lifted(member, placement, began)

    async def _withdraw(self, unit: Unit, member: Member, step: Withdraw) -> None:
        await self._writer.withdraw(step.claim)
        member.promise.taken_back(member.pod.refused, renewed=step.cause is WithdrawReason.OVERLOOKED)
        metrics.WITHDRAWALS.labels(step.cause.value).inc()
        if step.cause is WithdrawReason.BYPASSED:
            logger.info("pod %s/%s: its GPUs are free again: %s", *member.key, step.reason)
            return  # it is told why when it is looked at again
        if step.reason is None:
            self.begin_anew(unit, step.cause)
        elif step.claim.pin is not None:
            node = step.claim.pin.choice.node
            logger.info("pod %s/%s: its GPUs on node %s are free again: %s", *member.key, node, step.reason)
            if (
                step.cause is not WithdrawReason.UNSCHEDULABLE
            ):  # the scheduler may just be slow there, with a volume perhaps
                self.fail(unit, step.reason, first_s=PROMISE_BACKOFF_S, longest_s=longest_backoff_s(step.cause))
                return
            unit.failures.tried.append(node)
            now = asyncio.get_running_loop().time()
            self._picture.refusals.add(member.pod, node, now)
            # While it goes through its nodes for the first time it keeps little from others; after that it would much.
            first_s = PROMISE_BACKOFF_S if unit.failures.times else OBJECT_BACKOFF_S
            unit.fall_back(self._units.newest)
            unit.failures.back_off(now, first_s=first_s)
            self._wait(unit, step.reason)

    async def _settle(self, member: Member, step: Settle | Wait, slot: Slot) -> None:
        if step.joins is not None:
            await self._writer.owners.adopt(member.pod, step.joins.uid)
            slot.begin()
        await self._writer.pods.annotate(member.pod, step.texts)

    async def _ask(self, unit: Unit) -> None:
        for member in unit.members:
            if (claim := claim_key(member.pod)) is not None and await self._writer.look(claim) is None:
                self._picture.release(claim)
        unit.unsure = False
