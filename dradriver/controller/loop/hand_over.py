"""Decides which pods are handed over to kube-scheduler, which then chooses their nodes and GPUs. ``Placer`` calls it.

There are two cases. A pod with the annotation ``when-full: hand-over`` has found no place for long enough. Or the
scheduler refused several nodes for a pod with rules that only the scheduler can evaluate.

A *tenant* is a group of namespaces in the policies file. A tenant's *cap* is the largest number of GPUs that it may
have at a time. A tenant's *partition* is the GPUs that the policies file gives to it. The *write lanes* limit for how
many workloads the controller writes objects at once.
"""

from __future__ import annotations

from typing import Final

from dradriver.api.base import names
from dradriver.api.claims.claim_builder import digest
from dradriver.api.vocabulary.values import HAND_OVER
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.steps.deadlines import Deadlines
from dradriver.queue.backoffs import MOST_REFUSALS
from dradriver.queue.limits import Limits
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.pending import PendingWorkload
from dradriver.queue.write_lanes import Lanes
from dradriver.reason import Cause, Reason, sentences

_KEPT: Final = (
    "The pod is not handed over to kube-scheduler, which does not know the partition of tenant {}. Remove "
    f"{names.WHEN_FULL}: {HAND_OVER}, or write schedulerPlaced: allow for the tenant."
)


class HandOver:
    """Decides which pods are handed over to kube-scheduler, and when.

    kube-scheduler knows neither the caps nor the partitions of tenants. So a pod that a cap or partition limits is not
    handed over.
    """

    def __init__(self, tenants: Tenants, limits: Limits, lanes: Lanes, deadlines: Deadlines) -> None:
        """Make the rules of handing over.

        Args:
            tenants: Say whether kube-scheduler may place the pods of a namespace.
            limits: Say whether a limit, such as the cap of a tenant, keeps a pod waiting.
            lanes: Limit the writes that run at once; say whether writes for a pod may begin now.
            deadlines: Says how long a pod looks for a place before it is handed over.
        """
        self._tenants, self._limits, self._lanes, self._deadlines = tenants, limits, lanes, deadlines

    def due(self, workload: PendingWorkload, now: float) -> float | Reason | None:
        """Return when a pod without a place is handed over, by the event loop's clock.

        The returned time can be in the past; ``now`` is the present time. Returns a ``Reason`` if a tenant's partition
        keeps kube-scheduler from placing pods of this namespace. Returns None for a gang, and if the pod does not
        request the handover. Returns None also while a limit, such as its tenant's cap, denies it some GPUs.
        """
        if workload.is_gang or not workload.lead.wish.hands_over or self._limits.closed(workload):
            return None
        if tenant := self._tenants.kept_from_scheduler(workload.key[0]):
            return Reason(Cause.RESERVED, _KEPT.format(tenant))
        # The pod that has its place may just be ending.
        return workload.looks_since(now) + self._deadlines.hand_over_s

    def refused(self, workload: PendingWorkload) -> Reason | None:
        """Return why the scheduler must choose a pod's node itself; None if it need not.

        The scheduler must choose if all of these hold:

        * It refused the nodes of ``MOST_REFUSALS`` placements that the controller chose for the pod.
        * The pod has rules that only the scheduler can evaluate, and a claim can express its request for GPUs.
        * The pod does not join a running gang.
        * No cap denies it GPUs, and no partition keeps its pods from kube-scheduler.
        """
        if not workload.is_open or workload.lead.near or workload.lead.wish.alone is None:
            return None
        if workload.failures.refusals < MOST_REFUSALS:
            return None
        if self._limits.closed(workload) or self._tenants.kept_from_scheduler(workload.key[0]):
            return None
        return Reason(Cause.SCHEDULER, sentences(f"It refused {MOST_REFUSALS} nodes", workload.lead.wish.open))

    def can_write(self, workload: PendingWorkload) -> bool:
        """Return whether the limit on concurrent writes lets a pod be handed over now."""
        return self._lanes.obstacle(workload.key, workload.order) is None

    def has_claim(self, workload: PendingWorkload, claim: ClaimRecord | None) -> bool:
        """Return whether a pod already has a claim that hands it over to kube-scheduler.

        A claim made for an earlier request of the pod does not count. Nor does any claim if a tenant's partition keeps
        the pod from kube-scheduler. ``claim`` is the pod's claim; for None the result is False.

        Raises:
            WordError: The pod's request cannot be read.
        """
        if claim is None or not claim.handed_over or self._tenants.kept_from_scheduler(workload.key[0]):
            return False
        alone = workload.lead.wish.alone
        return alone is not None and claim.handed_over == digest(alone)
