"""The replay of jobs in one queue order: they arrive, wait, run and leave (``gputopo simulate --order``).

A job is *blocked* if it found no place. Some orders then reserve GPUs for it. Other jobs may use reserved GPUs only if
they end in time.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence

from dradriver.cli.simulator.order_figures import Figures, OrderResult
from dradriver.cli.simulator.orders import ORDERS, NoPlace, Turn
from dradriver.cli.simulator.placement_policies import GANGS, POLICIES, gang
from dradriver.cli.simulator.simulated_cluster import Cluster, Part
from dradriver.cli.simulator.simulated_queue import Blocked, Kind, Lines, Waiting, pods
from dradriver.cli.simulator.simulated_reservations import Reserving, Running
from dradriver.cli.simulator.trace import Job
from dradriver.queue import reservation_rules
from dradriver.queue.reservation_rules import Terms
from dradriver.queue.tenant_shares import Shares
from dradriver.topology.machine import Machine


class OrderReplay:
    """The replay of a trace in one queue order. A job starts with all of its pods or not at all."""

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
        """Prepare the replay; ``run`` executes it.

        Args:
            machines: The nodes.
            jobs: The jobs, by arrival.
            order: One of ``ORDERS``.
            policy: The placement policy, one of ``POLICIES``.
            communication: Share of a job's time that is all-reduce on the best set, 0 to 1.
            weights: The weight of each tenant.
            seed: Seed of placement policies that choose at random.
            until_s: Time at which the replay stops; jobs that still wait count as started then. None replays until
                all jobs have left.
        """
        self._cluster = Cluster(machines)
        self._jobs = jobs
        self._order_name = order
        # Which tenant's job is next, and what happens while a job finds no place.
        self._turn_rule = ORDERS[order].turn
        self._backfilling = ORDERS[order].backfilling
        self._policy = policy
        self._communication = communication
        self._weights = weights
        self._rng = random.Random(seed)  # noqa: S311  # chance, no secret
        self._until_s = until_s
        # What waits and what runs. GPUs by tenant, in the order of ``weights``.
        self._queues = Lines(len(weights))  # one queue per tenant
        self._arrived: list[Waiting] = []  # in the current step
        self._running: list[tuple[float, int, Running]] = []  # a heap by end time
        self._gpus_of_tenant = [0] * len(weights)
        self._finished = 0
        # Kinds of jobs (numbers of GPUs of their pods) that found no place since GPUs were freed: not tried again.
        self._no_place_unreserved = Blocked()  # no place outside the reserved GPUs
        self._no_place_anywhere = Blocked()  # no place even if the reserved GPUs are used
        # What is measured.
        last_s = max(job.arrival_s for job in jobs) if until_s is None else until_s
        # ``_shares``: past GPU time of each tenant. ``_reserving``: GPUs that are kept for a job without a place.
        self._figures = Figures(gpus=self._cluster.gpus, last=last_s, weights=weights)
        self._shares = Shares(lambda: self._figures.now)
        self._reserving = Reserving(self._cluster, self._backfilling.terms or Terms())

    def run(self, *, progress: Callable[[int], None] | None = None) -> OrderResult:
        """Replay all jobs in one order of the queue.

        Args:
            progress: Called with the number of jobs that have left.
        """
        future_jobs = iter(self._jobs)
        next_job = next(future_jobs, None)
        while next_job is not None or self._queues or self._running:
            # 1. Go to the next event: a job ends, a job arrives, or a reservation is due.
            event_times = [self._running[0][0]] if self._running else []  # the earliest end of a job
            if next_job is not None:
                event_times.append(next_job.arrival_s)
            event_times += self._reservation_times()
            assert event_times, "a job that waits alone finds the cluster empty"
            if self._until_s is not None and min(event_times) > self._until_s:
                self._advance(self._until_s)
                break
            self._advance(max(min(event_times), self._figures.now))

            # 2. Free the GPUs of jobs that have ended.
            has_freed = self._end_jobs()
            if has_freed and progress is not None:
                progress(self._finished)

            # 3. Queue the jobs that arrive.
            self._arrived = []
            while next_job is not None and next_job.arrival_s <= self._figures.now:
                # ``pods`` divides a job's GPUs over pods that fit a node.
                waiting = Waiting(next_job, pods(next_job.gpus, self._cluster.largest))
                self._queues.add(waiting)
                self._arrived.append(waiting)
                next_job = next(future_jobs, None)

            # 4. Start jobs.
            self._start_jobs(freed=has_freed)

        # 5. Jobs that still wait at ``until_s``.
        for waiting in self._queues:
            self._figures.waits(waiting.job.gpus, self._figures.now - waiting.job.arrival_s)
        return self._figures.result(self._order_name)

    @property
    def _contended(self) -> bool:
        return all(self._queues.counts)

    def _reservation_times(self) -> list[float]:
        """Return the times at which reservations may have to change.

        While GPUs are reserved, this is the time at which they will have been idle for too long. Otherwise these are
        the times at which blocked jobs have waited long enough for a reservation. The list is empty if the order has no
        reservations with such times.
        """
        terms = self._backfilling.terms
        if terms is None or self._backfilling.replanned:
            return []
        if self._reserving.held is not None:
            at = self._reserving.runs_out_at()
            return [] if at is None else [at]
        now = self._figures.now
        due = (reservation_rules.due_at(self._reserving.blocked(head, now), terms) for head in self._heads())
        return [at for at in due if at > now]

    def _advance(self, to: float) -> None:
        self._figures.advance(
            to, held=self._gpus_of_tenant, reserved_idle=self._reserving.idle, contended=self._contended
        )
        self._reserving.count(to)

    def _end_jobs(self) -> bool:
        """Free the GPUs of the jobs that end now.

        Returns whether there were any.
        """
        freed = False
        while self._running and self._running[0][0] <= self._figures.now:
            running = heapq.heappop(self._running)[2]
            self._cluster.give_back(running.parts)
            self._reserving.ends(running)
            self._count_gpus_of_tenant(running.tenant, -running.gpus)
            self._finished += 1
            freed = True
        if freed:
            self._no_place_unreserved.clear()
            self._no_place_anywhere.clear()
        return freed

    def _start_jobs(self, *, freed: bool) -> None:
        """Start the jobs that the order lets start now, and reserve GPUs.

        ``freed`` says whether jobs have ended since the last call.
        """
        reservation_before = self._reserving.held
        if self._backfilling.replanned:
            self._backfill_easy(freed=freed)
        else:
            self._reserving.look(self._figures.now)
            if freed:
                self._start_holder()
            self._start_in_turn()
            if self._backfilling.terms is not None:
                self._reserve()
        # A job that could not run on the reserved GPUs still cannot, unless GPUs were freed or the reservation changed.
        # So otherwise only the jobs that have just arrived are tried.
        self._start_on_reserved(everybody=freed or self._reserving.held is not reservation_before)

    def _start_in_turn(self) -> Waiting | None:
        """Start waiting jobs in their order on GPUs that are not reserved.

        Returns the first job without a place; None if there is none.
        """
        first_without_place: Waiting | None = None
        # A kind: the GPUs of each pod of a job. Kinds to skip, if jobs without a place do not hold up the queue.
        skipped_kinds = self._no_place_unreserved if self._backfilling.no_place is NoPlace.GO_ON else None
        heads: dict[int, Waiting] = {}  # the first job of each tenant's queue

        def update_head(tenant: int) -> None:
            head = self._queues.head(tenant, passed=skipped_kinds)
            if head is None:
                heads.pop(tenant, None)
            else:
                heads[tenant] = head

        for tenant in range(len(self._weights)):
            update_head(tenant)
        while heads:
            waiting = min(heads.values(), key=self._sort_key)
            tenant = waiting.job.tenant
            if not self._start(waiting, self._no_place_unreserved):
                first_without_place = first_without_place or waiting
                if self._backfilling.no_place is NoPlace.STOP:
                    return first_without_place
                if self._backfilling.no_place is NoPlace.STOP_TENANT:
                    del heads[tenant]
                    continue
            # This tenant has another first job, and so have others whose first job is now of a kind without a place.
            for other, head in list(heads.items()):
                if other == tenant or (skipped_kinds is not None and head.kind in skipped_kinds):
                    update_head(other)
        return first_without_place

    def _backfill_easy(self, *, freed: bool) -> None:
        """Start jobs as EASY backfilling does.

        The first jobs of the queue start, on reserved GPUs too, until one finds no place. GPUs are reserved for that
        job. Then the jobs behind it start on GPUs that are not reserved. ``freed`` says whether jobs have ended since
        the last call.
        """
        # 1. The first jobs of the queue. ``lift`` makes the reserved GPUs free for the attempt, ``close`` reserves them
        # again.
        while (head := min(self._heads(), key=self._sort_key, default=None)) is not None:
            self._reserving.lift()
            is_started = self._start(head, self._no_place_anywhere)
            self._reserving.close()
            if not is_started:
                break
            freed = True  # the reservation was planned without this job: plan it again

        # 2. Reserve for the first job without a place, or end the reservation if there is none. Kinds of jobs that
        # found no place are then tried again, because other GPUs are reserved.
        if head is None:
            self._reserving.drop()
            self._no_place_unreserved.clear()
        elif (freed or self._reserving.waiting is not head) and self._reserving.make(head, self._figures.now):
            self._no_place_unreserved.clear()

        # 3. The jobs behind it.
        if self._start_in_turn() is not None and self._reserving.held is not None:
            self._reserving.look(self._figures.now)

    def _heads(self) -> list[Waiting]:
        heads = (self._queues.head(tenant) for tenant in range(len(self._weights)))
        return [head for head in heads if head is not None]

    def _start_holder(self) -> None:
        """Start the job for which GPUs are reserved if it finds a place on any GPUs."""
        waiting = self._reserving.waiting
        if waiting is None:
            return
        self._reserving.lift()
        if self._start(waiting, self._no_place_anywhere):
            self._reserving.drop()
            self._no_place_unreserved.clear()
        else:
            self._reserving.close()

    def _reserve(self) -> None:
        """End or move a reservation whose GPUs have been idle for too long.

        If there is no reservation then, reserve GPUs for the first job that has been blocked for too long.
        """
        now = self._figures.now
        if self._reserving.judge(now):
            self._no_place_unreserved.clear()
            self._start_in_turn()
        if self._reserving.held is not None:
            return
        heads = sorted(self._heads(), key=self._sort_key)
        by_name = {str(head.job.number): head for head in heads}
        blocked_heads = [self._reserving.blocked(head, now) for head in heads]
        for due in reservation_rules.due(blocked_heads, (), self._reserving.terms, now):
            self._reserving.make(by_name[due.who], now)
            self._figures.reservations += 1

    def _start_on_reserved(self, *, everybody: bool) -> None:
        """Start jobs on reserved GPUs if they end before the reservation begins.

        Args:
            everybody: Whether all waiting jobs are tried; else only those that have just arrived.
        """
        if self._reserving.held is None or not self._reserving.idle:
            return
        # A job may run there if its declared duration ends before the reservation begins.
        longest_s = self._reserving.longest(self._figures.now)
        if everybody:
            short_jobs = list(self._queues.ended_within(longest_s, lambda kind: kind not in self._no_place_anywhere))
        else:
            short_jobs = [
                waiting
                for waiting in self._arrived
                if waiting.job.declared_s is not None and waiting.job.declared_s <= longest_s
            ]
        candidates = [waiting for waiting in short_jobs if waiting is not self._reserving.waiting]
        for waiting in sorted(candidates, key=self._sort_key):
            if waiting.kind in self._no_place_anywhere or not self._queues.has(waiting):
                continue
            self._reserving.lift()
            self._start(waiting, self._no_place_anywhere)
            self._reserving.close()

    def _sort_key(self, waiting: Waiting) -> tuple[float, float, int]:
        """Return the sort key of a waiting job; the job with the smallest key is served first."""
        job = waiting.job
        precedence = 0.0
        if self._turn_rule is Turn.SHARE:
            precedence = self._shares.share(str(job.tenant), self._weights[job.tenant])
        elif self._turn_rule is Turn.QUOTA:
            # Jobs within their tenant's quota come before jobs that borrow from other tenants.
            quota = self._cluster.gpus * self._weights[job.tenant] / sum(self._weights)
            precedence = float(self._gpus_of_tenant[job.tenant] + job.gpus > quota * (1 + 1e-9))
        return precedence, job.arrival_s, job.number

    def _start(self, waiting: Waiting, without_place: Blocked) -> bool:
        """Start a job if it finds a place; else add its pod sizes to ``without_place``.

        Returns whether it started.
        """
        if waiting.kind in without_place:
            return False
        parts = self._take_gpus(waiting.kind)
        if parts is None:
            without_place.add(waiting.kind)
            return False
        was_contended = self._contended  # before this job leaves its queue
        self._queues.remove(waiting)
        job, now = waiting.job, self._figures.now
        # All-reduce takes longer in proportion on a set with less bandwidth than the best.
        bandwidth_ratio = self._cluster.worth(parts)
        lasts_s = job.duration_s * (1 - self._communication + self._communication / bandwidth_ratio)
        ends_at = None if job.declared_s is None else now + job.declared_s
        if job.declared_s is not None and lasts_s > job.declared_s:
            lasts_s = job.declared_s  # a job is ended at its declared duration
            self._figures.ended += 1
        running = Running(job.number, job.tenant, job.gpus, parts, now, ends_at)
        heapq.heappush(self._running, (now + lasts_s, job.number, running))
        self._reserving.begins(running)
        self._count_gpus_of_tenant(job.tenant, job.gpus)
        self._figures.began(
            gpus=job.gpus, wait_s=now - job.arrival_s, worth=bandwidth_ratio, lasts_s=lasts_s, contended=was_contended
        )
        return True

    def _count_gpus_of_tenant(self, tenant: int, gpus: int) -> None:
        self._gpus_of_tenant[tenant] += gpus
        self._shares.holds(str(tenant), held=gpus, charged=gpus)

    def _take_gpus(self, kind: Kind) -> list[Part] | None:
        """Take GPUs for all pods of a job, or return None. ``kind`` has the GPUs of each pod, largest first."""
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
