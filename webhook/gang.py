"""Gangs: whether all pods can be there before one has its place. What else they can have: ``resolved``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import Part
from dradriver.api.gangs import gang_annotations as gangs
from dradriver.api.gangs import gang_size_of_owner as gang_sizes
from dradriver.api.gangs import impossible_gangs as gang_waits
from dradriver.api.pod.resolved import Resolved
from dradriver.api.policies.model import Policies
from dradriver.api.vocabulary.messages import shown
from webhook import pod_view


class _StartupPolicy(Part, frozen=True):
    startup_policy_order: str | None = None


class _Annotated(Part, frozen=True):
    annotations: dict[str, str] | None = None


class _JobTemplate(Part, frozen=True):
    metadata: _Annotated | None = None


class _ReplicatedJob(Part, frozen=True):
    depends_on: list[Any] | None = None
    template: _JobTemplate | None = None


class _JobSet(Part, frozen=True):
    startup_policy: _StartupPolicy | None = None
    replicated_jobs: tuple[_ReplicatedJob, ...] = ()


def check(pod: pod_view.Pod, wish: Resolved, policies: Policies) -> list[str]:
    """Return a warning of a gang that nobody knows the size of.

    Raises:
        WordError: The others are made only once this pod has its place, or its scheduler has gangs of its own.
    """
    gang = wish.gang
    if gang is msgspec.UNSET or not gang.asked:
        return []  # limits on a gang make none: nobody waits for such a pod
    scheduler = pod.spec.scheduler_name or ""
    scheduler = "" if scheduler in policies.schedulers else scheduler
    if (why := gang_waits.why_never(pod.labels, pod.annotations, scheduler, gang)) is not None:
        raise WordError(f"{gangs.said(gang)[0]}: the pod can be in no gang: {why}")
    if gang.written is None or gang.size is not None:
        return []
    return [f"{names.GANG}: {shown(gang.written)}: nothing says how many pods it has; write {names.GANG_SIZE}"]


def check_maker(
    kind: str,
    words: Mapping[str, str],
    annotations: Mapping[str, str],
    spec: msgspec.Raw,
    *,
    templates: Sequence[Sequence[str | int]],
) -> None:
    """Raise unless the pods of an object may be a gang, where its words ask for one.

    Args:
        kind: The object's.
        words: Its words; each is one.
        annotations: All of its annotations.
        spec: Its spec, JSON that was read before; any value.
        templates: Where in the object those pod templates stand that get its words.

    Raises:
        WordError: The others of its pods are made only once the first has its place, nobody knows which they are, or it
            is no such object.
    """
    gang = gangs.gang(words)
    if gang is None or not gang.asked:
        return
    try:
        decoded = msgspec.json.decode(spec)
    except (ValueError, RecursionError) as error:
        raise WordError(f"this is no {kind}: {error}") from None
    every = [annotations]
    if kind == "JobSet":
        jobs = _jobs(decoded)
        every += [_said(jobs.replicated_jobs[path[2]]) for path in templates if jobs and isinstance(path[2], int)]
    refusals = (gang_waits.why_never({}, each, "", gang) for each in every)
    why = next(filter(None, refusals), None) or gang_sizes.why_never(kind, decoded)
    if kind == "Deployment" and gang.written is None:
        why = gang_waits.DEPLOYMENT
    elif kind == "JobSet" and gang.written is not None and len(templates) > 1 and _in_order(_jobs(decoded)):
        why = gang_waits.IN_ORDER
    if why:
        raise WordError(f"{gangs.said(gang)[0]}: the pods of this {kind} can be in no gang: {why}")


def _jobs(spec: Any) -> _JobSet | None:
    """Return what a JobSet's spec says (jobset_types.go, 0.11.1); None where its own controller refuses it."""
    try:
        return msgspec.convert(spec, _JobSet)
    except (msgspec.ValidationError, UnicodeError):
        return None


def _said(job: _ReplicatedJob) -> Mapping[str, str]:
    """Return the annotations of a replicatedJob's template: JobSet copies those that it knows onto its pods."""
    metadata = job.template and job.template.metadata
    return (metadata and metadata.annotations) or {}


def _in_order(found: _JobSet | None) -> bool:
    """Return whether a JobSet's replicatedJobs start one after another."""
    if found is None:
        return False
    order = found.startup_policy and found.startup_policy.startup_policy_order
    return order == "InOrder" or any(job.depends_on for job in found.replicated_jobs)
