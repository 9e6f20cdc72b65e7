"""Metrics of the process that runs MPS daemons."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter

RESTORED: Final = Counter(
    "gpu_topology_mps_limits_restored_total",
    "Limits of MPS daemons that a client had changed, and that were set again.",
)
