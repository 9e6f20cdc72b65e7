"""Conflicts between claims: whether other claims use the devices that a claim is pinned to.

The controller *pins* a claim: the claim can be allocated only the devices that the controller chose, its *pin*. To
preempt a pod for a claim is to end the pod so that the claim gets its devices. These devices are no conflict, because
the claim waits until the pod has ended.

A claim is *tentative* until the scheduler allocates it.
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
    """Return whether devices that a claim is pinned to are allocated to other claims.

    Args:
        picture: The cluster cache.
        claim: A claim of this driver, with its pin.
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
    """Return whether a claim fits on its pinned devices next to all other claims.

    Other claims count if they are allocated or tentative. Claims of pods that are preempted for this claim do not
    count.

    Args:
        picture: The cluster cache.
        claim: A claim of this driver, with its pin.
    """
    assert claim.pin is not None, "asked of our own claims"
    if claim.has_nics and picture.nics.others(claim.key):
        return False
    return not _crowded(picture, claim.key, claim.pin.taken, lambda other: not _gives_way(other, claim.preempts))


def overtaken(picture: Picture, claim: Key, placement: Placement) -> bool:
    """Return whether other claims now use devices of a placement that was decided earlier.

    Claims of pods that are preempted for this placement do not count.

    Args:
        picture: The cluster cache.
        claim: The claim that is, or will be, made from the placement.
        placement: The decided node and devices.
    """
    if placement.nics and picture.nics.others(claim, nic_places(placement.node, placement.nics)):
        return True
    return _crowded(picture, claim, placement.taken, lambda other: not _gives_way(other, placement.preempts))


def in_the_way(picture: Picture, claim: ClaimRecord) -> tuple[Pod, ...]:
    """Return the pods that still have to end before a claim gets its devices.

    These are the pods that are preempted for the claim. Empty if there are none. ``picture`` is the cluster cache.
    """
    return () if claim.preempts is None else living(picture, claim.preempts)


def living(picture: Picture, preempts: Preempts) -> tuple[Pod, ...]:
    """Return the victims of a preemption (pods that must end) that have not ended.

    ``preempts`` has the preemption's victims, ``picture`` is the cluster cache.
    """
    found = ((picture.pods.get((one.namespace, one.name)), one.uid) for one in preempts.victims)
    return tuple(pod for pod, uid in found if pod is not None and pod.metadata.uid == uid and not pod.finished)


def _crowded(
    picture: Picture, claim: Key, taken: Mapping[Device, Usage], counts: Callable[[ClaimRecord], bool]
) -> bool:
    """Return whether a claim's devices conflict with other claims.

    Args:
        picture: The cluster cache.
        claim: The claim, which never conflicts with itself.
        taken: The devices that the claim uses or is to use, with the fraction of each.
        counts: Returns whether another claim in the cache counts as a conflict.
    """
    for device, part in taken.items():
        others = [key for key in picture.inventory.holders(device) if key in picture.claims]
        others = [key for key in others if key != claim and counts(picture.claims[key])]
        if not picture.inventory.fits(claim, device, part, others):
            return True
    return False


def _gives_way(claim: ClaimRecord, preempts: Preempts | None) -> bool:
    """Return whether a claim belongs to a preempted pod, so that its devices become free.

    ``preempts`` lists the preempted pods; None if no pod is preempted.
    """
    return preempts is not None and any(uid in preempts.uids for _, uid in claim.owners)
