"""Warns about a gang's Job whose ``backoffLimit`` is so low that one eviction of its pods can fail the Job."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import Part
from dradriver.api.pod.annotations import Annotations

BACKOFF_LIMIT: Final = 6  # of a Job that says nothing (batch/v1)
_TARGET: Final = "DisruptionTarget"


class _Pattern(Part, frozen=True):
    type: str = ""
    status: str = "True"


class _Rule(Part, frozen=True):
    action: str = ""
    on_pod_conditions: tuple[_Pattern, ...] = ()


class _Failures(Part, frozen=True):
    rules: tuple[_Rule, ...] = ()


class _PodSpec(Part, frozen=True):
    priority_class_name: str = ""


class _Template(Part, frozen=True):
    spec: _PodSpec = _PodSpec()


class _Job(Part, frozen=True):
    parallelism: int = 1
    backoff_limit: int = BACKOFF_LIMIT
    pod_failure_policy: _Failures = _Failures()
    template: _Template = _Template()


def warnings(kind: str, annotations: Annotations, spec: msgspec.Raw, namespace: str) -> list[str]:
    """Return a warning if one eviction of a gang could fail its Job.

    A preemption or a drained node evicts pods. All pods of a gang are evicted together, and each counts against
    ``backoffLimit``. There is no warning for other kinds of objects.

    Args:
        kind: The object's kind.
        annotations: The object's annotations, which may be bad.
        spec: The object's spec, any JSON.
        namespace: The object's namespace.
    """
    # 1. Only gangs of Jobs that the driver may preempt.
    policies = annotations.policies
    preemption = policies.queue.preemption
    unpreemptable_tenants = (
        policies.tenants[name] for name in preemption.unpreemptable_tenants if name in policies.tenants
    )
    if (
        kind != "Job"
        or not preemption.enabled
        or any(namespace in tenant.namespaces for tenant in unpreemptable_tenants)
    ):
        return []
    try:
        gang, job = annotations.gang, msgspec.convert(_without_nulls(msgspec.json.decode(spec)), _Job)
    except (ValueError, RecursionError, WordError):
        return []  # what is wrong with it others say
    if gang is None or not gang.asked or job.template.spec.priority_class_name in preemption.unpreemptable_classes:
        return []

    # 2. All pods that run at once can fail without failing the Job, or the Job does not count evicted pods.
    if job.parallelism <= job.backoff_limit or any(map(_ignores_disruption, job.pod_failure_policy.rules)):
        return []
    return [
        f"{names.GANG}: {job.parallelism} pods run at once, and evicting more than backoffLimit {job.backoff_limit} "
        f"of them fails the Job. Write a podFailurePolicy that ignores {_TARGET}, or a higher backoffLimit."
    ]


def _ignores_disruption(rule: _Rule) -> bool:
    return rule.action == "Ignore" and any(one.type == _TARGET for one in rule.on_pod_conditions)


def _without_nulls(spec: Any) -> Any:
    """Return a spec without fields that are null, because the API server treats them as missing."""
    return {key: value for key, value in spec.items() if value is not None} if isinstance(spec, dict) else spec
