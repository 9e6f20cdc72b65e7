"""Since when workloads wait in a queue that Kueue admits to: since Kueue admitted them."""

from __future__ import annotations

from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.pending import PendingWorkload


class Entries:
    """Sees when gates of others are lifted.

    Of an object that makes pods Kueue lets in the object, so its pods are as old as that. Only pods that it holds at
    a gate have waited before, and nothing in the API says when that gate went: whoever leads sees it, and one who
    begins to lead takes the pod's own age.
    """

    def __init__(self, tenants: Tenants) -> None:
        """Begin with none."""
        self._tenants = tenants
        self._number = 0  # workloads that were seen to be admitted so far

    def look(self, workload: PendingWorkload, newest: str) -> None:
        """Set a workload's position by the time at which Kueue admitted it; call this while it is not in the queue.

        Args:
            workload: The workload.
            newest: When the newest pod was created: this is later, and earlier than all that come.
        """
        if self._tenants.by_kueue(self._tenants.of(workload.key[0])):
            self._number += 1
            workload.let_in(f"{newest}~{self._number:012}")
