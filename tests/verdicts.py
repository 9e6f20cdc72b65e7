"""What NCCL's own graph search and tuning say of every set of GPUs of some machines; tests judge by it."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import TypeAlias

from tests.paths import SHARED_DATA

MODELLED = SHARED_DATA / "nccl_model"
TRAINED = MODELLED / "train"
Verdict: TypeAlias = Mapping[tuple[int, ...], float]


def verdict(file: str) -> Verdict:
    """All-reduce bus bandwidth of 8 GiB by set, GB/s."""
    with (MODELLED / file).open() as text:
        return {
            tuple(sorted(int(gpu) for gpu in row["set"].split("+"))): float(row["busbw_8GB"])
            for row in csv.DictReader(text)
        }
