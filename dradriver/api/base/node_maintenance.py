"""When a node goes down for maintenance, and whether its provider can take it away at any time (spot)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from dradriver.api.base import names
from dradriver.api.base.objects import Node, seconds

STAYS: Final = float("inf")
AT_ONCE: Final = 0.0

# Google Cloud says so on nodes with GPUs, seconds since the epoch (AI Hypercomputer, "Manage GKE clusters").
_PLANNED_LABEL: Final = "cloud.google.com/scheduled-maintenance-time"
KEYS: Final = frozenset((names.MAINTENANCE, _PLANNED_LABEL))
"""Keys of annotations, labels and taints by which a node says when it goes."""

_EPOCH: Final = re.compile(r"[0-9]{9,11}")

SPOT_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "karpenter.sh/capacity-type": ("spot",),
    "eks.amazonaws.com/capacityType": ("SPOT",),
    "cloud.google.com/gke-spot": ("true",),
    "cloud.google.com/gke-preemptible": ("true",),
    "kubernetes.azure.com/scalesetpriority": ("spot",),
}
"""Labels by which the providers and Karpenter say that a node is a spot node: any of them with one of these values."""


def goes_at(node: Node) -> float:
    """Return when a node goes down for maintenance, in seconds since the epoch.

    Without maintenance, this returns ``STAYS``, which is infinity. If a node has several times, the earliest counts. If
    a time cannot be read, this returns ``AT_ONCE``, which is 0: the driver assumes the worst and places no pod on the
    node.
    """
    return min(map(_time, _said(node)), default=STAYS)


def _said(node: Node) -> Iterator[str]:
    for texts, key in ((node.metadata.annotations, names.MAINTENANCE), (node.metadata.labels, _PLANNED_LABEL)):
        if key in texts:
            yield texts[key]
    yield from (taint.value for taint in node.spec.taints if taint.key == names.MAINTENANCE)


def _time(text: str) -> float:
    if _EPOCH.fullmatch(text):
        return float(text)
    at = seconds(text)
    return AT_ONCE if at is None else at
