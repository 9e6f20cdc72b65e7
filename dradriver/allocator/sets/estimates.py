"""Estimates how long an all-reduce of a message takes on a set of GPUs. The CLI calls it.

The estimate is NCCL's latencies plus the time at the predicted bus bandwidth.
"""

from __future__ import annotations

from typing import NamedTuple

from dradriver.allocator.request import Level
from dradriver.allocator.sets.tables import Tables

# Microseconds (tuning.cc): start of the algorithm, then each of a ring's 2 (n - 1) steps over NVLink and over PCIe, and
# the share of the bandwidth that the protocol keeps.
_PROTOCOLS = (
    (6.6, 0.6, 1.0, 0.5),  # LL: half of every store is a flag
    (14.0, 1.9, 2.5, 0.92),  # LL128
    (8.4, 3.4, 5.7, 1.0),  # Simple
)
_NVLS_US = 25.0
_NVLS_CAPABILITY = 90
# What measured curves lie above NCCL's own figures, fitted to three of them: a start, and filling the pipeline.
_LAUNCH_US = 20.0
_FILLING, _FILLED_US = 0.3, 200.0


class Estimate(NamedTuple):
    """The estimate of one all-reduce.

    Attributes:
        seconds: The time from start to end.
        busbw_gbps: The bus bandwidth as nccl-tests prints it: size / seconds * 2 (n - 1) / n for n GPUs.
    """

    seconds: float
    busbw_gbps: float


def all_reduce(tables: Tables, mask: int, *, size: int) -> Estimate:
    """Return the estimate of an all-reduce of ``size`` bytes on a set of GPUs.

    The time and the bandwidth are 0 for one GPU, and if no bandwidth can be predicted. Two parameters are fitted to the
    published curves of 8 GPUs behind NVSwitch (A100, H100, H200). Over these curves the error is 12 % in the median, 37
    % at worst (A100, 32 kB) and 5 % for messages of 256 MB and more. Other machines were not measured.

    Args:
        tables: The figures of all sets of the machine's GPUs.
        mask: Bit mask of the set.
        size: The size of the message, bytes.
    """
    count = mask.bit_count()
    if count < 2 or not tables.shape.predicted:
        return Estimate(0.0, 0.0)
    # Bytes/s that the set reaches at best, and the bytes that cross each link in a ring all-reduce.
    limit = float(tables.busbw[mask]) * 1e9
    moved = size * 2 * (count - 1) / count
    nvlink = tables.level(mask) is Level.NVLINK

    # Microseconds by each of NCCL's protocols: the start, the steps around the ring, the bytes. The fastest is taken.
    took_us = [
        start + 2 * (count - 1) * (over_nvlink if nvlink else over_pcie) + moved / (limit * share) * 1e6
        for start, over_nvlink, over_pcie, share in _PROTOCOLS
    ]
    if nvlink and tables.shape.switched and tables.shape.capability >= _NVLS_CAPABILITY:
        took_us.append(_NVLS_US + moved / limit * 1e6)
    filling = _FILLING * min(moved / limit * 1e6, _FILLED_US)
    seconds = (min(took_us) + _LAUNCH_US + filling) / 1e6
    return Estimate(seconds, moved / seconds / 1e9)
