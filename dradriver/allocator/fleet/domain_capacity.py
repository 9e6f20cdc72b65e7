"""How many pods of a gang each network domain can hold: sums over its nodes, which cost much less than a plan.

``gang_search`` asks before it makes plans there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from dradriver.allocator.fleet.gang_nodes import GangNodes, room
from dradriver.allocator.gang_request import GangRequest
from dradriver.allocator.sets.subsets import Bools, Ints


def sums(domain: Ints, capacity: Ints, most: int | None, size: int = 0) -> Ints:
    """Return how many pods each network domain holds, on so many of its nodes: (domains or ``size``,), int64.

    Args:
        domain: (nodes,), the domain of each node; none is negative.
        capacity: (nodes,), pods that it has room for.
        most: Nodes of a domain that may be taken; None for all.
        size: The least number of domains that are told of.
    """
    if most is not None:
        order = np.lexsort((-capacity, domain))
        domain, capacity = domain[order], capacity[order]
        place = np.arange(len(domain)) - np.searchsorted(domain, domain)  # of a node among those of its domain
        domain, capacity = domain[place < most], capacity[place < most]
    return np.bincount(domain, capacity, minlength=size).astype(np.int64)


def hold_all(
    request: GangRequest, tables: Sequence[GangNodes], counts: Sequence[int], *,
    whose: Ints, free: Ints, amounts: Ints | None,
) -> Bools:  # fmt: skip
    """Return whether each network domain has enough room for all pods of a gang together.

    Where a pod has room, there is room for a pod that needs less. So the pods that need as much as a role, or more,
    need as many places as the same number of pods of that role. This is checked for each role. Worked example: of 10
    pods that need 40 to 49 CPUs, a node with 64 CPUs holds one. A domain of 8 nodes then cannot hold all 10, though it
    has room for each role alone and has GPUs for all.

    Args:
        request: The gang's request.
        tables: For each role its nodes.
        counts: For each role the number of pods that have no place yet.
        whose: By ``GangNodes.name_rank``, the node's domain; -1 for none.
        free: By ``GangNodes.name_rank``, the mask of positions that some role can use.
        amounts: Free resources other than GPUs, by row.

    Returns:
        (domains,), bool. True can still be too optimistic, False is certain: the search then skips the domain.
    """
    waiting_pods = [
        (role.pod.gpus, role.needs, count) for role, count in zip(request.members, counts, strict=True) if count
    ]

    # By node in some domain: its domain and its free GPUs.
    row = np.full(len(free), -1, dtype=np.int64)
    for nodes in tables:
        row[nodes.name_rank] = nodes.row
    ranks_in_domains = np.flatnonzero(whose >= 0)
    domain, free_gpus = whose[ranks_in_domains], np.bitwise_count(free[ranks_in_domains]).astype(np.int64)
    has_room = np.ones(int(domain.max(initial=-1)) + 1, dtype=np.bool_)

    # One check for each different size: does the domain hold all pods of at least this size?
    for gpus, needs in dict.fromkeys((gpus, needs) for gpus, needs, _ in waiting_pods):
        pods = sum(
            count
            for more_gpus, more_needs, count in waiting_pods
            if more_gpus >= gpus
            and all(need >= least for need, least in itertools.zip_longest(more_needs, needs, fillvalue=0))
        )
        capacity = np.minimum(np.minimum(free_gpus // gpus, room(row[ranks_in_domains], needs, amounts)), pods)
        has_room &= sums(domain, capacity, request.max_nodes, len(has_room)) >= pods
    return has_room
