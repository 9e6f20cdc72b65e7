"""Plans which workloads to preempt for a workload without a place, by simulations, so that none ends in vain.

The simulation calls ``plan`` for the cluster without some running workloads: without their GPUs, CPU, memory and pod
slots. All other pods stay, also those without GPUs. ``loop/preemption.py`` calls it. Pure.

A *victim* is a workload that preemption ends. A *scene* is the running workloads that may end for the waiting workload.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dradriver.allocator.request import Whole
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller.placing.gang_terms import GangTerms
from dradriver.controller.placing.preemption_in_network import in_one_part
from dradriver.controller.placing.preemption_on_node import on_one_node
from dradriver.controller.placing.preemption_search import Found, Scene, Search
from dradriver.queue.pending import Member


def plan_preemption(
    picture: Picture,
    members: Sequence[Member],
    scene: Scene,
    gang: GangTerms | None = None,
    *,
    avoid: Collection[str] = (),
) -> Found | None:
    """Return the places with the cheapest victims; None if preemption does not help.

    None, too, if a pod requests fractions or shares its claim.

    Args:
        picture: The cluster cache.
        members: The pods that need places, in the order of their ranks; none of them has a claim.
        scene: The workloads that can be preempted, and pods that end already.
        gang: What the pods of a gang request as a whole; None for a single pod.
        avoid: Nodes that are left out.
    """
    if any(not isinstance(member.wish.request, Whole) or member.wish.shared for member in members):
        return None
    search = Search(picture, members, scene, gang, avoid)
    if search.scene.ending and search.places(search.snapshot, search.scene.ending) is not None:
        return None  # pods that end already free enough
    return on_one_node(search) if gang is None else in_one_part(search)
