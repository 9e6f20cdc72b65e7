"""Says for which waiting workloads preemption may be tried now: pauses, and evictions saved for one workload.

Only a limited number of workloads may end within a minute. If a workload needs more evictions than are left, they are
saved for it. Until this workload has its place, preemption is not tried for other workloads of its priority or below.
If the workload cannot use the evictions now, others may. ``Preemptions`` calls this module.

A *try* is a search for workloads whose end gives the waiting workload a place (a node and GPUs for each pod). A
*victim* is a workload that is ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived import conflicts
from dradriver.cluster.records.records import ClaimRecord
from dradriver.queue.pending import Member, PendingWorkload

FIRST_PAUSE_S: Final = 1.0  # between two tries for one workload
LONGEST_PAUSE_S: Final = 30.0
# For how long evictions are saved for one workload, and after which they are saved for it again: within a minute it has
# its turn, and what keeps it from using that must not stop others for ever.
SAVED_S: Final = 120.0
AGAIN_S: Final = 60.0
# After which they are for others if it cannot use them. A moment is no reason: a scheduler's line is full now and then.
UNUSABLE_S: Final = 5.0


class _Try(msgspec.Struct, frozen=True):
    """The last try of preemption for a workload.

    Attributes:
        times: How many tries there were.
        not_before: When the next try may begin, by the event loop's clock.
        version: The version of the cluster cache at the last try.
        changes_at: When the result can change without an event, in seconds since the epoch.
    """

    times: int
    not_before: float
    version: int
    changes_at: float


class _Saved(msgspec.Struct, frozen=True):
    """The workload for which evictions are saved. All times are by the event loop's clock.

    Attributes:
        workload: The workload.
        latest: Until when the evictions are saved at the latest.
        usable_at: When it was last known that the workload could use them.
    """

    workload: PendingWorkload
    latest: float
    usable_at: float

    @property
    def until(self) -> float:
        return min(self.latest, self.usable_at + UNUSABLE_S)

    @property
    def priority(self) -> int:
        return -self.workload.order[0]

    def is_kept_from(self, workload: PendingWorkload) -> bool:
        return workload.key != self.workload.key and -workload.order[0] <= self.priority


class PreemptionTurns:
    """Remembers the tries of preemption by waiting workload, and for which workload evictions are saved."""

    def __init__(self, picture: Picture) -> None:
        """Begin without tries; ``picture`` is the cluster cache."""
        self._picture = picture
        self._tries: dict[Key, _Try] = {}
        self._saved: _Saved | None = None

    def clear(self) -> None:
        """Forget all tries, because the policies have changed."""
        self._tries.clear()
        self._saved = None

    def keep(self, waiting: Iterable[PendingWorkload], *, can_use: Callable[[PendingWorkload], bool]) -> None:
        """Forget the tries of all workloads that no longer wait.

        Also stop saving evictions for a workload that has used them or does not need them.

        Args:
            waiting: The workloads that found no place; their tries are kept.
            can_use: Returns whether a workload still waits for a place, and its limits leave it GPUs.
        """
        self._tries = {workload.key: self._tries[workload.key] for workload in waiting if workload.key in self._tries}
        if (saved := self._saved) is None:
            return
        if self._is_served(saved.workload):
            self._saved = None
        elif saved.workload.busy or self._claims(saved.workload) or can_use(saved.workload):
            self._saved = msgspec.structs.replace(saved, usable_at=asyncio.get_running_loop().time())

    def is_due(self, workload: PendingWorkload, now: float) -> bool:
        """Return whether preemption may be tried for a workload now.

        All of these must hold. ``now`` is in seconds since the epoch.

        * The pause after its last try is over.
        * Something has changed since that try, or the time at which its result can change without an event has come.
        * No evictions are saved for another workload of the same or a higher priority.
        """
        clock = asyncio.get_running_loop().time()
        if (saved := self._saved) is not None and clock < saved.until and saved.is_kept_from(workload):
            return False
        last_try = self._tries.get(workload.key)
        if last_try is None:
            return True
        if clock < last_try.not_before:
            return False
        return last_try.version != self._picture.version or now >= last_try.changes_at

    def begin(self, workload: PendingWorkload) -> None:
        """Note that a try for a workload begins, and set the pause before its next try.

        Each pause is twice as long as the pause before, at most ``LONGEST_PAUSE_S`` seconds.
        """
        times = self._tries[workload.key].times if workload.key in self._tries else 0
        pause_s = min(FIRST_PAUSE_S * 2.0**times, LONGEST_PAUSE_S)
        not_before = asyncio.get_running_loop().time() + pause_s
        self._tries[workload.key] = _Try(times + 1, not_before, self._picture.version, math.inf)

    def end(
        self, workload: PendingWorkload, now: float, *, is_found: bool, changes_at: float, room_at: float | None
    ) -> None:
        """Note the result of a try.

        Args:
            workload: The workload.
            now: The time, seconds since the epoch.
            is_found: Whether the workload got a place.
            changes_at: When the result can change without an event, in seconds since the epoch.
            room_at: When the limit per minute allows enough evictions, in seconds since the epoch; None if this limit
                is not the obstacle.
        """
        if is_found:  # evictions stay saved for it until its claims exist: it may be refused
            del self._tries[workload.key]
            return
        last_try, clock = self._tries[workload.key], asyncio.get_running_loop().time()
        not_before = last_try.not_before
        saved = self._saved
        if room_at is None:
            if saved is not None and saved.workload.key == workload.key:
                self._saved = None
        else:
            not_before = min(not_before, clock + max(room_at - now, 0.0))
            is_over = saved is None or clock >= saved.until + (AGAIN_S if saved.workload.key == workload.key else 0.0)
            if is_over or (saved is not None and saved.priority < -workload.order[0]):
                self._saved = _Saved(workload, clock + SAVED_S, clock)
        self._tries[workload.key] = msgspec.structs.replace(last_try, not_before=not_before, changes_at=changes_at)

    def _is_served(self, workload: PendingWorkload) -> bool:
        """Return whether a workload needs no more evictions.

        Either all its victims were told to end, or its own pods are gone.
        """
        if workload.busy:
            return False
        claims = self._claims(workload)
        untold = (
            victim
            for claim in claims
            if claim.preempts is not None and claim.devices is None
            for victim in conflicts.living(self._picture, claim.preempts)
            if victim.metadata.deletion_timestamp is None
        )
        if not any(self._living(member) for member in workload.members):
            return True
        return bool(claims) and not any(untold)

    def _claims(self, workload: PendingWorkload) -> list[ClaimRecord]:
        pods = [pod for member in workload.members if (pod := self._living(member)) is not None]
        return [claim for pod in pods if (claim := self._picture.claim_of(pod)) is not None and not claim.deleting]

    def _living(self, member: Member) -> Pod | None:
        pod = self._picture.pods.get(member.key)
        return pod if pod is not None and pod.metadata.uid == member.uid and not pod.finished else None
