"""Says whether kube-scheduler gets a pod: it has no place, or the scheduler refused several.

The first is for pods with the annotation ``when-full: hand-over``, the second for pods with rules that only the
scheduler can evaluate.
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
from dradriver.reason import Cause, Reason

_KEPT: Final = (
    "the pod is not handed over to kube-scheduler, which does not know the partition of tenant {}: remove "
    f"{names.WHEN_FULL}: {HAND_OVER}, or write schedulerPlaced: allow for the tenant"
)


class HandOver:
    """Says which pods kube-scheduler gets, and when. It knows neither caps nor partitions."""

    def __init__(self, tenants: Tenants, limits: Limits, lanes: Lanes, deadlines: Deadlines) -> None:
        """Make one.

        Args:
            tenants: Say whether kube-scheduler may place the pods of a namespace.
            limits: Say whether a limit, such as the cap of a tenant, keeps a pod waiting.
            lanes: Say whether a pod may be written now.
            deadlines: Says how long a pod looks for a place before.
        """
        self._tenants, self._limits, self._lanes, self._deadlines = tenants, limits, lanes, deadlines

    def due(self, workload: PendingWorkload, now: float) -> float | Reason | None:
        """Return when a pod without a place is handed over, by the loop's clock; or why it is not.

        None if the pod does not want it, or if it waits for a limit, such as the cap of its tenant.
        """
        if workload.is_gang or not workload.lead.wish.hands_over or self._limits.closed(workload):
            return None
        if tenant := self._tenants.kept_from_scheduler(workload.key[0]):
            return Reason(Cause.RESERVED, _KEPT.format(tenant))
        # The pod that has its place may just be ending.
        return workload.looks_since(now) + self._deadlines.hand_over_s

    def refused(self, workload: PendingWorkload) -> Reason | None:
        """Return why the scheduler is to choose the node of a pod that has a place; None if it is not.

        It has refused the nodes of several tentative placements, for rules that the controller does not know.
        """
        if not workload.is_open or workload.lead.near or workload.lead.wish.alone is None:
            return None
        if workload.failures.refusals < MOST_REFUSALS:
            return None
        if self._limits.closed(workload) or self._tenants.kept_from_scheduler(workload.key[0]):
            return None
        return Reason(Cause.SCHEDULER, f"it refused {MOST_REFUSALS} nodes: {workload.lead.wish.open}")

    def can_write(self, workload: PendingWorkload) -> bool:
        """Return whether a pod can be handed over now: nothing keeps its writes waiting."""
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
