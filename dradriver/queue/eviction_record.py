"""Which workloads had to end for others, when, and what made them; also as a former leader has it. No I/O.

``Evictions`` adds to it, ``Preemptable`` bounds by it how many end within a minute and spares what was made in the
place of those. ``features/reservations`` keeps it in the ConfigMap of reservations, so that the next leader goes on.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dradriver.api.claims.evicted_workloads import Evicted
from dradriver.event import Event


class EvictionRecord:
    """Evictions by the uid of the first pod that was told to end.

    Attributes:
        changed: An eviction of this process was added or removed.
    """

    def __init__(self) -> None:
        """Begin with no evictions."""
        self.changed: Event[[]] = Event()
        self._evicted: dict[str, Evicted] = {}
        self._former: set[str] = set()  # uids of evictions by former leaders

    def add(self, evicted: Evicted) -> None:
        """Note that a workload was told to end by this process."""
        self._evicted[evicted.uid] = evicted
        self._former.discard(evicted.uid)
        self.changed()

    def remove(self, uid: str) -> None:
        """Note that a workload was not told to end after all."""
        if self._evicted.pop(uid, None) is not None:
            self._former.discard(uid)
            self.changed()

    def restore(self, evicted: Iterable[Evicted]) -> None:
        """Note evictions by former leaders; those that are known already stay as they are."""
        for each in evicted:
            if each.uid not in self._evicted:
                self._evicted[each.uid] = each
                self._former.add(each.uid)

    def keep(self, since: float, now: float) -> None:
        """Forget evictions before ``since``; those after ``now`` count as of now from here on.

        Both times are in seconds since the epoch. The clock of the leader that noted an eviction may have been ahead,
        and the clock of this one can be set back. Neither makes the rate limit or a back-off last longer.
        """
        if any(not since <= each.at <= now for each in self._evicted.values()):
            self._evicted = {uid: _by(each, now) for uid, each in self._evicted.items() if each.at >= since}
            self._former &= self._evicted.keys()

    def all(self) -> list[Evicted]:
        """Return all evictions, the oldest first."""
        return sorted(self._evicted.values(), key=lambda each: (each.at, each.uid))

    def known(self, uids: Iterable[str], since: float = 0.0) -> set[str]:
        """Return those of these pods' uids that stand for an eviction since a time."""
        return {uid for uid in uids if uid in self._evicted and self._evicted[uid].at >= since}

    def former(self, since: float) -> list[float]:
        """Return when former leaders had workloads end since a time, seconds since the epoch, sorted."""
        return sorted(at for uid in self._former if (at := self._evicted[uid].at) >= since)

    def by_lineage(self, since: float) -> dict[str, list[float]]:
        """Return when workloads had to end since a time, seconds since the epoch, by what made them."""
        times: dict[str, list[float]] = {}
        for each in self.all():
            if each.at >= since:
                times.setdefault(each.lineage, []).append(each.at)
        return times


def _by(evicted: Evicted, now: float) -> Evicted:
    return evicted if evicted.at <= now else msgspec.structs.replace(evicted, at=now)
