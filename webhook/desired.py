"""What a pod should be in the fields that are the driver's: what a decision comes to, before it is a patch."""

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
    """What a container should be.

    Attributes:
        claims: Its ``resources.claims``.
        stripped: What of its ``resources`` goes away, as paths below it: GPUs, for a claim takes their place.
    """

    claims: Entries
    stripped: tuple[tuple[str, ...], ...] = ()


class Desired(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod that is ours should be.

    Attributes:
        label: The value of our label.
        written: All notes and results; others under these names go away.
        containers: For each of ``spec.containers``; None leaves one as it was sent.
        init_containers: The same for ``spec.initContainers``.
        claims: ``spec.resourceClaims``.
        gates: ``spec.schedulingGates``.
        node_name: ``spec.nodeName``; None takes it away.
        scheduler_name: ``spec.schedulerName``; None takes it away.
        deadline_s: ``spec.activeDeadlineSeconds``; None leaves it.
        required: The required node affinity as JSON; None takes it away, ``AS_SENT`` leaves it.
        leaves_group: Whether ``spec.schedulingGroup`` goes away.
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
    """Return the desired ``activeDeadlineSeconds`` by several bounds: the smallest; None for no bound."""
    return min((bound for bound in seconds if bound is not None), default=None)


def with_last(sent: Sequence[pod_view.Named], *own: pod_view.Named) -> Entries:
    """Return the desired list with ``own``, of one name, once each: at the end unless they are there already."""
    if all(one in sent for one in own):
        return tuple(range(len(sent)))
    return (*(i for i, entry in enumerate(sent) if entry.name != own[0].name), *map(pod_view.plain, own))


def without(sent: Sequence[pod_view.Named], name: str) -> Entries:
    """Return the desired list, without the entries of a name."""
    return tuple(i for i, entry in enumerate(sent) if entry.name != name)


def replaced(sent: Sequence[pod_view.Named], own: pod_view.Named) -> Entries:
    """Return the desired list, with ``own`` in the place of the entry of its name."""
    return tuple(i if entry.name != own.name or entry == own else pod_view.plain(own) for i, entry in enumerate(sent))


def as_in(live: Sequence[pod_view.Named], sent: Sequence[pod_view.Named], name: str) -> Entries:
    """Return the desired list: as sent, but with the entry ``name`` and the order of the live list."""
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
