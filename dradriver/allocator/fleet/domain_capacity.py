"""Computes how many pods of a gang each network domain can hold.

This is the sum over the domain's nodes. A sum costs much less than a plan, which gives each pod a node. ``gang_search``
compares capacities before it makes a plan in a domain.

A *role* is all pods of a gang that are equal. A *network domain* is a part of the network, such as all nodes below one
leaf switch. A *level* is a kind of domain, such as leaf or zone.
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
    """Return how many pods the nodes of each network domain can hold: int64, indexed by domain number.

    Args:
        domain: (nodes,), the domain number of each node; none is negative.
        capacity: (nodes,), the number of pods that each node can hold.
        most: How many nodes of a domain may be used: the nodes with the highest capacity count. None for all nodes.
        size: The least length of the result. Domains without nodes have the capacity 0.
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
    """Return whether each network domain can have room for all pods of a gang together.

    For each role, all pods are counted that need at least as much as a pod of that role. The domain must have room for
    this number of pods of the role: a place for a larger pod also holds a smaller one.

    Worked example: 10 pods need 40, 41, … 49 CPUs, and each node has 64 CPUs. All 10 need at least 40 CPUs, and a node
    holds one pod of 40 CPUs. So a domain of 8 nodes cannot hold the gang, though it has room for each role alone.

    Args:
        request: The gang's request.
        nodes_by_role: For each role its nodes.
        counts: For each role the number of pods that have no place yet.
        domain_of_rank: The domain of each node of the fleet, in the order of the nodes' names; -1 for none.
        free: In the same order, the bit mask of the node's free GPUs that at least one role can use.
        amounts: Free CPU, memory and the like: (rows, resources), by ``GangNodes.row``; None if only GPUs count.

    Returns:
        (domains,), bool. A domain that is True may still have no place for the gang. A domain that is False certainly
            has none, so the search skips it.
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
    """How many pods of a gang's role each node can hold, as int64 arrays.

    The arrays have one entry for each row. A row is the index of a node in the caller's arrays.

    Attributes:
        pods: How many pods the node can hold.
        gpus: How many free GPUs of the node these pods may use.
    """

    pods: Ints
    gpus: Ints


def capacity_by_row(
    fleet: Fleet, role: Role, rows: int, *, eligible: Eligible | None = None, amounts: Ints | None = None
) -> RowCapacity:
    """Return for each node how many pods of one role it can hold.

    The gang's other roles are ignored.

    Args:
        fleet: The cluster.
        role: The role.
        rows: The number of nodes in the result. A row is the index of a node in it, as given to ``Fleet.set_node``.
        eligible: The nodes that may be taken: names, or a bool for each row; None for all.
        amounts: Free resources other than GPUs: (rows, resources), int64; None if only GPUs count.
    """
    required = fallback_criteria.required(role.pod)
    nodes = node_table(fleet, role, required, eligible=eligible, amounts=amounts)
    capacity = RowCapacity(np.zeros(rows, np.int64), np.zeros(rows, np.int64))
    known = np.flatnonzero((nodes.row >= 0) & (nodes.row < rows))
    capacity.pods[nodes.row[known]] = nodes.capacity[known]
    capacity.gpus[nodes.row[known]] = nodes.free[known]
    return capacity


class LargestGang(msgspec.Struct, frozen=True, kw_only=True):
    """The largest gang of equal pods that one network domain can hold.

    Attributes:
        pods: The number of pods.
        nodes: The names of the nodes that can hold some of these pods, sorted.
        domain: The domain's name, preceded by the names of the domains that contain it (``z1/s2/l7``). For the level
            ``node`` it is the node's name. Empty for ``cluster``, and if no domain can hold a pod.
    """

    pods: int
    nodes: tuple[str, ...]
    domain: str


def no_level(fleet: Fleet, level: str) -> NoPlaceError:
    """Return the error for a request that names a network level which does not exist.

    ``fleet`` has the levels of the cluster, which the message names.
    """
    return NoPlaceError(
        f"This cluster has no network level {level}. Its levels are {', '.join(fleet.sites.all_levels)}"
    )


def largest_gang(
    fleet: Fleet, role: Role, level: str, *, eligible: Eligible | None = None, amounts: Ints | None = None
) -> LargestGang:
    """Return the largest gang of equal pods that one network domain can hold now.

    For each domain, the pods that its nodes can hold are added; the largest sum wins. A node holds a pod if it has a
    set of GPUs, CPU and memory for it. Worked example: a leaf with three nodes of 8, 5 and 4 free GPUs holds 2 + 1 + 1
    pods of four.

    Args:
        fleet: The cluster.
        role: The pod that is counted; ``Role.pods`` does not matter.
        level: A level of the network: one of ``Fleet.levels``, ``node`` or ``cluster``.
        eligible: The nodes that may be taken: names, or a bool for each row of ``Fleet.set_node``; None for all.
        amounts: Free resources other than GPUs: (rows, resources), int64; None if only GPUs count.

    Raises:
        NoPlaceError: The network has no such level, or the pod's request is invalid.
    """
    check_request(role.pod)
    if level not in fleet.sites.all_levels:
        raise no_level(fleet, level)
    return largest(
        fleet, node_table(fleet, role, fallback_criteria.required(role.pod), eligible=eligible, amounts=amounts), level
    )


def largest_gangs(fleet: Fleet, *, most: int, eligible: Eligible | None = None) -> tuple[int, dict[str, LargestGang]]:
    """Return for each network level, and for the cluster, the largest gang of equal pods.

    All pods of the gang are in one network domain of that level.

    Args:
        fleet: The cluster.
        most: The number of GPUs of each pod. If the largest machine has fewer GPUs, a pod has as many as this machine.
        eligible: The nodes that may be taken: names, or a bool for each row of ``Fleet.set_node``; None for all.

    Returns:
        The number of GPUs of each pod, and the largest gang of each level; no gangs if there are no nodes.
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
    """Return the largest gang that one network domain of a level can hold.

    ``nodes`` are the nodes that the gang's pods may use, with the number of pods that each node can hold.
    """
    domain = nodes.name_rank if level == NODE else fleet.sites.domains(level)[nodes.site]
    at = np.flatnonzero((domain >= 0) & (nodes.capacity > 0))
    if not len(at):
        return LargestGang(pods=0, nodes=(), domain="")
    total = np.bincount(domain[at], nodes.capacity[at])
    best = int(total.argmax())
    names = tuple(sorted(nodes.name(node) for node in at[domain[at] == best].tolist()))
    name = "" if level == CLUSTER else names[0] if level == NODE else fleet.sites.domain(level, best)
    return LargestGang(pods=int(total[best]), nodes=names, domain=name)
