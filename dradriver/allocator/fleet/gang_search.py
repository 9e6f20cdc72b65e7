"""Plans for all roles of a gang: level by level, the narrowest first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dradriver.allocator.fleet import gang_domains
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.gang_domains import Wish
from dradriver.allocator.fleet.gang_nodes import GangNodes, room
from dradriver.allocator.fleet.gang_plan import Around, Plan, plan
from dradriver.allocator.gang_request import GangRequest, Role
from dradriver.allocator.request import Strategy
from dradriver.allocator.sets.subsets import Ints
from dradriver.topology.levels import CLUSTER, NODE

_MOST_DOMAINS = 64  # of one level that are tried for members that differ
_MOST_ORDERED = 3  # roles of which every order is tried in a domain


class Taken(NamedTuple):
    """What of the gang has its place.

    Attributes:
        masks: By ``GangNodes.name_rank``, positions that are given away though the fleet says that they are free.
        pods: The same, how many pods of the gang a node has.
        sites: The same, its location.
        amounts: What is left beside GPUs, by row; None where nothing is counted.
    """

    masks: Ints
    pods: Ints
    sites: Ints
    amounts: Ints | None

    def copy(self) -> Taken:
        """A copy that may be changed."""
        amounts = None if self.amounts is None else self.amounts.copy()
        return Taken(self.masks.copy(), self.pods.copy(), self.sites, amounts)

    def add(self, rank: int, row: int, mask: int, role: Role) -> None:
        """Take positions, and what else a pod needs."""
        self.masks[rank] |= mask
        self.pods[rank] += 1
        if self.amounts is not None and 0 <= row < len(self.amounts):
            self.amounts[row, : len(role.needs)] -= role.needs

    def left(self, nodes: GangNodes, role: Role) -> GangNodes:
        """The nodes less what is taken of them."""
        mask = nodes.mask & ~self.masks[nodes.name_rank]
        return nodes.changed(mask=mask, room=room(nodes.row, role.needs, self.amounts))


class Found(NamedTuple):
    """Plans for all roles.

    Attributes:
        reach: The level at which they were found.
        plans: By role; None of one without pods to place.
    """

    reach: str
    plans: tuple[Plan | None, ...]


def search(
    fleet: Fleet, request: GangRequest, tables: Sequence[GangNodes], counts: Sequence[int], *,
    taken: Taken | None, widest: str,
) -> Found | None:  # fmt: skip
    """Plans for so many pods of each role; None where they have no places together.

    Of equal pods the level is the narrowest that can be. Members that differ are placed one role after another, those
    with the most GPUs first, then in every other order, in one domain after another: what is found is sound, and of
    what could be found something may be missed where CPU or odd sets of GPUs must be pieced together.

    Args:
        fleet: The cluster.
        request: What is wanted.
        tables: For each role its nodes.
        counts: For each role the pods that have no place yet.
        taken: What has its place; None for nothing, of equal pods alone.
        widest: The widest level that will do.
    """
    reaches = fleet.sites.reaches
    levels = list(reaches[: reaches.index(widest) + 1])
    if request.pod.strategy is Strategy.SPREAD and (taken is None or not taken.pods.any()):
        many = {level: _number(fleet, request, tables[0], counts[0], level) for level in levels}
        levels = sorted((level for level in levels if many[level]), key=lambda level: -many[level])
    for level in levels:
        if taken is None:
            nodes = tables[0]
            found = plan(nodes, _domain(fleet, request, nodes, level), _wish(request, request.members[0], counts[0]),
                         _around(fleet, nodes, level))  # fmt: skip
            if found is not None:
                return Found(level, (found,))
            continue
        for number in _candidates(fleet, request, tables, counts, taken=taken, level=level):
            for order in _orders(request, counts):
                plans = _together(fleet, request, tables, counts, order, taken=taken, level=level, number=number)
                if plans is not None:
                    return Found(level, plans)
    return None


def nothing_taken(fleet: Fleet, amounts: Ints | None) -> Taken:
    """A record of what is taken, still empty."""
    zeros = np.zeros(len(fleet.nodes), dtype=np.int64)
    return Taken(zeros, zeros.copy(), fleet.sites_by_name(), None if amounts is None else amounts.copy())


def _number(fleet: Fleet, request: GangRequest, nodes: GangNodes, count: int, level: str) -> int:
    """How many nodes of a domain of a level are taken; 0 where none holds all."""
    wish = _wish(request, request.members[0], count)
    return gang_domains.number_of(nodes, _domain(fleet, request, nodes, level), wish) or 0


def _wish(request: GangRequest, role: Role, count: int, nodes: int = 0) -> Wish:
    """What so many pods of a role want of nodes, where the gang has some nodes already."""
    least = max(1, -(-request.min_gpus_per_node // role.pod.gpus))
    most = count // least
    if request.max_nodes is not None:
        most = min(most, max(0, request.max_nodes - nodes))
    return Wish(count, least, most, request.pod.strategy is Strategy.SPREAD)


def _domain(fleet: Fleet, request: GangRequest, nodes: GangNodes, level: str) -> Ints:
    """The domain of each node at a level, -1 where it is in none, or its network is too slow: (nodes,)."""
    if level == NODE:
        return nodes.name_rank
    domain = fleet.sites.domains(level)[nodes.site]
    if request.min_network_gbps:
        domain = np.where(fleet.sites.gbps(level)[nodes.site] >= request.min_network_gbps, domain, -1)
    return domain


def _around(fleet: Fleet, nodes: GangNodes, level: str, taken: Taken | None = None) -> Around:
    """The levels inside a level that say something of these nodes, the widest first."""
    sites = fleet.sites
    below = sites.levels if level == CLUSTER else sites.levels[: sites.levels.index(level)] if level != NODE else ()
    every = [sites.domains(name) for name in reversed(below)]
    levels = [domains for domains in every if (domains >= 0).any()]
    if taken is None or not taken.pods.any():
        return Around(levels, None, nodes.site[:0])
    own = taken.pods > 0
    return Around(levels, own, taken.sites[own])


def _candidates(
    fleet: Fleet, request: GangRequest, tables: Sequence[GangNodes], counts: Sequence[int], *,
    taken: Taken, level: str,
) -> Iterator[int]:  # fmt: skip
    """Domains of a level that have room for each role by itself and GPUs for all, those with the fewest GPUs first."""
    if taken.pods.any():
        own = np.flatnonzero(taken.pods)
        of_own = own if level == NODE else fleet.sites.domains(level)[taken.sites[own]]
        if of_own[0] >= 0 and (of_own == of_own[0]).all():
            yield int(of_own[0])
        return
    free = np.zeros(len(fleet.nodes), dtype=np.int64)
    whose = np.full(len(fleet.nodes), -1, dtype=np.int64)
    fits: Ints | None = None
    for nodes, count in zip(tables, counts, strict=True):
        domain = _domain(fleet, request, nodes, level)
        whose[nodes.name_rank] = np.maximum(whose[nodes.name_rank], domain)
        free[nodes.name_rank] |= nodes.mask
        total = np.bincount(domain[domain >= 0], nodes.capacity[domain >= 0], minlength=1)
        holds = np.flatnonzero(total >= count)
        fits = holds if fits is None else np.intersect1d(fits, holds)
    assert fits is not None, "a gang has a role"
    gpus = np.bincount(whose[whose >= 0], np.bitwise_count(free[whose >= 0]), minlength=int(fits.max(initial=0)) + 1)
    wanted = sum(nodes.request.gpus * count for nodes, count in zip(tables, counts, strict=True))
    fits = fits[gpus[fits] >= wanted]
    yield from fits[np.argsort(gpus[fits], kind="stable")][:_MOST_DOMAINS].tolist()


def _orders(request: GangRequest, counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """In which orders roles are placed, those with the most GPUs and the most needs first at first."""
    members = request.members
    some = [at for at in range(len(members)) if counts[at]]
    some.sort(key=lambda at: (-members[at].pod.gpus, [-need for need in members[at].needs], at))
    if len(some) > _MOST_ORDERED:
        yield tuple(some)
    else:
        yield from itertools.permutations(some)


def _together(
    fleet: Fleet, request: GangRequest, tables: Sequence[GangNodes], counts: Sequence[int], order: Sequence[int], *,
    taken: Taken, level: str, number: int,
) -> tuple[Plan | None, ...] | None:  # fmt: skip
    """Plans for all roles inside one domain, in this order; None where one finds no place."""
    so_far = taken.copy()
    members = request.members
    plans: list[Plan | None] = [None] * len(members)
    for at in order:
        role = members[at]
        domain = _domain(fleet, request, tables[at], level)
        here = tables[at].only(np.flatnonzero(domain == number))
        left = so_far.left(here, role)
        wish = _wish(request, role, counts[at], int(np.count_nonzero(so_far.pods)))
        found = plan(left, np.zeros(len(left.kind), dtype=np.int64), wish, _around(fleet, left, level, so_far))
        if found is None:
            return None
        plans[at] = found
        for node, sets in zip(found.at.tolist(), found.sets(), strict=True):
            for mask in sets:
                so_far.add(int(left.name_rank[node]), int(left.row[node]), mask, role)
    return tuple(plans)
