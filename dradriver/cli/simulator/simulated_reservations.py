"""Reservations on the simulated cluster: who is on which GPUs, which sets could be reserved, and which one is."""

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
    """A job that runs.

    Attributes:
        number: The job's.
        tenant: Whose it is.
        gpus: How many it has.
        parts: Which they are.
        began_at: Since when, seconds.
        ends_at: When it will be ended at the latest; None where it declares nothing.
    """

    number: int
    tenant: int
    gpus: int
    parts: list[Part]
    began_at: float
    ends_at: float | None


class Reserving:
    """The one reservation of a cluster, and what is known of those that run.

    Attributes:
        held: The reservation; None while there is none.
        waiting: For whom it is.
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
        """Return how many GPUs of the simulated reservation nobody uses."""
        return self._cluster.count_reserved()

    def begins(self, running: Running) -> None:
        """Note for the simulated reservation that a job has its GPUs, which may be reserved ones."""
        self._set(running.parts, running)

    def ends(self, running: Running) -> None:
        """Note for the simulated reservation that a job has left, and with it perhaps reserved GPUs."""
        self._set(running.parts, None)

    def blocked(self, waiting: Waiting, now: float) -> reservation_rules.Blocked:
        """Return a blocked simulated job as the rules of reservations know it."""
        who, account = str(waiting.job.number), str(waiting.job.tenant)
        self._waits.begin(who, waiting.since)
        return reservation_rules.Blocked(
            who=who,
            tenant=account,
            since=self._waits.since(who, account),
            failed=self._waits.failed(account, self.terms, now),
        )

    def make(self, waiting: Waiting, now: float) -> bool:
        """Make the best simulated reservation for a blocked job. Returns whether the reserved GPUs changed."""
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
        """Let jobs have the GPUs of the simulated reservation, until ``close``."""
        self._cluster.reserve({})

    def close(self) -> None:
        """Let no job have the GPUs of the simulated reservation again, after ``lift``."""
        self._fence(None)

    def longest(self, now: float) -> float:
        """Return how long a job may run that begins on GPUs of the simulated reservation now, seconds, or below 0."""
        return -1.0 if self.held is None else reservation_rules.latest_end(self.held, self.terms, now) - now

    def look(self, now: float) -> None:
        """Note which jobs are on the GPUs of the simulated reservation now."""
        if self.held is not None:
            self.held = reservation_rules.seen(self.held, self._candidate(self._places(self.held), now))

    def count(self, now: float) -> None:
        """Count the GPUs of the simulated reservation that stand idle until now."""
        if self.held is not None:
            self.held = reservation_rules.counted(self.held, self.idle, now)

    def runs_out_at(self) -> float | None:
        """Return when the simulated reservation will have cost as much as it may; None for never."""
        return None if self.held is None else reservation_rules.runs_out_at(self.held, self.idle, self.terms)

    def judge(self, now: float) -> bool:
        """Keep, move or end the simulated reservation. Returns whether the reserved GPUs changed."""
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
        """Return the sets of GPUs that could be reserved for a job: one for each large enough node if it has one pod.

        A job of several pods has one candidate, on the nodes that are ready first. On each node, the set has the GPUs
        that are free first, in this order: free GPUs, those with the earliest declared ends, then those whose endless
        jobs have run for the shortest time.

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
        """Return the GPUs of a node that are free first, the last one last; none where it has not as many."""
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
