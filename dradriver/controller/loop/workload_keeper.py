"""Keeps the workloads of the loop: which pause, which wait for their scheduler, and which are forgotten.

The dispatcher calls it whenever it processes a pod or gang.

A *workload* is a single pod or a gang. The *agenda* lists the pods and gangs that the controller processes next. The
*write lanes* limit for how many workloads the controller writes objects at once. A *gang barrier device* in a pod's
claim keeps the pod unbound until its whole gang can start.
"""

from __future__ import annotations

import asyncio

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller.reading.prerequisites import Missing
from dradriver.controller.writing.executor import OWN_ERROR, Executor
from dradriver.controller.writing.reasons import Reasons
from dradriver.event import Event
from dradriver.queue.agenda import Agenda
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.queue.waiting import Queue
from dradriver.queue.workload_register import WorkloadRegister
from dradriver.queue.write_lanes import Lanes


class WorkloadKeeper:
    """Keeps all workloads, and removes ended ones also from queue, write lanes and reasons.

    Attributes:
        workloads: The workloads, by the key of their pod or gang.
        disbanded: An event. It is sent with the key of each workload that was forgotten.
    """

    def __init__(
        self,
        picture: Picture,
        agenda: Agenda,
        workloads: WorkloadRegister,
        queue: Queue,
        lanes: Lanes,
        reasons: Reasons,
        executor: Executor,
    ) -> None:
        """Make a keeper for the register ``workloads``.

        Args:
            picture: The cluster cache.
            agenda: Takes the workloads that have to be processed later.
            workloads: The register.
            queue: Orders the workloads that wait for places.
            lanes: Count the pods that wait for their scheduler.
            reasons: Writes why a pod waits.
            executor: Asks the API server whether a write with a lost answer took place.
        """
        self.workloads = workloads
        self.disbanded: Event[Key] = Event()
        self._picture, self._agenda, self._queue = picture, agenda, queue
        self._lanes, self._reasons, self._executor = lanes, reasons, executor

    def is_queued(self, key: Key) -> bool:
        """Return whether a workload is in the queue."""
        return key in self._queue

    def leave_queue(self, key: Key) -> None:
        """Take a workload out of the queue."""
        self._queue.drop(key)

    def hold_back(self, pod: Pod, missing: Missing) -> None:
        """Keep a pod at its gate while something is ``missing``, such as its claim template.

        The pod shows the reason.
        """
        key = (pod.metadata.namespace, pod.metadata.name)
        self._queue.drop(key)
        if missing.reason is not None:
            self._reasons.want(pod, missing.reason)
        if missing.look_after_s is not None:
            self._agenda.add_at(_now() + missing.look_after_s, key)

    def may_go_on(self, workload: PendingWorkload) -> bool:
        """Return whether a workload's pause is over and its last write's outcome is known.

        If the outcome is not known, this also starts a request to the API server.
        """
        if _now() < workload.failures.not_before:
            self._queue.drop(workload.key)
            self._agenda.add_at(workload.failures.not_before, workload.key)
            return False
        if workload.unsure:
            if self._executor.can_write(workload):
                self._executor.ask(workload)
            return False
        return True

    def fail(self, key: Key) -> None:
        """Make the workload of a pod or gang wait after an error in this program."""
        if (workload := self.workloads.get(key)) is not None:
            self._queue.drop(key)
            self._executor.fail(workload, OWN_ERROR)

    def forgive(self, workload: PendingWorkload) -> None:
        """Forget earlier failures and refusals of a workload, because its request has changed."""
        workload.forgive(_now())
        for member in workload.members:
            self._reasons.forgive(member.key)

    def forget(self, key: Key) -> None:
        """Forget a workload and the reason that its pod shows."""
        self.disband(key)
        self._reasons.forget(key)

    def disband(self, key: Key) -> None:
        """Forget a workload, but keep the reason that its pod shows.

        The pod can become a member of another workload.
        """
        self._queue.drop(key)
        self._lanes.forget(key)
        workload = self.workloads.pop(key, None)
        if workload is not None and workload.unsure:
            self._executor.forget_claims(workload)  # if a claim is there all the same, the reflector shows it
        self._lanes.answered(key, bound=False)
        self.disbanded(key)

    def count(self, member: Member) -> None:
        """Count a pod as waiting for its scheduler, or stop counting it.

        The write lanes limit how many pods wait for a scheduler at a time. A pod that is kept unbound by a gang barrier
        device does not count: it waits for other pods of its gang.
        """
        pod = member.pod
        claim = self._picture.claim_of(pod)
        seated = claim is not None and claim.seat is not None
        # A pod that was handed over keeps no GPU from others, however long its scheduler takes.
        is_promised = claim is not None and not (claim.deleting or claim.handed_over or seated)
        # A pod that is not confined to nodes costs its scheduler more, also when it is tried again after a refusal.
        is_answered = pod.refused is not None and not member.is_open
        if pod.spec.node_name or pod.gated or not is_promised or is_answered:
            self._lanes.answered(member.key, bound=bool(pod.spec.node_name) or seated)
            if seated or (pod.spec.node_name and claim is not None and claim.devices):
                self._lanes.allocates(pod.spec.scheduler_name)
        else:
            self._lanes.lifted(member.key, member.scheduler)


def _now() -> float:
    return asyncio.get_running_loop().time()
