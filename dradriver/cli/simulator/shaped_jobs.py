"""Jobs drawn in a published shape: sizes, then durations, and arrivals in bursts over the hours and days of a week."""

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
    """Draw shaped jobs: simulated jobs of a published shape, by arrival; time 0 is a Monday's midnight.

    The span of the arrivals follows from the drawn jobs: their GPU time is ``load`` of what the cluster has in it. So
    each seed has exactly this load, however long its longest jobs are.

    Args:
        shape: One of ``SHAPES``.
        count: Number of jobs.
        gpus: GPUs of the cluster; larger jobs are cut to it.
        load: GPU time of the jobs, as share of the cluster's.
        seed: The same seed gives the same jobs.
        cut: Returns how many GPUs a job gets that wants a number of them; None if any number is possible.
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
    """Return when so many shaped jobs arrive within a span, sorted, seconds.

    The jobs of a bin are negative binomial: Poisson at a rate that is itself drawn (gamma). Given how many come in all,
    that is a draw among the bins by their rates. The hours and weekdays explain a part of the variance; the gamma has
    the rest: variance / mean = 1 + mean / k for rates of shape k, so that k = mean / (``BURSTINESS`` - 1).
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
    """Return how many shaped jobs arrive at a time of the week against the mean; 0 is a Monday's midnight."""
    hours = np.array(BY_HOUR)[(at_s % _DAY_S // _HOUR_S).astype(int)]
    days = np.array(BY_WEEKDAY)[(at_s // _DAY_S).astype(int) % len(BY_WEEKDAY)]
    found: Floats = hours * days
    return found
