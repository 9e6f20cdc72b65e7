"""Which nodes of a domain a gang takes: few parts of the network, equal ones, and no larger than they must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dradriver.allocator.fleet.gang_domains import fewest
from dradriver.allocator.sets.subsets import Ints


def nearest(units: Ints, number: int, levels: Sequence[Ints], there: Sequence[Ints]) -> Ints:
    """Places in ``units`` of ``number`` nodes that are as near each other as can be.

    From the widest level down: the fewest domains; as many nodes in each as in the others, those counted that the gang
    has already; of equal domains those that want fewest of the next level, then the smallest that hold their share.
    Inside the narrowest the first nodes are taken. Each level is exact for what the wider ones chose.

    Worked example: 32 nodes, leaves of 20, 20 and 14 free ones: 16 and 16 of the first two. Leaves of 40 and 33: all
    of the second.

    Args:
        units: (n,), the nodes, those that should go first first.
        number: How many to take, at most n.
        levels: For each level, the widest first, (n,): the nodes' domains, -1 for a node that is in none.
        there: For each level the domains of the gang's nodes that have their places.
    """
    places = np.arange(len(units))
    return _nearest(places, number, levels, there)


def _nearest(places: Ints, number: int, levels: Sequence[Ints], there: Sequence[Ints]) -> Ints:
    if not levels or number == len(places):
        return places[:number]
    parts = _divided(levels[0][places], number, there[0])
    if len(parts.counts) == 1:
        return _nearest(places, number, levels[1:], there[1:])
    shares = _shares(parts, levels[1][places] if len(levels) > 1 else None)
    members = np.split(places[np.argsort(parts.inverse, kind="stable")], np.cumsum(parts.counts)[:-1])
    taken = [_nearest(members[child], share, levels[1:], there[1:]) for child, share in shares]
    return np.concatenate(taken)


def pieces(domain: Ints, number: int, there: Ints) -> tuple[int, int]:
    """Of how many domains of the widest level ``nearest`` takes nodes, and how many of that of which it takes fewest.

    Args:
        domain: (n,), the nodes' domains of that level.
        number: How many to take.
        there: The domains of the gang's nodes that have their places.
    """
    share = _divided(domain, number, there).share
    return len(share), int(share.min())


def alone(domain: Ints) -> Ints:
    """The domains, each node that is in none in one of its own."""
    return np.where(domain < 0, -1 - np.arange(len(domain)), domain)


class _Parts(NamedTuple):
    """How nodes are divided over the domains of a level, as few and as equally as can be.

    Attributes:
        inverse: (n,), the domain of each node.
        counts: (domains,), nodes that each has.
        present: (domains,), nodes of the gang that are there already.
        chosen: Domains that get nodes; of those without nodes of the gang the largest ones.
        share: How many nodes each of them gets.
    """

    inverse: Ints
    counts: Ints
    present: Ints
    chosen: Ints
    share: Ints


def _divided(domain: Ints, number: int, there: Ints) -> _Parts:
    children, inverse, counts = np.unique(alone(domain), return_inverse=True, return_counts=True)
    known = np.sort(there[there >= 0])  # a node of the gang that is in no domain is near none
    present = np.searchsorted(known, children, "right") - np.searchsorted(known, children)
    order = np.lexsort((-counts, present == 0))
    enough = int(np.searchsorted(np.cumsum(counts[order]), number)) + 1
    chosen = order[: max(enough, int(np.count_nonzero(present)))]
    held, most = present[chosen], counts[chosen]
    low, high = 0, int((held + most).max())  # all are filled up to low, and cannot be up to high + 1
    while low < high:
        middle = (low + high + 1) // 2
        if int(np.clip(middle - held, 0, most).sum()) <= number:
            low = middle
        else:
            high = middle - 1
    share = np.clip(low - held, 0, most)
    open_ = np.flatnonzero((held + share == low) & (share < most))
    share[open_[: number - int(share.sum())]] += 1
    return _Parts(inverse, counts, present, chosen[share > 0], share[share > 0])


def _shares(parts: _Parts, inner: Ints | None) -> list[tuple[int, int]]:
    """Domains and how many nodes of each, in their order.

    Of those without nodes of the gang, the ones that want the fewest domains of the next level for their share, then
    the smallest that hold it.

    Args:
        parts: How many domains get how many nodes.
        inner: (n,), the nodes' domains of the next narrower level; None where there is none.
    """
    counts, known = parts.counts, parts.present[parts.chosen] > 0
    out = list(zip(parts.chosen[known].tolist(), parts.share[known].tolist(), strict=True))
    free = np.flatnonzero(parts.present == 0)
    wants = np.zeros(len(counts), dtype=np.int64)
    if inner is not None:
        pairs = np.stack((parts.inverse, alone(inner)))
        span = int(pairs[1].max()) - int(pairs[1].min()) + 1
        pair, sizes = np.unique(pairs[0] * span + pairs[1] - pairs[1].min(), return_counts=True)
    own, times = np.unique(parts.share[~known], return_counts=True)
    for share, number in zip(own[::-1].tolist(), times[::-1].tolist(), strict=True):
        if inner is not None:
            owners, domains, _ = fewest(pair // span, sizes, share)
            wants[owners] = domains
        able = free[counts[free] >= share]
        best = able[np.lexsort((counts[able], wants[able]))[:number]]
        out += [(child, share) for child in best.tolist()]
        free = np.setdiff1d(free, best, assume_unique=True)
    return sorted(out)
