"""Jobs drawn from a published shape: sizes, durations, and arrivals in bursts over the hours and days of a week."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dradriver.cli.simulator.published_shapes import BIN_S, BURSTINESS, BY_HOUR, BY_WEEKDAY
from dradriver.cli.simulator.shape_fit import fit
from dradriver.cli.simulator.trace import Job

Floats = NDArray[np.float64]

_HOUR_S: Final = 3600.0
_DAY_S: Final = 86_400.0


def drawn(
    shape: str, count: int, *, gpus: int, load: float, seed: int, cut: Callable[[int], int] | None = None
) -> list[Job]:
    """Return simulated jobs of a published shape, by arrival; time 0 is midnight on a Monday.

    The time span of the arrivals follows from the drawn jobs: their GPU time is ``load`` times the GPU time of the
    cluster in that span. So each seed has exactly this load, however long its longest jobs are.

    Args:
        shape: One of ``SHAPES``.
        count: Number of jobs.
        gpus: GPUs of the cluster; larger jobs are cut to it.
        load: GPU time of the jobs, as share of the cluster's.
        seed: The same seed gives the same jobs.
        cut: Returns the number of GPUs that a job gets for a requested number; None if any number is possible.
    """
    rng = np.random.default_rng(seed)
    sizes, durations_s = fit(shape).draw(rng, count)
    sizes = np.minimum(sizes, gpus)
    if cut is not None:
        wanted_sizes, index = np.unique(sizes, return_inverse=True)  # few sizes: ``cut`` is called once for each
        sizes = np.array([cut(size) for size in wanted_sizes.tolist()], dtype=np.int64)[index]
    # The time in which the cluster can do so much GPU time at this load.
    span_s = float((sizes * durations_s).sum()) / (load * gpus)
    times = arrivals(rng, count, span_s)
    jobs = zip(times.tolist(), sizes.tolist(), durations_s.tolist(), strict=True)
    return [Job(number, arrival_s, size, duration_s) for number, (arrival_s, size, duration_s) in enumerate(jobs)]


def arrivals(rng: np.random.Generator, count: int, span_s: float) -> Floats:
    """Return the sorted arrival times of shaped jobs within a span, seconds.

    The number of jobs in a time bin is negative binomial: Poisson with a rate that is itself drawn from a gamma
    distribution. Because the total is given, the jobs are distributed over the bins in proportion to the drawn rates.
    The hours and weekdays explain a part of the variance, and the gamma distribution the rest. For rates of shape k,
    variance / mean is 1 + mean / k. So k = mean / (``BURSTINESS`` - 1).
    """
    bins = max(math.ceil(span_s / BIN_S), 1)
    starts: Floats = np.arange(bins, dtype=np.float64) * BIN_S
    factors = expected(starts)
    factors /= factors.mean()
    mean = count / bins
    excess = max(BURSTINESS - 1 - mean * float(factors.var()), 1e-3)
    rates = rng.gamma(mean * factors / excess, excess)
    if rates.sum() <= 0:  # so few that all rates round to none
        rates = factors
    which = rng.choice(bins, size=count, p=rates / rates.sum())
    times: Floats = np.sort(np.minimum(starts[which] + rng.random(count) * BIN_S, span_s))
    return times


def expected(at_s: Floats) -> Floats:
    """Return the expected arrival rate at times of the week relative to the mean; 0 is midnight on a Monday."""
    hours = np.array(BY_HOUR)[(at_s % _DAY_S // _HOUR_S).astype(int)]
    days = np.array(BY_WEEKDAY)[(at_s // _DAY_S).astype(int) % len(BY_WEEKDAY)]
    found: Floats = hours * days
    return found
