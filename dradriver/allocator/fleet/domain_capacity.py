"""The capacity of network domains for a gang: sums over their nodes, which cost much less than a plan.

``gang_search`` asks before it makes plans there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dradriver.allocator.choice import fallback_criteria
from dradriver.allocator.fleet.fleet import Eligible, Fleet
from dradriver.allocator.fleet.gang_nodes import GangNodes, node_table, pods_with_resources
from dradriver.allocator.gang_request import GangRequest, Role
from dradriver.allocator.request import NoPlaceError, Whole, check_request
from dradriver.allocator.sets.subsets import Bools, Ints
from dradriver.topology.network_levels import CLUSTER, NODE


def domain_capacities(domain: Ints, capacity: Ints, most: int | None, size: int = 0) -> Ints:
    """Return the capacity of each network domain in pods, on so many of its nodes: (domains or ``size``,), int64.

    Args:
        domain: (nodes,), the domain of each node; none is negative.
        capacity: (nodes,), pods that it has room for.
        most: How many nodes of a domain may be taken: those with the most capacity count. None for all.
        size: The least length of the result: domains without nodes have the capacity 0.
    """
    if most is not None:
        order = np.lexsort((-capacity, domain))
        domain, capacity = domain[order], capacity[order]
        place = np.arange(len(domain)) - np.searchsorted(domain, domain)  # of a node among those of its domain
        domain, capacity = domain[place < most], capacity[place < most]
    return np.bincount(domain, capacity, minlength=size).astype(np.int64)


def domains_with_room(
    request: GangRequest, nodes_by_role: Sequence[GangNodes], counts: Sequence[int], *,
    domain_of_rank: Ints, free: Ints, amounts: Ints | None,
) -> Bools:  # fmt: skip
    """Return whether each network domain has the capacity for all pods of a gang together.

    For each role, all pods are counted that need at least as much as a pod of that role. The domain must have room for
    so many pods of the role, because a place for a larger pod is also a place for a smaller one.

    Worked example: 10 pods need 40, 41, … 49 CPUs, and each node has 64 CPUs. All 10 need at least 40 CPUs, and a node
    holds one pod of 40 CPUs. So a domain of 8 nodes cannot hold the gang, though it has room for each role alone.

    Args:
        request: The gang's request.
        nodes_by_role: For each role its nodes. ``name_rank`` is a node's place in the order of all names of the fleet:
            the node's number in every array here. ``row`` is its row in ``amounts``.
        counts: For each role the number of pods that have no place yet.
        domain_of_rank: By name rank, the node's domain; -1 for none.
        free: By name rank, the mask of positions that some role can use.
        amounts: Free CPU, memory and the like: (rows, resources).

    Returns:
        (domains,), bool. True can still be too optimistic, False is certain: the search then skips the domain.
    """
    waiting_pods = [
        (role.pod.gpus, role.needs, count) for role, count in zip(request.members, counts, strict=True) if count
    ]

    # By node in some domain: its domain, its free GPUs, and its row in ``amounts``. The row is -1 if the
    # caller counts nothing for the node.
    row_of_rank = np.full(len(free), -1, dtype=np.int64)
    for nodes in nodes_by_role:
        row_of_rank[nodes.name_rank] = nodes.row
    in_a_domain = np.flatnonzero(domain_of_rank >= 0)
    domain, row = domain_of_rank[in_a_domain], row_of_rank[in_a_domain]
    free_gpus = np.bitwise_count(free[in_a_domain]).astype(np.int64)
    has_room = np.ones(int(domain.max(initial=-1)) + 1, dtype=np.bool_)

    # One check for each different size of a pod: does the domain hold all pods of at least that size?
    for gpus, needs in dict.fromkeys((gpus, needs) for gpus, needs, _ in waiting_pods):
        pods = sum(
            count
            for more_gpus, more_needs, count in waiting_pods
            if more_gpus >= gpus
            and all(need >= least for need, least in itertools.zip_longest(more_needs, needs, fillvalue=0))
        )
        # A node holds as many pods as its GPUs and its other resources allow.
        capacity = np.minimum(np.minimum(free_gpus // gpus, pods_with_resources(row, needs, amounts)), pods)
        # The gang may be on at most ``max_nodes`` nodes, so only the largest of each domain count.
        has_room &= domain_capacities(domain, capacity, request.max_nodes, len(has_room)) >= pods
    return has_room


class RowCapacity(NamedTuple):
    """What nodes have room for, by the caller's rows: arrays of shape (rows,), int64.

    Attributes:
        pods: Pods of one role.
        gpus: Free GPUs that these pods may use.
    """

    pods: Ints
    gpus: Ints


def capacity_by_row(
    fleet: Fleet, role: Role, rows: int, *, eligible: Eligible | None = None, amounts: Ints | None = None
) -> RowCapacity:
    """Return for how many pods of a role each node has room, if the gang's other roles are not there.

    Args:
        fleet: The cluster.
        role: The role.
        rows: How many rows the caller has.
        eligible: The nodes that may be taken, as for ``place_gang``.
        amounts: Free resources other than GPUs, as for ``place_gang``.
    """
    required = fallback_criteria.required(role.pod)
    nodes = node_table(fleet, role, required, eligible=eligible, amounts=amounts)
    capacity = RowCapacity(np.zeros(rows, np.int64), np.zeros(rows, np.int64))
    known = np.flatnonzero((nodes.row >= 0) & (nodes.row < rows))
    capacity.pods[nodes.row[known]] = nodes.capacity[known]
    capacity.gpus[nodes.row[known]] = nodes.free[known]
    return capacity


class LargestGang(msgspec.Struct, frozen=True, kw_only=True):
    """The most pods of a kind that one domain holds.

    Attributes:
        pods: How many.
        nodes: The nodes that have room for some, by name.
        domain: The domain's name, after those around it (``z1/s2/l7``); the node's for ``node``; empty for ``cluster``,
            and where there is none.
    """

    pods: int
    nodes: tuple[str, ...]
    domain: str


def largest_gang(
    fleet: Fleet, role: Role, level: str, *, eligible: Eligible | None = None, amounts: Ints | None = None
) -> LargestGang:
    """Return the largest gang of such pods that some network domain of a level has capacity for at once.

    ``max over domains of the sum over its nodes of the pods that find disjoint sets, CPU and memory there``. Worked
    example: a leaf with three nodes of 8, 5 and 4 free GPUs holds 2 + 1 + 1 pods of four.

    Args:
        fleet: The cluster.
        role: The pod; how many are wanted does not count.
        level: A level of the network: one of ``Fleet.levels``, ``node`` or ``cluster``.
        eligible: The nodes that may be taken, as for ``place_gang``.
        amounts: Free resources other than GPUs, as for ``place_gang``.

    Raises:
        NoPlaceError: There is no such level, or such pods make no sense.
    """
    check_request(role.pod)
    if level not in fleet.sites.all_levels:
        raise NoPlaceError(f"{level}: this cluster's network has the levels {', '.join(fleet.sites.all_levels)}")
    return largest(
        fleet, node_table(fleet, role, fallback_criteria.required(role.pod), eligible=eligible, amounts=amounts), level
    )


def largest_gangs(fleet: Fleet, *, most: int, eligible: Eligible | None = None) -> tuple[int, dict[str, LargestGang]]:
    """Return the largest gang that domains of each known network level, and the cluster, have capacity for.

    Args:
        fleet: The cluster.
        most: GPUs of each pod, or as many as the largest machine has where these are fewer.
        eligible: The nodes that may be taken, as for ``place_gang``.

    Returns:
        GPUs of each pod, and the gangs by level; none where there are no nodes.
    """
    gpus = min(most, max((group.tables.size for group in fleet.groups), default=0))
    if not gpus:
        return 0, {}
    known_levels = [level for level in fleet.levels if (fleet.sites.domains(level) >= 0).any()]
    largest_by_level: dict[str, LargestGang] = {}
    for vendor in sorted({group.vendor for group in fleet.groups}):  # a gang is of one
        role = Role(pod=Whole(containers=(gpus,), vendor=vendor), pods=1)
        for level in (*known_levels, CLUSTER):
            gang = largest_gang(fleet, role, level, eligible=eligible)
            if level not in largest_by_level or gang.pods > largest_by_level[level].pods:
                largest_by_level[level] = gang
    return gpus, largest_by_level


def largest(fleet: Fleet, nodes: GangNodes, level: str) -> LargestGang:
    """Return the largest gang that some network domain has capacity for, of nodes that were looked up already."""
    domain = nodes.name_rank if level == NODE else fleet.sites.domains(level)[nodes.site]
    at = np.flatnonzero((domain >= 0) & (nodes.capacity > 0))
    if not len(at):
        return LargestGang(pods=0, nodes=(), domain="")
    total = np.bincount(domain[at], nodes.capacity[at])
    best = int(total.argmax())
    names = tuple(sorted(nodes.name(node) for node in at[domain[at] == best].tolist()))
    name = "" if level == CLUSTER else names[0] if level == NODE else fleet.sites.domain(level, best)
    return LargestGang(pods=int(total[best]), nodes=names, domain=name)
