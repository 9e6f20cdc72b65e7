"""Whether kube-scheduler gets a pod for which the controller has no place (annotation ``when-full: hand-over``)."""

from __future__ import annotations

from typing import Final

from dradriver.api.base import names
from dradriver.api.claims.claim_builder import digest
from dradriver.api.vocabulary.values import HAND_OVER
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.steps.deadlines import Deadlines
from dradriver.queue.caps import Caps
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.pending import PendingWorkload
from dradriver.queue.write_lanes import Lanes
from dradriver.reason import Cause, Reason

_KEPT: Final = (
    "the pod is not handed over to kube-scheduler, which does not know the partition of tenant {}: remove "
    f"{names.WHEN_FULL}: {HAND_OVER}, or write schedulerPlaced: allow for the tenant"
)


class HandOver:
    """Says which pods kube-scheduler gets, and when. It knows neither caps nor partitions."""

    def __init__(self, tenants: Tenants, caps: Caps, lanes: Lanes, deadlines: Deadlines) -> None:
        """Make one.

        Args:
            tenants: Say whether kube-scheduler may place the pods of a namespace.
            caps: Say whether the cap of a tenant keeps a pod waiting.
            lanes: Say whether a pod may be written now.
            deadlines: Says how long a pod looks for a place before.
        """
        self._tenants, self._caps, self._lanes, self._deadlines = tenants, caps, lanes, deadlines

    def refused(self, workload: PendingWorkload) -> Reason | None:
        """Return why a pod that wants it is not handed over; None if it is, or does not want it."""
        if not self._wants(workload) or not (tenant := self._tenants.kept_from_scheduler(workload.key[0])):
            return None
        return Reason(Cause.RESERVED, _KEPT.format(tenant))

    def due_at(self, workload: PendingWorkload, now: float) -> float | None:
        """Return when a pod without a place is handed over, by the loop's clock; None if it is not."""
        if not self._wants(workload) or self._tenants.kept_from_scheduler(workload.key[0]):
            return None
        # The pod that has its place may just be ending.
        return workload.looks_since(now) + self._deadlines.hand_over_s

    def can_write(self, workload: PendingWorkload) -> bool:
        """Return whether nothing keeps a pod's writes waiting."""
        return self._lanes.obstacle(workload.key, workload.order) is None

    def has_claim(self, workload: PendingWorkload, claim: ClaimRecord | None) -> bool:
        """Return whether a claim was made to hand its pod over, as the pod still wants it.

        Raises:
            WordError: What the pod requests cannot be read.
        """
        if claim is None or not claim.handed_over or self._tenants.kept_from_scheduler(workload.key[0]):
            return False
        alone = workload.lead.wish.alone
        return alone is not None and claim.handed_over == digest(alone)

    def _wants(self, workload: PendingWorkload) -> bool:
        return (
            workload.key == workload.lead.key
            and workload.lead.wish.alone is not None
            and not self._caps.closed(workload)
        )
