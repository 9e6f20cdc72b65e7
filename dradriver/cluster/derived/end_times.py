"""When pods, and with them the devices that they hold, end at the latest: by deadlines that the kubelet enforces.

``spec.activeDeadlineSeconds`` counts from the pod's start on its node (kubelet ``pastActiveDeadline``), and can be
lowered later, never raised or taken away (``ValidatePodUpdate``): so it can be counted on, as no annotation can.
"""

from __future__ import annotations

from typing import Final

from dradriver.api.base.objects import seconds
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nodes.pod_demands import BEGINS_S, FREED_S, LONGEST_S
from dradriver.cluster.records.records import ClaimRecord

OVERDUE_S: Final = 60.0  # after which nobody counts on an end that has not come


def given_at(claim: ClaimRecord | None) -> float | None:
    """Return when a claim was allocated its devices, seconds since the epoch; None if nothing says.

    Kubernetes 1.34 and 1.35 leave it out by default; then the claim counts from its creation.
    """
    said = () if claim is None else (claim.allocated_at, claim.metadata.creation_timestamp)
    return next((at for text in said if (at := seconds(text)) is not None), None)


def ends_at(picture: Picture, claim: Key, now: float) -> float | None:
    """Return when the devices of a claim are free for others at the latest, seconds since the epoch; None for never.

    Of a gang all pods count: one that is lost is made anew, and gets its place again. Of a set that pods share nobody
    knows who will still come to it, nor of somebody else's claim whose pods end.

    Args:
        picture: The cluster.
        claim: The claim.
        now: The time, seconds since the epoch.
    """
    known = picture.claims.get(claim)
    if known is not None and known.set is not None:
        return None
    keys = dict.fromkeys(picture.claim_users.of(claim))
    gangs = [of.gang for key in keys if (of := picture.gangs.of(key)) is not None]
    gangs += [picture.kept_places.gang_of(claim)] if picture.accounts.kept(claim) else []
    keys |= dict.fromkeys(key for gang in gangs for key in picture.gangs.pods(gang))
    uids = {picture.pods[key].metadata.uid for key in keys if key in picture.pods}
    if known is not None and not uids.issuperset(known.users):
        return None  # somebody else names it, and may have it for ever
    latest, given = 0.0, given_at(known)
    for pod in (picture.pods[key] for key in keys if key in picture.pods):
        at = _pod_ends_at(pod, now, given)
        if at is None or not now - OVERDUE_S <= at <= now + LONGEST_S:
            return None
        latest = max(latest, at)
    return latest or None


def _pod_ends_at(pod: Pod, now: float, given: float | None) -> float | None:
    """Return when a pod has ended at the latest: one that has not started yet begins soon after it was given GPUs."""
    if pod.finished:
        return now
    ends: list[float] = []
    if (leaves := seconds(pod.metadata.deletion_timestamp)) is not None:
        ends.append(leaves)  # its grace is in it
    if (deadline_s := pod.spec.active_deadline_seconds) is not None:
        began = seconds(pod.status.start_time)
        if began is None:
            began = (now if given is None else given) + BEGINS_S
        ends.append(began + deadline_s + pod.grace_s)
    return min(ends) + FREED_S if ends else None
