"""Prepares the search for a late pod, which joins a running gang: nearby pods, and the place that is kept for it.

The controller's planner and ``gputopo explain`` call this module and pass the search to ``plan``.

A *place* is a node and GPUs. The place of a lost pod is kept for the pod that replaces it. A *snapshot* is a read-only
view of the cluster cache, for example without some claims.
"""

from __future__ import annotations

import msgspec

from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.pods.gang_pods import Membership
from dradriver.controller.placing import gang_plan
from dradriver.controller.placing.gang_terms import GangTerms, in_order
from dradriver.queue.pending import Member


class LateSearch(msgspec.Struct, frozen=True):
    """The arguments of ``plan`` for a late pod.

    Attributes:
        snapshot: The cluster, in which the place that is kept for the pod is free.
        members: The late pod and the pods of the gang that have places, in the order of their ranks.
        terms: What the gang requests; ``home`` has the place that is kept for the late pod.
    """

    snapshot: Snapshot
    members: tuple[Member, ...]
    terms: GangTerms


def late_search(snapshot: Snapshot, late: Member, membership: Membership) -> LateSearch:
    """Return the arguments of ``plan`` for a late pod, which joins a running gang.

    If a lost pod's place is kept for it, this place counts as free. It stays kept for the pod.

    Args:
        snapshot: The GPUs that the limits allow the pod, from ``Limits.offer``.
        late: The pod, with its request.
        membership: The gang's annotations and labels on the pod.
    """
    picture = snapshot.picture
    pods = (picture.pods[key] for key in picture.gangs.pods(membership.gang))
    members = (late if pod.metadata.uid == late.uid else gang_plan.placed(picture, pod) for pod in pods)
    ranked = [(member, picture.gangs.rank(member.key)) for member in members if member is not None]

    kept = picture.kept_places.ready(membership)
    if kept is not None and snapshot.is_plain:
        # Only looked at: giving it up and keeping it again would wake all who wait, this pod too, and again.
        snapshot = snapshot.without([kept.claim], are_own=True)
    home = {} if kept is None else {late: kept}
    terms = GangTerms(membership.wants, membership.member.identity, home=home, late=late)
    return LateSearch(snapshot, in_order(ranked), terms)
