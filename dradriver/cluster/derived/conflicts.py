"""Whether claims get into each other's way: what one is pinned to, or to be pinned to, beside what all others hold.

What others hold who have to end for a claim is no hindrance: it waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Device, Key, Usage
from dradriver.api.claims.preemption_note import Preempts
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.pods.claim_accounts import nic_places
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord


def rivals(picture: Picture, claim: ClaimRecord) -> bool:
    """Return whether a claim is in conflict with other claims that were given the GPUs that it is pinned to.

    Args:
        picture: The cluster.
        claim: One of ours, with its pin.
    """
    assert claim.pin is not None, "asked of our own claims"
    others = picture.nics.others(claim.key) if claim.has_nics else ()
    if any(picture.claims[other].nics for other in others if other in picture.claims):
        return True
    return _crowded(
        picture, claim.key, claim.pin.taken,
        lambda other: bool(other.devices) and not _gives_way(other, claim.preempts),
    )  # fmt: skip


def fits(picture: Picture, claim: ClaimRecord) -> bool:
    """Return whether a pinned claim is in conflict with nothing that other claims hold, given or promised.

    Args:
        picture: The cluster.
        claim: One of ours, with its pin.
    """
    assert claim.pin is not None, "asked of our own claims"
    if claim.has_nics and picture.nics.others(claim.key):
        return False
    return not _crowded(picture, claim.key, claim.pin.taken, lambda other: not _gives_way(other, claim.preempts))


def overtaken(picture: Picture, claim: Key, placement: Placement) -> bool:
    """Return whether a placement is in conflict with claims that were made since it was decided.

    Args:
        picture: The cluster.
        claim: The claim that is, or is to be, made from it.
        placement: What was decided.
    """
    if placement.nics and picture.nics.others(claim, nic_places(placement.node, placement.nics)):
        return True
    return _crowded(picture, claim, placement.taken, lambda other: not _gives_way(other, placement.preempts))


def in_the_way(picture: Picture, claim: ClaimRecord) -> tuple[Pod, ...]:
    """Return the pods that a claim is in conflict with, which must end for it and have not ended."""
    return () if claim.preempts is None else living(picture, claim.preempts)


def living(picture: Picture, preempts: Preempts) -> tuple[Pod, ...]:
    """Return those of the pods in conflict with a claim that have not ended."""
    found = ((picture.pods.get((one.namespace, one.name)), one.uid) for one in preempts.victims)
    return tuple(pod for pod, uid in found if pod is not None and pod.metadata.uid == uid and not pod.finished)


def _crowded(
    picture: Picture, claim: Key, taken: Mapping[Device, Usage], counts: Callable[[ClaimRecord], bool]
) -> bool:
    """Return whether a claim cannot have this beside what those others hold that are there and count."""
    for device, part in taken.items():
        others = [key for key in picture.inventory.holders(device) if key in picture.claims]
        others = [key for key in others if key != claim and counts(picture.claims[key])]
        if not picture.inventory.fits(claim, device, part, others):
            return True
    return False


def _gives_way(claim: ClaimRecord, preempts: Preempts | None) -> bool:
    """Return whether the pod of a claim has to end first."""
    return preempts is not None and any(uid in preempts.uids for _, uid in claim.owners)
