"""The workloads that the controller manages. The dispatcher fills it; the other parts of the loop read it.

A *workload* is a single pod or a gang.
"""

from __future__ import annotations

from dradriver.api.claims.pins import Key
from dradriver.queue.kueue_entries import Entries
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.pending import PendingWorkload


class WorkloadRegister(dict[Key, PendingWorkload]):
    """Workloads by the key of their pod or gang.

    Attributes:
        newest: The creation time of the newest pod so far; empty before the first.
    """

    def __init__(self, tenants: Tenants) -> None:
        """Make an empty register; ``tenants`` give the highest priority that counts for a workload."""
        super().__init__()
        self.newest = ""
        self._tenants, self._entries = tenants, Entries(tenants)

    def add(self, workload: PendingWorkload) -> None:
        """Add a workload, or replace the workload with the same key.

        Call it while the workload is not in the queue.
        """
        self[workload.key] = workload
        workload.trust(self._tenants.highest(workload.key[0]))
        created = (member.pod.metadata.creation_timestamp or "" for member in workload.members)
        self.newest = max(self.newest, *created)

    def enter(self, workload: PendingWorkload) -> None:
        """Set the queue position of a workload that Kueue admits.

        Call this before the workload enters the queue. The position follows from the time of the admission. Other
        workloads keep their position.
        """
        self._entries.look(workload, self.newest)

    def has(self, workload: PendingWorkload) -> bool:
        """Return whether this very object is in the register, not another with its key."""
        return self.get(workload.key) is workload
