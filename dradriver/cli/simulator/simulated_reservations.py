"""Reservations on the simulated cluster: the running jobs, the candidate sets, and the reserved set.

A job is *blocked* if it found no place. A reservation keeps GPUs for one blocked job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from dradriver.cli.simulator.simulated_cluster import Cluster, Part
from dradriver.cli.simulator.simulated_queue import Kind, Waiting
from dradriver.queue import reservation_rules
from dradriver.queue.reservation_rules import Candidate, Gpu, Reservation, Step, Terms, Use
from dradriver.queue.reservation_waits import ReservationWaits

_Key: TypeAlias = tuple[int, float]
_FREE: Final[_Key] = (0, 0.0)


class Running(msgspec.Struct, frozen=True):
    """A running job.

    Attributes:
        number: The number of the job.
        tenant: The number of its tenant.
        gpus: Number of its GPUs.
        parts: Its GPUs, by node.
        began_at: The time of its start, seconds.
        ends_at: The latest time of its end, seconds; None if it declares no duration.
    """

    number: int
    tenant: int
    gpus: int
    parts: list[Part]
    began_at: float
    ends_at: float | None


class Reserving:
    """The reservation of a simulated cluster, which has at most one, and the jobs that run.

    Attributes:
        held: The reservation; None while there is none.
        waiting: The job that the reservation is for.
    """

    def __init__(self, cluster: Cluster, terms: Terms) -> None:
        self.held: Reservation | None = None
        self.waiting: Waiting | None = None
        self.terms = terms
        self._waits = ReservationWaits()
        self._cluster = cluster
        self._users: list[list[Running | None]] = [[None] * tables.size for tables in cluster.tables]
        self._gpus = [
            [(name, f"gpu-{place:02}") for place in range(tables.size)]
            for name, tables in zip(cluster.names, cluster.tables, strict=True)
        ]

    @property
    def idle(self) -> int:
        """Return the number of reserved GPUs that no job uses."""
        return self._cluster.count_reserved()

    def begins(self, running: Running) -> None:
        """Record that a job has started on its GPUs, some of which may be reserved."""
        self._set(running.parts, running)

    def ends(self, running: Running) -> None:
        """Record that a job has left its GPUs, some of which may be reserved."""
        self._set(running.parts, None)

    def blocked(self, waiting: Waiting, now: float) -> reservation_rules.Blocked:
        """Return a blocked simulated job in the form that ``reservation_rules`` reads."""
        who, account = str(waiting.job.number), str(waiting.job.tenant)
        self._waits.begin(who, waiting.since)
        return reservation_rules.Blocked(
            who=who,
            tenant=account,
            since=self._waits.since(who, account),
            failed=self._waits.failed(account, self.terms, now),
        )

    def make(self, waiting: Waiting, now: float) -> bool:
        """Reserve the best set of GPUs for a blocked job.

        Without a possible set, the present reservation ends. Returns whether the reserved GPUs changed.
        """
        found = reservation_rules.best(self._candidates(waiting.kind, now), now)
        if found is None:
            return self.drop()
        before = self.held
        self.waiting = waiting
        self.held = reservation_rules.reserve(self.blocked(waiting, now), found, now)
        return self._fence(before)

    def drop(self) -> bool:
        """End the simulated reservation. Returns whether anything was reserved."""
        before, self.held, self.waiting = self.held, None, None
        return self._fence(before)

    def lift(self) -> None:
        """Make the reserved GPUs available to all jobs until the method ``close`` is called."""
        self._cluster.reserve({})

    def close(self) -> None:
        """Make the reserved GPUs unavailable to jobs again, after ``lift``."""
        self._fence(None)

    def longest(self, now: float) -> float:
        """Return how many seconds a job on reserved GPUs may run if it starts now.

        A negative number means that no job may start there.
        """
        return -1.0 if self.held is None else reservation_rules.latest_end(self.held, self.terms, now) - now

    def look(self, now: float) -> None:
        """Record in the reservation which running jobs use its GPUs now."""
        if self.held is not None:
            self.held = reservation_rules.seen(self.held, self._candidate(self._places(self.held), now))

    def count(self, now: float) -> None:
        """Add the reserved GPUs' idle time until now, which is the reservation's cost."""
        if self.held is not None:
            self.held = reservation_rules.counted(self.held, self.idle, now)

    def runs_out_at(self) -> float | None:
        """Return when the reservation's idle GPU time reaches the allowed maximum; None for never.

        The result is a simulated time in seconds.
        """
        return None if self.held is None else reservation_rules.runs_out_at(self.held, self.idle, self.terms)

    def judge(self, now: float) -> bool:
        """Move or end the simulated reservation if its GPUs were idle for too long.

        Returns whether the reserved GPUs changed.
        """
        if self.held is None or self.waiting is None:
            return False
        if self.held.idle_gpu_s < self.terms.idle_s * len(self.held.gpus) * (1 - 1e-9):
            return False  # the rule says the same, but who else could be asked for is much to find out
        current = self._candidate(self._places(self.held), now)
        candidates = (each for each in self._candidates(self.waiting.kind, now) if each.gpus != current.gpus)
        alternative = reservation_rules.best(candidates, now)
        step, _ = reservation_rules.judge(
            self.held, current=current, alternative=alternative, terms=self.terms, now=now
        )
        if step is Step.MOVE and alternative is not None:
            before, self.held = self.held, reservation_rules.move(self.held, alternative, now)
            return self._fence(before)
        job = self.waiting.job
        self._waits.fail(str(job.number), str(job.tenant), self.terms, now)  # others have their turn
        return self.drop()

    def _set(self, parts: Iterable[Part], running: Running | None) -> None:
        for part in parts:
            users = self._users[part.node]
            for place in range(len(users)):
                if part.mask >> place & 1:
                    users[place] = running

    def _fence(self, before: Reservation | None) -> bool:
        masks: dict[int, int] = {}
        for node, place in () if self.held is None else self._places(self.held):
            masks[node] = masks.get(node, 0) | 1 << place
        self._cluster.reserve(masks)
        return before is not None and (self.held is None or self.held.gpus != before.gpus)

    def _places(self, held: Reservation) -> list[tuple[int, int]]:
        return [(self._cluster.number[node], int(device.removeprefix("gpu-"))) for node, device in held.gpus]

    def _candidates(self, kind: Kind, now: float) -> list[Candidate]:
        """Return the sets of GPUs that could be reserved for a job.

        For a job of one pod there is a candidate for each node that is large enough. A job of several pods has one
        candidate, on the nodes that are free first; none if there are too few nodes. On each node, the set has the GPUs
        that are free first, in this order: free GPUs, GPUs whose jobs declare the earliest ends, then GPUs whose jobs
        declare no end and have run for the shortest time.

        Args:
            kind: The GPUs of each pod of the job.
            now: The simulated time in seconds.
        """
        # 1. One pod: a candidate on each node.
        nodes = range(len(self._users))
        if len(kind) == 1:
            sets = (self._earliest_free_gpus(node, kind[0], now) for node in nodes)
            return [
                self._candidate([(node, place) for _, place in gpus_of_node], now)
                for node, gpus_of_node in enumerate(sets)
                if gpus_of_node
            ]

        # 2. Several pods: for each of them, the node where its GPUs are all free first.
        chosen: list[tuple[int, int]] = []  # node and the GPU's place on it
        unused_nodes = set(nodes)
        for gpus in kind:
            ready = [
                (gpus_of_node[-1][0], node, gpus_of_node)
                for node in sorted(unused_nodes)
                if (gpus_of_node := self._earliest_free_gpus(node, gpus, now))
            ]
            if not ready:
                return []
            _, node, gpus_of_node = min(ready)
            unused_nodes.remove(node)
            chosen += [(node, place) for _, place in gpus_of_node]
        return [self._candidate(sorted(chosen), now)]

    def _earliest_free_gpus(self, node: int, gpus: int, now: float) -> list[tuple[_Key, int]]:
        """Return the GPUs of a node that are free first, sorted by that time.

        The result is empty if the node has fewer GPUs.
        """
        users = self._users[node]
        if len(users) < gpus:
            return []
        return sorted((_ready(user, now), place) for place, user in enumerate(users))[:gpus]

    def _candidate(self, places: Sequence[tuple[int, int]], now: float) -> Candidate:
        users: dict[int, tuple[Running, int]] = {}
        gpus: list[Gpu] = []
        for node, place in sorted(places):
            gpus.append(self._gpus[node][place])
            if (user := self._users[node][place]) is not None:
                users[user.number] = user, users.get(user.number, (user, 0))[1] + 1
        uses = (
            Use(
                who=f"job {user.number}",
                gpus=count,
                ends_at=user.ends_at,
                work_gpu_s=reservation_rules.expected_work(count, now - user.began_at),
            )
            for user, count in users.values()
        )
        return Candidate(gpus=tuple(gpus), uses=tuple(uses))


def _ready(user: Running | None, now: float) -> _Key:
    if user is None:
        return _FREE
    return (1, now - user.began_at) if user.ends_at is None else (0, user.ends_at)
