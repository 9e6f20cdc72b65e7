"""Which pods end together for being idle: a gang, all pods of an owner that is suspended for it, or one alone."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key, claim_key, is_set
from dradriver.api.gangs import suspends
from dradriver.api.pod import resolved
from dradriver.cluster.cache.picture import Picture
from dradriver.cluster.records.records import ClaimRecord


class Unit(msgspec.Struct, frozen=True):
    """Pods that end together or not at all.

    Attributes:
        key: The pod's, the gang's, or the namespace and the owner's uid.
        pods: All of them that have not ended, with their claims; None where one has none that is known.
        suspended: Whether what made them is suspended; else the pod is evicted.
    """

    key: Key
    pods: tuple[tuple[Pod, ClaimRecord | None], ...]
    suspended: bool


def units(picture: Picture) -> Iterator[Unit]:
    """Give each unit with a pod that is idle, or was warned; its other pods may be neither.

    Those that share a claim are each one alone.
    """
    seen: set[Key] = set()
    by_owner: dict[Key, list[Pod]] | None = None
    for claim in list(picture.claims.values()):
        if claim.idle is None and claim.idle_end is None:
            continue
        for pod in map(picture.pods.get, picture.claim_users.of(claim.key)):
            if pod is None or not _lives(pod):
                continue
            own = pod.metadata.namespace, pod.metadata.name
            of, owner = picture.gangs.of(own), suspended_owner(pod)
            key = own if of is None and not owner else (own[0], owner) if of is None else of.gang
            if key in seen:
                continue
            seen.add(key)
            pods = [pod]
            if of is not None:
                pods = [picture.pods[one] for one in picture.gangs.pods(of.gang)]
            elif owner:
                by_owner = _by_owner(picture) if by_owner is None else by_owner
                pods = by_owner[key]
            living = tuple((one, picture.claim_of(one)) for one in pods if _lives(one))
            yield Unit(key, living, suspended=of is not None or bool(owner))


def _by_owner(picture: Picture) -> dict[Key, list[Pod]]:
    found: dict[Key, list[Pod]] = {}
    for pod in picture.pods.values():
        if owner := suspended_owner(pod):
            found.setdefault((pod.metadata.namespace, owner), []).append(pod)
    return found


def suspended_owner(pod: Pod) -> str:
    """Return the uid of what made a pod, where that would make it anew unless it is suspended; empty for no such."""
    owner = next((owner for owner in pod.metadata.owner_references if owner.controller), None)
    return owner.uid if owner is not None and owner.kind in suspends.FIELDS else ""


def timeout_s(pod: Pod) -> int | None:
    """Return after how many idle seconds a pod is to be ended; None where it does not say so, or shares its claim.

    The others may not want to end, and without them nothing would be free.
    """
    claim = claim_key(pod)
    if claim is None or is_set(claim) or resolved.rare(pod.metadata.annotations).idle_timeout_s is msgspec.UNSET:
        return None
    try:
        said = resolved.read(pod.metadata.annotations).idle_timeout_s
    except WordError:  # its own trouble, and no reason to end it
        return None
    return None if said is msgspec.UNSET else said


def _lives(pod: Pod) -> bool:
    return not pod.finished and pod.metadata.deletion_timestamp is None
