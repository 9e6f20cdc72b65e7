"""Finds or makes the workload of a pod or gang that changed, observes it, and has its next step done."""

from __future__ import annotations

import asyncio
import logging

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller import metrics
from dradriver.controller.loop.gang_observer import GangObserver
from dradriver.controller.loop.running_gangs import RunningGangs
from dradriver.controller.loop.step_runner import StepRunner
from dradriver.controller.loop.workload_keeper import WorkloadKeeper
from dradriver.controller.reading.prerequisites import Prerequisites
from dradriver.controller.steps.observe import observe
from dradriver.event import Event
from dradriver.queue.agenda import Agenda
from dradriver.queue.pending import Member, PendingWorkload

logger = logging.getLogger(__name__)


class Dispatcher:
    """One look at a time at one pod or gang.

    Attributes:
        looked: Tells which pod or gang was looked at.
    """

    def __init__(
        self,
        picture: Picture,
        agenda: Agenda,
        keeper: WorkloadKeeper,
        runner: StepRunner,
        gangs: GangObserver,
        running: RunningGangs,
        prerequisites: Prerequisites,
    ) -> None:
        """Make one that has looked at nothing.

        Args:
            picture: The cluster.
            agenda: Takes what else has to be looked at, now or later.
            keeper: Keeps the workloads, and forgets those that have ended.
            runner: Does what a step says.
            gangs: Observes gangs that have not started.
            running: Looks at those that have.
            prerequisites: Says what a pod needs before it can get a place.
        """
        self._picture, self._agenda, self._keeper, self._runner = picture, agenda, keeper, runner
        self._gangs, self._running, self._prerequisites = gangs, running, prerequisites
        self.looked: Event[Key] = Event()

    def look(self, key: Key) -> None:
        """Dispatch a pod or gang that changed to its next step. A bug that it meets costs it a pause, and no other."""
        try:
            self._look_at(key)
            self.looked(key)
        except Exception:
            logger.exception("pod %s/%s: an error in this program; trying again later", *key)
            self._keeper.fail(key)

    def _look_at(self, key: Key) -> None:
        """Look at a pod or gang: check what it needs first, then do its next step."""
        if key in self._picture.gangs:
            self._look_at_gang(key)
            return
        pod = self._picture.pods.get(key)
        if pod is None or pod.finished or pod.metadata.deletion_timestamp is not None:
            self._keeper.forget(key)
            return
        # The pods of a gang that has not started are placed together.
        membership = self._picture.gangs.of(key)
        if membership is not None and not self._picture.gangs.started(membership.gang):
            self._agenda.add(membership.gang)
            return
        self._prerequisites.request(pod)
        if (missing := self._prerequisites.missing(key, pod)) is not None:
            self._keeper.hold_back(pod, missing)
            return
        workload = self._workload_of(key, pod, near="" if membership is None else membership.gang[1])
        if workload.busy:
            return  # its writer looks again when it is done
        self._keeper.workloads.enter(workload)
        self._keeper.count(workload.lead)
        if not self._keeper.may_go_on(workload):
            return
        if self._runner.run(workload, observe(workload.lead, self._picture, self._now())):
            self._keeper.forget(key)

    def _workload_of(self, key: Key, pod: Pod, *, near: str) -> PendingWorkload:
        """Return the workload of a single pod with the pod's newest state, unless a writer is at work on it.

        Args:
            key: The key of the pod.
            pod: The newest state of the pod.
            near: The gang that runs and that the pod comes to; empty for none.
        """
        template, volumes = self._picture.templates.of(pod), self._picture.volumes.of(pod)
        workload = self._keeper.workloads.get(key)
        if workload is not None and workload.busy and workload.lead.uid == pod.metadata.uid:
            return workload
        unknown = self._picture.only_scheduler_knows(pod)
        has_left_gang = workload is not None and not workload.busy and workload.lead.near not in ("", near)
        if workload is None or workload.lead.uid != pod.metadata.uid or has_left_gang:  # also another pod of that name
            self._keeper.disband(key)
            workload = PendingWorkload(Member(pod, template, volumes, unknown))
            workload.lead.near = near
            self._keeper.workloads.add(workload)
        elif workload.lead.update(pod, template, volumes, unknown):
            self._keeper.forgive(workload)
        return workload

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _look_at_gang(self, key: Key) -> None:
        gang = self._keeper.workloads.get(key)
        if gang is not None and (gang.busy or self._gangs.looks_later(gang, is_queued=self._keeper.is_queued(key))):
            return  # its writer looks again when it is done
        if self._picture.gangs.started(key):
            self._look_at_running(key, gang)
            return
        self._running.forget(key)
        for pod_key in self._picture.gangs.pods(key):
            self._prerequisites.request(self._picture.pods[pod_key])
        gang = self._gathered(key, gang)
        if gang is None:
            return
        self._keeper.workloads.enter(gang)
        for member in gang.members:
            self._keeper.count(member)
        if self._keeper.may_go_on(gang) and (state := self._gangs.observe(gang)) is not None:
            self._runner.run(gang, state)

    def _look_at_running(self, key: Key, starting: PendingWorkload | None) -> None:
        """Look at a gang that has started: from now on each pod that is not bound goes on by itself.

        Args:
            key: The key of the gang.
            starting: The gang as it waited, if this is the first look since it started.
        """
        if starting is not None:
            now = self._now()
            metrics.GANG_START.observe(now - starting.memory.gathered(len(starting.members), now).gathered_at)
            self._keeper.forget(key)
            # What is remembered of each pod stays: since when it has its claim, and what the scheduler said.
            for member in starting.members:
                is_waiting = self._picture.gangs.of(member.key) is not None and not member.pod.spec.node_name
                if is_waiting and member.key not in self._keeper.workloads:
                    self._keeper.workloads.add(PendingWorkload(member))
        self._running.look(key)
        for pod_key in self._picture.gangs.pods(key):
            if not self._picture.pods[pod_key].spec.node_name:
                self._agenda.add(pod_key)

    def _gathered(self, key: Key, gang: PendingWorkload | None) -> PendingWorkload | None:
        """Return a gang with its living pods; None while a writer is at work on one of them.

        After all pods that ran are gone, those that waited by themselves become members again.
        """
        single = [self._keeper.workloads[pod] for pod in self._picture.gangs.pods(key) if pod in self._keeper.workloads]
        if any(workload.busy for workload in single):
            return None
        for workload in single:
            self._keeper.disband(workload.key)
        gang, is_changed = self._gangs.gathered(gang, key, [workload.lead for workload in single])
        if is_changed:  # it requests something else, and may find a place now
            self._keeper.leave_queue(key)
            self._keeper.forgive(gang)
            self._keeper.workloads.add(gang)
        return gang
