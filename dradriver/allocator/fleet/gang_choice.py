"""Makes a gang's choice from the plans of its roles: a place for each pod.

A place is a node and GPUs. The choice also says how near the places are. ``gang_placement`` calls this module with the
plans that its search has found.

A *role* is all pods of a gang that are equal. A *plan* has the nodes of the pods of one role, and how many pods each
node gets.
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
    """Return the gang's choice: the node and GPUs of each pod, by the pods' indices.

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
    """Return the narrowest network level at which all of these nodes are in one domain.

    ``ranks`` are the nodes, as positions of their names in the sorted names of the fleet.
    """
    if len(ranks) < 2:
        return NODE
    sites = fleet.sites_by_name()[ranks]
    of_level = ((level, fleet.sites.domains(level)[sites]) for level in fleet.levels)
    return next((level for level, domains in of_level if domains[0] >= 0 and (domains == domains[0]).all()), CLUSTER)


def _in_order(fleet: Fleet, ranks: Ints) -> Ints:
    """Return indices that sort nodes by their network domains, the domains of the widest level first.

    So the nodes of each domain are next to each other. ``ranks`` are the nodes, as positions of their names in the
    sorted names of the fleet.
    """
    sites = fleet.sites_by_name()[ranks]
    return np.lexsort((ranks, *(fleet.sites.domains(level)[sites] for level in fleet.levels)))


def _matched(
    fleet: Fleet, places: Sequence[Choice], indices: Sequence[int], kept: Mapping[int, Choice]
) -> dict[int, Choice]:
    """Return which place (node and GPUs) each member of a gang gets, by index.

    If no member has a place yet, the places are given in order. Else each member gets the remaining place that is
    nearest to its neighbour: the placed member with the nearest index.

    Args:
        fleet: The cluster.
        places: The places to give.
        indices: The indices of the members without a place.
        kept: By index, the members that have a place already.
    """
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
    """Return the network distance from a node to each of other nodes.

    A distance is the number of the narrowest level at which both nodes are in one domain: 0 for the same node, then one
    more for each wider level. ``ranks`` are the other nodes, as positions of their names in the sorted names of the
    fleet.
    """
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
    """Return the lowest bandwidth of the pods with several GPUs and of their network, GB/s.

    The bandwidth of a pod is the predicted one. The network counts only if the pods are on several nodes and the
    bandwidth of all NICs is known.

    Args:
        fleet: The cluster.
        pods: The choices of the gang's pods.
        sites: The location numbers of the nodes, without nodes that the fleet does not know.
        reach: The narrowest network level with one domain that contains all nodes.
    """
    several = [pod.busbw_gbps for pod in pods if len(pod.gpus) > 1]  # one GPU alone has no bandwidth to be slow
    known = reach != NODE and len(sites) == len({pod.node for pod in pods})
    network = float(fleet.sites.most_gbps(reach)[sites].min()) if known else 0.0
    return min((*several, network) if network else several, default=0.0)


def indices_of(members: Sequence[Role]) -> list[range]:
    """Return for each role of a gang the indices of its pods.

    ``members`` are the roles in their order; the indices of a role follow those of the role before.
    """
    ends = np.cumsum([role.pods for role in members]).tolist()
    return [range(end - role.pods, end) for end, role in zip(ends, members, strict=True)]


def choice_of(nodes: GangNodes, at: int, mask: int) -> Choice:
    """Return the choice for one pod of a gang: its node and its GPUs.

    Args:
        nodes: The nodes that the pods of one role may use.
        at: The index of the pod's node in ``nodes``.
        mask: The bit mask of the pod's GPUs.
    """
    return msgspec.structs.replace(nodes.group(at).describe(mask, nodes.request), node=nodes.name(at))
