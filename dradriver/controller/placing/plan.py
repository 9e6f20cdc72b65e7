"""Where the pods of a workload go. The controller, preemption, reservations and the CLI ask this module.

``decide`` places a single pod and ``gang_plan`` the pods of a gang. Neither of them writes, or waits for anything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from dradriver.allocator.fleet.gang_effort import Effort
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.pods.kept_places import Kept
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing import decide, gang_plan
from dradriver.controller.placing.decide import MOST_NODES
from dradriver.queue.pending import Member, PendingWorkload


class GangTerms(msgspec.Struct, frozen=True):
    """What the pods of a gang ask for as a whole.

    Attributes:
        wants: What the author of the gang asks for; None for nothing.
        identity: The identity of the gang.
        least: With how few pods the gang can begin if not all of them have a place; None if it needs all.
        home: Places of lost pods, by the members that replace these pods. A member gets the place if it is free.
        late: The member that joins a gang that runs. A place that was intended for it before does not count.
        effort: What all searches with these terms may cost together; once it is spent, plans are greedy.
    """

    wants: Gang | None
    identity: str
    least: int | None = None
    home: Mapping[Member, Kept] = {}
    late: Member | None = None
    effort: Effort = msgspec.field(default_factory=Effort)


def terms_of(picture: Picture, workload: PendingWorkload) -> GangTerms | None:
    """Return what the pods of a gang ask for as a whole; None for a single pod."""
    if workload.key not in picture.gangs:
        return None
    membership = picture.gangs.said(workload.key)
    return GangTerms(membership.wants, membership.member.identity, least=workload.least)


def plan(
    snapshot: Snapshot, members: Sequence[Member], gang: GangTerms | None = None, *, most: int = MOST_NODES
) -> dict[Member, Placement]:
    """Return the places of those pods that have none, all on one state of the cluster.

    Args:
        snapshot: The cluster.
        members: One pod, or the pods of a gang that want places or have them, in the order of their ranks.
        gang: What the pods of the gang ask for as a whole; None for one pod, which is placed by itself.
        most: How many nodes a single pod can go to.

    Raises:
        NoPlaceError: There is no place, or not enough places for the gang.
        WordError: A member asks for something that no gang can have.
    """
    if gang is None:
        (member,) = members
        return {member: decide.decide(snapshot, member.wish, most=most)}
    return gang_plan.plan(
        snapshot,
        members,
        gang.wants,
        identity=gang.identity,
        least=gang.least,
        home=gang.home,
        late=gang.late,
        effort=gang.effort,
    )


def revalidate(
    picture: Picture, members: Sequence[Member], gated: Collection[Member], gang: GangTerms | None = None
) -> dict[Member, Placement] | None:
    """Return the placements that the claims of gated pods were made for; None if one of them is no longer valid.

    Args:
        picture: The cluster.
        members: One pod, or all pods of a gang that have claims.
        gated: The pods whose gates are to be removed.
        gang: What the pods of the gang ask for as a whole; None for one pod.

    Raises:
        WordError: A member asks for something that no gang can have.
    """
    if gang is not None:
        return gang_plan.revalidate(picture, members, gated, gang.wants)
    (member,) = gated
    claim = picture.claim_of(member.pod)
    placement = None if claim is None else decide.revalidate(picture, member.wish, claim)
    return None if placement is None else {member: placement}
