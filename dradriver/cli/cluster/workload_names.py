"""The names of workloads: ``queue`` and ``explain -A`` print them, and ``explain`` parses them.

A pod is ``team-a/trainer``. The pods of a gang are ``team-a/job/train``, by kind and name of their owner or gang.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from dradriver.api.base.pods import Pod
from dradriver.view.terminal_text import plain

if TYPE_CHECKING:
    from dradriver.api.claims.pins import Key
    from dradriver.cli.cluster.listed_cluster import Scene
    from dradriver.cluster.pods.gang_pods import Membership
    from dradriver.queue.pending import PendingWorkload

POD: Final = "pod"
GANG: Final = "gang"  # whose author gave it a name
_SHORT: Final = {"po": POD, "deploy": "deployment", "rs": "replicaset", "sts": "statefulset", "lws": "leaderworkerset"}
# What owns pods. Such a word before a slash is a kind, and any other word is a namespace.
_KINDS: Final = frozenset(
    (
        *_SHORT.values(), GANG, "job", "jobset", "podgroup", "trainjob", "pytorchjob", "tfjob", "xgboostjob", "jaxjob",
        "paddlejob", "mpijob", "rayjob", "raycluster",
    )
)  # fmt: skip
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_FORMS: Final = "POD, NAMESPACE/POD, KIND/NAME or NAMESPACE/KIND/NAME"


class WorkloadName(NamedTuple):
    """A workload as a user names it.

    Attributes:
        namespace: Its namespace; None if the user did not give it.
        kind: ``pod``, ``gang``, or the kind of an owner of pods in lower case.
        name: The name of the pod, gang or owner.
    """

    namespace: str | None
    kind: str
    name: str

    @property
    def words(self) -> str:
        """Return kind and name of a workload: ``job train``."""
        return f"{self.kind} {self.name}"


def read(text: str, namespace: str | None = None) -> WorkloadName:
    """Parse the name of a workload that a user typed.

    Args:
        text: The name.
        namespace: The namespace that an option names; None without the option.

    Raises:
        click.UsageError: The text is no name of a workload, or names another namespace than the option.
    """
    *before, name = text.split("/")
    kind = POD
    if before and (len(before) > 1 or _kind(before[-1]) in _KINDS):
        kind = _kind(before.pop())
    if len(before) > 1 or not all(map(_NAME.fullmatch, (*before, kind, name))):
        raise click.UsageError(f"{text!r} names no workload. Write {_FORMS}.")
    own = before[0] if before else None
    if own is not None and namespace not in (None, own):
        raise click.UsageError(f"{text!r} is in namespace {own}, and -n names {namespace}. Remove one of them.")
    return WorkloadName(own or namespace, kind, name)


def _kind(word: str) -> str:
    word = word.lower()
    singular = word.removesuffix("s")
    return _SHORT.get(word) or (singular if singular in _KINDS else word)


def of_pod(namespace: str, name: str) -> str:
    """Return the name of a pod: ``team-a/trainer``.

    If the namespace has the name of a kind, such as ``job``, the result is ``job/pod/trainer``.
    """
    return plain(f"{namespace}/{POD}/{name}" if _kind(namespace) in _KINDS else f"{namespace}/{name}")


def of_gang(membership: Membership) -> str:
    """Return the name of a gang: ``team-a/job/train``."""
    kind = membership.member.made_by.replace(" ", "").lower()
    return plain(f"{membership.gang[0]}/{kind}/{gang_name(membership)}")


def gang_name(membership: Membership) -> str:
    """Return the name of a gang without its namespace: the author's name for it, or the name of the pods' owner."""
    if membership.wants is not None and membership.wants.written is not None:
        return membership.wants.written
    member = membership.member
    return member.identity.rpartition("-")[0] if member.read is None else member.read.name


def of_replacing(scene: Scene, pod: Key) -> str:
    """Return the name of the gang of a pod, or else of its owner: ``team-a/deployment/web``.

    These replace a pod that ends. The result is empty for a pod without both, and for an unknown pod.
    """
    from dradriver.cluster.pods.gpu_time import owner_of  # loads numpy

    if (membership := scene.picture.gangs.of(pod)) is not None:
        return of_gang(membership)
    kind, _, name = owner_of(scene.picture.pods.get(pod)).partition("/")
    return plain(f"{pod[0]}/{kind.lower()}/{name}") if name else ""


def names_of(scene: Scene, workloads: Sequence[PendingWorkload]) -> list[str]:
    """Return the names of workloads of a listed cluster, in their order.

    An owner can have several gangs, such as the groups of a LeaderWorkerSet. Each of these is named by one of its pods.
    """
    names = []
    for workload in workloads:
        membership = scene.picture.gangs.of(workload.lead.key) if workload.is_gang else None
        names.append(of_pod(*workload.lead.key) if membership is None else of_gang(membership))
    count_of = Counter(names)
    return [
        name if count_of[name] == 1 else of_pod(*workload.lead.key)
        for name, workload in zip(names, workloads, strict=True)
    ]


def is_of(pod: Pod, workload: WorkloadName) -> bool:
    """Return whether a pod belongs to a gang or owner that the user named."""
    return (workload.kind, workload.name) in _workloads_of(pod)


def kinds_of(pod: Pod, name: str) -> list[str]:
    """Return the kinds of the gangs and owners of a pod that have this name, a gang's own name first."""
    return sorted(
        (kind for kind, called in _workloads_of(pod) if called == name), key=lambda kind: (kind != GANG, kind)
    )


def _workloads_of(pod: Pod) -> set[tuple[str, str]]:
    """Return the gangs and owners of a pod, by kind and name."""
    # Imported here, because they load numpy: ``explain POD`` says its first words without it.
    from dradriver.cluster.pods.gang_pods import Gangs
    from dradriver.cluster.pods.gpu_time import owner_of

    owners = {(owner.kind.lower(), owner.name) for owner in pod.metadata.owner_references}
    kind, _, name = owner_of(pod).partition("/")
    owners.add((kind.lower(), name))
    gangs, key = Gangs(), (pod.metadata.namespace, pod.metadata.name)
    gangs.pod_changed(key, pod, lambda _: False)
    if (membership := gangs.of(key)) is not None:
        owners.add((membership.member.made_by.replace(" ", "").lower(), gang_name(membership)))
    return owners
