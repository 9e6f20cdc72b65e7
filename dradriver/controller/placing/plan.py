"""Plans where the pods of a workload go. The controller, preemption, reservations and the CLI call this module.

``decide`` places a single pod and ``gang_plan`` the pods of a gang. Both write nothing and wait for nothing.

A *place* is a node and GPUs for one pod. A *snapshot* is a read-only view of the cluster cache, for example without
some claims.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing import decide, gang_plan
from dradriver.controller.placing.decide import MOST_NODES
from dradriver.controller.placing.gang_terms import GangTerms
from dradriver.queue.pending import Member


def plan(
    snapshot: Snapshot, members: Sequence[Member], gang: GangTerms | None = None, *, most: int = MOST_NODES
) -> dict[Member, Placement]:
    """Return the places of one pod or a gang, in one state of the cluster.

    Args:
        snapshot: The cluster.
        members: One pod, or the pods of a gang that need places or have them, in the order of their ranks.
        gang: What the gang requests as a whole; None for a single pod.
        most: How many nodes the placement of a single pod may name.

    Raises:
        NoPlaceError: There is no place, or not enough places for the gang.
        WordError: The request of a member is not possible for a gang.
    """
    if gang is None:
        (member,) = members
        return {member: decide.decide(snapshot, member.wish, most=most)}
    return gang_plan.plan(snapshot, members, gang)


def revalidate(
    picture: Picture, members: Sequence[Member], gated: Collection[Member], gang: GangTerms | None = None
) -> dict[Member, Placement] | None:
    """Return the placements of gated pods by their claims; None if any is not valid.

    Args:
        picture: The cluster.
        members: One pod, or all pods of a gang that have claims.
        gated: The pods whose gates are to be removed.
        gang: What the pods of the gang request as a whole; None for one pod.

    Raises:
        WordError: The request of a member is not possible for a gang.
    """
    if gang is not None:
        return gang_plan.revalidate(picture, members, gated, gang)
    (member,) = gated
    claim = picture.claim_of(member.pod)
    placement = None if claim is None else decide.revalidate(picture, member.wish, claim)
    return None if placement is None else {member: placement}
