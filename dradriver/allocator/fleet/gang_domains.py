"""Chooses a network domain, such as a rack, for a gang's pods. ``role_plan`` calls it.

A *role* is all pods of a gang that are equal. All domains of a network level are compared at once, with numpy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dradriver.allocator.fleet import gang_rails
from dradriver.allocator.fleet.gang_nodes import GangNodes
from dradriver.allocator.sets.subsets import Bools, Ints

MOST_LOOKS = 1 << 17  # at nodes, one for each pattern of positions, to compare domains by what is on the same rails
_ITEM_BITS = 20  # of a key, for the size of an item; it is never more than the nodes of a cluster


class Demand(NamedTuple):
    """The requirements of one role's pods for their nodes.

    Attributes:
        pods: The number of pods.
        least_pods_per_node: The fewest pods that a node gets if it has no pods of the gang yet.
        most_nodes: How many nodes without pods of the gang may be used at most.
        is_spread: Whether the pods use as many nodes as possible. If not, they use as few as possible.
    """

    pods: int
    least_pods_per_node: int
    most_nodes: int
    is_spread: bool


class Domain(NamedTuple):
    """The best network domain for a role's pods.

    Attributes:
        at: The usable nodes of the domain, as indices into ``GangNodes`` (all usable nodes).
        number: How many nodes without pods of the gang are used.
    """

    at: Ints
    number: int


def fewest(owner: Ints, size: Ints, needed: int, uncounted: Bools | None = None) -> tuple[Ints, Ints, Ints]:
    """Return for each owner how many of its largest items add up to at least ``needed``.

    For example, an owner is a network domain, its items are its nodes, and the size of a node is how many pods it
    holds.

    1. Leave out the owners whose items do not suffice.
    2. Sort the items by owner, and the items of each owner by size, the largest first.
    3. For each owner find the first item at which the running sum reaches ``needed``.

    Args:
        owner: (items,), the number of the owner of each item.
        size: (items,), the size of each item.
        needed: The sum that the items must reach.
        uncounted: (items,), bool, items that are taken first and not counted; None for none.

    Returns:
        Three arrays: the owners, ascending; for each owner the number of items; for each owner the size of all its
        items.
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
    """The network domains that can hold all pods on the best possible number of nodes.

    Attributes:
        at: (nodes,), all usable nodes, as indices into ``GangNodes``.
        owner: (nodes,), the domain of each of these nodes.
        owners: (domains,), the domains that can hold all pods, ascending.
        total: (domains,), how many pods each of these domains can hold.
        number: How many nodes are used.
    """

    at: Ints
    owner: Ints
    owners: Ints
    total: Ints
    number: int


def nodes_needed(nodes: GangNodes, domain: Ints, demand: Demand, has_pods: Bools | None = None) -> int | None:
    """Return how many nodes a gang's pods use in the best network domain.

    The result is None if no domain holds all pods. Nodes that have pods of the gang already are not counted. ``domain``
    is the domain of each node, ``demand`` the requirements of the pods. ``has_pods`` says which nodes have pods of the
    gang already.
    """
    found = _fitting(nodes, domain, demand, has_pods)
    return None if found is None else found.number


def best(nodes: GangNodes, domain: Ints, demand: Demand, *, inner: Ints | None = None, has_pods: Bools | None = None
         ) -> Domain | None:  # fmt: skip
    """Return the network domain that is best for the gang's pods.

    The result is None if no domain holds them all. The criteria in their order:

    1. the fewest nodes (with ``spread``: the most)
    2. the same number of pods on all nodes
    3. the same GPU positions on machines of one kind
    4. the fewest domains of the next narrower level, and then equal numbers of nodes in these domains
    5. the smallest domain, so that large domains stay whole
    6. the first domain by name

    Worked example: a gang needs 32 whole nodes. One spine has leaves with 18 and 14 free nodes, another spine has
    leaves with 16 and 16. Both need two leaves, and the second spine is taken.

    Args:
        nodes: The nodes.
        domain: (nodes,), the domain of each; -1 for none.
        demand: The requirements of the pods.
        inner: (nodes,), the domain of each node in the next narrower level, in which every node has a domain; None if
            there is no narrower level.
        has_pods: (nodes,), whether a node has pods of the gang already.
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
    """Return the number of the best of several domains that need equally many nodes.

    ``found`` has these domains, ``demand`` the requirements of the pods. ``inner`` is the domain of each node in the
    next narrower level; None if there is none.
    """
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
    """Return three arrays by domain: how well its nodes can use equal GPU positions.

    1. bool: False if some GPU positions are free on at least ``number`` nodes of the domain, so that all pods can use
       the same positions; else True
    2. int64: how many narrower domains these nodes need
    3. int64: the fewest nodes that one of these narrower domains gives

    The last two arrays are those of ``_pieces``. They are about all nodes of the domain if the first value is True, or
    if there are too many sets of GPU positions to compare.

    Args:
        nodes: The table of nodes.
        at: The usable nodes, as indices into ``nodes``.
        owner: The domain of each of these nodes.
        inner: The domain of each node of the table in the next narrower level; None if there is none.
        number: How many nodes are used.
        count: The number of pods on each of them.
        size: The number of domains.
    """
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
    """Return for each domain the fewest narrower domains that have ``number`` of its nodes.

    The narrower domains share these nodes as evenly as they can. The second array has the fewest nodes that one of
    these narrower domains gives. ``owner`` and ``inner`` are the domain and the narrower domain of each node. ``inner``
    is None if there is no narrower level: then the two values are 1 and ``number``. ``size`` is the number of domains.
    """
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
