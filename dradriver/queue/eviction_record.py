"""The workloads that this or a former leader evicted for other workloads, with times. No I/O.

The controller's class ``Evictions`` adds each eviction. The class ``Preemptable`` reads the record to limit the
evictions per minute. It also spares a new workload for a while if an earlier workload of the same owner was evicted.
``features/reservations`` stores the record in the ConfigMap of reservations for the next leader.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dradriver.api.claims.evicted_workloads import Evicted
from dradriver.event import Event


class EvictionRecord:
    """The recorded evictions, by the uid of the first evicted pod.

    Attributes:
        changed: Event: this process added or removed an eviction.
    """

    def __init__(self) -> None:
        """Make an empty record."""
        self.changed: Event[[]] = Event()
        self._evicted: dict[str, Evicted] = {}
        self._former: set[str] = set()  # uids of evictions by former leaders

    def add(self, evicted: Evicted) -> None:
        """Record that this process evicts a workload."""
        self._evicted[evicted.uid] = evicted
        self._former.discard(evicted.uid)
        self.changed()

    def remove(self, uid: str) -> None:
        """Remove an eviction from the record, because the workload was not evicted after all."""
        if self._evicted.pop(uid, None) is not None:
            self._former.discard(uid)
            self.changed()

    def restore(self, evicted: Iterable[Evicted]) -> None:
        """Add evictions by former leaders to the record.

        Evictions that the record already has stay unchanged.
        """
        for each in evicted:
            if each.uid not in self._evicted:
                self._evicted[each.uid] = each
                self._former.add(each.uid)

    def keep(self, since: float, now: float) -> None:
        """Forget evictions before ``since``, and set the time of evictions after ``now`` to ``now``.

        Both times are in seconds since the epoch. A recorded time is in the future if the clock of a former leader was
        ahead, or the clock of this leader was set back. Uncorrected, it would make the rate limit and the back-offs
        last longer.
        """
        if any(not since <= each.at <= now for each in self._evicted.values()):
            self._evicted = {uid: _by(each, now) for uid, each in self._evicted.items() if each.at >= since}
            self._former &= self._evicted.keys()

    def all(self) -> list[Evicted]:
        """Return all evictions, the oldest first."""
        return sorted(self._evicted.values(), key=lambda each: (each.at, each.uid))

    def known(self, uids: Iterable[str], since: float = 0.0) -> set[str]:
        """Return the uids among ``uids`` under which a recent eviction is recorded.

        Args:
            uids: Uids of pods. An eviction is recorded under the uid of the first evicted pod of its workload.
            since: Evictions before this time do not count; seconds since the epoch.
        """
        return {uid for uid in uids if uid in self._evicted and self._evicted[uid].at >= since}

    def former(self, since: float) -> list[float]:
        """Return the times of former leaders' evictions from ``since`` on, sorted.

        Times are in seconds since the epoch.
        """
        return sorted(at for uid in self._former if (at := self._evicted[uid].at) >= since)

    def by_lineage(self, since: float) -> dict[str, list[float]]:
        """Return the times of evictions from ``since`` on, by lineage.

        Times are in seconds since the epoch. The lineage is the name of a gang, or of a single pod's owner. The lineage
        stays the same when pods are created again.
        """
        times: dict[str, list[float]] = {}
        for each in self.all():
            if each.at >= since:
                times.setdefault(each.lineage, []).append(each.at)
        return times


def _by(evicted: Evicted, now: float) -> Evicted:
    return evicted if evicted.at <= now else msgspec.structs.replace(evicted, at=now)
