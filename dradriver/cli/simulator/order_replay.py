"""Jobs come, wait in an order, run and leave; what the order makes of them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence

from dradriver.cli.simulator.order_figures import Figures, OrderResult
from dradriver.cli.simulator.orders import ORDERS, NoPlace, Turn
from dradriver.cli.simulator.placement_policies import GANGS, POLICIES, gang
from dradriver.cli.simulator.simulated_cluster import Cluster, Part
from dradriver.cli.simulator.simulated_queue import Blocked, Kind, Lines, Waiting, pods
from dradriver.cli.simulator.simulated_reservations import Reserving, Running, blocked
from dradriver.cli.simulator.trace import Job
from dradriver.queue import reservation_rules
from dradriver.queue.reservation_rules import Terms
from dradriver.queue.tenant_shares import Shares
from dradriver.topology.machine import Machine


class OrderReplay:
    """One cluster, one order, one policy of placement, one trace; a job starts with all of its pods or not at all."""

    def __init__(
        self,
        machines: Sequence[Machine],
        jobs: Sequence[Job],
        *,
        order: str,
        policy: str = GANGS,
        communication: float = 0.2,
        weights: Sequence[float] = (1.0,),
        seed: int = 1,
        until_s: float | None = None,
    ) -> None:
        """Prepare it.

        Args:
            machines: The nodes.
            jobs: The jobs, by arrival.
            order: One of ``ORDERS``.
            policy: Which set a job gets, one of ``POLICIES``.
            communication: Share of a job's time that is all-reduce on the best set.
            weights: By tenant.
            seed: For policies that decide by chance.
            until_s: When it stops, though jobs still wait; those count as if they began then. None: when all have left.
        """
        self._cluster = Cluster(machines)
        self._jobs = jobs
        self._name = order
        self._turns = ORDERS[order].turn
        self._rule = ORDERS[order].backfilling
        self._policy = policy
        self._communication = communication
        self._weights = weights
        self._rng = random.Random(seed)  # noqa: S311  # chance, no secret
        self._lines = Lines(len(weights))
        self._leaving: list[tuple[float, int, Running]] = []
        last = max(job.arrival_s for job in jobs) if until_s is None else until_s
        self._until_s = until_s
        self._figures = Figures(gpus=self._cluster.gpus, last=last, weights=weights)
        self._shares = Shares(lambda: self._figures.now)
        self._reserving = Reserving(self._cluster, self._rule.terms or Terms())
        self._held = [0] * len(weights)
        self._blocked = Blocked()  # kinds without a place, beside what is reserved
        self._nowhere = Blocked()  # the same with what is reserved
        self._came: list[Waiting] = []
        self._finished = 0

    def run(self, *, progress: Callable[[int], None] | None = None) -> OrderResult:
        """Replay all jobs in one order of the queue; ``progress`` is told how many have left."""
        coming = iter(self._jobs)
        job = next(coming, None)
        while job is not None or self._lines or self._leaving:
            times = [self._leaving[0][0]] if self._leaving else []
            if job is not None:
                times.append(job.arrival_s)
            times += self._moments()
            assert times, "a job that waits alone finds the cluster empty"
            if self._until_s is not None and min(times) > self._until_s:
                self._advance(self._until_s)
                break
            self._advance(max(min(times), self._figures.now))
            freed = self._leave()
            if freed and progress is not None:
                progress(self._finished)
            self._came = []
            while job is not None and job.arrival_s <= self._figures.now:
                waiting = Waiting(job, pods(job.gpus, self._cluster.largest))
                self._lines.add(waiting)
                self._came.append(waiting)
                job = next(coming, None)
            self._serve(freed=freed)
        for waiting in self._lines:
            self._figures.waits(waiting.job.gpus, self._figures.now - waiting.job.arrival_s)
        return self._figures.result(self._name)

    @property
    def _contended(self) -> bool:
        return all(self._lines.counts)

    def _moments(self) -> list[float]:
        """Return when something is to be done though nobody comes or leaves: reservations are due, or cost too much."""
        terms = self._rule.terms
        if terms is None or self._rule.replanned:
            return []
        if self._reserving.held is not None:
            at = self._reserving.runs_out_at()
            return [] if at is None else [at]
        due = (reservation_rules.due_at(blocked(head), terms) for head in self._heads())
        return [at for at in due if at > self._figures.now]

    def _advance(self, to: float) -> None:
        self._figures.advance(to, held=self._held, reserved_idle=self._reserving.idle, contended=self._contended)
        self._reserving.count(to)

    def _leave(self) -> bool:
        """Let the jobs go that have run until now. Returns whether any did."""
        freed = False
        while self._leaving and self._leaving[0][0] <= self._figures.now:
            running = heapq.heappop(self._leaving)[2]
            self._cluster.give_back(running.parts)
            self._reserving.ends(running)
            self._hold(running.tenant, -running.gpus)
            self._finished += 1
            freed = True
        if freed:
            self._blocked.clear()
            self._nowhere.clear()
        return freed

    def _serve(self, *, freed: bool) -> None:
        """Start whom the order lets start now, and reserve."""
        before = self._reserving.held
        if self._rule.replanned:
            self._backfill_easy(freed=freed)
        else:
            self._reserving.look(self._figures.now)
            if freed:
                self._start_holder()
            self._start_in_turn()
            if self._rule.terms is not None:
                self._reserve()
        # Who may run on reserved GPUs changes when they do, or when they are free; else only new ones need be asked.
        self._start_on_reserved(everybody=freed or self._reserving.held is not before)

    def _start_in_turn(self) -> Waiting | None:
        """Start one after the other beside what is reserved. Returns the first that found no place."""
        first: Waiting | None = None
        passed = self._blocked if self._rule.no_place is NoPlace.GO_ON else None
        heads = {
            tenant: head
            for tenant in range(len(self._weights))
            if (head := self._lines.head(tenant, passed=passed)) is not None
        }
        while heads:
            waiting = min(heads.values(), key=self._turn)
            own = waiting.job.tenant
            started = self._start(waiting, self._blocked)
            if not started:
                first = first or waiting
                if self._rule.no_place is NoPlace.STOP:
                    return first
                if self._rule.no_place is NoPlace.STOP_TENANT:
                    del heads[own]
                    continue
            for tenant, head in list(heads.items()):
                if tenant != own and (passed is None or head.kind not in passed):
                    continue
                following = self._lines.head(tenant, passed=passed)
                if following is None:
                    del heads[tenant]
                else:
                    heads[tenant] = following
        return first

    def _backfill_easy(self, *, freed: bool) -> None:
        """Start the first with all GPUs until one finds no place, reserve for that one, and start others beside it."""
        while (head := min(self._heads(), key=self._turn, default=None)) is not None:
            self._reserving.lift()
            started = self._start(head, self._nowhere)
            self._reserving.close()
            if not started:
                break
            freed = True  # what was planned is outdated
        if head is None:
            self._reserving.drop()
            self._blocked.clear()
        elif (freed or self._reserving.waiting is not head) and self._reserving.make(head, self._figures.now):
            self._blocked.clear()
        if self._start_in_turn() is not None and self._reserving.held is not None:
            self._reserving.look(self._figures.now)

    def _heads(self) -> list[Waiting]:
        heads = (self._lines.head(tenant) for tenant in range(len(self._weights)))
        return [head for head in heads if head is not None]

    def _start_holder(self) -> None:
        """Start the job that GPUs are reserved for, there or elsewhere."""
        waiting = self._reserving.waiting
        if waiting is None:
            return
        self._reserving.lift()
        if self._start(waiting, self._nowhere):
            self._reserving.drop()
            self._blocked.clear()
        else:
            self._reserving.close()

    def _reserve(self) -> None:
        """End or move a reservation that costs too much; make one for the first that has been blocked for too long."""
        now = self._figures.now
        if self._reserving.judge(now):
            self._blocked.clear()
            self._start_in_turn()
        if self._reserving.held is not None:
            return
        heads = sorted(self._heads(), key=self._turn)
        by_name = {str(head.job.number): head for head in heads}
        waiting = [blocked(head) for head in heads]
        for each in reservation_rules.due(waiting, (), self._reserving.terms, now):
            self._reserving.make(by_name[each.who], now)
            self._figures.reservations += 1

    def _start_on_reserved(self, *, everybody: bool) -> None:
        """Start those on reserved GPUs that end before they are wanted."""
        if self._reserving.held is None or not self._reserving.idle:
            return
        longest = self._reserving.longest(self._figures.now)
        if everybody:
            some = list(self._lines.ended_within(longest, lambda kind: kind not in self._nowhere))
        else:
            declaring = ((each, each.job.declared_s) for each in self._came)
            some = [each for each, declared_s in declaring if declared_s is not None and declared_s <= longest]
        fitting = [waiting for waiting in some if waiting is not self._reserving.waiting]
        for waiting in sorted(fitting, key=self._turn):
            if waiting.kind in self._nowhere or not self._lines.has(waiting):
                continue
            self._reserving.lift()
            self._start(waiting, self._nowhere)
            self._reserving.close()

    def _turn(self, waiting: Waiting) -> tuple[float, float, int]:
        """Return what decides whose turn it is, the least first."""
        job = waiting.job
        first = 0.0
        if self._turns is Turn.SHARE:
            first = self._shares.share(str(job.tenant), self._weights[job.tenant])
        elif self._turns is Turn.QUOTA:
            quota = self._cluster.gpus * self._weights[job.tenant] / sum(self._weights)
            first = float(self._held[job.tenant] + job.gpus > quota * (1 + 1e-9))
        return first, job.arrival_s, job.number

    def _start(self, waiting: Waiting, without_place: Blocked) -> bool:
        """Start a job if it finds a place; else its kind is blocked."""
        if waiting.kind in without_place:
            return False
        parts = self._find(waiting.kind)
        if parts is None:
            without_place.add(waiting.kind)
            return False
        contended = self._contended
        self._lines.remove(waiting)
        job, now = waiting.job, self._figures.now
        worth = self._cluster.worth(parts)
        lasts = job.duration_s * (1 - self._communication + self._communication / worth)
        ends_at = None if job.declared_s is None else now + job.declared_s
        if job.declared_s is not None and lasts > job.declared_s:
            lasts = job.declared_s
            self._figures.ended += 1
        running = Running(job.number, job.tenant, job.gpus, parts, now, ends_at)
        heapq.heappush(self._leaving, (now + lasts, job.number, running))
        self._reserving.begins(running)
        self._hold(job.tenant, job.gpus)
        self._figures.began(gpus=job.gpus, wait_s=now - job.arrival_s, worth=worth, lasts_s=lasts, contended=contended)
        return True

    def _hold(self, tenant: int, gpus: int) -> None:
        self._held[tenant] += gpus
        self._shares.holds(str(tenant), held=gpus, charged=gpus)

    def _find(self, kind: Kind) -> list[Part] | None:
        """Take GPUs for all pods, or for none."""
        least = kind[-1]
        if sum(mask.bit_count() // least for mask in self._cluster.free) < len(kind):
            return None
        if self._policy == GANGS and len(kind) > 1 and least == kind[0]:
            parts = gang(self._cluster, least, len(kind))
            if parts is not None:
                self._cluster.take(parts)
            return parts
        parts = []
        for gpus in kind:
            part = POLICIES[self._policy](self._cluster, gpus, self._rng)
            if part is None:
                self._cluster.give_back(parts)
                return None
            self._cluster.take([part])
            parts.append(part)
        return parts
