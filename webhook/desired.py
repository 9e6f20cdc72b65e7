"""The desired values of the driver's fields in a pod.

A *note* is an annotation in which the driver keeps data for itself. A *result* is an annotation that shows the author
which GPUs the pod got. ``create`` and ``update`` return the desired values, and ``patch`` writes these. The desired
form of a list is given as ``Entries``: a number stands for the sent entry with this index, JSON for a new entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from webhook import pod_view

Entries = tuple[int | dict[str, str], ...]
"""A list as it should be: indices of entries as they were sent, and whole entries that are the driver's."""

AS_SENT: Final = msgspec.UNSET

_LONGEST: Final = 1024  # entries; what is longer is an old object beyond all bounds, which only has to stay deletable


class Container(msgspec.Struct, frozen=True, gc=False):
    """The desired fields of a container.

    Attributes:
        claims: Its ``resources.claims``.
        stripped: The GPU limits to remove, because the claim replaces them. They are paths below ``resources``.
    """

    claims: Entries
    stripped: tuple[tuple[str, ...], ...] = ()


class Desired(msgspec.Struct, frozen=True, kw_only=True):
    """The desired fields of a pod that this driver manages.

    Attributes:
        label: The value of the driver's label.
        written: All annotations that the webhook and the controller write (notes and results). The patch removes other
            annotations that have the name of a note or result.
        containers: The desired fields of each of ``spec.containers``; None leaves a container as it was sent.
        init_containers: The same for ``spec.initContainers``.
        claims: ``spec.resourceClaims``.
        gates: ``spec.schedulingGates``.
        node_name: ``spec.nodeName``; None removes it.
        scheduler_name: ``spec.schedulerName``; None removes it.
        deadline_s: ``spec.activeDeadlineSeconds``; None leaves it unchanged.
        required: The required node affinity as JSON; None removes it, ``AS_SENT`` leaves it unchanged.
        leaves_group: Whether ``spec.schedulingGroup`` is removed.
    """

    label: str
    written: dict[str, str]
    containers: tuple[Container | None, ...]
    init_containers: tuple[Container | None, ...]
    claims: Entries
    gates: Entries
    node_name: str | None
    scheduler_name: str | None
    deadline_s: int | None
    required: Any = AS_SENT
    leaves_group: bool = False


def ended_after(*seconds: int | None) -> int | None:
    """Return the smallest of several ``activeDeadlineSeconds``; None if all of them are None."""
    return min((bound for bound in seconds if bound is not None), default=None)


def with_last(sent: Sequence[pod_view.Named], *own: pod_view.Named) -> Entries:
    """Return the desired form of a pod's list, with the entries ``own`` at its end.

    The list is, for example, ``spec.schedulingGates``.

    Sent entries with the name of ``own`` are left out. All of ``own`` have one name. If the sent list already has all
    of ``own``, the list is not changed.

    Args:
        sent: The list as sent.
        own: The entries that the driver adds.
    """
    if all(one in sent for one in own):
        return tuple(range(len(sent)))
    return (*(i for i, entry in enumerate(sent) if entry.name != own[0].name), *map(pod_view.plain, own))


def without(sent: Sequence[pod_view.Named], name: str) -> Entries:
    """Return the desired form of a pod's list, without all entries of one name.

    The list is, for example, ``spec.resourceClaims``.

    Args:
        sent: The list as sent.
        name: The name of the entries to remove.
    """
    return tuple(i for i, entry in enumerate(sent) if entry.name != name)


def replaced(sent: Sequence[pod_view.Named], own: pod_view.Named) -> Entries:
    """Return the desired form of a pod's list, with one entry replaced.

    The list is, for example, ``spec.resourceClaims``.

    Args:
        sent: The list as sent.
        own: The new entry. It replaces the sent entry that has the same name.
    """
    return tuple(i if entry.name != own.name or entry == own else pod_view.plain(own) for i, entry in enumerate(sent))


def as_in(live: Sequence[pod_view.Named], sent: Sequence[pod_view.Named], name: str) -> Entries:
    """Return the desired form of an updated pod's list, with some entries as stored.

    The list is, for example, ``spec.resourceClaims``. All entries with the name ``name`` are as in the stored pod, the
    others as sent. The order is that of the stored pod's list. A sent list of more than 1,024 entries stays unchanged.

    Args:
        live: The list in the stored pod.
        sent: The list as sent.
        name: The name of the entries that only the driver may change.
    """
    if sent == live or len(sent) > _LONGEST:
        return tuple(range(len(sent)))
    places: dict[str, list[int]] = {}
    for i, entry in enumerate(sent):
        places.setdefault(entry.name, []).append(i)
    mine = places.pop(name, [])
    result: list[int | dict[str, str]] = []
    for entry in live:
        if entry.name != name:
            result += places.pop(entry.name, ())
        else:
            as_sent = [i for i in mine if sent[i] == entry][:1]
            result += as_sent or [pod_view.plain(entry)]
            mine = [i for i in mine if i not in as_sent]
    return (*result, *sorted(i for indices in places.values() for i in indices))
