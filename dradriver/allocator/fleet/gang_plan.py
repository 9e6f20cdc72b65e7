"""How many pods of one role go on which nodes, once it is known in which domains of one level they may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dradriver.allocator.fleet import gang_domains, rails
from dradriver.allocator.fleet.gang_domains import Wish
from dradriver.allocator.fleet.gang_nodes import GangNodes
from dradriver.allocator.fleet.nearness import nearest, pieces
from dradriver.allocator.fleet.packing import disjoint_sets
from dradriver.allocator.sets.subsets import Bools, Ints


class Around(NamedTuple):
    """What is narrower than the level that is looked at, and what of the gang has its place.

    Attributes:
        levels: For each narrower level, the widest first, per location the number of its domain.
        own: By ``GangNodes.name_rank`` whether a node has pods of the gang; None for none.
        sites: The locations of these nodes.
    """

    levels: Sequence[Ints]
    own: Bools | None
    sites: Ints


class Plan(NamedTuple):
    """How many pods on which nodes.

    Attributes:
        nodes: All nodes.
        at: (n,) int64, which of them.
        pods: (n,) int64, pods on each.
        within: (n,) int64, the positions that these may use.
        known: For each node the sets of its pods, where they were chosen already.
    """

    nodes: GangNodes
    at: Ints
    pods: Ints
    within: Ints
    known: Sequence[Sequence[int]] | None = None

    @classmethod
    def of_sets(cls, nodes: GangNodes, places: Sequence[tuple[int, Sequence[int]]]) -> Plan:
        """A plan with these sets on these nodes."""
        at = np.array([node for node, _ in places], dtype=np.int64)
        pods = np.array([len(sets) for _, sets in places], dtype=np.int64)
        return cls(nodes, at, pods, nodes.mask[at], [sets for _, sets in places])

    def sets(self) -> Sequence[Sequence[int]]:
        """For each node the sets of its pods, as masks."""
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


def plan(nodes: GangNodes, domain: Ints, wish: Wish, around: Around) -> Plan | None:
    """The best plan inside one of the domains; None where none of them holds all pods.

    Args:
        nodes: All nodes.
        domain: (nodes,), the domain of each; -1 for none.
        wish: What is wanted.
        around: The levels inside the domains, and what has its place.
    """
    own = None if around.own is None else around.own[nodes.name_rank]
    number = gang_domains.number_of(nodes, domain, wish, own)
    if number is None:
        return None
    nodes = _fastest(nodes, domain, wish, number, own)
    inner = None
    if around.levels:
        known = around.levels[0][nodes.site]
        inner = np.where(known < 0, len(known) + np.arange(len(known)), known)
    found = gang_domains.best(nodes, domain, wish, inner=inner, own=own)
    assert found is not None, "the same domains held them before"
    return _inside(nodes, found.at, wish, number=number, around=around)


def _fastest(nodes: GangNodes, domain: Ints, wish: Wish, number: int, own: Bools | None) -> GangNodes:
    """The nodes as pods see them whose slowest set is as fast as it can be on so many nodes."""
    values = nodes.bandwidths()
    low, high = -1, len(values) - 1  # values[low] is possible (-1: whatever the bandwidth), values[high + 1] is not
    while low < high:
        middle = (low + high + 1) // 2
        faster = nodes.with_busbw(float(values[middle]))
        if gang_domains.number_of(faster, domain, wish, own) == number:
            low, nodes = middle, faster
        else:
            high = middle - 1
    return nodes


def _inside(nodes: GangNodes, at: Ints, wish: Wish, *, number: int, around: Around) -> Plan:
    """The plan for all pods on these nodes: those with pods of the gang, and so many others."""
    own = np.zeros(len(at), dtype=np.bool_) if around.own is None else around.own[nodes.name_rank[at]]
    # The nodes that hold least come first, then those with the fewest GPUs free, then the first by name.
    at = at[np.lexsort((nodes.name_rank[at], nodes.free[at], nodes.capacity[at], ~own))]
    held = int(np.count_nonzero(own))
    old, new = at[:held], at[held:]
    on_new = max(wish.pods - int(nodes.capacity[old].sum()), number * wish.least) if number else 0
    taken, pods, within = _on_new(nodes, new, on_new, wish=wish, number=number, around=around)
    on_old = _fullest(nodes.capacity[old], wish.pods - on_new, least=0)
    some = on_old > 0
    return Plan(
        nodes,
        np.concatenate((old[some], taken)),
        np.concatenate((on_old[some], pods)),
        np.concatenate((nodes.mask[old[some]], within)),
    )


def _on_new(
    nodes: GangNodes, new: Ints, pods: int, *, wish: Wish, number: int, around: Around
) -> tuple[Ints, Ints, Ints]:
    """Nodes, how many pods on each and which positions these may use: ``number`` nodes of which none has any yet."""
    if not number:
        none = new[:0]
        return none, none, none
    capacity = nodes.capacity[new]
    even, rest = divmod(pods, number)
    if not rest and np.count_nonzero(capacity >= even) >= number:
        at, mask = _on_rails(nodes, new[capacity >= even], number, even, around=around)
        within = nodes.mask[at] if mask is None else np.full(number, mask)
        return at, np.full(number, even), within
    threshold = int(np.sort(capacity)[-number])
    if wish.spread or threshold * number < pods:
        largest = new[np.argsort(-capacity, kind="stable")]
        at = largest[:number]
    else:
        fitting = new[capacity >= threshold]
        at = fitting[_near(nodes, fitting, number, around)]
        at = at[np.argsort(-nodes.capacity[at], kind="stable")]
    if wish.spread:
        return at, _evenly(nodes.capacity[at], pods, least=wish.least), nodes.mask[at]
    at = _tightest(nodes, at, new, pods, least=wish.least, around=around)
    return at, _fullest(nodes.capacity[at], pods, least=wish.least), nodes.mask[at]


def _on_rails(nodes: GangNodes, fit: Ints, number: int, count: int, *, around: Around) -> tuple[Ints, int | None]:
    """Nodes for ``count`` pods each, on the same positions of all of them where that can be: which then."""
    best: tuple[tuple[int, int], Ints, int] | None = None
    patterns = rails.patterns(nodes, fit, number=number, count=count)
    for pattern in patterns[: max(1, gang_domains.MOST_LOOKS // len(fit))]:
        having = fit[rails.have(nodes, fit, pattern)]
        key = 1, -number
        if around.levels:
            level = around.levels[0]
            parts, smallest = pieces(level[nodes.site[having]], number, level[around.sites])
            key = parts, -smallest
        if best is None or key < best[0]:
            best = key, having, pattern.mask
        if key[0] == 1:
            break
    units, mask = (fit, None) if best is None else best[1:]
    return units[_near(nodes, units, number, around)], mask


def _near(nodes: GangNodes, units: Ints, number: int, around: Around) -> Ints:
    site = nodes.site[units]
    return nearest(units, number, [level[site] for level in around.levels],
                   [level[around.sites] for level in around.levels])  # fmt: skip


def _tightest(nodes: GangNodes, chosen: Ints, new: Ints, pods: int, *, least: int, around: Around) -> Ints:
    """The chosen nodes, the last of them exchanged for the smallest beside it that holds what it must."""
    spare = int(nodes.capacity[chosen].sum()) - pods
    if not spare:
        return chosen
    need = max(least, int(nodes.capacity[chosen[-1]]) - spare)
    beside = np.ones(len(new), dtype=np.bool_)
    for level in around.levels:
        beside &= level[nodes.site[new]] == level[nodes.site[chosen[-1]]]
    fitting = new[beside & (nodes.capacity[new] >= need) & ~np.isin(new, chosen[:-1])]
    return np.append(chosen[:-1], fitting[0])


def _evenly(capacity: Ints, pods: int, *, least: int) -> Ints:
    """Pods on each node, as equal as capacities allow: shape of ``capacity``."""
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
    """Pods on each node, the first ones filled up, every one with ``least``: shape of ``capacity``."""
    room = capacity - least
    before = np.concatenate(([0], np.cumsum(room)[:-1])) if len(room) else room
    return least + np.clip(pods - least * len(room) - before, 0, room)
