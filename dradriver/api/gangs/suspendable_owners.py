"""Owners of pods that can be suspended and resumed, such as Jobs: their fields, the record on them, the patches.

The controller suspends an owner to restart a gang: the owner deletes all its pods, and creates them again when it is
resumed. Suspending costs a Job nothing. If pods were evicted or deleted instead, each one would count as a failure, and
more failures than its backoffLimit fail the Job. The patch that suspends an object also writes a record on it, so that
the next leader can resume it.

Sources: Kubernetes 1.36, pkg/controller/job/job_controller.go (``suspendJob``, ``deleteJobPods``); JobSet 08dfbdf,
pkg/controllers/jobset_controller.go; trainer 8c0f505, pkg/controller/trainjob_controller.go; training-operator 1.9.0,
pkg/controller.v1/common/job.go; mpi-operator caa3c47, pkg/controller/mpi_job_controller.go; Kueue ff69552,
pkg/controller/jobframework/reconciler.go: ``kueue.x-k8s.io/workload`` and ``podset`` on pods of jobs that it started.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.objects import Condition, Metadata, OwnerReference, Part
from dradriver.api.base.pods import Pod
from dradriver.api.gangs import gang_size_of_owner
from dradriver.api.gangs.gang_owners import JOBSET, LWS
from dradriver.api.vocabulary import messages

FIRST_PAUSE_S: Final = 60.0  # between two restarts of one owner; as Kueue's requeuing
LONGEST_PAUSE_S: Final = 3600.0  # after which it has begun again from the first

CHART_VALUE: Final = "controller.gangOwners"

_KUEUE: Final = "kueue.x-k8s.io/"
_SUSPEND: Final = ("suspend",)
_RUN_POLICY: Final = ("runPolicy", "suspend")
FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "Job": _SUSPEND,
    "JobSet": _SUSPEND,
    "TrainJob": _SUSPEND,
    **{kind: _RUN_POLICY for kind, (group, _) in gang_size_of_owner.OBJECTS.items() if group == "kubeflow.org"},
}
"""Where each kind that can be suspended has the field, below ``spec``."""

OBJECTS: Final[Mapping[str, tuple[str, str]]] = {
    **gang_size_of_owner.OBJECTS,
    "TrainJob": ("trainer.kubeflow.org", "trainjobs"),
}
"""By kind the API group and the name of the resource: what tells sizes, and what is suspended."""

DELETES: Final = "StatefulSet"
"""The kind whose pods are deleted: it makes them anew at once, however often; a LeaderWorkerSet's are of such ones."""

_NO_PARENTS: Final = ("CronJob",)  # it makes Jobs and changes none
_ENDED: Final = ("Complete", "Completed", "Succeeded", "Failed")
_LONGEST_RECORD: Final = 8192  # characters
LONGEST: Final = 256  # characters of each text in a record


class _RunPolicy(Part, frozen=True):
    suspend: bool | None = None


class _Spec(Part, frozen=True):
    suspend: bool | None = None
    run_policy: _RunPolicy | None = None
    managed_by: str | None = None


class _Status(Part, frozen=True):
    conditions: list[Condition] = []


class Suspendable(Part, frozen=True):
    """The fields of an owner of pods that can be suspended, such as a Job."""

    metadata: Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def suspended(self) -> bool:
        """Return whether the owner's spec says that the owner is suspended, so that it must have no pods."""
        return bool(self.spec.suspend or (self.spec.run_policy is not None and self.spec.run_policy.suspend))

    @property
    def rests(self) -> bool:
        """Return whether the owner's status says that it is suspended now (condition ``Suspended``)."""
        return self._has("Suspended")

    @property
    def ended(self) -> bool:
        """Return whether the owner has completed or failed, so that it creates no more pods."""
        return any(map(self._has, _ENDED))

    @property
    def kueues(self) -> bool:
        """Return whether Kueue suspends and resumes the owner."""
        managed = (self.spec.managed_by or "").startswith(_KUEUE)
        return managed or of_kueue(self.metadata)

    @property
    def parent(self) -> OwnerReference | None:
        """Return the object that controls this owner and may suspend or resume it; None without one.

        A CronJob does not count: it creates Jobs and does not change them.
        """
        made_by = next((owner for owner in self.metadata.owner_references if owner.controller), None)
        return None if made_by is None or made_by.kind in _NO_PARENTS else made_by

    def _has(self, condition: str) -> bool:
        return any(one.type == condition and one.status == "True" for one in self.status.conditions)


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record on an owner that the controller suspended to restart a gang.

    The record stays on the owner after the owner is resumed, so that one loss of pods causes only one restart.

    Attributes:
        uid: The owner's uid. In a copy of the object the uid differs, and the record is ignored.
        gang: The gang that is restarted.
        loss: A digest of the lost pods that caused the restart. The same loss does not cause another restart.
        why: The reason, for people.
        at: When the owner was suspended, as Kubernetes writes times.
        times: How often the owner was suspended in a row.
        over: Whether the record is done: the controller has resumed the owner, or has left this to other programs.
    """

    uid: str
    gang: str
    loss: str
    why: str
    at: str
    times: int = 1
    over: bool = False

    def due_in_s(self, now: datetime.datetime) -> float:
        """Return after how many seconds the owner may be suspended again; 0 or less for now.

        The pause doubles with each suspension in a row.
        """
        return min(FIRST_PAUSE_S * 2.0 ** min(max(self.times, 1) - 1, 16), LONGEST_PAUSE_S) - self._age_s(now)

    def next_times(self, now: datetime.datetime) -> int:
        """Return how often in a row the owner will have been suspended if it is suspended again now.

        The result is the field ``times`` of the next record. The result is 1 if the last suspension was long ago.
        """
        return self.times + 1 if self._age_s(now) < 2 * LONGEST_PAUSE_S else 1

    def _age_s(self, now: datetime.datetime) -> float:
        return (now - datetime.datetime.fromisoformat(self.at)).total_seconds()


def of_kueue(metadata: Metadata) -> bool:
    """Return whether Kueue manages an owner, by its labels and annotations."""
    return any(key.startswith(_KUEUE) for key in (*metadata.labels, *metadata.annotations))


def record_of(found: Suspendable) -> Record | None:
    """Return the suspension record on an owner; None without a valid record."""
    text = found.metadata.annotations.get(names.RESTART, "")
    if not text or len(text) > _LONGEST_RECORD:
        return None
    try:
        record = msgspec.json.decode(text, type=Record)
        aware = datetime.datetime.fromisoformat(record.at).tzinfo is not None
    except (msgspec.DecodeError, UnicodeError, ValueError):
        return None
    return record if aware and record.uid == found.metadata.uid else None


def under_way(found: Suspendable) -> Record | None:
    """Return the record of an owner that this driver suspended and must still resume; else None."""
    record = record_of(found)
    if record is None or record.over or names.RESTARTING not in found.metadata.labels:
        return None
    return record


def record(found: Suspendable, *, gang: str, loss: str, why: str, now: datetime.datetime) -> Record:
    """Return a new record for an owner (``found``) that is suspended to restart a gang.

    ``times`` continues the count of the owner's last record. ``gang`` is the gang that is restarted, ``loss`` a digest
    of its lost pods, and ``why`` the reason for people.
    """
    before = record_of(found)
    return Record(
        uid=found.metadata.uid,
        gang=gang[:LONGEST],
        loss=loss[:LONGEST],
        why=why[:LONGEST],
        at=f"{now:%Y-%m-%dT%H:%M:%SZ}",
        times=1 if before is None else before.next_times(now),
    )


def suspend(kind: str, found: Suspendable, record: Record) -> dict[str, Any]:
    """Return the merge patch that suspends an owner (``found``) and writes ``record`` on it.

    The API server answers ``conflict`` if the owner has changed.
    """
    return _patch(found, record, label="true", spec=_spec(kind, suspended=True))


def resume(kind: str, found: Suspendable, record: Record) -> dict[str, Any]:
    """Return the merge patch that resumes an owner (``found``), and marks ``record`` as done.

    The API server answers ``conflict`` if the owner has changed.
    """
    return _patch(found, msgspec.structs.replace(record, over=True), label=None, spec=_spec(kind, suspended=False))


def rest(kind: str, found: Suspendable, *, why: str, now: datetime.datetime) -> dict[str, Any]:
    """Return the merge patch that suspends an owner whose GPUs are idle, until its author resumes it.

    The patch writes no restart record, so no leader resumes the owner. It writes an annotation with the reason, for
    people. The API server answers ``conflict`` if the owner has changed.

    Args:
        kind: The owner's kind.
        found: The owner.
        why: The reason, for people.
        now: The time, UTC.
    """
    note = {"at": f"{now:%Y-%m-%dT%H:%M:%SZ}", "why": why[:LONGEST]}
    metadata = {
        "uid": found.metadata.uid,
        "resourceVersion": found.metadata.resource_version,
        "annotations": {names.IDLE: msgspec.json.encode(note).decode()},
    }
    return {"metadata": metadata, "spec": _spec(kind, suspended=True)}


def let_go(found: Suspendable, record: Record) -> dict[str, Any]:
    """Return the merge patch that marks an owner's record as done, without resuming the owner.

    The patch also removes the label ``RESTARTING`` from the owner, so no leader resumes the owner later.

    Args:
        found: The owner.
        record: The record on the owner.
    """
    return _patch(found, msgspec.structs.replace(record, over=True), label=None, spec=None)


def obstacle(kind: str, found: Suspendable) -> str:
    """Return why an owner must not be suspended, and what to do instead; empty if it may be."""
    one = shown(kind, found.metadata.name)
    if found.kueues:
        return f"{one} is in a queue of Kueue, which suspends and resumes it itself. Leave it to Kueue, or delete it."
    if found.ended:
        return f"{one} has ended and creates no more pods. Create it again."
    if found.suspended:
        return f"{one} was suspended by another program. Resume it."
    if (parent := found.parent) is not None:
        return (
            f"{one} was created by {shown(parent.kind, parent.name)}, which sets whether it is suspended. The driver "
            f"does not know that kind. Suspend and resume that object."
        )
    return ""


def belongs(pod: Pod, kind: str, found: Metadata) -> bool:
    """Return whether a pod belongs to an owner.

    Pods of a JobSet or a TrainJob are recognized by the JobSet's name in a label, all others by their owner reference.

    Args:
        pod: The pod.
        kind: The owner's kind.
        found: The owner's metadata.
    """
    if pod.metadata.namespace != found.namespace:
        return False
    if kind in ("JobSet", "TrainJob"):  # a TrainJob's JobSet has its name
        return pod.metadata.labels.get(JOBSET + "jobset-name") == found.name
    return any(owner.controller and owner.uid == found.uid for owner in pod.metadata.owner_references)


def grant(kind: str, right: str) -> str:
    """Return the chart value to set so that the controller may ``read`` or ``suspend`` owners of a kind.

    The text is part of a message for the administrator.
    """
    return f"set {CHART_VALUE}.{kind}.{right} in the chart's values"


def set_of(pod: Pod) -> tuple[str, str]:
    """Return an identifier that all pods of one StatefulSet, or of one LeaderWorkerSet, have in common.

    A LeaderWorkerSet has several StatefulSets, and all their pods are one set.

    Returns:
        The name of the LeaderWorkerSet and an empty text, or an empty text and the uid of the StatefulSet.
    """
    owner = next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")
    lws = pod.metadata.labels.get(LWS + "name", "")
    return (lws, "") if lws else ("", owner)


def shown(kind: str, name: str) -> str:
    """Return the kind and name of an owner as messages show them."""
    return messages.shown(f"{kind} {name}")


def _spec(kind: str, *, suspended: bool) -> dict[str, Any]:
    value: Any = suspended
    for name in reversed(FIELDS[kind]):
        value = {name: value}
    spec: dict[str, Any] = value
    return spec


def _patch(found: Suspendable, record: Record, *, label: str | None, spec: dict[str, Any] | None) -> dict[str, Any]:
    metadata = {
        "uid": found.metadata.uid,
        "resourceVersion": found.metadata.resource_version,
        "labels": {names.RESTARTING: label},
        "annotations": {names.RESTART: msgspec.json.encode(record).decode()},
    }
    return {"metadata": metadata} | ({} if spec is None else {"spec": spec})
