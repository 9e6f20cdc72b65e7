"""What the pods of a gang ask for as a whole. Each search for places of a gang takes one such value."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dradriver.allocator.fleet.gang_effort import Effort
from dradriver.api.gangs.gang_annotations import Gang
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
