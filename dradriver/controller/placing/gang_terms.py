"""What a gang requests as a whole, and the order of its pods: the input of each search.

A *member* is a pod of the gang. A *place* is a node and GPUs for one pod. A *network section* is nodes that are close
to each other, such as those of one rack.
"""

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
    """What the pods of a gang request as a whole.

    Attributes:
        wants: The author's annotations for the whole gang, such as a required network level; None for none.
        identity: A text that identifies the gang, also after its pods were replaced.
        least: With how few pods the gang can begin if not all of them have a place; None if it needs all.
        home: Places of lost pods, by the members that replace these pods. A member gets this place if it is free.
        one_a_node: Whether each pod must be on a node of its own, because the scheduler refused a plan with fewer
            nodes.
        late: The member that joins a running gang, or None. It is placed again, even if an earlier plan intended a
            place for it.
        effort: How much all searches with these terms may cost together, in evaluations of nodes. Once it is spent,
            only the network sections with the most free GPUs are tried, without preferences.
    """

    wants: Gang | None
    identity: str
    least: int | None = None
    home: Mapping[Member, Kept] = {}
    one_a_node: bool = False
    late: Member | None = None
    effort: Effort = msgspec.field(default_factory=Effort)


def terms_of(picture: Picture, workload: PendingWorkload) -> GangTerms | None:
    """Return what the pods of a gang request as a whole; None for a single pod."""
    if workload.key not in picture.gangs:
        return None
    membership = picture.gangs.said(workload.key)
    return GangTerms(membership.wants, membership.member.identity, least=workload.least)


def in_order(members: Sequence[tuple[Member, Rank | None]]) -> tuple[Member, ...]:
    """Return a gang's members in the order of their ranks.

    A rank is, for example, a Job's completion index. Members without one come last, oldest first.
    """

    def key(each: tuple[Member, Rank | None]) -> tuple[bool, tuple[int, ...], str, str]:
        member, rank = each
        return rank is None, rank or (), member.pod.metadata.creation_timestamp or "", member.pod.metadata.name

    return tuple(member for member, _ in sorted(members, key=key))
