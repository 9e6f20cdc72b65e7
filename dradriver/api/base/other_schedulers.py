"""Schedulers that choose GPUs by themselves, by the names that they have unless somebody configures another.

The webhook and ``gputopo lint`` warn of their pods, and admission refuses gangs of those that start gangs by
themselves. A pod whose scheduler allocates ResourceClaims can get its GPUs all the same, so none is refused for that.

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
        product: What people call it.
        has_gangs: Whether it starts the pods of a job together by itself.
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
    """Return the warning of a pod with this ``spec.schedulerName``; empty for any other scheduler."""
    other = TABLE.get(scheduler)
    if other is None:
        return ""
    return (
        f"spec.schedulerName: {scheduler}: this driver does not place pods of {other.product}, which chooses GPUs by "
        f"itself. The pod gets none unless {other.product} allocates ResourceClaims: remove schedulerName, and "
        f"kube-scheduler does"
    )


def why_no_gang(scheduler: str) -> str:
    """Return why no gang of the driver's can have pods with this ``spec.schedulerName``; empty if one can."""
    other = TABLE.get(scheduler)
    if other is None or not other.has_gangs:
        return ""
    return (
        f"spec.schedulerName: {scheduler}: {other.product} starts a job's pods together by itself and knows nothing of "
        f"the driver's gangs; remove it, or the words about gangs"
    )
