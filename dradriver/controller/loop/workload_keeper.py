"""Keeps the workloads of the loop: which pause, which wait for their scheduler, and which are forgotten.

The dispatcher calls it at each look at a pod or gang.
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
    """The register of workloads, together with what else is kept of each.

    Attributes:
        workloads: The workloads, by the key of their pod or gang.
        disbanded: Tells which workload was forgotten.
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
        """Make one.

        Args:
            picture: The cluster cache.
            agenda: Takes the workloads that have to be looked at later.
            workloads: The register.
            queue: Orders the workloads that wait for places.
            lanes: Count the pods that wait for their scheduler.
            reasons: Writes why a pod waits.
            executor: Asks what became of a write.
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
        """Keep a pod at its gate while something is missing that it needs."""
        key = (pod.metadata.namespace, pod.metadata.name)
        self._queue.drop(key)
        if missing.reason is not None:
            self._reasons.want(pod, missing.reason)
        if missing.look_after_s is not None:
            self._agenda.add_at(_now() + missing.look_after_s, key)

    def may_go_on(self, workload: PendingWorkload) -> bool:
        """Return whether a workload's pause is over, and what became of its last write is known."""
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
        """Let the workload of a pod or gang wait after an error in this program."""
        if (workload := self.workloads.get(key)) is not None:
            self._queue.drop(key)
            self._executor.fail(workload, OWN_ERROR)

    def forgive(self, workload: PendingWorkload) -> None:
        """Forget earlier failures and refusals of a workload: it requests something else now."""
        workload.forgive(_now())
        for member in workload.members:
            self._reasons.forgive(member.key)

    def forget(self, key: Key) -> None:
        """Forget a workload and what its pod was told."""
        self.disband(key)
        self._reasons.forget(key)

    def disband(self, key: Key) -> None:
        """Forget a workload; what its pod was told, and when, stays known: it may be of another one from now on."""
        self._queue.drop(key)
        self._lanes.forget(key)
        workload = self.workloads.pop(key, None)
        if workload is not None and workload.unsure:
            self._executor.forget_claims(workload)  # if a claim is there all the same, the reflector shows it
        self._lanes.answered(key, bound=False)
        self.disbanded(key)

    def count(self, member: Member) -> None:
        """Count a pod that waits for its scheduler; no more if it has a seat, and waits for others."""
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
