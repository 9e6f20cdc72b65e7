"""Which network domain a gang's pods go to: of all domains of a level at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dradriver.allocator.fleet import gang_rails
from dradriver.allocator.fleet.gang_nodes import GangNodes
from dradriver.allocator.sets.subsets import Bools, Ints

MOST_LOOKS = 1 << 17  # at nodes, one for each pattern of positions, to compare domains by what is on the same rails
_ITEM_BITS = 20  # of a key, for the size of an item; it is never more than the nodes of a cluster


class Demand(NamedTuple):
    """What the pods of one role require of their nodes.

    Attributes:
        pods: How many there are.
        least_pods_per_node: Fewest on a node that has none of the gang yet.
        most_nodes: Most nodes that have none of the gang yet.
        is_spread: Whether as many nodes as possible are taken, not as few.
    """

    pods: int
    least_pods_per_node: int
    most_nodes: int
    is_spread: bool


class Domain(NamedTuple):
    """The best domain.

    Attributes:
        at: Nodes of it that can be used: places in ``GangNodes``.
        number: How many of them are taken, not counting nodes that have pods of the gang already.
    """

    at: Ints
    number: int


def fewest(owner: Ints, size: Ints, needed: int, uncounted: Bools | None = None) -> tuple[Ints, Ints, Ints]:
    """Return for each owner (a domain) how many of its largest items (nodes) add up to at least ``needed``.

    For example, an owner is a network domain, its items are its nodes, and the size of a node is how many pods it
    holds.

    1. Leave out the owners whose items do not suffice.
    2. Sort the items: owner after owner, of each owner the largest first.
    3. For each owner find the first item at which the running sum reaches ``needed``.

    Args:
        owner: (n,), the owner of each item.
        size: (n,), the size of each item.
        needed: The sum that the items must reach.
        uncounted: (n,), bool, items that are taken first and not counted; None for none.

    Returns:
        Three arrays: the owners, ascending; for each the number of items; for each the size of all of its items.
    """
    if not len(owner):
        return owner, owner, owner
    has_enough = np.bincount(owner, size) >= needed
    kept = np.flatnonzero(has_enough[owner])
    if not len(kept):
        return kept, kept, kept
    owner, size = owner[kept], size[kept]
    is_counted = np.ones(len(kept), dtype=np.int64) if uncounted is None else 1 - uncounted[kept].astype(np.int64)

    # One key sorts by owner, then uncounted items before counted ones, then the largest first.
    order = np.argsort((owner << (_ITEM_BITS + 1)) + (is_counted << _ITEM_BITS) - size)
    owner, size, is_counted = owner[order], size[order], is_counted[order]
    starts = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))
    lengths = np.diff(np.append(starts, len(owner)))

    # Sums over all items before each one, and at the end over all. An owner's own sum is the difference from where its
    # items start.
    size_before, counted_before = (np.concatenate(([0], np.cumsum(each))) for each in (size, is_counted))
    is_reached = size_before[1:] - np.repeat(size_before[starts], lengths) >= needed

    # Counted from the end, so that the maximum is the first item at which the sum is reached.
    from_end = np.maximum.reduceat(np.where(is_reached, len(owner) - np.arange(len(owner)), 0), starts)
    end_of_taken = len(owner) - from_end + 1
    number = counted_before[end_of_taken] - counted_before[starts]
    return owner[starts], number, size_before[starts + lengths] - size_before[starts]


class _Fitting(NamedTuple):
    """The domains that hold all pods on as many nodes as is best.

    Attributes:
        at: (n,), all nodes that can be used.
        owner: (n,), the domain of each.
        owners: (d,), the domains that hold all, ascending.
        total: (d,), pods that each has room for.
        number: How many nodes are taken.
    """

    at: Ints
    owner: Ints
    owners: Ints
    total: Ints
    number: int


def nodes_needed(nodes: GangNodes, domain: Ints, demand: Demand, has_pods: Bools | None = None) -> int | None:
    """Return how many nodes of a network domain the gang takes in ``best``; None if no domain holds all pods."""
    found = _fitting(nodes, domain, demand, has_pods)
    return None if found is None else found.number


def best(nodes: GangNodes, domain: Ints, demand: Demand, *, inner: Ints | None = None, has_pods: Bools | None = None
         ) -> Domain | None:  # fmt: skip
    """Return the network domain that is best for the gang's pods; None if no domain holds them all.

    In this order: the fewest nodes (``spread``: the most); equal counts on them; the same positions of machines of one
    kind; the fewest domains of the next level, and these of equal size; the least room, so that large domains stay
    whole; the first by name. Worked example: 32 whole nodes of a spine with leaves of 18 and 14 free nodes, or of one
    with 16 and 16: two leaves either way, and the second is taken.

    Args:
        nodes: The nodes.
        domain: (nodes,), the domain of each; -1 for none.
        demand: What is wanted.
        inner: (nodes,), its domain of the next narrower level, every node in one; None where there is none.
        has_pods: (nodes,), whether it has pods of the gang already.
    """
    found = _fitting(nodes, domain, demand, has_pods)
    if found is None:
        return None
    chosen = found.owners[0]
    if len(found.owners) > 1 and found.number:
        chosen = _nearest(nodes, found, demand, inner)
    return Domain(found.at[found.owner == chosen], found.number)


def _fitting(nodes: GangNodes, domain: Ints, demand: Demand, has_pods: Bools | None) -> _Fitting | None:
    usable = (nodes.capacity >= demand.least_pods_per_node) & (domain >= 0)
    if has_pods is not None:
        usable |= has_pods & (nodes.capacity > 0) & (domain >= 0)
    at = np.flatnonzero(usable)
    owner, capacity = domain[at], nodes.capacity[at]
    owners, number, total = fewest(owner, capacity, demand.pods, None if has_pods is None else has_pods[at])
    if not len(owners):
        return None
    if demand.is_spread:
        size = np.bincount(owner if has_pods is None else owner[~has_pods[at]], minlength=int(owners[-1]) + 1)[owners]
        number = np.where(number <= demand.most_nodes, np.maximum(np.minimum(size, demand.most_nodes), number), number)
    fits = number <= demand.most_nodes
    if not fits.any():
        return None
    chosen = int(number[fits].max() if demand.is_spread else number[fits].min())
    fits &= number == chosen
    return _Fitting(at, owner, owners[fits], total[fits], chosen)


def _nearest(nodes: GangNodes, found: _Fitting, demand: Demand, inner: Ints | None) -> int:
    """Return the best of the domains that need equally many nodes."""
    owners, number, size = found.owners, found.number, int(found.owners[-1]) + 1
    among = np.zeros(size, dtype=np.bool_)
    among[owners] = True
    those = (found.owner < size) & among[np.minimum(found.owner, size - 1)]
    at, owner = found.at[those], found.owner[those]

    # 1. Domains without enough nodes for equal counts. 2. Those without the same positions free on enough nodes.
    # 3. How many domains of the next level they need, and the smallest share there.
    even, left_over = divmod(demand.pods, number)
    unequal = np.ones(size, dtype=np.bool_)
    if not left_over:
        has_room = nodes.capacity[at] >= even
        unequal = np.bincount(owner[has_room], minlength=size) < number
    if unequal[owners].all():
        apart = unequal
        pieces, smallest = _pieces(owner, inner[at] if inner is not None else None, number, size)
    else:
        apart, pieces, smallest = _on_rails(
            nodes, at[has_room], owner[has_room], inner, number=number, count=even, size=size
        )
    keys = owners, found.total, -smallest[owners], pieces[owners], apart[owners], unequal[owners]
    return int(owners[np.lexsort(keys)[0]])


def _on_rails(
    nodes: GangNodes, at: Ints, owner: Ints, inner: Ints | None, *, number: int, count: int, size: int
) -> tuple[Bools, Ints, Ints]:
    """Whether a domain has no nodes with the same positions free; and as ``_pieces``, of those that have."""
    apart = np.ones(size, dtype=np.bool_)
    pieces, smallest = _pieces(owner, None if inner is None else inner[at], number, size)
    every = gang_rails.patterns(nodes, at, number=number, count=count)
    looked_at = inner is not None and len(every) * len(at) <= MOST_LOOKS
    for pattern in every:
        has = gang_rails.have(nodes, at, pattern)
        there = np.bincount(owner[has], minlength=size) >= number
        if looked_at and inner is not None:
            with_these, least = _pieces(owner[has], inner[at[has]], number, size)
            better = there & (apart | (with_these < pieces) | ((with_these == pieces) & (least > smallest)))
            pieces, smallest = np.where(better, with_these, pieces), np.where(better, least, smallest)
        apart &= ~there
    return apart, pieces, smallest


def _pieces(owner: Ints, inner: Ints | None, number: int, size: int) -> tuple[Ints, Ints]:
    """Per domain the fewest inner ones that have so many nodes, and how many nodes the smallest of these can get."""
    if inner is None:
        return np.ones(size, dtype=np.int64), np.full(size, number, dtype=np.int64)
    pairs, counts = np.unique(owner << 32 | inner, return_counts=True)
    whose = pairs >> 32
    owners, pieces, _ = fewest(whose, counts, number)
    out, smallest = np.full(size, number, dtype=np.int64), np.zeros(size, dtype=np.int64)
    out[owners] = pieces
    order = np.lexsort((-counts, whose))
    starts = np.searchsorted(whose[order], owners)
    smallest[owners] = np.minimum(counts[order][starts + pieces - 1], number // pieces)
    return out, smallest
