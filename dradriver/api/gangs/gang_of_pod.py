"""Finds which gang a pod belongs to, from the pod alone: its annotations, and its owner's labels (``gang_owners``).

A pod is *alone* if it is in no gang. A gang has two sizes. Its *smallest* number of pods is the fewest pods with which
it may start. Its *full* number is the number of all its pods.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.api.gangs import impossible_gangs
from dradriver.api.gangs.gang_annotations import Gang, Size
from dradriver.api.gangs.gang_owners import Alone, Facts, Member, identity, joined, made, of_group
from dradriver.api.vocabulary import messages

_NAMED: Final = "gang"  # of what a gang is that its author gave a name
_NOTHING: Final = (
    f"It is not known which pods belong to the gang. Write the same name as {names.GANG} on each of them, and their "
    f"number as {names.GANG_SIZE}."
)


def facts(pod: Pod) -> Facts:
    """Return the fields of a pod, such as labels and owners, from which ``find`` finds its gang."""
    return Facts(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        labels=pod.metadata.labels,
        annotations=pod.metadata.annotations,
        owners=pod.metadata.owner_references,
        group=pod.pod_group,
        scheduler=pod.spec.scheduler_name,
    )


def in_group(pod: Pod) -> bool:
    """Return whether a pod has a PodGroup, in its spec or in an annotation that the webhook wrote.

    A PodGroup can make the pod part of a gang although the pod's author requests none.
    """
    return bool(pod.pod_group) or names.POD_GROUP in pod.metadata.annotations


def find(pod: Facts, gang: Gang | None = None) -> Member | Alone:
    """Return which gang a pod belongs to, or why it is alone.

    Without gang annotations, only Kubernetes' own gangs (PodGroups) count. Otherwise independent pods of one owner,
    such as an array of jobs, would wait for each other.

    Args:
        pod: The known fields of the pod. Their texts are not checked yet.
        gang: The author's gang annotations, from the webhook's note on the pod; None without any.
    """
    if (why := impossible_gangs.why_never(pod.labels, pod.annotations, pod.scheduler, gang)) is not None:
        return Alone(why=why, never=True)
    group = of_group(pod, asks=gang is not None and gang.asked)  # the PodGroup of the pod; None without one
    if gang is None:
        return group or Alone()
    found = group or made(pod)
    # ``apart``: the pod must be placed by itself, such as a launcher.
    if isinstance(found, Alone) and found.apart:
        return found
    if gang.written is not None:
        found = joined(identity(gang.written, _NAMED, pod.namespace, gang.written), _NAMED, made(pod))
    elif isinstance(found, Alone):
        return found if found.why else Alone(why=_NOTHING)
    return found if gang.size is None else msgspec.structs.replace(found, size=gang.size)


def must_wait(gang: Gang | None, found: Alone | None = None) -> bool:
    """Return whether a pod waits at its scheduling gate until its gang is known.

    The pod waits if its author requests a gang, because otherwise only some pods of the gang could be placed.
    Annotations that only limit a gang do not make the pod wait.

    Args:
        gang: The author's gang annotations; None without any.
        found: The answer of ``find`` that the pod is in no gang, with the reason; None without that answer.
    """
    return gang is not None and gang.asked and not (found is not None and found.apart)


def size(member: Member, gang: Gang | None, told: Size | Alone | WordError | None) -> Size | Alone | str:
    """Return the smallest and the full number of pods of a gang, or why they are unknown.

    The first of these sources that has an answer counts: the owner, if its pods can never be a gang; the author's
    annotation; the owner's number; the pod's number. The pod comes last because its number can include pods without
    GPUs. If the author named the gang, only the first two count, because pods of several owners can be in the gang.

    Args:
        member: A pod of the gang.
        gang: The author's gang annotations.
        told: The size that the owner's spec gives, or why it gives none. ``member.read`` names this owner. None if the
            owner is not read yet, or if there is none to read.

    Returns:
        The two numbers. ``Alone`` if the owner's pods are no gang. A text with the reason if the size is unknown. An
        empty text if ``member.read`` is not read yet.
    """
    if isinstance(told, Alone) and told.never:
        return told
    if member.read is not None and told is None:
        return ""
    wrote = None if gang is None else gang.size
    if wrote is not None:
        return wrote
    if member.made_by == _NAMED:
        return unknown_size(member)  # the pods of others may be in it, too
    if told is None or isinstance(told, WordError):
        return member.size or (unknown_size(member) if told is None else str(told))
    return told


def unknown_size(member: Member) -> str:
    """Return why a gang of unknown size cannot start, and what its author must write."""
    if member.read is None or member.made_by == _NAMED:
        return f"{names.GANG_SIZE} is missing. Write the number of pods of the gang."
    return (
        f"The size of the gang is in {messages.shown(f'{member.read.kind} {member.read.name}')}, which the controller "
        f"could not read. Write it as {names.GANG_SIZE}, or let the controller read the object."
    )
