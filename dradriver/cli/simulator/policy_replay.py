"""The replay of simulated jobs under one placement policy: they arrive, wait, run and leave.

A *seed* is the start value of the random numbers. Each seed gives other random jobs.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from statistics import mean, median

import msgspec

from dradriver.cli.simulator.placement_policies import GANGS, POLICIES, gang
from dradriver.cli.simulator.simulated_cluster import Cluster, Part
from dradriver.cli.simulator.simulated_queue import pods
from dradriver.cli.simulator.trace import Job
from dradriver.topology.machine import Machine

_SAME = 0.999
_PATIENCE_S = 600.0  # a job that has only some of its pods gives them back after this


class Result(msgspec.Struct, kw_only=True):
    """The figures of the jobs under one policy.

    Attributes:
        policy: Its name.
        best_share: Share of the jobs of two GPUs and more whose set is as good as any machine here has, 0-1.
        bandwidth: Mean of the bandwidth of these jobs relative to the best set, 0-1.
        mean_wait_s: Mean time from arrival to start, seconds.
        median_wait_s: The median, seconds.
        utilisation: Share of GPU time that jobs use until the last job arrives, 0-1.
        fragmentation: Mean over time of ``Cluster.fragmentation``.
        finished: Number of jobs that finished.
        given_up: How often a job released the GPUs of some of its pods, because its other pods found no place.
    """

    policy: str
    best_share: float
    bandwidth: float
    mean_wait_s: float
    median_wait_s: float
    utilisation: float
    fragmentation: float
    finished: int
    given_up: int


def over_seeds(results: Sequence[Result]) -> Result:
    """Return the mean of each figure of the replays under one placement policy over several seeds."""
    figures = {
        field: mean(getattr(result, field) for result in results)
        for field in Result.__struct_fields__
        if field != "policy"
    }
    counts = {field: round(figures[field]) for field in ("finished", "given_up")}
    return Result(policy=results[0].policy, **{**figures, **counts})


class _Waiting:
    """A job that has not started: its pods, and the GPUs that some of them have already."""

    def __init__(self, job: Job, cluster: Cluster) -> None:
        self.job = job
        self.sizes = pods(job.gpus, cluster.largest)
        self.parts: list[Part] = []
        self.holds_since = 0.0
        self.not_before = 0.0


class Replay:
    """The replay of a trace on a cluster under one placement policy."""

    def __init__(
        self, machines: Sequence[Machine], jobs: Sequence[Job], *, policy: str, communication: float, seed: int
    ) -> None:
        self._cluster = Cluster(machines)
        self._jobs = jobs
        self._policy = policy
        self._communication = communication
        self._rng = random.Random(seed)  # noqa: S311  # chance, no secret
        self._waiting: list[_Waiting] = []
        self._running: list[tuple[float, int, list[Part]]] = []
        self._waits_s: list[float] = []
        self._worths: list[float] = []
        self._busy_gpu_s = self._fragmented_s = self._now_s = 0.0
        self._last_arrival_s = max(job.arrival_s for job in jobs)
        self._given_up = 0
        self._finished = 0

    def run(self, *, progress: Callable[[int], None] | None = None) -> Result:
        """Replay all jobs under one placement policy.

        Args:
            progress: Called with the number of jobs that have left.
        """
        future_jobs = iter(self._jobs)
        next_job = next(future_jobs, None)
        while next_job is not None or self._waiting or self._running:
            # 1. Go to the next event: a job ends or arrives, gives its pods up, or tries again.
            event_times = [self._running[0][0]] if self._running else []  # the earliest end of a job
            if next_job is not None:
                event_times.append(next_job.arrival_s)
            event_times += [waiting.holds_since + _PATIENCE_S for waiting in self._waiting if waiting.parts]
            event_times += [waiting.not_before for waiting in self._waiting if waiting.not_before > self._now_s]
            assert event_times, "a job that waits alone finds the cluster empty"
            self._advance(min(event_times))

            # 2. Jobs end, then others arrive, then jobs start. ``_running`` has end time, job number and GPUs.
            while self._running and self._running[0][0] <= self._now_s:
                self._cluster.give_back(heapq.heappop(self._running)[2])
                self._finished += 1
                if progress is not None:
                    progress(self._finished)
            while next_job is not None and next_job.arrival_s <= self._now_s:
                self._waiting.append(_Waiting(next_job, self._cluster))
                next_job = next(future_jobs, None)
            self._give_up_pods()
            self._start()
        gpu_time_s = self._cluster.gpus * self._last_arrival_s
        return Result(
            policy=self._policy,
            # A worth is the bandwidth of a job's GPUs by that of the best set of this size on an empty machine.
            best_share=mean(worth >= _SAME for worth in self._worths) if self._worths else 1.0,
            bandwidth=mean(self._worths) if self._worths else 1.0,
            mean_wait_s=mean(self._waits_s),
            median_wait_s=median(self._waits_s),
            utilisation=self._busy_gpu_s / gpu_time_s if gpu_time_s else 0.0,
            fragmentation=self._fragmented_s / self._last_arrival_s if self._last_arrival_s else 0.0,
            finished=self._finished,
            given_up=self._given_up,
        )

    def _advance(self, to: float) -> None:
        passed_s = min(to, self._last_arrival_s) - min(self._now_s, self._last_arrival_s)
        self._busy_gpu_s += passed_s * (self._cluster.gpus - self._cluster.count_free())
        self._fragmented_s += passed_s * self._cluster.fragmentation()
        self._now_s = to

    def _give_up_pods(self) -> None:
        """Release the GPUs of jobs that have had only some of their pods placed for too long.

        Otherwise two such jobs could wait for each other for ever.
        """
        for waiting in self._waiting:
            if waiting.parts and self._now_s >= waiting.holds_since + _PATIENCE_S:
                self._cluster.give_back(waiting.parts)
                waiting.parts = []
                waiting.not_before = self._now_s + self._rng.uniform(0.5, 1.5) * _PATIENCE_S
                self._given_up += 1

    def _start(self) -> None:
        """Try to start every waiting job in order; skip jobs that find no place."""
        sizes_without_place: set[int] = set()  # sizes of pods that found no place in this round
        left: list[_Waiting] = []
        for waiting in self._waiting:
            if waiting.not_before <= self._now_s and self._place(waiting, sizes_without_place):
                self._begin(waiting)
            else:
                left.append(waiting)
        self._waiting = left

    def _place(self, waiting: _Waiting, sizes_without_place: set[int]) -> bool:
        # 1. The policy for gangs plans pods of one size together.
        if self._policy == GANGS and len(waiting.sizes) > 1 and len(set(waiting.sizes)) == 1:
            parts = gang(self._cluster, waiting.sizes[0], len(waiting.sizes))
            if parts is None:
                return False
            self._cluster.take(parts)
            waiting.parts = parts
            return True

        # 2. The other policies place one pod after another. Pods that have GPUs keep them while the others wait.
        for size in waiting.sizes[len(waiting.parts) :]:
            if any(size >= other for other in sizes_without_place):
                return False
            part = POLICIES[self._policy](self._cluster, size, self._rng)
            if part is None:
                sizes_without_place.add(size)
                return False
            if not waiting.parts:
                waiting.holds_since = self._now_s
            self._cluster.take([part])
            waiting.parts.append(part)
        return True

    def _begin(self, waiting: _Waiting) -> None:
        worth = self._cluster.worth(waiting.parts)
        if waiting.job.gpus > 1:
            self._worths.append(worth)
        self._waits_s.append(self._now_s - waiting.job.arrival_s)
        slowdown = 1 - self._communication + self._communication / worth
        heapq.heappush(
            self._running, (self._now_s + waiting.job.duration_s * slowdown, waiting.job.number, waiting.parts)
        )
