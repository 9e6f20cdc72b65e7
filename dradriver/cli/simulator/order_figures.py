"""The figures of a queue order: waiting times by size, use of the cluster, and fairness among the tenants.

The figures are *contended* ones if they are about the time in which all tenants had jobs waiting. A *seed* is the start
value of the random numbers. Each seed gives other random jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean
from typing import Final

import msgspec

CLASSES: Final = (("1", 1), ("2", 2), ("3-4", 4), ("5-8", 8), (">8", math.inf))
"""Sizes of jobs that are told apart, and the most GPUs of each."""
ALL: Final = "all"
STARVED_S: Final = 1800.0
"""A job that waited longer is called starved, as arXiv 2512.10980 does."""
_SAME: Final = 0.999


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting times of the jobs of one size, from arrival to start, seconds.

    Attributes:
        gpus: The size, or ``ALL``.
        jobs: Number of jobs.
        began: Number of jobs that started.
        mean_s: The mean.
        p99_s: The 99th percentile.
        largest_s: The longest.
        starved: Number of jobs that waited longer than ``STARVED_S``.
    """

    gpus: str
    jobs: float
    began: float
    mean_s: float
    p99_s: float
    largest_s: float
    starved: float


class OrderResult(msgspec.Struct, kw_only=True):
    """The figures of the jobs under one order.

    Attributes:
        order: Its name.
        waits: Waiting times by size; the last entry has all jobs.
        utilisation: Share of GPU time that jobs use until the last job arrives, 0-1.
        best_share: Share of the jobs of two GPUs and more whose set is as good as any machine here has, 0-1.
        bandwidth: Mean of the bandwidth of these jobs relative to the best set, 0-1.
        unfairness: The largest difference between a tenant's share of GPU time and its weight, while all tenants had
            jobs waiting, 0-1; None if that never was.
        one_job: The largest GPU time of one job as a share of all GPU time while all tenants had jobs waiting. The
            tenants' shares cannot come closer to their weights than this.
        contended: Share of the time until the last job arrives in which all tenants had jobs waiting, 0-1.
        reservations: Number of reservations; 0 if the order reserves again at each event.
        reserved_idle: Share of GPU time that was idle because it was reserved, 0-1.
        ended: Number of jobs that were ended because they ran as long as they had declared.
    """

    order: str
    waits: tuple[Waits, ...]
    utilisation: float
    best_share: float
    bandwidth: float
    unfairness: float | None
    one_job: float | None
    contended: float
    reservations: float
    reserved_idle: float
    ended: float

    def of(self, gpus: str) -> Waits | None:
        """Return the waiting times of simulated jobs of one size; None without such jobs."""
        return next((each for each in self.waits if each.gpus == gpus), None)


class Figures:
    """Counters of a queue order while the jobs run; times in seconds.

    Attributes:
        now: The time until which it has counted.
        reservations: Number of reservations made.
        ended: Number of jobs that were ended early.
    """

    def __init__(self, *, gpus: int, last: float, weights: Sequence[float]) -> None:
        """Set all counters to 0.

        Args:
            gpus: GPUs of the cluster.
            last: The arrival time of the last job.
            weights: The weight of each tenant.
        """
        self.now = 0.0
        self.reservations = self.ended = 0
        self._gpus = gpus
        self._last = last
        self._weights = weights
        self._busy = self._reserved_idle = self._contended = 0.0
        self._got = [0.0] * len(weights)
        self._largest = 0.0  # GPU-seconds of one job
        self._waits: dict[str, list[float]] = {name: [] for name, _ in CLASSES}
        self._began = dict.fromkeys(self._waits, 0)
        self._worths: list[float] = []

    def advance(self, to: float, *, held: Sequence[int], reserved_idle: int, contended: bool) -> None:
        """Add the time until ``to`` to the figures.

        Args:
            to: The new time, seconds.
            held: The GPUs that each tenant has during this time.
            reserved_idle: The number of idle GPUs that are reserved.
            contended: Whether all tenants have jobs waiting.
        """
        passed = min(to, self._last) - min(self.now, self._last)
        self._busy += passed * sum(held)
        self._reserved_idle += passed * reserved_idle
        if contended:
            self._contended += passed
            for tenant, gpus in enumerate(held):
                self._got[tenant] += passed * gpus
        self.now = to

    def began(self, *, gpus: int, wait_s: float, worth: float, lasts_s: float, contended: bool) -> None:
        """Add a simulated job that starts now to the figures.

        Args:
            gpus: The number of its GPUs.
            wait_s: How long it has waited, seconds.
            worth: Its set's bandwidth relative to the best, 0-1.
            lasts_s: How long it will run, seconds.
            contended: Whether all tenants have jobs waiting.
        """
        self.waits(gpus, wait_s)
        self._began[_class(gpus)] += 1
        if gpus > 1:
            self._worths.append(worth)
        if contended:
            self._largest = max(self._largest, gpus * lasts_s)

    def waits(self, gpus: int, wait_s: float) -> None:
        """Add the waiting time of a simulated job to the figures.

        Args:
            gpus: The number of GPUs that the job requests.
            wait_s: How long it has waited, seconds.
        """
        self._waits[_class(gpus)].append(wait_s)

    def result(self, order: str) -> OrderResult:
        """Return the figures of an order from the counters."""
        sizes = [(name, waits, self._began[name]) for name, waits in self._waits.items()]
        all_waits_s = [wait for waits in self._waits.values() for wait in waits]
        cluster_gpu_s = self._gpus * self._last
        # While all tenants had jobs waiting: how far each tenant's part of the GPU time was from its part of the
        # weights.
        contended_gpu_s, weight_sum = sum(self._got), sum(self._weights)
        unfairness_of_tenant = [
            abs(tenant_gpu_s / contended_gpu_s - tenant_weight / weight_sum)
            for tenant_gpu_s, tenant_weight in zip(self._got, self._weights, strict=True)
            if contended_gpu_s
        ]
        return OrderResult(
            order=order,
            waits=tuple(_waits(*size) for size in (*sizes, (ALL, all_waits_s, sum(self._began.values()))) if size[1]),
            utilisation=self._busy / cluster_gpu_s if cluster_gpu_s else 0.0,
            best_share=mean(worth >= _SAME for worth in self._worths) if self._worths else 1.0,
            bandwidth=mean(self._worths) if self._worths else 1.0,
            unfairness=max(unfairness_of_tenant) if unfairness_of_tenant and len(unfairness_of_tenant) > 1 else None,
            one_job=self._largest / contended_gpu_s if contended_gpu_s else None,
            contended=self._contended / self._last if self._last else 0.0,
            reservations=self.reservations,
            reserved_idle=self._reserved_idle / cluster_gpu_s if cluster_gpu_s else 0.0,
            ended=self.ended,
        )


def over_seeds(results: Sequence[OrderResult]) -> OrderResult:
    """Return the mean of each figure of one order of the queue over several seeds."""
    waits = []
    for name in (*(name for name, _ in CLASSES), ALL):
        found = [own for result in results if (own := result.of(name)) is not None]
        if found:
            means = {field: mean(getattr(own, field) for own in found) for field in ("mean_s", "p99_s", "largest_s")}
            sums = {field: sum(getattr(own, field) for own in found) for field in ("jobs", "began", "starved")}
            counts = {field: total / len(results) for field, total in sums.items()}
            waits.append(Waits(gpus=name, **counts, **means))
    fields = (
        "utilisation", "best_share", "bandwidth", "unfairness", "one_job", "contended", "reservations",
        "reserved_idle", "ended",
    )  # fmt: skip
    figures = {field: _mean_of_some([getattr(result, field) for result in results]) for field in fields}
    return OrderResult(order=results[0].order, waits=tuple(waits), **figures)  # type: ignore[arg-type]


def _mean_of_some(values: Sequence[float | None]) -> float | None:
    some = [value for value in values if value is not None]
    return mean(some) if some else None


def _class(gpus: int) -> str:
    return next(name for name, most in CLASSES if gpus <= most)


def _waits(name: str, waits: list[float], began: int) -> Waits:
    ordered = sorted(waits)
    p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
    starved = sum(wait > STARVED_S for wait in ordered)
    return Waits(
        gpus=name, jobs=len(ordered), began=began, mean_s=mean(ordered), p99_s=p99, largest_s=ordered[-1],
        starved=starved,
    )  # fmt: skip
