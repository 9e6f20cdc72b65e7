"""Answers questions about workloads that have a reservation: whether one still waits, and its claims.

The argument ``who`` is a workload's name, the same for every leader: ``NAMESPACE/NAME/UID`` of a pod, or
``NAMESPACE/NAME/`` of a gang. ``Reservations`` calls this module.

A *reservation* is a set of GPUs that the controller keeps for a workload that has waited too long.
"""

from __future__ import annotations

from typing import Final

from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.queue.pending import PendingWorkload
from dradriver.queue.reservation_access import key_of
from dradriver.queue.reservation_rules import Reservation

MOST_NODES: Final = 16  # that a text names


def waits(picture: Picture, who: str) -> bool:
    """Return whether a workload still waits for a place.

    The answer comes from the cluster cache alone. So it is right even if this process has not processed the workload
    yet.

    Args:
        picture: The cluster cache.
        who: The name of the workload, as ``PendingWorkload.who`` returns it.
    """
    key, uid = key_of(who), who.rpartition("/")[2]
    if not uid:
        return key in picture.gangs and not picture.gangs.started(key)
    pod = picture.pods.get(key)
    if pod is None or pod.metadata.uid != uid or pod.finished or pod.metadata.deletion_timestamp is not None:
        return False
    return not is_placed(picture, who)


def is_placed(picture: Picture, who: str) -> bool:
    """Return whether a pod has its GPUs or its node, or a gang has started.

    ``who`` names the pod or gang.
    """
    key, uid = key_of(who), who.rpartition("/")[2]
    if not uid:
        return key in picture.gangs and picture.gangs.started(key)
    pod = picture.pods.get(key)
    if pod is None or pod.metadata.uid != uid:
        return False
    claim = picture.claim_of(pod)
    return bool(pod.spec.node_name or (claim is not None and claim.owned_by(uid) and claim.devices))


def claims_of(workload: PendingWorkload) -> list[Key]:
    """Return the keys of the claims of a workload's pods."""
    claims = []
    for member in workload.members:
        try:
            claims.append(member.wish.claim)
        except WordError:
            continue
    return claims


def idle_gpus_of(picture: Picture, held: Reservation) -> int:
    """Return how many GPUs of the reservation ``held`` are usable and allocated to no claim."""
    inventory = picture.inventory
    return sum(bool(inventory.usable(gpu, None)) and not inventory.holders(gpu) for gpu in held.gpus)


def nodes_of(held: Reservation) -> str:
    """Return the names of the nodes of the reservation ``held`` as text, at most 16."""
    return ", ".join(list(dict.fromkeys(node for node, _ in held.gpus))[:MOST_NODES])
