"""The latest time at which pods end and free their devices, by deadlines that the kubelet enforces.

``spec.activeDeadlineSeconds`` counts from the pod's start on its node (kubelet ``pastActiveDeadline``). It can be
lowered later, but not raised or removed (``ValidatePodUpdate``). So it is reliable, unlike an annotation.
"""

from __future__ import annotations

from typing import Final

from dradriver.api.base.objects import seconds
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nodes.pod_demands import BEGINS_S, FREED_S, LONGEST_S
from dradriver.cluster.records.records import ClaimRecord

OVERDUE_S: Final = 60.0  # a stated end that is so long ago and has not come is not believed


def given_at(claim: ClaimRecord | None) -> float | None:
    """Return when a claim's devices were allocated, seconds since the epoch; None if that is unknown.

    Kubernetes 1.34 and 1.35 do not write this time by default. Then the claim's creation time is used.
    """
    said = () if claim is None else (claim.allocated_at, claim.metadata.creation_timestamp)
    return next((at for text in said if (at := seconds(text)) is not None), None)


def ends_at(picture: Picture, claim: Key, now: float) -> float | None:
    """Return the latest time, in seconds since the epoch, at which a claim's devices become free.

    For a pod of a gang, all pods of the gang count, because a new pod replaces a lost one and gets its place.

    Args:
        picture: The cluster cache.
        claim: The claim.
        now: The time, seconds since the epoch.

    Returns:
        None if the time is not known, for one of these reasons: some pod has no deadline, more pods may use the claim
        later, or no pod of the claim is known. Also None if a pod's end is long overdue or in the far future.
    """
    record = picture.claims.get(claim)
    if record is not None and record.set is not None:
        return None  # pods share the set, and more of them may come

    pod_keys = dict.fromkeys(picture.claim_users.of(claim))
    gangs = [membership.gang for key in pod_keys if (membership := picture.gangs.of(key)) is not None]
    if picture.accounts.kept(claim):  # its pod was lost, and the place waits for the new pod of the gang
        gangs.append(picture.kept_places.gang_of(claim))
    pod_keys |= dict.fromkeys(key for gang in gangs for key in picture.gangs.pods(gang))
    pods = [picture.pods[key] for key in pod_keys if key in picture.pods]

    if record is not None and not {pod.metadata.uid for pod in pods}.issuperset(record.users):
        return None  # an object that the cache does not know uses the claim, perhaps for ever

    allocated_at = given_at(record)
    latest = 0.0
    for pod in pods:
        ends = _pod_ends_at(pod, now, allocated_at)
        # Neither an end that is long overdue nor one in the far future is believed.
        if ends is None or not now - OVERDUE_S <= ends <= now + LONGEST_S:
            return None
        latest = max(latest, ends)
    return latest or None  # 0: no pod of the claim is known


def _pod_ends_at(pod: Pod, now: float, allocated_at: float | None) -> float | None:
    """Return the latest time at which other claims can get a pod's devices, seconds since the epoch.

    The pod ends by its deletion or its deadline. None if it has neither. A pod that has not started is expected to
    start soon after its claim was allocated.

    Args:
        pod: The pod.
        now: The time, seconds since the epoch.
        allocated_at: When its claim was allocated, seconds since the epoch; None if that is unknown.
    """
    if pod.finished:
        return now
    ends: list[float] = []
    deleted_at = seconds(pod.metadata.deletion_timestamp)
    if deleted_at is not None:
        ends.append(deleted_at)  # the grace period is included
    deadline_s = pod.spec.active_deadline_seconds
    if deadline_s is not None:
        started_at = seconds(pod.status.start_time)
        if started_at is None:
            started_at = (now if allocated_at is None else allocated_at) + BEGINS_S
        ends.append(started_at + deadline_s + pod.grace_s)
    return min(ends) + FREED_S if ends else None
