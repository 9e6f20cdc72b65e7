"""The node agent's metrics. No label holds text from a pod."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

_PREFIX: Final = "gpu_topology_node"

REGISTERED: Final = Gauge(f"{_PREFIX}_registered", "1 while the kubelet has the plugin registered")
GPUS: Final = Gauge(f"{_PREFIX}_gpus", "GPUs that the last discovery found")
DEVICES_PUBLISHED: Final = Gauge(f"{_PREFIX}_devices_published", "Devices in this node's slices")
WITHHELD: Final = Gauge(f"{_PREFIX}_withheld", "1 while nothing is published because something else hands out the GPUs")
SLICE_WRITES: Final = Counter(f"{_PREFIX}_slice_writes", "Writes of ResourceSlices", ["verb"])
CLAIMS_PREPARED: Final = Gauge(f"{_PREFIX}_claims_prepared", "Claims that are prepared now")
CHECKPOINT_CORRUPT: Final = Counter(f"{_PREFIX}_checkpoint_corrupt", "Damaged checkpoint files that were set aside")
ORPHANS: Final = Counter(f"{_PREFIX}_orphans", "Prepared claims that were given back because nobody uses them")
CALLS: Final = Histogram(
    f"{_PREFIX}_call_seconds",
    "Time to prepare or unprepare one claim; result is ok or the error's reason",
    ["call", "result"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45),
)
