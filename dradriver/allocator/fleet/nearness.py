"""Which nodes of a domain a gang takes: few parts of the network, equal ones, and no larger than they must be."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

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
    owner = alone(levels[0][places])
    children, inverse, counts = np.unique(owner, return_inverse=True, return_counts=True)
    if len(children) == 1:
        return _nearest(places, number, levels[1:], there[1:])
    known = np.sort(there[0][there[0] >= 0])  # a node of the gang that is in no domain is near none
    present = np.searchsorted(known, children, "right") - np.searchsorted(known, children)

    def wants(child: int, share: int) -> int:
        """How many domains of the next level so many nodes of a child want."""
        if len(levels) == 1:
            return 0
        inner, sizes = np.unique(alone(levels[1][places[inverse == child]]), return_counts=True)
        return int(fewest(np.zeros_like(inner), sizes, share)[1][0])

    shares = _shares(counts, present, number, wants)
    taken = [_nearest(places[inverse == child], share, levels[1:], there[1:]) for child, share in sorted(shares)]
    return np.concatenate(taken)


def alone(domain: Ints) -> Ints:
    """The domains, each node that is in none in one of its own."""
    return np.where(domain < 0, -1 - np.arange(len(domain)), domain)


def _shares(counts: Ints, present: Ints, number: int, wants: Callable[[int, int], int]) -> list[tuple[int, int]]:
    """Domains and how many nodes of each: as few and as equal as can be, none larger than it must be.

    Args:
        counts: (domains,), nodes that each has.
        present: (domains,), nodes of the gang that are there already.
        number: How many to take.
        wants: How many domains of the next level so many nodes of a domain want.
    """
    order = np.lexsort((-counts, present == 0))
    enough = int(np.searchsorted(np.cumsum(counts[order]), number)) + 1
    chosen = order[: max(enough, int(np.count_nonzero(present)))].tolist()
    share = dict.fromkeys(chosen, 0)
    heap = [(int(present[child]), at, child) for at, child in enumerate(chosen)]
    heapq.heapify(heap)
    for _ in range(number):
        held, at, child = heapq.heappop(heap)
        share[child] += 1
        if share[child] < counts[child]:
            heapq.heappush(heap, (held + 1, at, child))
    known = [(child, own) for child, own in share.items() if present[child] and own]
    free = np.flatnonzero(present == 0).tolist()
    for own in sorted((own for child, own in share.items() if not present[child]), reverse=True):
        child = min(
            (child for child in free if counts[child] >= own), key=lambda child: (wants(child, own), counts[child])
        )
        free.remove(child)
        known.append((child, own))
    return known
