"""The choice of a gang, made from the plans of its roles: which pod gets which place, and how near these are.

``gang_placement`` calls this module with what its search has found.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.gang_nodes import GangNodes
from dradriver.allocator.fleet.gang_search import RolePlans
from dradriver.allocator.gang_request import GangChoice, GangRequest, Role
from dradriver.allocator.request import Choice
from dradriver.allocator.sets.subsets import Ints
from dradriver.topology.network_levels import CLUSTER, NODE
from dradriver.topology.vendors import VENDORS


def gang_choice(fleet: Fleet, request: GangRequest, plans: RolePlans, kept: Mapping[int, Choice]) -> GangChoice:
    """Return the gang's choice: the places of its pods, in the order of their indices.

    Args:
        fleet: The cluster.
        request: The gang's request.
        plans: By role, the nodes of its pods and the number of pods on each; None for a role without pods to place.
        kept: Members that keep their places, by index.
    """
    pods = dict(kept)

    # The places of each role in the order of the network, given to the role's pods by index.
    for plan, role_indices in zip(plans, indices_of(request.members), strict=True):
        if plan is None:
            continue
        indices = [index for index in role_indices if index not in kept]
        nodes = plan.nodes

        # ``plan.at`` are the used nodes, as indices into ``nodes``. ``plan.sets()`` are the GPU sets on each, one for
        # each pod. A name rank is the node's number in the fleet: its place in the order of all names.
        places = [
            (rank, choice_of(nodes, node, mask))
            for rank, node, sets in zip(nodes.name_rank[plan.at].tolist(), plan.at.tolist(), plan.sets(), strict=True)
            for mask in sets
        ]
        network_order = _in_order(fleet, np.array([rank for rank, _ in places]))
        pods |= _matched(fleet, [places[place][1] for place in network_order.tolist()], indices, kept)

    # How near the nodes are to each other. A node that the fleet does not know is near none.
    by_index = tuple(pods[index] for index in sorted(pods))
    rank_by_name = {choice.node: fleet.name_rank(choice.node) for choice in by_index}
    names = [name for name, rank in rank_by_name.items() if rank is not None]
    known_ranks = np.array([rank for rank in rank_by_name.values() if rank is not None], dtype=np.int64)
    unknown_nodes = rank_by_name.keys() - set(names)
    reach = CLUSTER if unknown_nodes else _reach(fleet, known_ranks)

    # ``fallback`` of a choice: the preferences that it misses. The gang misses what its worst pod misses.
    missed_preferences = max((choice.fallback for choice in by_index), key=len)
    is_near = reach == NODE or (
        not unknown_nodes and fleet.sites.holds(request.near, fleet.sites_by_name()[known_ranks])
    )
    missed_near = [f"near: {request.near}"] if request.near and not is_near else []
    is_predicted = all(VENDORS[role.pod.vendor].predicted for role in request.members)
    return GangChoice(
        pods=by_index,
        nodes=(*(names[at] for at in _in_order(fleet, known_ranks).tolist()), *sorted(unknown_nodes)),
        reach=reach,
        busbw_gbps=_slowest(fleet, by_index, fleet.sites_by_name()[known_ranks], reach) if is_predicted else 0.0,
        fallback=(*(word.value for word in missed_preferences), *missed_near),
    )


def _reach(fleet: Fleet, ranks: Ints) -> str:
    """Return the narrowest level of the network that holds all of these nodes."""
    if len(ranks) < 2:
        return NODE
    sites = fleet.sites_by_name()[ranks]
    of_level = ((level, fleet.sites.domains(level)[sites]) for level in fleet.levels)
    return next((level for level, domains in of_level if domains[0] >= 0 and (domains == domains[0]).all()), CLUSTER)


def _in_order(fleet: Fleet, ranks: Ints) -> Ints:
    """Return indices that sort nodes by their domains, of the widest level first, so that each domain is left once."""
    sites = fleet.sites_by_name()[ranks]
    return np.lexsort((ranks, *(fleet.sites.domains(level)[sites] for level in fleet.levels)))


def _matched(
    fleet: Fleet, places: Sequence[Choice], indices: Sequence[int], kept: Mapping[int, Choice]
) -> dict[int, Choice]:
    """Return which member gets which place: in order, or near the placed member that is next by index."""
    if not kept:
        return dict(zip(indices, places, strict=True))
    matched, kept_indices = {}, sorted(kept)
    ranks = np.array([fleet.name_rank(place.node) for place in places])
    is_left = np.ones(len(places), dtype=np.bool_)
    for index in indices:
        after = bisect.bisect(kept_indices, index)
        neighbour = min(kept_indices[max(after - 1, 0) : after + 1], key=lambda other: (abs(other - index), other))
        steps = _steps(fleet, kept[neighbour].node, ranks)
        at = int(np.where(is_left, steps, len(fleet.sites.all_levels) + 1).argmin())
        matched[index], is_left[at] = places[at], False
    return matched


def _steps(fleet: Fleet, node: str, ranks: Ints) -> Ints:
    """Return how far a node is from others: the number in ``all_levels`` of the narrowest level that they share."""
    all_levels = fleet.sites.all_levels
    steps = np.full(len(ranks), len(all_levels))
    if (rank := fleet.name_rank(node)) is None:
        return steps
    site_of_rank = fleet.sites_by_name()
    for number in range(len(all_levels) - 1, 0, -1):
        domain = fleet.sites.domains(all_levels[number])
        if (domain_of_node := int(domain[site_of_rank[rank]])) >= 0:
            steps[domain[site_of_rank[ranks]] == domain_of_node] = number
    steps[ranks == rank] = 0
    return steps


def _slowest(fleet: Fleet, pods: Sequence[Choice], sites: Ints, reach: str) -> float:
    """Return the least bandwidth, GB/s: of the pods, and of the network if the NICs of all nodes are known."""
    several = [pod.busbw_gbps for pod in pods if len(pod.gpus) > 1]  # one GPU alone has no bandwidth to be slow
    known = reach != NODE and len(sites) == len({pod.node for pod in pods})
    network = float(fleet.sites.most_gbps(reach)[sites].min()) if known else 0.0
    return min((*several, network) if network else several, default=0.0)


def indices_of(members: Sequence[Role]) -> list[range]:
    """Return the indices of each role's pods in a gang's choice."""
    ends = np.cumsum([role.pods for role in members]).tolist()
    return [range(end - role.pods, end) for end, role in zip(ends, members, strict=True)]


def choice_of(nodes: GangNodes, at: int, mask: int) -> Choice:
    """Return the choice of a gang's pod: these positions of the node at this place of the table."""
    return msgspec.structs.replace(nodes.group(at).describe(mask, nodes.request), node=nodes.name(at))
