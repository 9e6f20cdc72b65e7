"""Which gang a pod belongs to, from the pod alone: by what its author wrote, and by what made it (``gang_owners``)."""

from __future__ import annotations

from typing import Final

import msgspec

from dradriver.api import gang_waits, names
from dradriver.api.gang_owners import JOBSET, Alone, Facts, Member, identity, made
from dradriver.api.gangs import Gang
from dradriver.api.pods import Pod

_NOTHING: Final = (
    f"nothing says which pods belong together: write a name as {names.GANG}, the same in each of them, and how many "
    f"they are as {names.GANG_SIZE}"
)


def facts(pod: Pod) -> Facts:
    """Return what of a pod says which gang it belongs to; nobody keeps the values of its variables."""
    group = pod.spec.scheduling_group
    return Facts(
        namespace=pod.metadata.namespace,
        labels=pod.metadata.labels,
        annotations=pod.metadata.annotations,
        owners=pod.metadata.owner_references,
        group="" if group is None else group.pod_group_name,
        scheduler=pod.spec.scheduler_name,
    )


def find(pod: Facts, gang: Gang | None = None) -> Member | Alone:
    """Return which gang a pod belongs to.

    Of what tells the size its author's word stands first, then a PodGroup, then annotations of the pod, its variables,
    and its owner; where the pod says one and ``read`` is named, too, that counts pods without GPUs, which are no
    members, and the object says how many have some.

    Args:
        pod: What is known of it; any text.
        gang: What its author says of a gang, as noted; None where that is nothing.
    """
    if (why := gang_waits.why_never(pod.labels, pod.annotations, pod.scheduler, gang)) is not None:
        return Alone(why=why, never=True)
    found = made(pod, asked=gang is not None)
    if gang is None:
        return found
    if gang.written is not None:
        # A run's pods must not wait for those of the run before, which are going.
        run = (pod.said(JOBSET + "jobset-uid"), pod.said(JOBSET + "restart-attempt"))
        return Member(
            identity=identity(gang.written, "gang", pod.namespace, gang.written, *run),
            made_by="gang",
            size=gang.size,
            rank=found.rank if isinstance(found, Member) else None,
        )
    if isinstance(found, Alone):
        return found if found.why else Alone(why=_NOTHING)
    return found if gang.size is None else msgspec.structs.replace(found, size=gang.size, read=None)


def must_wait(gang: Gang | None) -> bool:
    """Return whether a pod waits at its gate while nothing tells its gang's size; else it is placed by itself.

    Who writes ``gang`` would get half a gang otherwise; what is found without that word stays what it was.
    """
    return gang is not None and gang.name is not None


def unknown_size(member: Member) -> str:
    """Return why a gang whose size nothing tells cannot start, and what to write."""
    if member.read is None:
        return f"{names.GANG_SIZE} is missing: write how many pods the gang has"
    return (
        f"how many pods the gang has stands in {member.read.kind} {member.read.name[:63]}, which the controller could "
        f"not read: write it as {names.GANG_SIZE}, or let the controller read such objects"
    )
