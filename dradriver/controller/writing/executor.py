"""Runs the writes of many workloads at once, and handles their results.

``StepRunner``, ``Placer``, ``Turn`` and ``Preemptions`` call it.

A *workload* is a single pod or a gang. A *plan* is the chosen places (node and GPUs) of its pods. The *agenda* lists
the pods and gangs that the controller processes next. The *write lanes* limit for how many workloads the controller
writes objects at once. To *revoke* a claim is to delete it, so that other pods can get its GPUs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final

from dradriver.api.claims.pins import claim_key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller import metrics
from dradriver.controller.steps.actions import Release, Settle
from dradriver.controller.steps.withdraw_reasons import WithdrawReason, again
from dradriver.controller.writing.api_writer import ApiWriter
from dradriver.controller.writing.commit import Commit
from dradriver.controller.writing.reasons import Reasons
from dradriver.controller.writing.write_outcome import (
    CrowdedError,
    MovedOnError,
    Outcome,
    PausedError,
    RefusedError,
    UnsureError,
    outcome,
    reason_of,
)
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Unreachable
from dradriver.queue.agenda import Agenda
from dradriver.queue.backoffs import LONGEST_BACKOFF_S
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.queue.workload_register import WorkloadRegister
from dradriver.queue.write_lanes import SLOW_S, Lanes, Slot
from dradriver.reason import Cause, Reason

logger = logging.getLogger(__name__)

SERVER_BACKOFF_S: Final = 1.0  # for one workload; the lanes pause all
ALONE: Final = 3  # times that one workload met the server's trouble while others' writes went well
OBJECT_BACKOFF_S: Final = 1.0
PROMISE_BACKOFF_S: Final = 5.0
# The longest wait of a workload for which others could not be ended: it may have other pods ended.
REFUSED_BACKOFF_S: Final = 8.0
MOST_READS: Final = 16  # at once, of one gang
QUICK: Final = 0.25  # of the time that a write hangs: a server that reads in less is not what holds it up
_SHOWN: Final = 16  # nodes in one line of the log
OWN_ERROR: Final = Reason(Cause.SERVER, "The controller failed because of a bug, see its log.")

Action = Coroutine[Any, Any, None]
"""Writes for one workload, under way."""


class Executor:
    """Runs the writes of workloads, one task for each workload.

    A workload is busy until its task ends, and is then processed again. If something goes wrong with one workload (a
    refusal, a webhook, a bug), only that workload waits, and its pods show why. Trouble with the API server stops all
    workloads.
    """

    def __init__(
        self,
        commit: Commit,
        writer: ApiWriter,
        lanes: Lanes,
        picture: Picture,
        reasons: Reasons,
        agenda: Agenda,
        workloads: WorkloadRegister,
    ) -> None:
        """Make an executor without tasks.

        Args:
            commit: Writes decisions.
            writer: Reads the outcome of writes that hang, and deletes their claims.
            lanes: Limit how many writes run at once.
            picture: The cluster cache.
            reasons: Writes why a workload has to wait.
            agenda: Takes the workloads that have to be processed again, now or later.
            workloads: The register of workloads.
        """
        self.commit = commit
        self._writer, self._lanes, self._picture, self._reasons = writer, lanes, picture, reasons
        self._agenda, self._workloads = agenda, workloads
        self._tasks: set[asyncio.Task[None]] = set()  # the writes that run now

    def can_write(self, workload: PendingWorkload) -> bool:
        """Return whether writes for a workload may begin now.

        If not, the workload is processed again when they may.
        """
        return self._lanes.writable(workload.key, workload.order)

    def __len__(self) -> int:
        return len(self._tasks)

    async def one_done(self) -> None:
        """Wait until one of the executor's tasks has ended.

        If that task failed with an error that must end the process, the error is raised.
        """
        for task in (await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
            task.result()

    async def stop(self) -> None:
        """Cancel all tasks of the executor, and wait until they have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What is written.

    def place(self, workload: PendingWorkload, plan: Mapping[Member, Placement]) -> None:
        """Start the writes of a plan.

        From now on, its GPUs count as used, and its pods count as waiting for their schedulers.
        """
        for member in plan:
            self._lanes.lifted(member.key, member.scheduler)
        if (joining := next((member for member, place in plan.items() if place.joins), None)) is not None:
            place = plan[joining]
            self._picture.joins(joining.key, place.node)
            self.start(workload, lambda slot: self.commit.join(joining, place, slot))
            return
        for member, place in plan.items():
            self._picture.promise(member.wish.claim, member.key, place)
        if len(plan) > 1:
            nodes = list(dict.fromkeys(place.node for place in plan.values()))
            logger.info("gang %s/%s: %d pods on nodes %s", *workload.key, len(plan), nodes[:_SHOWN])
        self.start(workload, lambda slot: self.commit.place(plan, slot), creates=True)

    def open_gates(self, workload: PendingWorkload, places: Mapping[Member, Placement]) -> None:
        """Start to remove the gates of the pods of ``places``, which have their claims."""
        self.start(workload, lambda slot: self.commit.open_gates(places, slot))

    def hand_over(self, workload: PendingWorkload, why: Reason, *, has_claim: bool = False) -> None:
        """Start the writes that let kube-scheduler place a single pod.

        If not ``has_claim``, they create the pod's claim first. ``why`` is the reason to show on the pod.
        """
        self.start(
            workload, partial(self.commit.hand_over, workload.lead, why, has_claim=has_claim), creates=not has_claim
        )

    def go(self, workload: PendingWorkload, claims: Iterable[ClaimRecord]) -> None:
        """Start the writes that tell the scheduler to bind the pods of a gang.

        Until then, devices in the ``claims`` keep them unbound.
        """
        self.start(workload, lambda slot: self.commit.go(claims, slot))

    def settle(self, workload: PendingWorkload, step: Settle) -> None:
        """Start to correct a workload's pods, for example their annotations, as ``step`` says."""
        self.start(workload, lambda slot: self.commit.settle(workload.lead, step, slot))

    def release(self, workload: PendingWorkload, step: Release) -> None:
        """Start to delete claims of a workload, as ``step`` says.

        If ``step`` has a cause and a reason, an unbound workload then waits before its next try. Without a reason it
        waits only if that happened a short time ago, too.
        """
        self.start(workload, lambda slot: self._release(workload, step, slot))

    async def _release(self, workload: PendingWorkload, step: Release, slot: Slot) -> None:
        """Delete the claims of ``step``, count them in metrics, and decide the next try.

        ``slot`` is the workload's right to write.
        """
        # 1. Delete the claims. Without a cause that is all: the workload did not lose a placement.
        await self.commit.release(step.claims, slot)
        if step.cause is None:
            return
        # 2. Count it, also against a scheduler that did not bind the pods in time (``silent``).
        metrics.WITHDRAWALS.labels(step.cause.value).inc(len(step.claims))
        if workload.is_gang:
            metrics.GIVEN_BACK.labels(step.cause.value).inc()
        if step.cause is WithdrawReason.OVERDUE:
            self._lanes.silent([member.key for member in workload.members])
        # 3. Remember what the scheduler said last (``refused``): for the next claim only a later message counts.
        released = {claim.key for claim in step.claims}
        for member in workload.members:
            if claim_key(member.pod) in released:
                is_renewed = step.cause is WithdrawReason.OVERLOOKED
                member.memory = member.memory.revoked(member.pod.refused, renewed=is_renewed)
        # 4. Have the workload tried again. Without a reason that is at once, unless it is revoked again and again.
        if step.reason is None:
            self.begin_anew(workload, step.cause)
            return
        nodes = [claim.pin.choice.node for claim in step.claims if claim.pin is not None]
        logger.info("%s/%s: its GPUs on nodes %s are free again: %s", *workload.key, nodes[:_SHOWN], step.reason)
        if step.cause is WithdrawReason.BYPASSED:
            return  # it is told why when it is looked at again
        # The scheduler finds no room for the members ``step.refused`` on their nodes: the next plans avoid these nodes.
        now = asyncio.get_running_loop().time()
        workload.failures.refusals += bool(step.refused)
        for claim in step.claims:
            for member in step.refused:
                if claim.owned_by(member.uid) and claim.pin is not None:
                    workload.failures.tried.append(claim.pin.choice.node)
                    self._picture.refusals.add(member.pod, claim.pin.choice.node, now)
        # The first time a workload goes through its nodes, it keeps GPUs from others only for a short time. If it
        # begins again and again, that adds up: then the pause is longer.
        is_first = step.cause is WithdrawReason.UNSCHEDULABLE and not workload.failures.times
        self.fail(
            workload,
            step.reason,
            first_s=OBJECT_BACKOFF_S if is_first else PROMISE_BACKOFF_S,
            longest_s=REFUSED_BACKOFF_S if step.cause is WithdrawReason.UNENDED else LONGEST_BACKOFF_S,
            # A single pod tries its few nodes without a longer wait before each. A pod that may use any node waits.
            counts=workload.is_gang or step.cause is not WithdrawReason.UNSCHEDULABLE or workload.is_open,
            in_vain=step.cause in (WithdrawReason.OVERDUE, WithdrawReason.UNSCHEDULABLE),
        )

    def ask(self, workload: PendingWorkload) -> None:
        """Start to read from the server whether the claims of a workload's pods exist.

        This is needed if the answer to a creation was lost.
        """
        self.start(workload, lambda _: self._ask(workload))

    def fail(
        self,
        workload: PendingWorkload,
        reason: Reason,
        *,
        first_s: float = OBJECT_BACKOFF_S,
        longest_s: float = LONGEST_BACKOFF_S,
        in_turn: bool = False,
        counts: bool = True,
        in_vain: bool = False,
    ) -> None:
        """Let a workload wait after a failure, and show the reason on its pods.

        The wait is twice as long after each further failure.

        Args:
            workload: The workload.
            reason: Why the writes failed.
            first_s: How many seconds it waits after the first failure.
            longest_s: How many seconds it waits at most.
            in_turn: Whether it keeps its position in the queue.
            counts: Whether this failure makes the next wait longer.
            in_vain: Whether it had GPUs, and its scheduler did not bind it in time.
        """
        if not in_turn:
            workload.fall_back(self._workloads.newest)
        workload.failures.back_off(asyncio.get_running_loop().time(), first_s=first_s, longest_s=longest_s)
        workload.failures.times += counts
        workload.failures.in_vain += in_vain
        self._wait(workload, reason)

    def begin_anew(self, workload: PendingWorkload, cause: WithdrawReason) -> None:
        """Record that a workload begins again because its claims were deleted.

        ``cause`` says why they were deleted. If that happened a short time ago, too, the workload waits first, and its
        pods show why.
        """
        if workload.failures.begins_anew(asyncio.get_running_loop().time()):
            self._wait(workload, again(cause))

    def forget_claims(self, workload: PendingWorkload) -> None:
        """Stop counting claims of a workload whose existence is not known.

        The answer to their creation was lost. If such a claim exists, the reflector shows it later.
        """
        for member in workload.members:
            if (claim := claim_key(member.pod)) is not None:
                self._picture.release(claim)

    def _wait(self, workload: PendingWorkload, reason: Reason) -> None:
        self._agenda.add_at(workload.failures.not_before, workload.key)
        for member in workload.members:
            pod = self._picture.pods.get(member.key)
            if pod is not None and pod.metadata.uid == member.uid and not pod.spec.node_name:
                self._reasons.want(pod, reason, own=True)

    # What comes of them.

    def start(self, workload: PendingWorkload, action: Callable[[Slot], Action], *, creates: bool = False) -> None:
        """Start writes of a workload in a task.

        Args:
            workload: The workload.
            action: Returns the writes, given the workload's right to write (``Slot``).
            creates: Whether the writes create claims. If they do, a success raises how many claims the namespace
                may create at once, if a busy quota lowered the number.
        """
        workload.busy += 1
        # At once: when the task begins, the next one may have been decided on.
        slot = self._lanes.take(workload.key[0], lambda slot: self._spawn(self._let_go(workload, slot)))
        task = self._spawn(self._run(workload, action(slot), creates=creates))
        task.add_done_callback(lambda _: slot.give_back())

    def _spawn(self, action: Action) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(action)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, workload: PendingWorkload, action: Action, *, creates: bool) -> None:
        """Run the writes of a workload, and handle their errors.

        The kind of error decides what waits: the workload, its namespace, or all writes.

        Args:
            workload: The workload.
            action: Its writes.
            creates: Whether the writes create claims. If they do, a success raises how many claims the namespace
                may create at once, if a busy quota lowered the number.
        """
        # The lanes count answers: after a success more writes may run at once, after an error of the server all writes
        # pause.
        # ``failures`` says when the workload itself may be tried again.
        key, clock = workload.key, asyncio.get_running_loop().time
        try:
            await action
            self._lanes.succeeded(created_in=key[0] if creates else "")
            workload.failures.written()
        except MovedOnError as error:
            logger.info("Pod %s/%s: %s. The controller reads it again.", *key, error)
            self._lanes.succeeded()
            # A gated pod can go on with what was read since. The scheduler may be allocating the claim of any other.
            is_gated = all(member.pod.gated for member in workload.members)
            workload.failures.moved(clock(), at_once=is_gated)
        except CrowdedError as error:  # the quota of the namespace: fewer of its claims are created at once
            logger.info("Pod %s/%s: %s. The controller tries it again in its turn.", *key, error)
            self._lanes.succeeded()
            self._lanes.crowded(key[0])
        except PausedError as error:  # ``can_write`` keeps it until the pause is over
            logger.info("Pod %s/%s: %s. The controller goes on with the next pod.", *key, error)
        except UnsureError as error:
            logger.warning(
                "Pod %s/%s: the result of a write is unknown: %s. The controller reads it from the API server.",
                *key,
                error,
            )
            if isinstance(error.__cause__, DriverError) and outcome(error.__cause__) is Outcome.SERVER:
                self._lanes.failed(error.__cause__)
            workload.unsure = True  # the next look at it only asks the server for its claims
            if not self._workloads.has(workload):
                # The workload is forgotten, so the server is not asked. If a claim exists, the reflector shows it.
                self.forget_claims(workload)
            workload.failures.pause(clock(), SERVER_BACKOFF_S)
        except (ApiError, Unreachable) as error:
            logger.warning("Pod %s/%s: a write failed: %s", *key, error)
            self._refused(workload, error)
        except RefusedError as error:  # other pods could not be ended for it
            self.fail(workload, Reason(Cause.POD, str(error)), longest_s=REFUSED_BACKOFF_S)
        except DriverError as error:
            self.fail(workload, Reason(Cause.POD, str(error)))
        except Exception:
            logger.exception("Pod %s/%s: internal error. The controller tries this pod again later.", *key)
            self.fail(workload, OWN_ERROR)
        finally:
            workload.busy -= 1  # ``start`` has counted these writes
            self._agenda.add(key)

    def _refused(self, workload: PendingWorkload, error: ApiError | Unreachable) -> None:
        """Let a workload wait after a failed write.

        If the server itself is in trouble, all writes pause.
        """
        concern = outcome(error)
        if concern is Outcome.SERVER:
            self._lanes.failed(error)
            # All pause, and the workload keeps its turn. If others' writes go well meanwhile, it alone meets the
            # trouble, and waits longer than they do.
            if workload.failures.meets_trouble(self._lanes.successes) >= ALONE:
                workload.failures.pause(asyncio.get_running_loop().time(), SERVER_BACKOFF_S)
            return
        if isinstance(error, ApiError) and error.status < 500:
            self._lanes.succeeded()  # the server answered well: it is the object that was refused
        self.fail(workload, reason_of(error, is_gang=workload.is_gang), in_turn=concern is Outcome.MOMENT)

    async def _let_go(self, workload: PendingWorkload, slot: Slot) -> None:
        """Revoke the claims of a workload if one of its writes hangs.

        Then other workloads can have the GPUs. The claims are revoked only if a webhook causes the delay. If the server
        itself is slow, all workloads are delayed, and revoking would not help. To find the cause, the pods are read:
        the server calls no webhooks for reads, so a quick read shows that the webhook is slow. The write itself is not
        cancelled, because with a timeout a slow server would never complete a write. ``slot`` shows since when the
        write hangs.
        """
        clock = asyncio.get_running_loop().time
        hanging_since, pause_s = slot.since, SLOW_S
        while hanging_since is not None and slot.since == hanging_since:
            read_since = clock()
            try:
                gated = await self._still_gated(workload)
                if not gated:
                    return  # only the answer is late
                is_quick = clock() - read_since < (read_since - hanging_since) * QUICK
                if is_quick and slot.since == hanging_since and not self._lanes.paused():
                    await self._revoke(workload, gated, slot)
                    return
            except DriverError as error:
                logger.warning(
                    "Pod %s/%s: a write is not answered, and reading the pod failed, too: %s", *workload.key, error
                )
                if outcome(error) is Outcome.SERVER:
                    self._lanes.failed(error)
                pause_s *= 2
            await asyncio.sleep(pause_s)

    async def _revoke(self, workload: PendingWorkload, members: Iterable[Member], slot: Slot) -> None:
        """Delete the claims of these members of a workload, one after the other.

        ``slot`` is the workload's right to write.
        """
        workload.busy += 1  # a look at it meanwhile would count on claims that are being deleted
        try:
            for member in members:
                await self._take_back(member, slot)
        finally:
            workload.busy -= 1
            self._agenda.add(workload.key)

    async def _still_gated(self, workload: PendingWorkload) -> list[Member]:
        """Return the members, without those whose gate was removed at the API server meanwhile.

        All pods are read at the same time. Otherwise the reads of a large gang would take so long that the server seems
        slow.
        """
        room = asyncio.Semaphore(MOST_READS)
        members = workload.members  # of a gang they can change during the reads

        async def is_ungated(member: Member) -> bool:
            async with room:
                return await self._writer.pods.lifted(member.pod) and member.pod.gated

        answers = await asyncio.gather(*map(is_ungated, members), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [member for member, answer in zip(members, answers, strict=True) if not answer]

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

    async def _ask(self, workload: PendingWorkload) -> None:
        for member in workload.members:
            if (claim := claim_key(member.pod)) is not None and await self._writer.look(claim) is None:
                self._picture.release(claim)
        workload.unsure = False
