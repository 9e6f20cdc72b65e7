"""Refuses gangs whose pods can never all wait together.

All pods of a gang must exist before the first one gets its place. ``api.pod.resolved`` checks which other features pods
of a gang request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import Part
from dradriver.api.gangs import gang_annotations, gang_size_of_owner, impossible_gangs
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.pod.resolved import Resolved
from dradriver.api.policies.policy_sections import Policies
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
    """Refuse a pod whose gang is impossible; return a warning about an unknown gang size.

    The list is empty if the pod requests no gang, or if there is nothing to warn about.

    Args:
        pod: The pod as sent.
        wish: The resolved request of the pod.
        policies: The policies in force.

    Raises:
        WordError: The pod's owner creates the other pods only after this one runs, or its scheduler starts gangs by
            itself.
    """
    gang = wish.gang
    if gang is msgspec.UNSET or not gang.asked:
        return []  # limits on a gang make none: nobody waits for such a pod
    scheduler = pod.spec.scheduler_name or ""
    scheduler = "" if scheduler in policies.schedulers else scheduler
    if (why := impossible_gangs.why_never(pod.labels, pod.annotations, scheduler, gang)) is not None:
        annotation = gang_annotations.said(gang)[0]
        raise WordError(f"{annotation}: the pod cannot be part of a gang: {why}")
    if gang.written is None or gang.size is not None:
        return []
    return [f"{names.GANG}: {shown(gang.written)}: the number of pods is not known. Write {names.GANG_SIZE}."]


def check_maker(
    kind: str,
    gang: Gang | None,
    annotations: Mapping[str, str],
    spec: msgspec.Raw,
    *,
    templates: Sequence[Sequence[str | int]],
) -> None:
    """Raise if an object that creates pods requests a gang that its pods can never form.

    Args:
        kind: The kind of the object, such as ``JobSet``.
        gang: Its gang annotations; None without any.
        annotations: All of its annotations.
        spec: Its spec as JSON; any value.
        templates: The paths, in the object, of its pod templates to which its annotations are copied.

    Raises:
        WordError: Some of its pods are created only after the first one runs, or its gang cannot be distinguished from
            another gang. Or the spec is not one of this kind.
    """
    if gang is None or not gang.asked:  # annotations that only limit a gang do not ask for one
        return
    try:
        decoded = msgspec.json.decode(spec)
    except (ValueError, RecursionError) as error:
        raise WordError(f"The object is not a valid {kind}: {error}.") from None

    # 1. Annotations of other programs may forbid the gang. JobSet copies those of each replicatedJob's template, too.
    all_annotations = [annotations]
    job_set = _job_set(decoded) if kind == "JobSet" else None
    if job_set is not None:
        # A path is ("spec", "replicatedJobs", index, ...), so entry 2 is the index of the replicatedJob.
        indexes = (path[2] for path in templates)
        all_annotations += [
            _template_annotations(job_set.replicated_jobs[index]) for index in indexes if isinstance(index, int)
        ]
    # Labels and scheduler are those of pods, which do not exist yet.
    refusals = (impossible_gangs.why_never({}, each, "", gang) for each in all_annotations)
    why = next(filter(None, refusals), None) or gang_size_of_owner.why_never(kind, decoded)

    # 2. Nothing tells the pods of a Deployment's rollouts apart, unless the gang has a written name. One gang of
    # several replicatedJobs needs all of them at once.
    if kind == "Deployment" and gang.written is None:
        why = impossible_gangs.DEPLOYMENT
    elif kind == "JobSet" and gang.written is not None and len(templates) > 1 and _starts_in_order(job_set):
        why = impossible_gangs.IN_ORDER
    if why:
        annotation = gang_annotations.said(gang)[0]  # its key and text
        raise WordError(f"{annotation}: the pods of this {kind} cannot form a gang: {why}")


def _job_set(spec: Any) -> _JobSet | None:
    """Return the fields of a JobSet's spec; None if JobSet's own controller refuses it.

    Source: jobset_types.go, 0.11.1.
    """
    try:
        return msgspec.convert(spec, _JobSet)
    except (msgspec.ValidationError, UnicodeError):
        return None


def _template_annotations(job: _ReplicatedJob) -> Mapping[str, str]:
    """Return the annotations of the Job template in ``job``, one of a JobSet's ``replicatedJobs``.

    JobSet's controller copies the annotations that it knows from this template to the pods. The result is empty if the
    template has none.
    """
    metadata = job.template and job.template.metadata
    return (metadata and metadata.annotations) or {}


def _starts_in_order(found: _JobSet | None) -> bool:
    """Return whether the replicatedJobs of the JobSet ``found`` start one after another.

    False for None.
    """
    if found is None:
        return False
    order = found.startup_policy and found.startup_policy.startup_policy_order
    return order == "InOrder" or any(job.depends_on for job in found.replicated_jobs)
