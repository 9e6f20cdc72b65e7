"""The workloads that the controller looks after. The dispatcher fills it; the other parts of the loop read it."""

from __future__ import annotations

from dradriver.api.claims.pins import Key
from dradriver.queue.kueue_entries import Entries
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.pending import PendingWorkload


class WorkloadRegister(dict[Key, PendingWorkload]):
    """Units by the key of their pod or gang.

    Attributes:
        newest: When the newest pod that was looked at was created; empty before the first.
    """

    def __init__(self, tenants: Tenants) -> None:
        """Make an empty register; ``tenants`` say what the priorities of a workload count."""
        super().__init__()
        self.newest = ""
        self._tenants, self._entries = tenants, Entries(tenants)

    def add(self, workload: PendingWorkload) -> None:
        """Look after a workload, or another state of it, from now on; call it while it is not in the queue."""
        self[workload.key] = workload
        workload.trust(self._tenants.highest(workload.key[0]))
        created = (member.pod.metadata.creation_timestamp or "" for member in workload.members)
        self.newest = max(self.newest, *created)

    def enter(self, workload: PendingWorkload) -> None:
        """Have a workload take the position that it has now; call it while it is not in the queue."""
        self._entries.look(workload, self.newest)

    def has(self, workload: PendingWorkload) -> bool:
        """Return whether this workload is in the register, and not another one of the same key."""
        return self.get(workload.key) is workload
