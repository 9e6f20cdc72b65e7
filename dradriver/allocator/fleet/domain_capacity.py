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
    """Return whether each network domain has room for a gang, each role with those that request as much or more.

    Where a pod has room, there is room for one that wants less. So pods that want as much as a role, or more, need as
    many places as pods of that role would. Worked example: of 10 pods that want 40 to 49 CPUs a node of 64 holds one,
    and a domain of 8 nodes cannot hold all, though it holds any of them, and has GPUs for all.

    Args:
        request: What is wanted.
        tables: For each role its nodes.
        counts: For each role the pods that have no place yet.
        whose: By ``GangNodes.name_rank``, the domain; -1 for none.
        free: The same, positions that some role can use.
        amounts: What is free beside GPUs, by row.
    """
    some = [(role.pod.gpus, role.needs, count) for role, count in zip(request.members, counts, strict=True) if count]
    row = np.full(len(free), -1, dtype=np.int64)
    for nodes in tables:
        row[nodes.name_rank] = nodes.row
    inside = np.flatnonzero(whose >= 0)
    domain, free_gpus = whose[inside], np.bitwise_count(free[inside]).astype(np.int64)
    enough = np.ones(int(domain.max(initial=-1)) + 1, dtype=np.bool_)
    for gpus, needs in dict.fromkeys((gpus, needs) for gpus, needs, _ in some):
        pods = sum(
            count
            for more_gpus, more, count in some
            if more_gpus >= gpus and all(one >= other for one, other in itertools.zip_longest(more, needs, fillvalue=0))
        )
        capacity = np.minimum(np.minimum(free_gpus // gpus, room(row[inside], needs, amounts)), pods)
        enough &= sums(domain, capacity, request.max_nodes, len(enough)) >= pods
    return enough
