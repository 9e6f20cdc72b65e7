"""How many pods with GPUs a gang has, from the spec of its owner (Job, JobSet and others), read strictly."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import Metadata, Part
from dradriver.api.gangs import impossible_gangs
from dradriver.api.gangs.gang_annotations import Size
from dradriver.api.gangs.gang_owners import Alone, Owner
from dradriver.api.vocabulary import container_limits, messages, values

OBJECTS: Final[Mapping[str, tuple[str, str]]] = {
    "Job": ("batch", "jobs"),
    "StatefulSet": ("apps", "statefulsets"),
    "PodGroup": ("scheduling.k8s.io", "podgroups"),
    "JobSet": ("jobset.x-k8s.io", "jobsets"),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io", "leaderworkersets"),
    "PyTorchJob": ("kubeflow.org", "pytorchjobs"),
    "TFJob": ("kubeflow.org", "tfjobs"),
    "XGBoostJob": ("kubeflow.org", "xgboostjobs"),
    "JAXJob": ("kubeflow.org", "jaxjobs"),
    "PaddleJob": ("kubeflow.org", "paddlejobs"),
    "MPIJob": ("kubeflow.org", "mpijobs"),
}
"""What there is to read: by kind the API group and the name of the resource, for paths and for rights."""

REPLICAS: Final[Mapping[str, str]] = {
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
    "JAXJob": "jaxReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
    "MPIJob": "mpiReplicaSpecs",
}
"""Which field of a Kubeflow job's spec has its roles, by kind."""


class _Resources(Part, frozen=True):
    limits: dict[str, str | int | float] | None = None


class _Container(Part, frozen=True):
    resources: _Resources | None = None


class _PodSpec(Part, frozen=True):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _TemplateMetadata(Part, frozen=True):
    annotations: dict[str, str] | None = None


class _Template(Part, frozen=True):
    metadata: _TemplateMetadata | None = None
    spec: _PodSpec | None = None

    @property
    def has_gpus(self) -> bool:
        """Return whether an owner's pods ask for GPUs: by a limit, or, without limits on GPUs, by an annotation."""
        spec, metadata = self.spec or _PodSpec(), self.metadata or _TemplateMetadata()
        every = (*(spec.containers or ()), *(spec.init_containers or ()))
        said = [(container.resources and container.resources.limits) or {} for container in every]
        if any(container_limits.is_ours(name) for one in said for name in one):
            return any(map(container_limits.some, said))
        return any(map(names.is_ours, metadata.annotations or ()))


class _JobSpec(Part, frozen=True):
    parallelism: int | None = None
    completions: int | None = None
    backoff_limit_per_index: int | None = None
    done: int | None = None
    failed_indexes: str | None = None

    @property
    def at_once(self) -> int:
        """Return how many pods an owner's Job runs at once, of those that have not ended well or failed for good."""
        parallelism = 1 if self.parallelism is None else self.parallelism
        if self.completions is None:
            return parallelism
        over = (self.done or 0) + number_of_indexes(self.failed_indexes or "", self.completions)
        return min(parallelism, max(1, self.completions - over))


class _JobTemplate(Part, frozen=True):
    spec: _JobSpec = _JobSpec()


class _ReplicatedJob(Part, frozen=True):
    name: str
    replicas: int | None = None
    template: _JobTemplate = _JobTemplate()


class _JobSetSpec(Part, frozen=True):
    replicated_jobs: tuple[_ReplicatedJob, ...] = ()


class _StatefulSetSpec(Part, frozen=True):
    replicas: int | None = None
    pod_management_policy: str | None = None


class _LeaderWorker(Part, frozen=True):
    size: int | None = None
    leader_template: _Template | None = None
    worker_template: _Template = _Template()


class _LeaderWorkerSetSpec(Part, frozen=True):
    leader_worker_template: _LeaderWorker
    startup_policy: str | None = None


class _Gang(Part, frozen=True):
    min_count: int


class _Policy(Part, frozen=True):
    gang: _Gang | None = None


class _PodGroupSpec(Part, frozen=True):
    scheduling_policy: _Policy


class _Replicas(Part, frozen=True):
    replicas: int | None = None
    template: _Template = _Template()


class _Elastic(Part, frozen=True):
    min_replicas: int | None = None


COUNT_DOWN: Final = ("Job",)
"""Whose size is without the pods that have ended well: those of an earlier round are no part of the next.

It is without the indexes, too, that have failed more often than ``backoffLimitPerIndex`` (KEP-3850): no pod comes for
them any more.
"""

_LONGEST_INDEX: Final = 10  # digits


_ODD: Final = (msgspec.ValidationError, RecursionError, UnicodeError)
"""What reading may end in: msgspec meets half a letter where no text is expected, and cannot say so."""


class _Read(Part, frozen=True):
    metadata: Metadata
    spec: dict[str, Any]
    status: dict[str, Any] | None = None


def why_never(kind: str, spec: Any) -> str:
    """Return why the pods of an owner of this kind are never a gang, and what to write; empty if they may be one.

    Args:
        kind: The object's; of most kinds nothing is known.
        spec: Its ``spec``, decoded JSON; what cannot be read speaks against nothing.
    """
    read = _SIZES.get(kind)
    try:
        found = None if read is None else read(Owner(api_version="", kind=kind, name=""), spec)
    except (WordError, *_ODD, AttributeError):
        return ""
    return found.why if isinstance(found, Alone) and found.never else ""


def number_of_indexes(text: str, completions: int) -> int:
    """Return how many indexes of a gang's owner, an indexed Job, a text names, such as ``1,3-5``.

    Nothing is made for each index. Source: ``parseIndexesFromString`` of Kubernetes 1.35.4,
    pkg/controller/job/indexed_job_utils.go.

    Args:
        text: The text in the Job's status, with increasing numbers.
        completions: How many indexes it has.
    """
    count = beyond = 0  # the first index that no interval so far has
    for interval in text.split(","):
        # An interval is ``first-last`` or a single index. Those that overlap earlier ones count once.
        first, dash, last = interval.partition("-")
        limits = _index(first), _index(last if dash else first)
        if limits[0] is None or limits[1] is None:
            continue
        begin, end = max(limits[0], beyond), min(limits[1] + 1, completions)
        if begin < end:
            count, beyond = count + end - begin, end
    return count


def _index(text: str) -> int | None:
    """Return a number; the largest that an index can be where it has more digits, and None for any other text."""
    if not (text.isascii() and text.isdecimal()):
        return None
    return int(text) if len(text) <= _LONGEST_INDEX else sys.maxsize


def size_from(owner: Owner, document: Mapping[str, Any]) -> Size | Alone:
    """Return how many pods with GPUs a gang has, from its owner.

    If the owner's pods are no gang, this returns ``Alone``.

    Args:
        owner: The owner that was read from the API server, as ``Member.read`` names it.
        document: The object as the API server has it, decoded JSON.

    Raises:
        WordError: It is another object, or not of the expected form, or its number of pods is out of range.
    """
    owner_text = messages.shown(f"{owner.kind} {owner.name}")
    read_size = _SIZES.get(owner.kind)
    if read_size is None:
        raise WordError(f"{owner_text}: how many pods such an object has is not known")
    try:
        typed_owner = msgspec.convert(document, _Read)
        if owner.uid and typed_owner.metadata.uid != owner.uid:
            raise WordError(f"{owner_text} is another one by now")
        status = typed_owner.status or {}
        # Some owners make pods only for the work that is left: their status says what has finished.
        pods_finished = {"done": status.get("succeeded"), "failedIndexes": status.get("failedIndexes")}
        size = read_size(owner, typed_owner.spec | (pods_finished if owner.kind in COUNT_DOWN else {}))
    except _ODD as error:
        raise WordError(f"{owner_text} is none: {messages.shown(str(error))}") from None
    if isinstance(size, tuple) and not 1 <= size[0] <= size[1] <= values.MOST_PODS:
        raise WordError(f"{owner_text} has no number of pods with GPUs from 1 to {values.MOST_PODS}")
    return size


def retries_from(owner: Owner, found: Mapping[str, Any]) -> int | None:
    """Return how often the owner tries each index again, None if all indexes share one number of retries.

    Args:
        owner: What was read; of any other kind than a Job or a JobSet nothing is known.
        found: The object as the API server has it, decoded JSON.
    """
    try:
        spec = found.get("spec")
        if owner.kind == "Job":
            return msgspec.convert(spec, _JobSpec).backoff_limit_per_index
        if owner.kind == "JobSet":
            jobs = msgspec.convert(spec, _JobSetSpec).replicated_jobs
            return next((job.template.spec.backoff_limit_per_index for job in jobs if job.name == owner.role), None)
    except _ODD:
        pass
    return None


def _of_job(_: Owner, spec: dict[str, Any]) -> Size | Alone:
    """How many of its pods run at once: of an array of jobs so many, too, for nobody asks unless its author does."""
    count = msgspec.convert(spec, _JobSpec).at_once
    return count, count


def _of_jobset(owner: Owner, spec: dict[str, Any]) -> Size | Alone:
    for job in msgspec.convert(spec, _JobSetSpec).replicated_jobs:
        if job.name == owner.role:
            count = (1 if job.replicas is None else job.replicas) * job.template.spec.at_once
            return count, count
    raise WordError(f"JobSet {messages.shown(owner.name)} has no replicatedJob {messages.shown(owner.role)}")


def _of_stateful_set(_: Owner, spec: dict[str, Any]) -> Size | Alone:
    found = msgspec.convert(spec, _StatefulSetSpec)
    if found.pod_management_policy != "Parallel":
        return Alone(why=impossible_gangs.ORDERED_READY, never=True)
    count = 1 if found.replicas is None else found.replicas
    return count, count


def _of_leader_worker_set(owner: Owner, spec: dict[str, Any]) -> Size | Alone:
    """The leader and the workers, as far as they have GPUs: of as many as there were when the pod was made."""
    found = msgspec.convert(spec, _LeaderWorkerSetSpec)
    group = found.leader_worker_template
    pods = owner.pods or (1 if group.size is None else group.size)
    workers = pods - 1 if group.worker_template.has_gpus else 0
    leader = (group.worker_template if group.leader_template is None else group.leader_template).has_gpus
    if leader and workers > 0 and found.startup_policy == "LeaderReady":
        return Alone(why=impossible_gangs.LEADER_READY, never=True)
    return leader + workers, leader + workers


def _of_pod_group(_: Owner, spec: dict[str, Any]) -> Size | Alone:
    """``minCount`` or more: how many there will be is nowhere said (KEP-4671)."""
    gang = msgspec.convert(spec, _PodGroupSpec).scheduling_policy.gang
    if gang is None:
        return Alone(why="its PodGroup has the policy basic, which starts pods one by one")
    return gang.min_count, max(gang.min_count, values.MOST_PODS)


def _of_kubeflow(owner: Owner, spec: dict[str, Any]) -> Size | Alone:
    """The replicas of all roles that have GPUs; an elastic one starts with fewer.

    An MPIJob's launcher counts if it is a worker, too. One that is made once the workers are ready joins them later.
    """
    roles = msgspec.convert(spec.get(REPLICAS[owner.kind]), dict[str, _Replicas])
    has_launcher = (
        spec.get("runLauncherAsWorker") is True and spec.get("launcherCreationPolicy") != "WaitForWorkersReady"
    )
    elastic = msgspec.convert(spec.get("elasticPolicy") or {}, _Elastic)
    count = sum(
        1 if role.replicas is None else role.replicas
        for name, role in roles.items()
        if (
            name == "Worker" or (name == "Launcher" and has_launcher and role.template.has_gpus)
            if owner.kind == "MPIJob"
            else role.template.has_gpus
        )
    )
    least = count if elastic.min_replicas is None else min(max(1, elastic.min_replicas), count)
    return least, count


_SIZES: Final[Mapping[str, Callable[[Owner, dict[str, Any]], Size | Alone]]] = {
    "Job": _of_job,
    "StatefulSet": _of_stateful_set,
    "PodGroup": _of_pod_group,
    "JobSet": _of_jobset,
    "LeaderWorkerSet": _of_leader_worker_set,
    **dict.fromkeys(REPLICAS, _of_kubeflow),
}
