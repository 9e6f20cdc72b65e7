"""What the pods of a gang ask for as a whole, and their order. Each search for places of a gang takes both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dradriver.allocator.fleet.gang_effort import Effort
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.gangs.gang_owners import Rank
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.pods.kept_places import Kept
from dradriver.queue.pending import Member, PendingWorkload


class GangTerms(msgspec.Struct, frozen=True):
    """What the pods of a gang ask for as a whole.

    Attributes:
        wants: What the author of the gang asks for; None for nothing.
        identity: The identity of the gang.
        least: With how few pods the gang can begin if not all of them have a place; None if it needs all.
        home: Places of lost pods, by the members that replace these pods. A member gets the place if it is free.
        one_a_node: Whether each pod is to be on a node of its own, because the scheduler refused them on fewer.
        late: The member that joins a gang that runs. A place that was intended for it before does not count.
        effort: What all searches with these terms may cost together; once it is spent, plans are greedy.
    """

    wants: Gang | None
    identity: str
    least: int | None = None
    home: Mapping[Member, Kept] = {}
    one_a_node: bool = False
    late: Member | None = None
    effort: Effort = msgspec.field(default_factory=Effort)


def terms_of(picture: Picture, workload: PendingWorkload) -> GangTerms | None:
    """Return what the pods of a gang ask for as a whole; None for a single pod."""
    if workload.key not in picture.gangs:
        return None
    membership = picture.gangs.said(workload.key)
    return GangTerms(membership.wants, membership.member.identity, least=workload.least)


def in_order(members: Sequence[tuple[Member, Rank | None]]) -> tuple[Member, ...]:
    """Return a gang's members by their ranks; those without one after the others, the oldest first."""

    def key(each: tuple[Member, Rank | None]) -> tuple[bool, tuple[int, ...], str, str]:
        member, rank = each
        return rank is None, rank or (), member.pod.metadata.creation_timestamp or "", member.pod.metadata.name

    return tuple(member for member, _ in sorted(members, key=key))
