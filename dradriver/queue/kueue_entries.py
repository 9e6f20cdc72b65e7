"""Sets the queue position of a workload that Kueue admits: it follows from the time of the admission."""

from __future__ import annotations

from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.pending import PendingWorkload


class Entries:
    """Notices when Kueue admits a workload: the scheduling gates of other controllers are removed.

    There are two cases. If Kueue suspends the object that creates the pods (a Job), the pods are created after the
    admission, so their creation time is right. If Kueue keeps a gate on the pods themselves, they are older than the
    admission. The API does not record when the gate was removed. So the leader watches for it. A new leader uses the
    pod's creation time.
    """

    def __init__(self, tenants: Tenants) -> None:
        """Create an object that has seen no admission.

        ``tenants`` says for which tenants Kueue admits the workloads.
        """
        self._tenants = tenants
        self._number = 0  # workloads that were seen to be admitted so far

    def look(self, workload: PendingWorkload, newest: str) -> None:
        """Set the queue position of a workload that Kueue has just admitted.

        Nothing is done if Kueue does not admit the workloads of this tenant. Call this while the workload is not in the
        queue.

        Args:
            workload: The workload.
            newest: The creation time of the newest pod so far. The workload gets the position just after a pod of this
                age, so it is before all pods that are created later.
        """
        if self._tenants.by_kueue(self._tenants.of(workload.key[0])):
            self._number += 1
            workload.let_in(f"{newest}~{self._number:012}")
