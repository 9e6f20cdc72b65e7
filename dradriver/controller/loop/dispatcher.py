"""Finds or makes the workload of a pod or gang that changed, observes it, and starts its next step.

A *workload* is a single pod or a gang. To *process* it is to observe its state and to do its next step. The *agenda*
lists the pods and gangs that the controller processes next. A gang has *started* once one of its pods is bound or may
be bound.
"""

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
    """Processes pods and gangs that changed, one at a time.

    Attributes:
        looked: An event. It is sent with the key of each pod or gang that was processed.
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
        """Make a dispatcher that has processed no pod.

        Args:
            picture: The cluster cache.
            agenda: Takes other pods and gangs that have to be processed, now or later.
            keeper: Keeps the workloads, and forgets workloads that have ended.
            runner: Does the next step of a workload.
            gangs: Observes gangs that have not started.
            running: Processes gangs that have started.
            prerequisites: Says what a pod needs before it can get a place.
        """
        self._picture, self._agenda, self._keeper, self._runner = picture, agenda, keeper, runner
        self._gangs, self._running, self._prerequisites = gangs, running, prerequisites
        self.looked: Event[Key] = Event()

    def look(self, key: Key) -> None:
        """Do the next step of a changed pod or gang.

        After an internal error, the controller pauses for this pod or gang, and goes on with all others.
        """
        try:
            self._look_at(key)
            self.looked(key)
        except Exception:
            logger.exception("Pod %s/%s: internal error. The controller tries this pod again later.", *key)
            self._keeper.fail(key)

    def _look_at(self, key: Key) -> None:
        """Do the next step of a pod or gang, unless an object is missing.

        For example, a pod waits until the claim template that it names is read.
        """
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
        """Return the workload of a single pod, updated to the pod's newest state.

        While writes of the workload are running, it is returned without the update.

        Args:
            key: The key of the pod.
            pod: The newest state of the pod.
            near: The name of the running gang that the pod joins; empty for none.
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
        """Process a gang that has started; its unbound pods are now placed one by one.

        Args:
            key: The key of the gang.
            starting: The gang's waiting workload at the first call after its start; None at later calls.
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
        """Return a gang with its living pods; None during a write for one of these.

        ``gang`` is the gang's workload so far; None if it has none. While a gang runs, each pod that joins it waits as
        a workload of its own. Once all running pods are gone, the waiting pods become members of the gang again.
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
