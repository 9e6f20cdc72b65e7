"""Statistics that operators published of their jobs: sizes, durations, GPU time by size, and arrivals.

Seren and Kalos are Acme's two clusters (AcmeTrace), Philly is Microsoft's, Helios SenseTime's, PAI Alibaba's (2020).
Shares and durations were read from published curves and rounded to a tenth of a percent. Arrivals are those of Helios'
cluster Venus, April to September 2020; all shapes use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""GPUs of a job that the tables tell apart; what lacks to 100 % after the last has ``Shape.largest`` GPUs."""
QUANTILES: Final = (0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99)
"""At which share of the jobs the durations are given."""

BIN_S: Final = 600.0
"""Arrivals were counted in bins of so many seconds."""
BURSTINESS: Final = 15.4
"""Variance over mean of the arrivals of a bin; chance alone (Poisson) would have 1."""
BY_HOUR: Final = (
    0.90, 0.66, 0.60, 0.38, 0.27, 0.21, 0.19, 0.22, 0.37, 0.80, 1.29, 1.47,
    1.16, 1.30, 1.56, 1.66, 1.73, 1.73, 1.28, 1.31, 1.34, 1.36, 1.15, 1.04,
)  # fmt: skip
"""Arrivals of each hour of the day against the mean."""
BY_WEEKDAY: Final = (1.02, 1.11, 1.27, 1.20, 0.95, 0.68, 0.77)
"""Arrivals of each day from Monday on against the mean."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics of one cluster's jobs.

    Attributes:
        jobs: Cumulative percent of the jobs that have at most as many GPUs as each of ``SIZES``.
        gpu_time: Cumulative percent of all GPU time that such jobs have.
        durations: Durations in seconds at each of ``QUANTILES``: this share of the jobs runs at most as long.
        mean_s: Mean duration, seconds. Only the mean tells how long the last percent of the jobs runs.
        largest: GPUs of the jobs that are larger than all ``SIZES``.
    """

    jobs: tuple[float, ...]
    gpu_time: tuple[float, ...]
    durations: tuple[float, ...]
    mean_s: float
    largest: int = 1024


SHAPES: Final[Mapping[str, Shape]] = {
    "seren": Shape(
        jobs=(54.0, 65.4, 67.9, 96.7, 97.9, 98.8, 99.3, 99.6, 99.7, 99.9),
        gpu_time=(1.3, 1.8, 2.4, 11.9, 13.2, 19.1, 27.6, 41.7, 56.3, 69.7),
        durations=(7, 18, 134, 413, 1_352, 3_269, 27_528),
        mean_s=1_414,
    ),
    "kalos": Shape(
        jobs=(86.3, 88.4, 88.4, 93.9, 94.3, 94.7, 95.3, 95.7, 96.9, 98.9),
        gpu_time=(0.2, 0.2, 0.2, 0.6, 0.6, 2.0, 3.3, 3.7, 24.9, 64.1),
        durations=(23, 40, 125, 380, 1_546, 2_938, 13_714),
        mean_s=1_260,
    ),
    "philly": Shape(
        jobs=(82.4, 84.5, 92.0, 98.9, 99.8, 100, 100, 100, 100, 100),
        gpu_time=(16.4, 19.4, 38.2, 88.0, 97.2, 100, 100, 100, 100, 100),
        durations=(36, 108, 853, 3_186, 15_822, 68_672, 413_581),
        mean_s=18_006,
    ),
    "helios": Shape(
        jobs=(72.2, 74.7, 80.5, 94.7, 97.7, 99.4, 99.7, 99.9, 100, 100),
        gpu_time=(5.4, 7.2, 12.1, 41.3, 61.5, 86.6, 94.4, 97.5, 99.9, 100),
        durations=(14, 64, 201, 1_001, 6_969, 20_661, 145_778),
        mean_s=6_652,
        largest=2048,
    ),
    "pai": Shape(
        jobs=(97.1, 98.6, 99.1, 100, 100, 100, 100, 100, 100, 100),
        gpu_time=(68.1, 72.9, 78.7, 100, 100, 100, 100, 100, 100, 100),
        durations=(28, 90, 484, 3_095, 11_386, 22_677, 64_882),
        mean_s=4_787,
    ),
}
