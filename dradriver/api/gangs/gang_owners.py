"""Which gang a pod is of by what made it: what that wrote into its labels and annotations.

Where these do not tell how many pods there are, ``Member.read`` names the object that does. Each way is written after
the source of the program that makes the pods: Kubernetes 1.34 to 1.37, JobSet 08dfbdf, LeaderWorkerSet 060ab4d,
training-operator 1.9.0, mpi-operator caa3c47, trainer 8c0f505, Kueue ff69552. docs/gangs.md
names the releases that were run.
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
    """What is known of a pod. Only of pods that have GPUs is anything asked: a gang's others are no members.

    Attributes:
        namespace: Its namespace.
        name: Its name; empty while the API server has not made one.
        labels: Its labels.
        annotations: Its annotations.
        owners: The owners of the object.
        group: ``spec.schedulingGroup.podGroupName``; empty without one, or if the webhook took it away.
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
        """Return the pod's owner that is its controller; an owner without a kind if it has none."""
        return next((owner for owner in self.owners if owner.controller), OwnerReference())

    def said(self, key: str) -> str:
        """Return a pod's label, or else annotation, that its gang's owner wrote; empty without one, or if too long."""
        text = self.labels.get(key) or self.annotations.get(key, "")
        return text if len(text) <= LONGEST else ""

    def rank(self, key: str) -> Rank | None:
        """Return a pod's rank in its gang: the number in a label or annotation that its owner wrote."""
        number = values.natural(self.said(key))
        return None if number is None else (number,)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """An object that tells how many pods a gang has.

    Attributes:
        api_version: Its ``apiVersion``; of a PodGroup only the group, for each release of Kubernetes has its own.
        kind: Its kind.
        name: Its name, in the pod's namespace.
        uid: Its uid; empty where the pod does not say it.
        role: Which part of it the gang is: a JobSet's replicatedJob.
        pods: How many pods there were, with and without GPUs, when it made this one; None where the pod does not say.
            The object may have another number since, and other pods for it.
        by_job: Whether it is a PodGroup that the Job controller made (``is_of_job``).
    """

    api_version: str
    kind: str
    name: str
    uid: str = ""
    role: str = ""
    pods: int | None = None
    by_job: bool = False


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of a gang.

    Attributes:
        identity: Which gang: the same for all its pods and no others of the cluster, and fit for a label's value.
        made_by: The kind of what the gang is all of; ``gang`` where its author named it.
        size: How many pods it has, as its author or the pod says; None where neither does.
        read: The object that tells how many, and whether its pods can be a gang at all; of pods that a name joins only
            the latter (``gang_of_pod.size``).
        rank: Where the pod stands among the others; None where nothing says.
    """

    identity: str
    made_by: str
    size: Size | None = None
    read: Owner | None = None
    rank: Rank | None = None


class Alone(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that is in no gang.

    Attributes:
        why: Why not, where there is something to say: its author asked for one, or it looks as if it were in one.
        never: Whether no gang can start like that, so that admission refuses a pod whose author asks for one.
        apart: Whether it is placed by itself, whatever its author asks for: words reach it from above that are meant
            for others.
    """

    why: str = ""
    never: bool = False
    apart: bool = False


def identity(name: str, *parts: str) -> str:
    """Return a gang's identifier made from ``parts`` of its owner, with a readable beginning.

    It has at most 63 characters.
    """
    start = _NO_LETTERS.sub("-", name[:64].lower()).strip("-")[:30].strip("-") or "gang"
    return f"{start}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]}"


def joined(identity: str, made_by: str, found: Member | Alone) -> Member:
    """Return the gang of a pod whose gang several owners made, with ranks that each begin at 0.

    Args:
        identity: Which gang.
        made_by: What the gang is all of.
        found: Which gang the pod were of by what made it: the pods of each stand together, in its order.
    """
    if isinstance(found, Alone):
        return Member(identity=identity, made_by=made_by)
    maker = int(found.identity[-8:], 16) % _MAKERS
    rank = None if found.rank is None else (maker, *found.rank)
    return Member(identity=identity, made_by=made_by, read=found.read, rank=rank)


def is_of_job(group: str, owners: Sequence[OwnerReference]) -> bool:
    """Return whether the Job controller made a PodGroup for the Job that a pod is of.

    With the feature gate WorkloadWithJob each Job without an owner has one, of the policy ``basic`` unless the Job says
    ``gang``, and all of its pods are of that Job. Only its name tells (computeWorkloadName, podGroupTemplateName and
    computePodGroupName of pkg/controller/job/job_scheduling_manager.go, 1.36.3 and 1.37.2): the owner that the Job
    controller adds to the pod template is not copied to the pods (GetPodFromTemplate of controller_utils.go).

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
    """Return which gang of a PodGroup a pod is in (KEP-4671); None for none.

    ``spec.schedulingGroup`` names the PodGroup, or the note of a pod that has left the one of its Job.

    Args:
        pod: What is known of the pod.
        asks: Whether the author of the pod asks for a gang. Then a PodGroup that the Job controller made says nothing:
            every Job has one, and its policy is not the author's.
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
    """Return which gang the pods of a PodGroup are, as if it owned them."""
    return identity(name, "PodGroup", namespace, name)


def made(pod: Facts) -> Member | Alone:
    """Return which gang a pod belongs to by its owner, if its author says that there is a gang."""
    found = next((one for by in _WAYS if (one := by(pod)) is not None), Alone())
    read = found.read if isinstance(found, Member) else None
    if read is not None and max(len(read.name), len(read.uid)) > LONGEST:
        return Alone(why="what made the pod has a name longer than any object's")
    return found


def _by_jobset(pod: Facts) -> Member | None:
    """A replicatedJob of a JobSet, and of a TrainJob, which is one: others may start after it, or before.

    pkg/controllers/jobset_controller.go, labelAndAnnotateObject. The attempt is part of the identity, so that a run
    waits for none of the pods of the one before. Nothing on a pod tells of a TrainJob: its steps are labels of Jobs.
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
    """A group of a LeaderWorkerSet: a leader and its workers (pkg/webhooks/pod_webhook.go)."""
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
    """Return the gang of a pod of Kubeflow's training or MPI operator; None for others.

    The gang has the replicas of all roles that have GPUs.

    training-operator: pkg/controller.v1/common/pod.go; mpi-operator: pkg/controller/mpi_job_controller.go, newWorker.
    """
    job = pod.said(_TRAINING + "job-name")
    role = (pod.said(_TRAINING + "replica-type") or pod.said(_TRAINING + "job-role")).lower()
    if not job:
        return None
    owner, index = pod.owner, pod.rank(_TRAINING + "replica-index")
    if role == "launcher" and index is None:
        why = "the launcher of an MPIJob may wait until its workers are ready: it is placed by itself"
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
    """Return whether a worker of an MPIJob says that the launcher is a worker, too: ``runLauncherAsWorker``.

    The launcher has index 0 then, and each worker's index is larger by one than the number in its name
    (``workerReplicaIndexLabel``). The launcher's owner is a Job, so no such pod's gang is known by the MPIJob's uid.
    """
    return owner.kind == _MPI and index is not None and pod.name == f"{job}-worker-{index[0] - 1}"


def _by_kueue(pod: Facts) -> Member | None:
    """A group of plain pods in a queue of Kueue's (pkg/controller/jobs/pod/constants)."""
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
    """A Job: of one whose pods have no indices nothing says in which order they are."""
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
    """A StatefulSet. Kueue puts its pods into a group, too, but after they were made (statefulset_pod_reconciler)."""
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
