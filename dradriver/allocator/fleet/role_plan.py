"""Makes a plan for the pods of one role of a gang: how they share the nodes of a network domain.

A *role* is all pods of a gang that are equal. A plan uses few groups of nodes, of equal size. ``gang_search`` makes one
plan for each role.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dradriver.allocator.fleet import gang_domains, gang_rails
from dradriver.allocator.fleet.gang_domains import Demand, fewest
from dradriver.allocator.fleet.gang_nodes import GangNodes, disjoint_sets
from dradriver.allocator.sets.subsets import Bools, Ints


class Surroundings(NamedTuple):
    """The network levels narrower than the current one, and the nodes that have pods of the gang already.

    Attributes:
        narrower_levels: For each narrower level, the widest first: the domain number of each location.
        has_pods: Whether each node of the fleet has pods of the gang, in the order of the nodes' names; None if no node
            has any.
        placed_sites: The location numbers of the nodes that have pods of the gang.
    """

    narrower_levels: Sequence[Ints]
    has_pods: Bools | None
    placed_sites: Ints


class Plan(NamedTuple):
    """The nodes of one role's pods, and the number of pods on each.

    Attributes:
        nodes: The table of nodes.
        at: (n,) int64, the used nodes, as indices into ``nodes``.
        pods: (n,) int64, the number of pods on each of these nodes.
        within: (n,) int64, the bit mask of the GPUs that these pods may use.
        known: For each of these nodes the GPU sets of its pods, if they are chosen already.
    """

    nodes: GangNodes
    at: Ints
    pods: Ints
    within: Ints
    known: Sequence[Sequence[int]] | None = None

    @classmethod
    def of_sets(cls, nodes: GangNodes, places: Sequence[tuple[int, Sequence[int]]]) -> Plan:
        """Return the plan in which the pods of a role use these sets of GPUs.

        ``places`` are pairs of a node (index into ``nodes``) and the sets of its pods, as bit masks.
        """
        at = np.array([node for node, _ in places], dtype=np.int64)
        pods = np.array([len(sets) for _, sets in places], dtype=np.int64)
        return cls(nodes, at, pods, nodes.mask[at], [sets for _, sets in places])

    def sets(self) -> Sequence[Sequence[int]]:
        """Return for each node of the plan the GPU sets of its pods, as bit masks."""
        if self.known is not None:
            return self.known
        known: dict[tuple[int, int, int], list[int]] = {}
        kinds = self.nodes.kind[self.at].tolist()
        keys = list(zip(kinds, self.within.tolist(), self.pods.tolist(), strict=True))
        for kind, mask, count in keys:
            if (kind, mask, count) not in known:
                known[kind, mask, count] = disjoint_sets(
                    self.nodes.candidates[kind].group.tables, mask, count,
                    request=self.nodes.request, criteria=self.nodes.criteria[kind],
                )  # fmt: skip
        return [known[key] for key in keys]


def plan(nodes: GangNodes, domain: Ints, demand: Demand, surroundings: Surroundings) -> Plan | None:
    """Return the best plan for the pods of one role inside one network domain.

    The result is None if no domain holds all pods.

    Args:
        nodes: The table of nodes.
        domain: (nodes,), the domain of each node; -1 for none.
        demand: The requirements of the role's pods.
        surroundings: The narrower levels, and the nodes that have pods of the gang already.
    """
    has_pods = None if surroundings.has_pods is None else surroundings.has_pods[nodes.name_rank]
    number = gang_domains.nodes_needed(nodes, domain, demand, has_pods)
    if number is None:
        return None
    nodes = _fastest(nodes, domain, demand, number, has_pods)
    inner = None
    if surroundings.narrower_levels:
        domain_of_node = surroundings.narrower_levels[0][nodes.site]
        inner = np.where(domain_of_node < 0, len(domain_of_node) + np.arange(len(domain_of_node)), domain_of_node)
    found = gang_domains.best(nodes, domain, demand, inner=inner, has_pods=has_pods)
    assert found is not None, "the same domains held them before"
    return _inside(nodes, found.at, demand, number=number, surroundings=surroundings)


def _fastest(nodes: GangNodes, domain: Ints, demand: Demand, number: int, has_pods: Bools | None) -> GangNodes:
    """Return the nodes with one more criterion: the highest bandwidth that all pods can have.

    With a higher bandwidth, the pods would need more than ``number`` nodes, or would not all have a place. ``demand``
    has the requirements of the pods. ``domain`` is the domain of each node; ``has_pods`` says which nodes have pods of
    the gang already.
    """
    values = nodes.worths()
    low, high = -1, len(values) - 1  # values[low] is possible (-1: whatever the bandwidth), values[high + 1] is not
    while low < high:
        middle = (low + high + 1) // 2
        faster = nodes.with_worth(float(values[middle]))
        if gang_domains.nodes_needed(faster, domain, demand, has_pods) == number:
            low, nodes = middle, faster
        else:
            high = middle - 1
    return nodes


def _inside(nodes: GangNodes, at: Ints, demand: Demand, *, number: int, surroundings: Surroundings) -> Plan:
    """Return the plan for the pods of a gang's role inside one domain.

    A domain is, for example, a rack. The plan uses the nodes that have pods of the gang already (``surroundings``), and
    ``number`` of the other nodes. ``at`` are the usable nodes of the domain, ``demand`` the requirements of the pods.
    """
    has_pods = (
        np.zeros(len(at), dtype=np.bool_)
        if surroundings.has_pods is None
        else surroundings.has_pods[nodes.name_rank[at]]
    )
    # The nodes that hold least come first, then those with the fewest GPUs free, then the first by name.
    at = at[np.lexsort((nodes.name_rank[at], nodes.free[at], nodes.capacity[at], ~has_pods))]
    held = int(np.count_nonzero(has_pods))
    old, new = at[:held], at[held:]
    on_new = max(demand.pods - int(nodes.capacity[old].sum()), number * demand.least_pods_per_node) if number else 0
    taken, pods, within = _on_new(nodes, new, on_new, demand=demand, number=number, surroundings=surroundings)
    on_old = _fullest(nodes.capacity[old], demand.pods - on_new, least=0)
    gets_pods = on_old > 0
    return Plan(
        nodes,
        np.concatenate((old[gets_pods], taken)),
        np.concatenate((on_old[gets_pods], pods)),
        np.concatenate((nodes.mask[old[gets_pods]], within)),
    )


def _on_new(
    nodes: GangNodes, new: Ints, pods: int, *, demand: Demand, number: int, surroundings: Surroundings
) -> tuple[Ints, Ints, Ints]:
    """Return how ``number`` nodes without pods of the gang share ``pods`` pods of a role.

    Args:
        nodes: All nodes.
        new: The nodes without pods of the gang: indices into ``nodes``, those with the least capacity first.
        pods: How many pods all these nodes together get.
        demand: Whether the role's pods must be spread, and the fewest pods on a node.
        number: How many of the nodes are used.
        surroundings: The narrower network levels, and where the gang has pods already.

    Returns:
        The chosen nodes as indices into ``nodes``, the pods on each, and the bit mask of the GPUs that these may use.
    """
    if not number:
        return new[:0], new[:0], new[:0]
    capacity = nodes.capacity[new]  # pods that each node can hold

    # The same number of pods on every node, if that is possible: then the same positions (rails) can be chosen, too.
    even, left_over = divmod(pods, number)
    if not left_over and np.count_nonzero(capacity >= even) >= number:
        # ``mask`` is None if no positions are free on enough nodes.
        at, mask = _on_rails(nodes, new[capacity >= even], number, even, surroundings=surroundings)
        within = nodes.mask[at] if mask is None else np.full(number, mask)
        return at, np.full(number, even), within

    # The smallest capacity among the largest ``number`` nodes. All nodes with a larger capacity are used if the pods
    # must be spread, or do not fit otherwise. The network then decides among the nodes with exactly this capacity.
    threshold = int(np.sort(capacity)[-number])
    if demand.is_spread or threshold * number < pods:
        larger_nodes, equal_nodes = new[capacity > threshold], new[capacity == threshold]
        # The nodes at the threshold should be near the larger ones and near the nodes with pods of the gang.
        sites = np.concatenate((surroundings.placed_sites, nodes.site[larger_nodes]))
        nearest = _near(nodes, equal_nodes, number - len(larger_nodes), surroundings._replace(placed_sites=sites))
        at = np.concatenate(
            (larger_nodes[np.argsort(-nodes.capacity[larger_nodes], kind="stable")], equal_nodes[nearest])
        )
    else:  # any nodes with so much capacity hold all pods: the network decides
        fitting = new[capacity >= threshold]
        at = fitting[_near(nodes, fitting, number, surroundings)]
        at = at[np.argsort(-nodes.capacity[at], kind="stable")]
    if demand.is_spread:
        return at, _evenly(nodes.capacity[at], pods, least=demand.least_pods_per_node), nodes.mask[at]

    # Fill the nodes one after another; the last one is the smallest that holds what is left.
    at = _tightest(nodes, at, new, pods, least=demand.least_pods_per_node, surroundings=surroundings)
    return at, _fullest(nodes.capacity[at], pods, least=demand.least_pods_per_node), nodes.mask[at]


def _on_rails(
    nodes: GangNodes, fit: Ints, number: int, count: int, *, surroundings: Surroundings
) -> tuple[Ints, int | None]:
    """Return ``number`` nodes for ``count`` pods each, and the GPU positions to use.

    All nodes use the same positions. The positions are returned as a bit mask; None if no positions are free on enough
    nodes. ``fit`` are the nodes to choose from. ``surroundings`` has the nodes that have pods of the gang already.
    """
    best: tuple[tuple[int, int], Ints, int] | None = None
    patterns = gang_rails.patterns(nodes, fit, number=number, count=count)
    for pattern in patterns[: max(1, gang_domains.MOST_LOOKS // len(fit))]:
        having = fit[gang_rails.have(nodes, fit, pattern)]
        key = 1, -number
        if surroundings.narrower_levels:
            level = surroundings.narrower_levels[0]
            parts, smallest = pieces(level[nodes.site[having]], number, level[surroundings.placed_sites])
            key = parts, -smallest
        if best is None or key < best[0]:
            best = key, having, pattern.mask
        if key[0] == 1:
            break
    units, mask = (fit, None) if best is None else best[1:]
    return units[_near(nodes, units, number, surroundings)], mask


def _near(nodes: GangNodes, units: Ints, number: int, surroundings: Surroundings) -> Ints:
    site = nodes.site[units]
    return nearest(units, number, [level[site] for level in surroundings.narrower_levels],
                   [level[surroundings.placed_sites] for level in surroundings.narrower_levels])  # fmt: skip


def _tightest(nodes: GangNodes, chosen: Ints, new: Ints, pods: int, *, least: int, surroundings: Surroundings) -> Ints:
    """Return the chosen nodes, with the last one replaced by a node with less room.

    The replacement has the least room that suffices for the remaining pods (those that the other chosen nodes do not
    hold), and for ``least`` pods. It is near the old node: in the same domains of all narrower levels. ``pods`` is the
    number of pods of all chosen nodes. ``chosen`` and ``new``, the nodes to choose from, are indices into ``nodes``.
    """
    spare = int(nodes.capacity[chosen].sum()) - pods
    if not spare:
        return chosen
    need = max(least, int(nodes.capacity[chosen[-1]]) - spare)
    beside = np.ones(len(new), dtype=np.bool_)
    for level in surroundings.narrower_levels:
        beside &= level[nodes.site[new]] == level[nodes.site[chosen[-1]]]
    fitting = new[beside & (nodes.capacity[new] >= need) & ~np.isin(new, chosen[:-1])]
    return np.append(chosen[:-1], fitting[0])


def _evenly(capacity: Ints, pods: int, *, least: int) -> Ints:
    """Return the number of pods on each node, as equal as the capacities allow: shape of ``capacity``.

    Each node gets at least ``least`` pods.
    """
    out = np.full(len(capacity), least, dtype=np.int64)
    left = pods - int(out.sum())
    while left:
        open_ = np.flatnonzero(out < capacity)
        emptiest = open_[np.lexsort((-capacity[open_], out[open_]))[:left]]
        emptiest = emptiest[out[emptiest] == out[emptiest[0]]]
        out[emptiest] += 1
        left -= len(emptiest)
    return out


def _fullest(capacity: Ints, pods: int, *, least: int) -> Ints:
    """Return the number of pods on each node if the first nodes are filled up: shape of ``capacity``.

    Each node gets at least ``least`` pods.
    """
    room = capacity - least
    before = np.concatenate(([0], np.cumsum(room)[:-1])) if len(room) else room
    return least + np.clip(pods - least * len(room) - before, 0, room)


def nearest(units: Ints, number: int, levels: Sequence[Ints], there: Sequence[Ints]) -> Ints:
    """Return the ``number`` nodes that are as near each other as possible in the network, as indices into ``units``.

    The search goes from the widest level down. At each level the criteria are:

    1. the fewest domains
    2. equal numbers of nodes in each domain, counting the nodes that have pods of the gang already
    3. domains in which the nodes need the fewest domains of the next level
    4. the smallest domains that hold their share of the nodes

    Inside a domain of the narrowest level, the first nodes are taken. The choice at each level is exact for the choice
    at the wider levels.

    Worked example: 32 nodes are needed. With leaves of 20, 20 and 14 free nodes, 16 are taken from each of the first
    two. With leaves of 40 and 33 free nodes, all are taken from the second.

    Args:
        units: (n,), the nodes, in the order in which they should be taken.
        number: How many to take, at most n.
        levels: For each level, the widest first, (n,): the domain of each node, -1 for a node without a domain.
        there: For each level the domains of the nodes that have pods of the gang already.
    """
    places = np.arange(len(units))
    return _nearest(places, number, levels, there)


def _nearest(places: Ints, number: int, levels: Sequence[Ints], there: Sequence[Ints]) -> Ints:
    if not levels or number == len(places):
        return places[:number]
    division = _divided(levels[0][places], number, there[0])
    if len(division.free_nodes) == 1:
        return _nearest(places, number, levels[1:], there[1:])
    shares = _assigned_shares(division, levels[1][places] if len(levels) > 1 else None)
    by_domain = np.split(
        places[np.argsort(division.domain_of_node, kind="stable")], np.cumsum(division.free_nodes)[:-1]
    )
    taken = [_nearest(by_domain[domain], share, levels[1:], there[1:]) for domain, share in shares]
    return np.concatenate(taken)


def pieces(domain: Ints, number: int, there: Ints) -> tuple[int, int]:
    """Return how many domains of a level ``number`` nodes need, and the fewest nodes that one of these domains gives.

    Args:
        domain: (n,), the domain of each node at that level.
        number: How many nodes are taken.
        there: The domains of the nodes that have pods of the gang already.
    """
    shares = _divided(domain, number, there).shares
    return len(shares), int(shares.min())


def _with_own_domains(domain: Ints) -> Ints:
    """Return the domain of each node; each node without one gets its own.

    A node without a domain (-1) gets a negative number that no other node has.
    """
    return np.where(domain < 0, -1 - np.arange(len(domain)), domain)


class _Division(NamedTuple):
    """How many nodes each domain of a level gives: as few domains and as equal shares as possible.

    Domains are numbered from 0 here. A node without a domain is a domain of its own.

    Attributes:
        domain_of_node: (n,), the domain of each node that can be taken.
        free_nodes: (domains,), how many nodes of each domain can be taken.
        placed_nodes: (domains,), how many nodes of each domain have pods of the gang already.
        chosen: (m,), the domains that give nodes. Domains with pods of the gang come first, then the largest.
        shares: (m,), how many nodes each chosen domain gives.
    """

    domain_of_node: Ints
    free_nodes: Ints
    placed_nodes: Ints
    chosen: Ints
    shares: Ints


def _divided(domain: Ints, number: int, placed: Ints) -> _Division:
    """Divide ``number`` nodes among as few domains as possible, with shares as equal as possible.

    Domains that have pods of the gang come first, then the largest domains. Shares are equal if the nodes that already
    have pods are counted, too.

    Args:
        domain: (n,), the domain of each node that can be taken; -1 for none.
        number: How many nodes are taken.
        placed: The domains of the nodes that have pods of the gang; -1 for none.
    """
    domains, domain_of_node, free_nodes = np.unique(_with_own_domains(domain), return_inverse=True, return_counts=True)

    # By domain, how many nodes have pods of the gang. A node in no domain is near none.
    placed_domains = np.sort(placed[placed >= 0])
    placed_nodes = np.searchsorted(placed_domains, domains, "right") - np.searchsorted(placed_domains, domains)

    # The fewest domains that have ``number`` free nodes, and all that have pods of the gang.
    has_no_pods = placed_nodes == 0
    order = np.lexsort((-free_nodes, has_no_pods))
    domains_needed = int(np.searchsorted(np.cumsum(free_nodes[order]), number)) + 1
    chosen = order[: max(domains_needed, int(np.count_nonzero(placed_nodes)))]
    placed_of_chosen, free_of_chosen = placed_nodes[chosen], free_nodes[chosen]

    # Binary search for the level up to which all chosen domains are filled: so many nodes each, with the placed ones.
    filled_to, most_filled = 0, int((placed_of_chosen + free_of_chosen).max())
    while filled_to < most_filled:
        middle = (filled_to + most_filled + 1) // 2
        if int(np.clip(middle - placed_of_chosen, 0, free_of_chosen).sum()) <= number:
            filled_to = middle
        else:
            most_filled = middle - 1
    shares = np.clip(filled_to - placed_of_chosen, 0, free_of_chosen)

    # What is left goes, one node each, to the first domains that are not full.
    not_full = np.flatnonzero((placed_of_chosen + shares == filled_to) & (shares < free_of_chosen))
    shares[not_full[: number - int(shares.sum())]] += 1
    gets_nodes = shares > 0
    return _Division(
        domain_of_node=domain_of_node,
        free_nodes=free_nodes,
        placed_nodes=placed_nodes,
        chosen=chosen[gets_nodes],
        shares=shares[gets_nodes],
    )


def _assigned_shares(division: _Division, inner: Ints | None) -> list[tuple[int, int]]:
    """Return the domains that give nodes, each with its share, in ascending order of the domains.

    The division fixes the shares. Domains that have pods of the gang keep their own shares. All other shares, the
    largest first, can be assigned to domains that the division did not choose. A share is assigned to the domain in
    which it needs the fewest domains of the next narrower level (*inner domains*). Among equals, it is assigned to the
    smallest domain that holds it.

    Args:
        division: The shares, and the domains that have pods of the gang.
        inner: (n,), the inner domain of each node, -1 for none; None if there is no narrower level.
    """
    # By domain its free nodes; by chosen domain whether it has pods of the gang.
    free_nodes, has_pods = division.free_nodes, division.placed_nodes[division.chosen] > 0
    kept_domains, kept_shares = division.chosen[has_pods].tolist(), division.shares[has_pods].tolist()
    assigned = list(zip(kept_domains, kept_shares, strict=True))
    open_domains = np.flatnonzero(division.placed_nodes == 0)

    # By pair of domain and inner domain, the number of its nodes. A pair is encoded as one number. An inner domain may
    # lie in several domains.
    inner_domains_needed = np.zeros(len(free_nodes), dtype=np.int64)
    if inner is not None:
        inner_of_node = _with_own_domains(inner)
        lowest = int(inner_of_node.min())
        span = int(inner_of_node.max()) - lowest + 1
        pairs, nodes_of_pair = np.unique(division.domain_of_node * span + inner_of_node - lowest, return_counts=True)
        domain_of_pair = pairs // span

    # Equal shares are assigned together, the largest first. ``fewest`` returns for each domain how many of its largest
    # inner domains have ``share`` nodes together.
    sizes, times = np.unique(division.shares[~has_pods], return_counts=True)
    for share, number in zip(sizes[::-1].tolist(), times[::-1].tolist(), strict=True):
        if inner is not None:
            # ``holding_domains`` lacks domains that are too small for the share. They are left out below, too.
            holding_domains, inner_count, _ = fewest(domain_of_pair, nodes_of_pair, share)
            inner_domains_needed[holding_domains] = inner_count
        large_enough = open_domains[free_nodes[open_domains] >= share]
        order = np.lexsort((free_nodes[large_enough], inner_domains_needed[large_enough]))
        best = large_enough[order[:number]]
        assigned += [(domain, share) for domain in best.tolist()]
        open_domains = np.setdiff1d(open_domains, best, assume_unique=True)
    return sorted(assigned)
