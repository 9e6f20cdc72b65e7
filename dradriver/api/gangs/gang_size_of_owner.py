"""Returns how many pods with GPUs a gang has, from the spec of its owner: Job, JobSet and others.

A gang has two sizes. Its *smallest* size is the fewest pods with which it may start. Its *full* size is the number of
all its pods. Most owners give one number for both.

``Alone`` is the answer that the pods of an owner are no gang, with the reason.
"""

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
        """Return whether an owner's pod template requests GPUs.

        The containers' limits decide. If no limit has a name of a GPU resource, the driver's annotations on the
        template decide.
        """
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
        """Return how many pods of a Job run at the same time, which is the size of its gang.

        Indexes of an indexed Job that completed, or that failed for good, do not count.
        """
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
    """Return why pods of this owner can never be a gang; empty if they can.

    The text also says what to write instead.

    Args:
        kind: The object's kind; for unknown kinds the result is empty.
        spec: Its ``spec``, decoded JSON. Fields that cannot be read are ignored.
    """
    read = _SIZES.get(kind)
    try:
        found = None if read is None else read(Owner(api_version="", kind=kind, name=""), spec)
    except (WordError, *_ODD, AttributeError):
        return ""
    return found.why if isinstance(found, Alone) and found.never else ""


def number_of_indexes(text: str, completions: int) -> int:
    """Return how many indexes of an indexed Job a text such as ``1,3-5`` names (here 4).

    The function counts without making a list of the indexes. Source: ``parseIndexesFromString`` of Kubernetes 1.35.4,
    pkg/controller/job/indexed_job_utils.go.

    Args:
        text: The text in the Job's status, with increasing numbers.
        completions: How many indexes the Job has.
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
    """Return the index that a text contains; None if the text is not a number.

    A number with too many digits counts as the largest possible index.
    """
    if not (text.isascii() and text.isdecimal()):
        return None
    return int(text) if len(text) <= _LONGEST_INDEX else sys.maxsize


def size_from(owner: Owner, document: Mapping[str, Any]) -> Size | Alone:
    """Return how many pods with GPUs a gang has, from its owner: the smallest and the full number.

    The result is ``Alone`` if the owner's pods are no gang.

    Args:
        owner: The owner to read, from ``Member.read``.
        document: The object as the API server has it, decoded JSON.

    Raises:
        WordError: It is another object, or not of the expected form, or its number of pods is out of range.
    """
    owner_text = messages.shown(f"{owner.kind} {owner.name}")
    read_size = _SIZES.get(owner.kind)
    if read_size is None:
        raise WordError(f"{owner_text}: the driver does not know the number of pods of this kind of object.")
    try:
        typed_owner = msgspec.convert(document, _Read)
        if owner.uid and typed_owner.metadata.uid != owner.uid:
            raise WordError(f"{owner_text} was deleted and created again.")
        status = typed_owner.status or {}
        # Some owners make pods only for the work that is left: their status says what has finished.
        pods_finished = {"done": status.get("succeeded"), "failedIndexes": status.get("failedIndexes")}
        size = read_size(owner, typed_owner.spec | (pods_finished if owner.kind in COUNT_DOWN else {}))
    except _ODD as error:
        raise WordError(f"{owner_text} has an unexpected form: {messages.shown(str(error))}.") from None
    if isinstance(size, tuple) and not 1 <= size[0] <= size[1] <= values.MOST_PODS:
        raise WordError(f"{owner_text} has no number of pods with GPUs from 1 to {values.MOST_PODS}.")
    return size


def retries_from(owner: Owner, found: Mapping[str, Any]) -> int | None:
    """Return how often each index of an owner's Job may fail (``backoffLimitPerIndex``).

    None if all indexes share one limit.

    Args:
        owner: The owner that was read. For other kinds than Job and JobSet the result is None.
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
    """Return how many of the Job's pods run at once, as smallest and full size.

    The function cannot tell an array of independent jobs from one parallel job. The caller asks only if the author
    requests a gang.
    """
    count = msgspec.convert(spec, _JobSpec).at_once
    return count, count


def _of_jobset(owner: Owner, spec: dict[str, Any]) -> Size | Alone:
    for job in msgspec.convert(spec, _JobSetSpec).replicated_jobs:
        if job.name == owner.role:
            count = (1 if job.replicas is None else job.replicas) * job.template.spec.at_once
            return count, count
    raise WordError(f"JobSet {messages.shown(owner.name)} has no replicatedJob {messages.shown(owner.role)}.")


def _of_stateful_set(_: Owner, spec: dict[str, Any]) -> Size | Alone:
    found = msgspec.convert(spec, _StatefulSetSpec)
    if found.pod_management_policy != "Parallel":
        return Alone(why=impossible_gangs.ORDERED_READY, never=True)
    count = 1 if found.replicas is None else found.replicas
    return count, count


def _of_leader_worker_set(owner: Owner, spec: dict[str, Any]) -> Size | Alone:
    """Return how many of a group's leader and workers have GPUs, as smallest and full size.

    The number of pods is ``owner.pods`` if that is known: the number when the pod was created. If the workers start
    only after the leader is ready and both have GPUs, the pods can never be a gang.
    """
    found = msgspec.convert(spec, _LeaderWorkerSetSpec)
    group = found.leader_worker_template
    pods = owner.pods or (1 if group.size is None else group.size)
    workers = pods - 1 if group.worker_template.has_gpus else 0
    leader = (group.worker_template if group.leader_template is None else group.leader_template).has_gpus
    if leader and workers > 0 and found.startup_policy == "LeaderReady":
        return Alone(why=impossible_gangs.LEADER_READY, never=True)
    return leader + workers, leader + workers


def _of_pod_group(_: Owner, spec: dict[str, Any]) -> Size | Alone:
    """Return ``minCount`` of a PodGroup as the smallest size of the gang.

    The full size is the largest that a gang can have, because a PodGroup does not say how many pods there will be
    (KEP-4671). With the policy ``basic`` its pods are no gang.
    """
    gang = msgspec.convert(spec, _PodGroupSpec).scheduling_policy.gang
    if gang is None:
        return Alone(why="The PodGroup has the policy basic, which starts pods one by one. Use the policy gang.")
    return gang.min_count, max(gang.min_count, values.MOST_PODS)


def _of_kubeflow(owner: Owner, spec: dict[str, Any]) -> Size | Alone:
    """Return the number of replicas of all roles that have GPUs, as smallest and full size.

    The smallest size of an elastic job is its ``minReplicas``. An MPIJob's launcher counts if it is also a worker. A
    launcher that is created only after the workers are ready does not count, because it joins the gang later.
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
