"""Searches for nodes and GPUs for all roles of a gang, within the gang's limits.

The result is a plan for each role: the nodes of its pods, and how many pods each node gets. ``gang_placement`` calls
this module. A *role* is all pods of a gang that are equal. The search goes through the network levels, the narrowest
first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from dradriver.allocator.fleet import gang_domains, gang_roles_search
from dradriver.allocator.fleet.domain_capacity import domain_capacities, domains_with_room
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.gang_domains import Demand
from dradriver.allocator.fleet.gang_effort import CALL, ROLE_CALLS, Effort
from dradriver.allocator.fleet.gang_nodes import GangNodes
from dradriver.allocator.fleet.gang_taken import Taken
from dradriver.allocator.fleet.role_plan import Plan, Surroundings, plan
from dradriver.allocator.gang_request import GangRequest, Role
from dradriver.allocator.request import Strategy
from dradriver.allocator.sets.subsets import Ints
from dradriver.counted import counted
from dradriver.topology.network_levels import CLUSTER, FABRIC, NODE, SUB_DOMAIN

_MOST_DOMAINS = 32  # of one level, the fullest and the emptiest ones, that are tried role after role
_MOST_ORDERED = 3  # roles of which every order is tried in a domain


RolePlans: TypeAlias = tuple[Plan | None, ...]
"""Plans by role; None of one without pods to place."""


def search(
    fleet: Fleet, request: GangRequest, nodes_by_role: Sequence[GangNodes], counts: Sequence[int], *,
    taken: Taken | None, widest: str, effort: Effort,
) -> RolePlans | None:  # fmt: skip
    """Return the plans for all roles of a gang in the narrowest network level that fits.

    1. If all pods are equal and none is placed, one plan is made at each level. This is exact and cheap. With
       ``spread``, the level at which the pods use the most nodes comes first.
    2. For other gangs: in each domain of a level the roles are placed one after another, the roles with the most GPUs
       first, then in every other order. More than three roles are placed in the first order only. If there are more
       than 64 domains, only the 32 fullest and the 32 emptiest are tried. Half of ``effort`` is for this.
    3. If that finds no place in any domain, ``gang_roles_search`` tries all ways to share the nodes among the roles.
    4. If the half for step 2 is spent and nothing is found, the plan is greedy: only the domain with the most free GPUs
       of each level is tried, in one order of the roles.

    Args:
        fleet: The cluster.
        request: The gang's request.
        nodes_by_role: For each role its nodes.
        counts: For each role the number of pods that have no place yet.
        taken: What placed members use; None for a gang of equal pods of which none is placed.
        widest: The widest level that is accepted.
        effort: How much work the search may do. Step 1 costs little and is not counted.

    Returns:
        The plans by role. None if the pods have no place together, or if ``effort`` gave up.
    """
    levels = _Levels(fleet, request, widest)
    names = levels.names  # from "node" to ``widest``

    # Spreading prefers the level at which the gang can use the most nodes. Members that are placed fix the level.
    if request.pod.strategy is Strategy.SPREAD and (taken is None or not taken.nodes):
        # The gang's limit ``min_gpus_per_node`` holds for the pods of all roles on a node together. The first role is
        # counted alone here, so it is counted without that limit.
        by_itself = request if taken is None else msgspec.structs.replace(request, min_gpus_per_node=0)
        nodes_at = {level: _nodes_taken(levels, by_itself, nodes_by_role[0], counts[0], level) for level in names}
        names = sorted(names, key=lambda level: -nodes_at[level])
    step_2_effort = effort.fraction(2)
    for level in names:
        # Step 1.
        if taken is None:
            role_demand = _demand(request, request.members[0], counts[0])
            role_plan = plan(
                nodes_by_role[0],
                levels.of(nodes_by_role[0], level),
                role_demand,
                _surroundings(fleet, nodes_by_role[0], level),
            )
            if role_plan is not None:
                return (role_plan,)
            continue

        # The candidates are the domains that may have room, those with the fewest free GPUs first.
        effort.spend(sum(map(_reading_cost, nodes_by_role)))
        numbers = _candidate_domains(levels, request, nodes_by_role, counts, taken=taken, level=level)
        domains = [_Domain(fleet, request, nodes_by_role, counts, taken, levels, level, number) for number in numbers]

        # Step 2: the fullest and the emptiest domains.
        tried_domains = (
            domains if len(domains) <= 2 * _MOST_DOMAINS else domains[:_MOST_DOMAINS] + domains[-_MOST_DOMAINS:]
        )
        plans = next(filter(None, (domain.role_after_role(step_2_effort) for domain in tried_domains)), None)

        # Steps 3 and 4: the emptiest domain is the likeliest.
        if plans is None:
            plans = next(filter(None, (domain.in_any_way(effort) for domain in reversed(domains))), None)
        if plans is None and step_2_effort.is_spent and domains:
            plans = domains[-1].greedy()
        if plans is not None:
            return plans
    return None


def most_pods(fleet: Fleet, request: GangRequest, nodes: GangNodes, widest: str) -> int:
    """Return how many equal pods of a gang have a place together, up to the requested number.

    For each network domain, the capacities of its ``k`` largest nodes are added; ``k`` is the number of nodes that the
    gang may use. The largest sum counts. ``fleet`` is the cluster. ``widest`` is the widest network level that the
    domain may have.
    """
    demand = _demand(request, request.members[0], request.pods)
    levels = _Levels(fleet, request, widest)
    most = 0
    for level in reversed(levels.names):
        domain = levels.of(nodes, level)
        at = np.flatnonzero((domain >= 0) & (nodes.capacity >= demand.least_pods_per_node))
        most = max(most, int(domain_capacities(domain[at], nodes.capacity[at], demand.most_nodes).max(initial=0)))
        if most >= request.pods:
            return request.pods
    return most


def _reading_cost(nodes: GangNodes) -> int:
    """Return the cost of reading a role's nodes once, in evaluations of nodes.

    The searches for a gang may spend a limited number of evaluations (``Effort``).
    """
    return 10 * CALL + 10 * len(nodes.kind)


def violated_limit(fleet: Fleet, request: GangRequest, taken: Taken, *, has_all: bool) -> str:
    """Return as text the first limit of the gang that the placed members violate.

    The result is empty if they violate no limit.

    Args:
        fleet: The cluster.
        request: The gang's request.
        taken: What placed members use.
        has_all: Whether all members are placed. If not, a violation does not count if further members can repair it.
    """
    if request.max_nodes is not None and taken.nodes > request.max_nodes:
        return f"they use {taken.nodes} nodes"
    least = request.min_gpus_per_node

    # Nodes that the fleet does not know get no further members.
    if too_few := [(count, name) for name, count in taken.elsewhere.items() if count < least]:
        count, name = too_few[0]
        return f"{count} of them are on node {name}, which does not exist"
    if has_all and bool(((taken.gpus > 0) & (taken.gpus < least)).any()):
        return f"they use {counted(int(taken.gpus[taken.gpus > 0].min()), 'GPU')} on one node"

    # Limits of the network: one domain must hold the locations of all nodes with members.
    sites = taken.sites[taken.gpus > 0]
    if len(sites) < 2:
        return ""
    if request.near_required and request.near and not fleet.sites.holds(request.near, sites):
        return f"their nodes are not in one {request.near}"
    if request.one_fabric and not fleet.sites.holds(FABRIC, sites):
        return f"their nodes are not in one {FABRIC}"
    # ``_Levels.sites`` leaves out domains whose network is too slow, or not known.
    if request.min_network_gbps and not any(
        (domains := _Levels(fleet, request, CLUSTER).sites(level)[sites])[0] >= 0 and (domains == domains[0]).all()
        for level in fleet.sites.all_levels[1:]
    ):
        return "the network between their nodes is slower, or its bandwidth is not known"
    return ""


def with_fabrics(fleet: Fleet, request: GangRequest) -> GangRequest:
    """Return the gang's request, without ``one_fabric`` if no node has an NVLink fabric.

    ``one_fabric`` requires that all nodes of the gang are in one NVLink fabric.
    """
    sites = fleet.sites
    known = FABRIC in sites.levels and bool((sites.domains(FABRIC)[fleet.sites_by_name()] >= 0).any())
    return request if known or not request.one_fabric else msgspec.structs.replace(request, one_fabric=False)


class _Levels:
    """The network levels at which the search looks for a gang's nodes, and their domains.

    Domains that the gang's request forbids are left out, such as those with too little bandwidth.
    """

    def __init__(self, fleet: Fleet, request: GangRequest, widest: str) -> None:
        self._sites, self._request, self._widest = fleet.sites, request, widest
        self.names = list(self._sites.all_levels[: self._sites.all_levels.index(widest) + 1])
        if request.one_fabric:
            self.names = [name for name in self.names if name in (NODE, SUB_DOMAIN, FABRIC)]
        self._known: dict[str, Ints] = {}

    def sites(self, level: str) -> Ints:
        """Return for each location of nodes the number of its network domain of a level.

        The number is -1 if the location has no domain of the level, or if the network there is too slow for the gang.
        """
        if level not in self._known:
            self._known[level] = self._found(level)
        return self._known[level]

    def _found(self, level: str) -> Ints:
        domain = self._sites.inside(level, self._widest)
        wanted = self._request.min_network_gbps
        if wanted:
            switch = self._sites.switch
            if self._sites.all_levels.index(level) < self._sites.all_levels.index(
                switch
            ):  # a fabric over several switches
                domain = np.where(self._sites.inside(level, switch) < 0, -1, self._sites.inside(level, switch))
            domain = np.where(self._sites.gbps(level) >= wanted, domain, -1)
        return domain

    def of(self, nodes: GangNodes, level: str) -> Ints:
        """Return for each node the number of its network domain of a level: (nodes,).

        The number is -1 if the node is in no domain of the level, or if the gang may not be placed in the domain.
        """
        return nodes.name_rank if level == NODE else self.sites(level)[nodes.site]


def _nodes_taken(levels: _Levels, request: GangRequest, nodes: GangNodes, count: int, level: str) -> int:
    """Return how many nodes ``count`` equal pods use in the best domain of a level.

    The limits in ``request`` say how the pods may share nodes. The result is 0 if no domain holds them all.
    """
    demand = _demand(request, request.members[0], count)
    return gang_domains.nodes_needed(nodes, levels.of(nodes, level), demand) or 0


def _demand(request: GangRequest, role: Role, count: int, nodes: int = 0) -> Demand:
    """Return the requirements of ``count`` pods of a role for their nodes.

    The limits in ``request`` are included. ``nodes`` is the number of nodes that have pods of the gang already.
    """
    least = max(1, -(-request.min_gpus_per_node // role.pod.gpus))
    most = count // least
    if request.max_nodes is not None:
        most = min(most, max(0, request.max_nodes - nodes))
    return Demand(count, least, most, request.pod.strategy is Strategy.SPREAD)


def _surroundings(fleet: Fleet, nodes: GangNodes, level: str, taken: Taken | None = None) -> Surroundings:
    """Return the levels narrower than ``level``, and the nodes that have pods of the gang already.

    The widest of these levels comes first. Levels without any domain are left out. ``taken`` has the placed members.
    """
    sites = fleet.sites
    below = sites.levels if level == CLUSTER else sites.levels[: sites.levels.index(level)] if level != NODE else ()
    every = [sites.domains(name) for name in reversed(below)]
    levels = [domains for domains in every if (domains >= 0).any()]
    if taken is None or not taken.gpus.any():
        return Surroundings(levels, None, nodes.site[:0])
    has_pods = taken.gpus > 0
    return Surroundings(levels, has_pods, taken.sites[has_pods])


def _candidate_domains(
    levels: _Levels, request: GangRequest, nodes_by_role: Sequence[GangNodes], counts: Sequence[int], *,
    taken: Taken, level: str,
) -> list[int]:  # fmt: skip
    """Return the domains of a level that may have room for all roles.

    The domains with the fewest free GPUs come first. If some members are placed (``taken``), only the domain that
    contains all of them is a candidate. The list is empty if no domain contains them all, or if no domain has room.
    ``nodes_by_role`` has the nodes that each role may use. ``counts`` is how many pods of each role need a place. In
    the code, arrays named ``…_of_rank`` have one entry for each node of the fleet, in the order of the names.
    """
    if taken.gpus.any():
        placed_ranks = np.flatnonzero(taken.gpus)
        placed_domains = placed_ranks if level == NODE else levels.sites(level)[taken.sites[placed_ranks]]
        domain_of_all = int(placed_domains[0])
        is_common = domain_of_all >= 0 and bool((placed_domains == domain_of_all).all())
        return [domain_of_all] if is_common else []

    # Domains that have room for each role alone, ... ``free`` is the mask of GPUs that some role can use.
    domain_of_rank = np.full(len(taken.gpus), -1, dtype=np.int64)
    free = np.zeros(len(taken.gpus), dtype=np.int64)
    fitting: Ints | None = None
    for nodes, count in zip(nodes_by_role, counts, strict=True):
        domain = levels.of(nodes, level)
        domain_of_rank[nodes.name_rank] = np.maximum(domain_of_rank[nodes.name_rank], domain)
        free[nodes.name_rank] |= nodes.mask
        total = np.bincount(domain[domain >= 0], nodes.capacity[domain >= 0], minlength=1)
        enough = np.flatnonzero(total >= count)  # ``total[d]``: pods of the role that domain d holds
        fitting = enough if fitting is None else np.intersect1d(fitting, enough)
    assert fitting is not None, "a gang has a role"

    # ... and as many free GPUs as all roles need together, ...
    free_gpus = np.bincount(
        domain_of_rank[domain_of_rank >= 0],
        np.bitwise_count(free[domain_of_rank >= 0]),
        minlength=int(fitting.max(initial=0)) + 1,
    )
    needed_gpus = sum(nodes.request.gpus * count for nodes, count in zip(nodes_by_role, counts, strict=True))
    fitting = fitting[free_gpus[fitting] >= needed_gpus]

    # ... and room for pods of all sizes, if the roles differ.
    if len(nodes_by_role) > 1:
        can_hold_all = domains_with_room(
            request, nodes_by_role, counts, domain_of_rank=domain_of_rank, free=free, amounts=taken.amounts
        )
        fitting = fitting[can_hold_all[fitting]]
    domains: list[int] = fitting[np.argsort(free_gpus[fitting], kind="stable")].tolist()
    return domains


class _Domain(NamedTuple):
    """The search for places of all roles inside one network domain, with all the data that it needs."""

    fleet: Fleet
    request: GangRequest
    nodes_by_role: Sequence[GangNodes]
    counts: Sequence[int]
    taken: Taken
    levels: _Levels
    level: str
    number: int

    def _free_inside(self, role: int, taken: Taken) -> GangNodes:
        nodes = self.nodes_by_role[role]
        inside = nodes.only(np.flatnonzero(self.levels.of(nodes, self.level) == self.number))
        return taken.subtracted_from(inside, self.request.members[role])

    def role_after_role(self, effort: Effort) -> RolePlans | None:
        """Return plans for all roles of a gang, by placing one role after another.

        A plan has the nodes of a role's pods. Different orders of the roles are tried. The result is None if no order
        gives a place to all roles. ``effort`` limits how many nodes are evaluated.
        """
        return next(filter(None, (self._in_order(order, effort) for order in self._orders())), None)

    def greedy(self) -> RolePlans | None:
        """Return plans for all roles of a gang, by placing them in a single order.

        A plan has the nodes of a role's pods. The result is None if one role finds no place.
        """
        return self._in_order(next(self._orders()), None)

    def _orders(self) -> Iterator[tuple[int, ...]]:
        """Yield orders of a gang's roles; the search places one role after another.

        The search tries the yielded orders one by one. The first order begins with the roles that need the most GPUs
        and other resources. With more than three roles, it is the only order.
        """
        members = self.request.members
        some = [at for at in range(len(members)) if self.counts[at]]
        some.sort(key=lambda at: (-members[at].pod.gpus, [-need for need in members[at].needs], at))
        if len(some) > _MOST_ORDERED:
            return iter([tuple(some)])
        return itertools.permutations(some)

    def _in_order(self, order: Sequence[int], effort: Effort | None) -> RolePlans | None:
        """Return plans for all roles of a gang, placed one after another in this order.

        A plan has the nodes of a role's pods. Each role is placed near the roles before it. The result is None if one
        role finds no place. ``effort`` limits the evaluations of nodes; None for no limit.
        """
        if effort is not None and effort.is_spent:
            return None

        # What placed members and the roles before this one use.
        so_far = self.taken.copy()
        plans: list[Plan | None] = [None] * len(self.nodes_by_role)
        for at in order:
            role, free_nodes = self.request.members[at], self._free_inside(at, so_far)
            cost = ROLE_CALLS * CALL + 10 * len(self.nodes_by_role[at].kind) + 400 * len(free_nodes.kind)
            if effort is not None and not effort.spend(cost):
                return None
            demand = _demand(self.request, role, self.counts[at], so_far.nodes)
            surroundings = _surroundings(self.fleet, free_nodes, self.level, so_far)
            # The nodes are of one domain already, hence the zeros.
            role_plan = plan(free_nodes, np.zeros(len(free_nodes.kind), dtype=np.int64), demand, surroundings)
            if role_plan is None:
                return None
            plans[at] = role_plan
            for node, sets in zip(role_plan.at.tolist(), role_plan.sets(), strict=True):
                for mask in sets:
                    so_far.add(int(free_nodes.name_rank[node]), int(free_nodes.row[node]), mask, role)
        return None if violated_limit(self.fleet, self.request, so_far, has_all=True) else tuple(plans)

    def in_any_way(self, effort: Effort) -> RolePlans | None:
        """Return plans for all roles by the exact search of ``gang_roles_search``.

        A plan has the nodes of a role's pods. The result is None if there is no place in this domain, or if the search
        would cost more than ``effort`` allows.
        """
        # Roles whose pods all have their places need no search.
        request, roles = self.request, [role for role in range(len(self.nodes_by_role)) if self.counts[role]]
        if effort.is_spent or not effort.spend(sum(_reading_cost(self.nodes_by_role[role]) for role in roles)):
            return None
        free_nodes = {role: self._free_inside(role, self.taken) for role in roles}
        asked = gang_roles_search.Asked(
            [request.members[role] for role in roles], [self.counts[role] for role in roles], request.min_gpus_per_node,
            None if request.max_nodes is None else request.max_nodes - self.taken.nodes,
        )  # fmt: skip
        if not roles:
            return None
        sets_by_rank = gang_roles_search.sets_by_node(
            asked, list(free_nodes.values()), gpus=self.taken.gpus, amounts=self.taken.amounts, effort=effort
        )
        if sets_by_rank is None:
            return None

        # The sets of each node, role by role, as plans. The exact search numbers only the roles that it was given.
        so_far = self.taken.copy()
        plans: list[Plan | None] = [None] * len(self.nodes_by_role)
        for number, (role, nodes) in enumerate(free_nodes.items()):
            node_of_rank = {rank: node for node, rank in enumerate(nodes.name_rank.tolist())}
            node_sets = [
                (node_of_rank[rank], sets[number]) for rank, sets in sorted(sets_by_rank.items()) if sets[number]
            ]
            plans[role] = Plan.of_sets(nodes, node_sets)
            for node, sets in node_sets:
                for mask in sets:
                    so_far.add(int(nodes.name_rank[node]), int(nodes.row[node]), mask, request.members[role])

        # The exact search does not know the limits of the network: check them at the end.
        return None if violated_limit(self.fleet, request, so_far, has_all=True) else tuple(plans)
