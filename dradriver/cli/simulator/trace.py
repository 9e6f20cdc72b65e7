"""The trace: simulated jobs, drawn at random or read from a CSV file."""

from __future__ import annotations

import csv
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from dradriver.errors import DriverError

# Share of jobs by GPUs, in the shape that operators publish: most jobs are small, most GPU time is in the large ones.
# The figures themselves are assumed.
MIX: Final[Mapping[int, float]] = {1: 0.50, 2: 0.15, 3: 0.03, 4: 0.16, 6: 0.02, 8: 0.10, 16: 0.03, 32: 0.01}
_MEDIAN_S: Final = 1800.0
_SPREAD: Final = 1.2  # sigma of the logarithm: a tenth of the jobs last 4.7 times the median
_SLACK: Final = 3.0
_MOST_JOBS: Final = 1_000_000


class TraceError(DriverError):
    """The file is not a valid trace."""

    reason = "BadTrace"


class Job(msgspec.Struct, frozen=True):
    """A simulated job.

    Attributes:
        number: Its number, different for each job.
        arrival_s: Its arrival time, seconds.
        gpus: Number of GPUs that it requests.
        duration_s: Its duration on a set with the best bandwidth, seconds.
        tenant: The number of its tenant.
        declared_s: The declared duration after which it is ended, seconds; None if it declares none.
    """

    number: int
    arrival_s: float
    gpus: int
    duration_s: float
    tenant: int = 0
    declared_s: float | None = None


def drawn(count: int, *, gpus: int, load: float, seed: int, mix: Mapping[int, float] = MIX) -> list[Job]:
    """Return a trace of simulated jobs with random arrivals (Poisson) and log-normal durations.

    Args:
        count: Number of jobs.
        gpus: GPUs of the cluster; larger jobs are left out of the mix.
        load: Share of the cluster that the jobs would keep busy if no job had to wait.
        seed: The same seed gives the same jobs.
        mix: Share of jobs by GPUs.
    """
    rng = random.Random(seed)  # noqa: S311  # chance, no secret
    sizes = [size for size in mix if size <= gpus]
    weights = [mix[size] for size in sizes]
    mean_gpus = sum(size * weight for size, weight in zip(sizes, weights, strict=True)) / sum(weights)
    # The mean of a log-normal distribution, from its median and spread; then the rate that gives the load.
    mean_duration_s = _MEDIAN_S * 2.718281828 ** (_SPREAD**2 / 2)
    arrivals_per_s = load * gpus / (mean_gpus * mean_duration_s)
    now_s = 0.0
    jobs = []
    for number in range(count):
        now_s += rng.expovariate(arrivals_per_s)
        size = rng.choices(sizes, weights)[0]
        jobs.append(Job(number, now_s, size, _MEDIAN_S * rng.lognormvariate(0, _SPREAD)))
    return jobs


def assigned(jobs: Sequence[Job], *, weights: Sequence[float], declared: float, seed: int) -> list[Job]:
    """Return the jobs of a trace, each with a tenant, and some with a declared duration.

    Args:
        jobs: The jobs.
        weights: The weight of each tenant. Jobs are drawn for the tenants in proportion to it.
        declared: Share of the jobs that declare a duration, 0-1. Like people, they declare more than they need:
            uniformly one to three times the needed duration.
        seed: The same seed gives the same result. With a larger ``declared``, the same jobs declare the same durations,
            and further jobs declare some.
    """
    rng = random.Random(f"tenants {seed}")  # noqa: S311  # chance, no secret
    found = []
    for job in jobs:
        tenant = rng.choices(range(len(weights)), weights)[0]
        declares, slack = rng.random() < declared, rng.uniform(1, _SLACK)
        declared_s = job.duration_s * slack if declares else None
        found.append(msgspec.structs.replace(job, tenant=tenant, declared_s=declared_s))
    return found


def read(path: Path) -> list[Job]:
    """Return the trace in a CSV file: jobs with ``arrival_s``, ``gpus`` and ``duration_s``, by arrival.

    Raises:
        TraceError: There is no such file, a column is missing, or a line is not a job. The message has the line's
            number.
    """
    jobs: list[Job] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            if missing := {"arrival_s", "gpus", "duration_s"} - set(rows.fieldnames or ()):
                raise TraceError(
                    f"{path}: columns are missing: {', '.join(sorted(missing))}. Write the header "
                    "arrival_s,gpus,duration_s."
                )
            for row in rows:
                job = _job(path, rows.line_num, row, number=len(jobs))
                jobs.append(job)
                if len(jobs) > _MOST_JOBS:
                    raise TraceError(f"{path}: more than {_MOST_JOBS} jobs")
    except (OSError, UnicodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    if not jobs:
        raise TraceError(f"{path}: no jobs")
    return sorted(jobs, key=lambda job: (job.arrival_s, job.number))


def _job(path: Path, line: int, row: Mapping[str, str | None], *, number: int) -> Job:
    try:
        arrival, gpus, duration = float(row["arrival_s"] or ""), int(row["gpus"] or ""), float(row["duration_s"] or "")
    except (ValueError, TypeError) as error:
        raise TraceError(f"{path}, line {line}: {error}") from None
    if not (0 <= arrival < 1e12 and 0 < duration < 1e12 and gpus > 0):
        raise TraceError(f"{path}, line {line}: give an arrival from 0, at least 1 GPU and a duration above 0")
    return Job(number, arrival, gpus, duration)
