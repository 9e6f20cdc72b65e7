"""Fit one distribution of jobs (GPUs and duration) to the published tables of a cluster.

The sizes are fitted first, then the durations of each size.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from dradriver.cli.simulator.published_shapes import QUANTILES, SHAPES, SIZES, Shape

Floats = NDArray[np.float64]

_STEPS: Final = 4000  # of the quantile function; the last percent has forty of them
_ROUNDS: Final = 60
_LEAST_SHARE: Final = 0.02  # percent of GPU time of a size for which the rounded table has none
_LEAST_S: Final = 1.0


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of jobs to draw from.

    The duration of a job is its size's scale times a value of the quantile function.

    Attributes:
        sizes: The sizes, in GPUs.
        shares: Share of the jobs by size, 0-1.
        scales: The scale of durations by size.
        quantiles: The quantile function of durations: seconds at ``_STEPS`` even steps of the cumulative probability.
    """

    sizes: tuple[int, ...]
    shares: Floats
    scales: Floats
    quantiles: Floats

    def mean_s(self) -> Floats:
        """Return the mean duration of the jobs of each size in ``sizes``, seconds."""
        means: Floats = self.scales * self.quantiles.mean()
        return means

    def draw(self, rng: np.random.Generator, count: int) -> tuple[NDArray[np.int64], Floats]:
        """Draw ``count`` jobs from the distribution, and return their GPUs and durations (seconds)."""
        which = rng.choice(len(self.sizes), size=count, p=self.shares)
        at = rng.random(count) * _STEPS - 0.5
        lasts: Floats = np.interp(at, np.arange(_STEPS), self.quantiles) * self.scales[which]
        return np.array(self.sizes, dtype=np.int64)[which], np.maximum(lasts, _LEAST_S)


@lru_cache(maxsize=16)
def fit(name: str) -> Fit:
    """Return the fit of a published shape: the distribution of jobs that meets all its tables.

    The relative mean duration of a size is its share of GPU time / its share of jobs / its GPUs. One factor for all
    sizes makes the overall mean the published one. All sizes have the same spread of durations. The search starts with
    the published spread, and corrects it until all sizes together have the published percentiles again.

    Worked example: Philly's jobs with 8 GPUs are 6.9 % of the jobs and have 49.8 % of the GPU time: 49.8 / 6.9 / 8 =
    0.90. Single GPUs have 16.4 / 82.4 = 0.199. So jobs with 8 GPUs run 4.5 times as long.
    """
    shape = SHAPES[name]
    sizes, job_shares, gpu_time_shares = _by_size(shape)
    # 1. The mean duration of each size, as a factor of the mean of all.
    relative_means = gpu_time_shares / job_shares / np.array(sizes)
    relative_means /= (job_shares * relative_means).sum()

    # 2. The quantiles of one spread for all sizes. Correct them by half the error (as a ratio) in each round. Quantiles
    # must not fall, so the maximum is taken.
    probabilities = (np.arange(_STEPS) + 0.5) / _STEPS
    published_quantiles = _published(shape, probabilities)
    quantiles = published_quantiles.copy()
    for _ in range(_ROUNDS):
        mixture_quantiles = _mixture(
            job_shares, relative_means * shape.mean_s / quantiles.mean(), quantiles, probabilities
        )
        quantiles = np.maximum.accumulate(quantiles * np.sqrt(published_quantiles / mixture_quantiles))
    return Fit(
        sizes=sizes, shares=job_shares, scales=relative_means * shape.mean_s / quantiles.mean(), quantiles=quantiles
    )


def _by_size(shape: Shape) -> tuple[tuple[int, ...], Floats, Floats]:
    """Return a shape's job sizes, with their shares of jobs and of GPU time.

    Shares are 0-1. A shape is an operator's published statistics of its jobs.
    """
    jobs = np.diff(np.array([0.0, *shape.jobs, 100.0]))
    gpu_time = np.maximum(np.diff(np.array([0.0, *shape.gpu_time, 100.0])), _LEAST_SHARE)
    there = jobs > 1e-9
    sizes = tuple(size for size, has in zip((*SIZES, shape.largest), there, strict=True) if has)
    return sizes, jobs[there] / 100, gpu_time[there] / gpu_time[there].sum()


def _published(shape: Shape, steps: Floats) -> Floats:
    """Return the published durations in seconds, at each of ``steps``.

    A step is a share of the jobs: this share runs for at most the returned duration. Between the published percentiles
    the logarithm of the duration is linear. Below the first percentile the line between the next two continues. Above
    the last one the line ends where the mean equals the published mean.
    """
    logs = np.log(np.array(shape.durations))
    knots = np.array(QUANTILES)
    least = logs[0] - (logs[1] - logs[0]) / (knots[1] - knots[0]) * knots[0]
    found: Floats = np.exp(np.interp(steps, [0.0, *knots], [least, *logs]))
    tail = steps > knots[-1]
    missing = (shape.mean_s * len(steps) - found[~tail].sum()) / tail.sum()
    last = shape.durations[-1]
    low, high = 0.0, math.log(1000)
    for _ in range(60):  # the mean of such a line is (last * (e^x - 1)) / x
        middle = (low + high) / 2
        low, high = (middle, high) if last * math.expm1(middle) / middle < missing else (low, middle)
    found[tail] = last * np.exp((steps[tail] - knots[-1]) / (1 - knots[-1]) * low)
    return found


def _mixture(shares: Floats, scales: Floats, quantiles: Floats, steps: Floats) -> Floats:
    """Return the quantiles of the durations of all job sizes together.

    A quantile is the duration that a share of the jobs does not exceed; ``steps`` has these shares. ``shares`` is the
    share of the jobs by size, and ``scales`` the scale of durations by size. ``quantiles`` is the quantile function of
    one size, in seconds.
    """
    lasts = np.outer(scales, quantiles).ravel()
    weights = np.repeat(shares / len(quantiles), len(quantiles))
    order = np.argsort(lasts, kind="stable")
    found: Floats = np.interp(steps, np.cumsum(weights[order]) - weights[order] / 2, lasts[order])
    return found
