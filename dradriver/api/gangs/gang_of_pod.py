"""Which gang a pod belongs to, from the pod alone: its annotations, and its owner's labels (``gang_owners``)."""

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
    f"nothing says which pods belong together: write a name as {names.GANG}, the same in each of them, and how many "
    f"they are as {names.GANG_SIZE}"
)


def facts(pod: Pod) -> Facts:
    """Return the labels, annotations and owner of a pod that say which gang it belongs to."""
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
    """Return whether a pod may be in a PodGroup, so that it may be of a gang although its author asks for none."""
    return bool(pod.pod_group) or names.POD_GROUP in pod.metadata.annotations


def find(pod: Facts, gang: Gang | None = None) -> Member | Alone:
    """Return which gang a pod belongs to. Unasked, only Kubernetes' own gangs count: jobs of an array must not wait.

    Args:
        pod: What is known of it; any text.
        gang: What its author says of a gang, as noted; None where that is nothing.
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
    """Return whether a pod that may be of a gang waits at its gate; else it is placed by itself.

    Who says that there is a gang would get a part of one otherwise; limits alone may be of a gang that is none.

    Args:
        gang: What its author says of a gang.
        found: Why it is in none, where that was found.
    """
    return gang is not None and gang.asked and not (found is not None and found.apart)


def size(member: Member, gang: Gang | None, told: Size | Alone | WordError | None) -> Size | Alone | str:
    """Return how many pods the gang of a pod has, that it is none, or why that is unknown; empty while not known yet.

    That its pods can never be a gang stands above all. Then comes what its author wrote, then what ``read`` says, for
    the pod may count others that have no GPUs, then the pod.

    Args:
        member: A pod of it.
        gang: What its author says of it.
        told: What ``read`` says; None while it is not read yet, or where there is none.
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
    """Return why the pod's gang of unknown size cannot start, and what to write."""
    if member.read is None or member.made_by == _NAMED:
        return f"{names.GANG_SIZE} is missing: write how many pods the gang has"
    return (
        f"how many pods the gang has stands in {messages.shown(f'{member.read.kind} {member.read.name}')}, which the "
        f"controller could not read: write it as {names.GANG_SIZE}, or let the controller read such objects"
    )
