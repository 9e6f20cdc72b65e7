"""Schedulers that choose GPUs by themselves, by the default ``schedulerName`` of each product.

The webhook and ``gputopo lint`` warn about pods with one of these schedulers. Admission refuses gangs of pods whose
scheduler starts gangs by itself. Other pods are not refused, because a scheduler that allocates ResourceClaims can
still give them their GPUs.

Sources: volcano-sh/volcano, cmd/scheduler/app/options/options.go (``defaultSchedulerName``; its plugin ``predicates``
has ``DynamicResourceAllocationEnable``, off by default); kai-scheduler/KAI-Scheduler, ``schedulerName`` of its Config;
Project-HAMi/HAMi 2.10.0, charts/hami/values.yaml (a kube-scheduler with an extender for its own devices);
apache/yunikorn-k8shim, pkg/common/constants/constants.go (``SchedulerName``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec


class OtherScheduler(msgspec.Struct, frozen=True):
    """A scheduler that chooses GPUs by itself.

    Attributes:
        product: The product's name.
        has_gangs: Whether the scheduler starts the pods of a job together by itself.
    """

    product: str
    has_gangs: bool


TABLE: Final[Mapping[str, OtherScheduler]] = {
    "volcano": OtherScheduler("Volcano", has_gangs=True),
    "kai-scheduler": OtherScheduler("KAI Scheduler", has_gangs=True),
    "hami-scheduler": OtherScheduler("HAMi", has_gangs=False),
    "yunikorn": OtherScheduler("Apache YuniKorn", has_gangs=True),
}
"""By ``spec.schedulerName``."""


def warning(scheduler: str) -> str:
    """Return the warning for a pod with this ``spec.schedulerName``; empty if there is no warning.

    Only the names of the schedulers in this module get a warning: they choose GPUs by themselves.
    """
    other = TABLE.get(scheduler)
    if other is None:
        return ""
    return (
        f"spec.schedulerName: {scheduler}: {other.product} chooses GPUs by itself, and this driver does not place its "
        f"pods. The pod gets no GPU unless {other.product} allocates ResourceClaims. Remove schedulerName to use "
        f"kube-scheduler."
    )


def why_no_gang(scheduler: str) -> str:
    """Return why pods with this ``spec.schedulerName`` cannot be in a gang; empty if they can."""
    other = TABLE.get(scheduler)
    if other is None or not other.has_gangs:
        return ""
    return (
        f"{other.product} (spec.schedulerName: {scheduler}) starts the pods of a job together by itself and does not "
        f"read the driver's gangs. Remove schedulerName, or remove the gang annotations."
    )
