"""Owners that make their pods again after being suspended and resumed: their fields, the record, the patches.

Suspending costs a Job nothing, where each pod that is evicted or deleted counts as a failure, and more than its
backoffLimit fail it. What is suspended is resumed by whoever leads then: a record on the object says so, written by the
same patch as the suspension.

Sources: Kubernetes 1.36, pkg/controller/job/job_controller.go (``suspendJob``, ``deleteJobPods``); JobSet 08dfbdf,
pkg/controllers/jobset_controller.go; trainer 8c0f505, pkg/controller/trainjob_controller.go; training-operator 1.9.0,
pkg/controller.v1/common/job.go; mpi-operator caa3c47, pkg/controller/mpi_job_controller.go; Kueue ff69552,
pkg/controller/jobframework/reconciler.go: ``kueue.x-k8s.io/workload`` and ``podset`` on pods of what it has started.
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
    """An object of one of these kinds, as far as it is read."""

    metadata: Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def suspended(self) -> bool:
        """Return whether the owner is suspended: it is to have no pods."""
        return bool(self.spec.suspend or (self.spec.run_policy is not None and self.spec.run_policy.suspend))

    @property
    def rests(self) -> bool:
        """Return whether the owner's status confirms that it is suspended."""
        return self._has("Suspended")

    @property
    def ended(self) -> bool:
        """Return whether the owner has ended: it makes no more pods."""
        return any(map(self._has, _ENDED))

    @property
    def kueues(self) -> bool:
        """Return whether Kueue suspends and resumes the owner."""
        managed = (self.spec.managed_by or "").startswith(_KUEUE)
        return managed or of_kueue(self.metadata)

    @property
    def parent(self) -> OwnerReference | None:
        """Return the owner's own controller, which changes it; None without one."""
        made_by = next((owner for owner in self.metadata.owner_references if owner.controller), None)
        return None if made_by is None or made_by.kind in _NO_PARENTS else made_by

    def _has(self, condition: str) -> bool:
        return any(one.type == condition and one.status == "True" for one in self.status.conditions)


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is noted on an object that was suspended: it stays there when it is resumed, so that a loss counts once.

    Attributes:
        uid: The object's; a copy of the object is another's, and its record is none.
        gang: The gang that is started anew.
        loss: For what: the same again is no reason to do it again.
        why: The same in words, for people.
        at: When, as Kubernetes writes times.
        times: How often in a row.
        over: Whether it was resumed.
    """

    uid: str
    gang: str
    loss: str
    why: str
    at: str
    times: int = 1
    over: bool = False

    def due_in_s(self, now: datetime.datetime) -> float:
        """Return the seconds until the owner may be suspended again; 0 or less for now."""
        return min(FIRST_PAUSE_S * 2.0 ** min(max(self.times, 1) - 1, 16), LONGEST_PAUSE_S) - self._age_s(now)

    def next_times(self, now: datetime.datetime) -> int:
        """Return how often in a row the owner will have been suspended if it is suspended now."""
        return self.times + 1 if self._age_s(now) < 2 * LONGEST_PAUSE_S else 1

    def _age_s(self, now: datetime.datetime) -> float:
        return (now - datetime.datetime.fromisoformat(self.at)).total_seconds()


def of_kueue(metadata: Metadata) -> bool:
    """Return whether Kueue manages an owner, by its labels and annotations."""
    return any(key.startswith(_KUEUE) for key in (*metadata.labels, *metadata.annotations))


def record_of(found: Suspendable) -> Record | None:
    """Return the record of a suspension on an owner; None for none, or what only looks like it."""
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
    """Return the record of an owner that was suspended here and not resumed yet; None for any other."""
    record = record_of(found)
    if record is None or record.over or names.RESTARTING not in found.metadata.labels:
        return None
    return record


def record(found: Suspendable, *, gang: str, loss: str, why: str, now: datetime.datetime) -> Record:
    """Return the record of a suspension for an owner that is suspended now, in UTC."""
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
    """Return the merge patch that suspends an owner, with its record; ``conflict`` if it has changed."""
    return _patch(found, record, label="true", spec=_spec(kind, suspended=True))


def resume(kind: str, found: Suspendable, record: Record) -> dict[str, Any]:
    """Return the merge patch that resumes an owner; ``conflict`` if it has changed."""
    return _patch(found, msgspec.structs.replace(record, over=True), label=None, spec=_spec(kind, suspended=False))


def rest(kind: str, found: Suspendable, *, why: str, now: datetime.datetime) -> dict[str, Any]:
    """Return the merge patch that suspends an owner until its author resumes it; ``conflict`` if it has changed.

    There is no promise on it, so no leader resumes it; what is noted tells people why it rests.
    """
    note = {"at": f"{now:%Y-%m-%dT%H:%M:%SZ}", "why": why[:LONGEST]}
    metadata = {
        "uid": found.metadata.uid,
        "resourceVersion": found.metadata.resource_version,
        "annotations": {names.IDLE: msgspec.json.encode(note).decode()},
    }
    return {"metadata": metadata, "spec": _spec(kind, suspended=True)}


def let_go(found: Suspendable, record: Record) -> dict[str, Any]:
    """Return the merge patch that leaves an owner as others want it, and notes that nothing has to resume it."""
    return _patch(found, msgspec.structs.replace(record, over=True), label=None, spec=None)


def obstacle(kind: str, found: Suspendable) -> str:
    """Return why an owner must not be suspended, and what to do instead; empty if it may be."""
    one = shown(kind, found.metadata.name)
    if found.kueues:
        return f"{one} is in a queue of Kueue's, which suspends and resumes it itself: leave it to Kueue, or delete it"
    if found.ended:
        return f"{one} has ended, and makes no more pods: create it anew"
    if found.suspended:
        return f"{one} was suspended by somebody else: resume it"
    if (parent := found.parent) is not None:
        return (
            f"{one} was made by {shown(parent.kind, parent.name)}, which sets whether it is suspended, and which the "
            f"driver does not know: suspend and resume that"
        )
    return ""


def belongs(pod: Pod, kind: str, found: Metadata) -> bool:
    """Return whether a pod belongs to what a topmost owner that can be suspended has made, all the way down."""
    if pod.metadata.namespace != found.namespace:
        return False
    if kind in ("JobSet", "TrainJob"):  # a TrainJob's JobSet has its name
        return pod.metadata.labels.get(JOBSET + "jobset-name") == found.name
    return any(owner.controller and owner.uid == found.uid for owner in pod.metadata.owner_references)


def grant(kind: str, right: str) -> str:
    """Return how an administrator lets the controller ``read`` or ``suspend`` owners of a kind."""
    return f"set {CHART_VALUE}.{kind}.{right} in the chart's values"


def set_of(pod: Pod) -> tuple[str, str]:
    """Return the owner to suspend for a StatefulSet's pod: a LeaderWorkerSet stands above several StatefulSets."""
    owner = next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")
    lws = pod.metadata.labels.get(LWS + "name", "")
    return (lws, "") if lws else ("", owner)


def shown(kind: str, name: str) -> str:
    """Return the kind and name of an owner that can be suspended, as messages say them."""
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
