"""Gives waiting workloads their places: queues them, plans and starts writes, and tells pods why they wait.

``StepRunner`` and ``Turn`` call it.

A *workload* is a single pod or a gang. A *place* is a node and GPUs for one pod. The *agenda* lists the pods and gangs
that the controller processes next. A workload is *blocked* if it found no place. Workloads of one *equivalence class*
have the same request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from dradriver.allocator.request import NoPlaceError
from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import Key
from dradriver.cluster.nodes.columns import Bools
from dradriver.controller.loop.hand_over import HandOver
from dradriver.controller.loop.planner import Planner
from dradriver.controller.loop.running_gangs import RunningGangs
from dradriver.controller.steps.actions import Place, Wait
from dradriver.controller.writing.executor import Executor
from dradriver.controller.writing.reasons import Reasons
from dradriver.queue.agenda import Agenda
from dradriver.queue.limits import LimitError
from dradriver.queue.pending import PendingWorkload
from dradriver.queue.waiting import Queue
from dradriver.reason import Cause, Reason

STUCK_S: Final = 60.0  # that a gang whose pods may go to a few nodes only looks for places among these


class Placer:
    """Puts workloads in the queue, and takes each out when it has a place."""

    def __init__(
        self,
        agenda: Agenda,
        queue: Queue,
        reasons: Reasons,
        executor: Executor,
        planner: Planner,
        running: RunningGangs,
        hand_over: HandOver,
    ) -> None:
        """Make a placer with an empty queue.

        Args:
            agenda: Takes the workloads that have to be processed later.
            queue: Orders the workloads that wait.
            reasons: Writes why a pod waits.
            executor: Runs the writes of plans.
            planner: Finds places.
            running: Restarts a gang that lost its places and finds no others on the nodes that its pods may use.
            hand_over: Says which pods are handed over to kube-scheduler.
        """
        self._agenda, self._queue, self._reasons, self._executor = agenda, queue, reasons, executor
        self._planner, self._running, self._hand_over = planner, running, hand_over

    def leave(self, key: Key) -> None:
        """Take a workload out of the queue, because it needs no place now."""
        self._queue.drop(key)

    def want(self, workload: PendingWorkload, step: Place) -> None:
        """Put a workload in the queue, because some members (``step.members``) need places."""
        for member in step.members:
            member.joins = step.joins
        if workload.want(step.members, step.least):
            for member in workload.members:
                self._reasons.soon(member.key)  # they were told how many are there
        if step.until is not None:
            self._agenda.add_at(step.until, workload.key)
        try:
            reason = self._planner.enqueue(workload)
        except WordError as error:
            self._queue.drop(workload.key)
            self.refuse(workload, error.why)
            return
        if reason is not None:
            self.without_place(workload, reason)

    def place(self, workload: PendingWorkload, rows: Bools | None) -> None:
        """Plan places for a workload, take it out of the queue, and start the writes.

        There is no plan for a pod that waits for a lost pod's place, or whose node the scheduler must choose.

        Args:
            workload: The workload.
            rows: A mask of the nodes to try: (rows,), one row per node; None for all.

        Raises:
            NoPlaceError: There are not enough places.
            WordError: A member's request cannot be read, or is not possible for a gang.
        """
        wait = self._planner.waits(workload, asyncio.get_running_loop().time())
        if wait is not None:
            self._queue.leave(workload)
            self.wait(workload, wait)
            return
        if (why := self._hand_over.refused(workload)) is not None:
            self._queue.leave(workload)
            self._executor.hand_over(workload, why)
            return
        plan = self._planner.plan(workload, rows)
        if workload.is_gang:  # a single pod may lose its place at once, and is handed over for having waited since
            workload.finds_place()
        self._queue.leave(workload, work=self._planner.work)
        self._executor.place(workload, plan)

    def block(self, workload: PendingWorkload, error: NoPlaceError, rows: Bools | None) -> None:
        """Note that a workload found no place, and tell its pods why.

        Workloads of the same equivalence class (with the same request) are told, too, if the reason is new for them.

        Args:
            workload: The workload.
            error: Why there is no place.
            rows: A mask of the nodes that were tried: (rows,), one row per node; None for all.
        """
        reason = self._planner.why(workload, error, rows)
        is_limit = isinstance(error, LimitError)
        for other, news in self._queue.block(workload, reason, work=self._planner.work, by_limit=is_limit):
            self.without_place(other, news)

    def widen(self) -> None:
        """Queue workloads again whose limit was raised.

        The pods of workloads that still have no place are told why.
        """
        for workload, reason in self._planner.widened():
            self.without_place(workload, reason)

    def refuse(self, workload: PendingWorkload, reason: Reason, *, is_for_all: bool = True) -> None:
        """Tell the pods of a workload why it cannot be placed at all: ``reason``.

        If ``is_for_all`` is False, only the first pod is told.
        """
        for member in workload.members if is_for_all else (workload.lead,):
            self._reasons.want(member.pod, reason)

    def without_place(self, workload: PendingWorkload, reason: Reason) -> None:
        """Tell a workload's pods the ``reason`` why there is no place, or end its waiting.

        Waiting ends in two cases. A pod that has waited long enough is handed over to kube-scheduler. A gang is
        restarted if it lost its places and finds no others for ``STUCK_S`` seconds.
        """
        now = asyncio.get_running_loop().time()
        # When the workload is handed over to the scheduler; a Reason why that is not possible; None if it never is.
        due = self._hand_over.due(workload, now)
        if isinstance(due, Reason):
            reason = reason.add(due.text, due.cause)
        elif due is not None:
            if now < due:
                self._agenda.add_at(due, workload.key)
            elif self._hand_over.can_write(workload):
                self._queue.drop(workload.key)
                self._executor.hand_over(workload, reason)
                return
        elif (
            workload.is_gang
            and any(not member.pod.gated for member in workload.members)
            and not self._queue.closed(workload.key)
        ):
            if now < (stuck_at := workload.looks_since(now) + STUCK_S):
                self._agenda.add_at(stuck_at, workload.key)
            else:
                pods = [member.pod for member in workload.members]
                self._running.anew(workload.key, pods, f"there is no place for it within its nodes: {reason}")
        # That a scheduler refused a gang before does not say why it has no place now.
        self.tell(workload, self._planner.told(workload, reason), but=(Cause.GANG,) if workload.is_gang else ())

    def wait(self, workload: PendingWorkload, step: Wait) -> None:
        """Put a waiting workload on the agenda for later, and tell its pods the reason.

        ``step`` has the time and the reason.
        """
        if step.until is not None:
            self._agenda.add_at(step.until, workload.key)
        if step.reason is None:
            return
        if workload.is_gang:  # it waits for its claims to go, most often: why they go says more
            self.tell(workload, step.reason)
        else:
            self.refuse(workload, step.reason)

    def tell(self, workload: PendingWorkload, reason: Reason, *, but: Collection[Cause] = ()) -> None:
        """Tell the pods of a workload without a place why they wait.

        If an earlier write for the workload failed, its pods show that error instead of ``reason``. An error with a
        cause in ``but`` is replaced by ``reason``, because ``reason`` says more.
        """
        for member in workload.members:
            if not (workload.failures.times and self._reasons.insist(member.pod, but=but)):
                self._reasons.want(member.pod, reason)
