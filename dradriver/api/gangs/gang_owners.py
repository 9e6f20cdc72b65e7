"""Finds which gang a pod belongs to, from the labels and annotations that the pod's owner wrote.

If they do not have the number of pods, ``Member.read`` names the object that has it. Each rule follows the source of
the program that creates the pods: Kubernetes 1.34 to 1.37, JobSet 08dfbdf, LeaderWorkerSet 060ab4d, training-operator
1.9.0, mpi-operator caa3c47, trainer 8c0f505, Kueue ff69552. docs/tasks/gangs.md names the releases that were run.

A pod's *rank* is its number among the pods of its gang. The owner of a pod is the object that created it, such as a
Job.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from dradriver.api.base import names
from dradriver.api.base.objects import OwnerReference
from dradriver.api.gangs.gang_annotations import Size
from dradriver.api.vocabulary import values

Rank: TypeAlias = tuple[int, ...]
"""Sorts as the ranks of a gang's pods do. The pod's own numbers, which it keeps when it is made anew."""

JOBSET: Final = "jobset.sigs.k8s.io/"
LONGEST: Final = 253  # characters of a name or uid; what is longer is none

_JOB_INDEX: Final = "batch.kubernetes.io/job-completion-index"
LWS: Final = "leaderworkerset.sigs.k8s.io/"
_KUEUE: Final = "kueue.x-k8s.io/"
_TRAINING: Final = "training.kubeflow.org/"
_POD_INDEX: Final = "apps.kubernetes.io/pod-index"
_MPI: Final = "MPIJob"
_KUBEFLOW: Final = ("PyTorchJob", "TFJob", "XGBoostJob", "JAXJob", "PaddleJob", _MPI)
SAID: Final = (JOBSET, LWS, _KUEUE, _TRAINING, "alpha." + JOBSET, "batch.kubernetes.io/", "apps.kubernetes.io/")
"""How the annotations begin that makers of pods say something of a gang by."""

_ROLES: Final = ("master", "chief", "worker", "ps", "evaluator")  # of Kubeflow's jobs, in the order of their ranks
_MAKERS: Final = 10_000  # numbers by which the pods of one gang are told apart that several objects made
_HASH: Final = re.compile("-[a-z0-9]{1,10}")
_INDEX_AND_HASH: Final = re.compile("[0-9]{1,2}-[a-z0-9]{1,10}")
_NO_LETTERS: Final = re.compile("[^a-z0-9]+")


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a pod from which the driver finds the pod's gang.

    Only pods with GPUs are members of a gang, so the driver does not look for a gang for other pods.

    Attributes:
        namespace: Its namespace.
        name: Its name; empty before the API server has generated one.
        labels: Its labels.
        annotations: Its annotations.
        owners: Its owner references.
        group: ``spec.schedulingGroup.podGroupName``; empty without one, or if the webhook removed it.
        scheduler: ``spec.schedulerName``.
    """

    namespace: str
    name: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    owners: Sequence[OwnerReference] = ()
    group: str = ""
    scheduler: str = ""

    @property
    def owner(self) -> OwnerReference:
        """Return the pod's owner reference with ``controller: true``; without one, an owner with empty fields."""
        return next((owner for owner in self.owners if owner.controller), OwnerReference())

    def said(self, key: str) -> str:
        """Return the text of the pod's label with this key, or else of its annotation.

        Empty if the pod has neither, or if the text is too long.
        """
        text = self.labels.get(key) or self.annotations.get(key, "")
        return text if len(text) <= LONGEST else ""

    def rank(self, key: str) -> Rank | None:
        """Return a pod's rank in its gang, from the label or annotation with this key.

        The owner's controller, such as the Job controller, wrote it. None if it is missing or is not a number.
        """
        number = values.natural(self.said(key))
        return None if number is None else (number,)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """An object whose spec has the number of pods of a gang.

    Attributes:
        api_version: Its ``apiVersion``. For a PodGroup only the group, because each Kubernetes release has another
            version.
        kind: Its kind.
        name: Its name, in the pod's namespace.
        uid: Its uid; empty if the pod does not have it.
        role: The part of the object that is the gang, such as a JobSet's replicatedJob.
        pods: The number of pods, with and without GPUs, at the time when the owner created this pod; None if the pod
            does not have it. If the owner's number changes later, the new number applies only to pods that the owner
            creates after the change.
        by_job: Whether it is a PodGroup that the Job controller created (``is_of_job``).
    """

    api_version: str
    kind: str
    name: str
    uid: str = ""
    role: str = ""
    pods: int | None = None
    by_job: bool = False


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of a gang, with what the pod's own fields say about the gang.

    Attributes:
        identity: The identifier of the gang: the same for all its pods, unique in the cluster, and valid as a label's
            value.
        made_by: The kind of the owner that created the gang's pods; ``PodGroup`` if the pods are in one; ``gang`` if
            the author named the gang in an annotation.
        size: The number of pods, from the author or the pod; None if neither has it.
        read: The object to read for the number of pods, and for whether they can be a gang at all; None if there is no
            such object. If the author named the gang, its number is not used (``gang_of_pod.size``).
        rank: The pod's rank in the gang; None if unknown.
    """

    identity: str
    made_by: str
    size: Size | None = None
    read: Owner | None = None
    rank: Rank | None = None


class Alone(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that is in no gang.

    Attributes:
        why: The reason, if the author requests a gang or the pod seems to belong to one; else empty.
        never: Whether such pods can never be a gang. Then admission refuses the pod if its author requests a gang.
        apart: Whether the pod is placed by itself even if its annotations request a gang. The owner wrote these
            annotations on all of its pods, and they are meant for the other pods. An example is the launcher of an
            MPIJob, which needs no GPUs.
    """

    why: str = ""
    never: bool = False
    apart: bool = False


def identity(name: str, *parts: str) -> str:
    """Return the identifier of a gang: the readable ``name`` and a hash of ``parts``.

    The identifier has at most 63 characters. Gangs with different ``parts``, such as the owner's uid, have different
    identifiers.
    """
    start = _NO_LETTERS.sub("-", name[:64].lower()).strip("-")[:30].strip("-") or "gang"
    return f"{start}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]}"


def joined(identity: str, made_by: str, found: Member | Alone) -> Member:
    """Return a pod as a member of a gang that was found by a name, not by the pod's owner.

    The name is in an annotation of the author, or is that of a PodGroup. The gang can have pods of several owners, and
    the ranks of each owner's pods begin at 0. So the result has a hash of the owner before the rank, which keeps the
    pods of each owner together and in order.

    Args:
        identity: The identifier of the gang.
        made_by: The value of ``Member.made_by``: ``gang``, or ``PodGroup`` for the gang of a PodGroup.
        found: The gang that the pod would be in by its owner, or why it would be in none.
    """
    if isinstance(found, Alone):
        return Member(identity=identity, made_by=made_by)
    maker = int(found.identity[-8:], 16) % _MAKERS
    rank = None if found.rank is None else (maker, *found.rank)
    return Member(identity=identity, made_by=made_by, read=found.read, rank=rank)


def is_of_job(group: str, owners: Sequence[OwnerReference]) -> bool:
    """Return whether the Job controller created a PodGroup, for the Job that owns the pod.

    With the feature gate WorkloadWithJob, the Job controller creates a PodGroup for each Job that has no owner itself.
    All pods of the PodGroup belong to this Job. The PodGroup's policy is ``basic`` unless the Job requests ``gang``.

    The driver recognizes this PodGroup by its name alone (computeWorkloadName, podGroupTemplateName and
    computePodGroupName of pkg/controller/job/job_scheduling_manager.go, 1.36.3 and 1.37.2). The Job controller adds an
    owner to the pod template, but does not copy it to the pods (GetPodFromTemplate of controller_utils.go).

    Args:
        group: The name of the PodGroup.
        owners: The owners of the pod.
    """
    job = next((by.name for by in owners if by.controller and by.kind == "Job" and by.api_version[:6] == "batch/"), "")
    if not (job and group.startswith(job)):
        return False
    first, _, last = group[len(job) :].rpartition(f"-{job}-pgt-")
    return _HASH.fullmatch(first) is not None and _INDEX_AND_HASH.fullmatch(last) is not None


def of_group(pod: Facts, *, asks: bool = False) -> Member | None:
    """Return the gang of the PodGroup that a pod is in (KEP-4671); None without one.

    ``spec.schedulingGroup`` names the PodGroup. The webhook removes this field if the Job controller created the
    PodGroup. Then an annotation of the pod names the PodGroup.

    Args:
        pod: The known fields of the pod.
        asks: Whether the author of the pod requests a gang. Then a PodGroup that the Job controller created is ignored,
            because every Job has one, and the author did not choose its policy.
    """
    name = pod.group or pod.annotations.get(names.POD_GROUP, "")
    if not name or len(name) > LONGEST:
        return None
    by_job = is_of_job(name, pod.owners)
    if by_job and asks:
        return None
    read = Owner(api_version="scheduling.k8s.io", kind="PodGroup", name=name, by_job=by_job)
    return msgspec.structs.replace(joined(of_group_named(pod.namespace, name), "PodGroup", made(pod)), read=read)


def of_group_named(namespace: str, name: str) -> str:
    """Return the identifier of the gang that the pods of a PodGroup form, from the PodGroup's name."""
    return identity(name, "PodGroup", namespace, name)


def made(pod: Facts) -> Member | Alone:
    """Return the gang that the pods of one owner form, or why the pod is in no gang.

    Kinds of owners are tried one after another, such as JobSet and Job. Call this only if the author requests a gang.
    """
    found = next((one for by in _WAYS if (one := by(pod)) is not None), Alone())
    read = found.read if isinstance(found, Member) else None
    if read is not None and max(len(read.name), len(read.uid)) > LONGEST:
        return Alone(why="The owner of the pod has a longer name than an object can have.")
    return found


def _by_jobset(pod: Facts) -> Member | None:
    """Return the gang of a JobSet's pod: the pods of its replicatedJob; None for other pods.

    Other replicatedJobs are not in the gang, because they may start earlier or later. The identity contains the restart
    attempt, so that a new attempt does not wait for pods of the previous one. Source:
    pkg/controllers/jobset_controller.go, labelAndAnnotateObject.

    A TrainJob creates a JobSet, so its pods are pods of a JobSet, too. Nothing on a pod names the TrainJob: the labels
    that name its steps are on the Jobs.
    """
    name, role = pod.said(JOBSET + "jobset-name"), pod.said(JOBSET + "replicatedjob-name")
    uid = pod.said(JOBSET + "jobset-uid")
    if not (name and role):
        return None
    job, index = pod.rank(JOBSET + "job-index"), pod.rank(_JOB_INDEX)
    return Member(
        identity=identity(name, "JobSet", pod.namespace, name, uid, role, pod.said(JOBSET + "restart-attempt")),
        made_by="JobSet",
        read=Owner(api_version="jobset.x-k8s.io/v1alpha2", kind="JobSet", name=name, uid=uid, role=role),
        rank=None if job is None else (*job, *(index or ())),
    )


def _by_leader(pod: Facts) -> Member | None:
    """Return the gang of a LeaderWorkerSet's pod: the leader and the workers of one group.

    None for pods of other owners. Source: pkg/webhooks/pod_webhook.go.
    """
    name = pod.said(LWS + "name")
    group = pod.said(LWS + "group-key") or pod.said(LWS + "group-index")
    if not (name and group):
        return None
    revision = pod.said(LWS + "template-revision-hash")
    pods = values.many(pod.said(LWS + "size"))
    return Member(
        identity=identity(name, "LeaderWorkerSet", pod.namespace, name, group, revision),
        made_by="LeaderWorkerSet",
        size=_exactly(pods),
        read=Owner(api_version="leaderworkerset.x-k8s.io/v1", kind="LeaderWorkerSet", name=name, pods=pods),
        rank=pod.rank(LWS + "worker-index"),
    )


def _by_kubeflow(pod: Facts) -> Member | Alone | None:
    """Return the gang of a pod of Kubeflow's training or MPI operator; None for other pods.

    The gang has the replicas of all roles that have GPUs.

    Sources: pkg/controller.v1/common/pod.go of training-operator; newWorker in pkg/controller/mpi_job_controller.go of
    mpi-operator.
    """
    job = pod.said(_TRAINING + "job-name")
    role = (pod.said(_TRAINING + "replica-type") or pod.said(_TRAINING + "job-role")).lower()
    if not job:
        return None
    owner, index = pod.owner, pod.rank(_TRAINING + "replica-index")
    if role == "launcher" and index is None:
        why = "The launcher of an MPIJob may wait until its workers are ready, so it is placed by itself."
        return Alone(why=why, apart=True)
    if role == "launcher" or _counts_launcher(pod, owner, job, index):
        return Member(
            identity=identity(job, _MPI, pod.namespace, job),
            made_by=_MPI,
            read=Owner(api_version="kubeflow.org/v2beta1", kind=_MPI, name=job),
            rank=index,
        )
    if owner.kind not in _KUBEFLOW or not owner.api_version.startswith("kubeflow.org/"):
        return None
    return Member(
        identity=identity(job, owner.kind, pod.namespace, job, owner.uid),
        made_by=owner.kind,
        read=_owner(owner),
        rank=None if index is None or role not in _ROLES else (_ROLES.index(role), *index),
    )


def _counts_launcher(pod: Facts, owner: OwnerReference, job: str, index: Rank | None) -> bool:
    """Return whether the MPIJob of a worker pod has a launcher that is also a worker (``runLauncherAsWorker``).

    Then the launcher has index 0, and each worker's index is the number in its name plus one
    (``workerReplicaIndexLabel``). The launcher's owner is a Job. So the caller identifies the gang by the MPIJob's
    name, ``job``, and not by its uid. ``index`` is the worker's index.
    """
    return owner.kind == _MPI and index is not None and pod.name == f"{job}-worker-{index[0] - 1}"


def _by_kueue(pod: Facts) -> Member | None:
    """Return the gang of a Kueue group of plain pods; None for other pods.

    Source: pkg/controller/jobs/pod/constants.
    """
    name = pod.said(_KUEUE + "pod-group-name")
    if not name:
        return None
    label = pod.annotations.get(_KUEUE + "pod-group-pod-index-label", _KUEUE + "pod-group-pod-index")
    return Member(
        identity=identity(name, "pod group", pod.namespace, name),
        made_by="pod group",
        size=_exactly(values.many(pod.said(_KUEUE + "pod-group-total-count"))),
        rank=pod.rank(label),
    )


def _by_job(pod: Facts) -> Member | None:
    """Return the gang of a Job's pod; None for other pods.

    If the Job is not indexed, its pods have no rank.
    """
    owner, index = pod.owner, pod.rank(_JOB_INDEX)
    if owner.kind != "Job" or not owner.api_version.startswith("batch/"):
        return None
    return Member(
        identity=identity(owner.name, "Job", pod.namespace, owner.name, owner.uid),
        made_by="Job",
        read=_owner(owner),
        rank=index,
    )


def _by_stateful_set(pod: Facts) -> Member | None:
    """Return the gang of a StatefulSet's pod; None for other pods.

    Kueue puts such pods into a group of its own, but only after they were created (statefulset_pod_reconciler).
    """
    owner = pod.owner
    if owner.kind != "StatefulSet" or not owner.api_version.startswith("apps/"):
        return None
    return Member(
        identity=identity(owner.name, "StatefulSet", pod.namespace, owner.name, owner.uid),
        made_by="StatefulSet",
        read=_owner(owner),
        rank=pod.rank(_POD_INDEX),
    )


# What says most of a pod comes first: a JobSet's pods are a Job's, too, and those of a LeaderWorkerSet a StatefulSet's,
# which Kueue puts into groups once they are there.
_WAYS: Final[tuple[Callable[[Facts], Member | Alone | None], ...]] = (
    _by_jobset, _by_leader, _by_kubeflow, _by_job, _by_stateful_set, _by_kueue,
)  # fmt: skip


def _owner(owner: OwnerReference) -> Owner:
    return Owner(api_version=owner.api_version, kind=owner.kind, name=owner.name, uid=owner.uid)


def _exactly(count: int | None) -> Size | None:
    return None if count is None else (count, count)
