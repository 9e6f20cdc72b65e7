"""Orders the nodes of a cluster for a request. ``Fleet.rank`` calls it.

A caller tries the *fallback levels* of a request one after another. At each level a set must meet all required
constraints and one preferred constraint. At the last level it must meet only the required ones.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from dradriver.allocator.choice.best_set import TABULATED, best_sets
from dradriver.allocator.choice.set_order import keep_order, preference
from dradriver.allocator.fleet.candidates import Candidates
from dradriver.allocator.fleet.node_group import NodeGroup
from dradriver.allocator.request import NodeWeights, Strategy, Whole
from dradriver.allocator.sets.criteria import Criteria
from dradriver.allocator.sets.masks import positions_of
from dradriver.allocator.sets.subsets import Array, Ints
from dradriver.allocator.sets.tables import Tables

_BEST_EIGHT, _FOURS = 0, 3  # rows of ``Tables.still_offered``
_MOST_MASKS = 512  # of large machines, of which the set is looked up at once; those with the fewest GPUs free first


class Option(NamedTuple):
    """The GPUs that a pod would take on candidate nodes with equal free GPUs.

    The nodes have the same kind of machine.

    Attributes:
        cost: Numbers that are compared one after another, the lowest first. Costs of different groups can be compared.
        candidates: The candidate nodes of the group.
        free: The bit mask of the free GPUs.
        taken: The bit mask of the set that the pod takes.
    """

    cost: tuple[float, ...]
    candidates: Candidates
    free: int
    taken: int


def ties(
    candidates: Sequence[Candidates], request: Whole, *, fallback_level: Criteria, passed: Sequence[Criteria]
) -> Iterator[list[Option]]:
    """Yield lists of equally good nodes that reach a fallback level, the best first.

    Nodes that reach a better level are left out. The criteria in their order:

    1. The most bandwidth.
    2. The weights, if the request has some. The lowest value of ``price * relative_price - utilisation * allocated`` is
       best. ``relative_price`` is the mean price of the set's GPUs relative to the dearest GPU. ``allocated`` is the
       allocated fraction of the node's GPUs.
    3. The strategy:

    * ``best-fit``: what later pods lose if the set is taken, then the fewest free GPUs. The loss is in GB/s. The loss
      compares what the node can still offer before and after: the best set of 8, 4 and 2, and all disjoint sets of 4
      and of 2. If all sets of a size are equal on every node, only the best set of 8 and all disjoint sets of 4 count.
    * ``pack``: the fewest free GPUs, then what later pods lose.
    * ``spread``: the most free GPUs, then what later pods lose.
    * ``first-fit``: nothing; names decide.

    Worked example: one GPU is requested. Node a has a whole NVLink pair free, node b a pair and a single GPU.
    ``best-fit`` and ``spread`` take the single GPU of b, ``pack`` and ``first-fit`` take a GPU of a.

    ``best-fit`` compares less if all sets are equal, for a reason: names then decide between most nodes, always in the
    same order, so that the last nodes become empty. A closer fit (keep pairs, take the fewest free GPUs) would spread
    jobs over all nodes, and pods that need whole nodes would wait longer than with first-fit. This was measured with
    ``gputopo simulate --machine dgx-h100``.

    Args:
        candidates: The nodes, by kind of machine. Nodes of one kind share the figures of all sets of GPUs.
        request: The pod's request.
        fallback_level: The criteria of the fallback level that the nodes must reach.
        passed: The criteria of the better levels, which were tried before.
    """
    # Whether no node has a set that is better than another of its size.
    is_alike = all(nodes.group.tables.has_equal_sets for nodes in candidates)
    streams = [
        _options(nodes, request, fallback_level=fallback_level, passed=passed, alike=is_alike) for nodes in candidates
    ]

    # Each stream has one option for each different mask of free GPUs of a kind, the cheapest first. ``NodeWeights`` are
    # weights that also compare nodes, by price and utilisation.
    if isinstance(weights := request.weights, NodeWeights):
        streams = [_weighed(options, weights) for options in streams]

    # Each stream is ordered by cost already: merge them, and group options of equal cost.
    cost = attrgetter("cost")
    for _, equal in itertools.groupby(heapq.merge(*streams, key=cost), key=cost):
        yield list(equal)


def named(tie: list[Option], limit: int) -> list[tuple[str, NodeGroup, int]]:
    """Return the first ``limit`` of some equally good nodes, sorted by name.

    ``tie`` has these nodes as options: each stands for the nodes of a group with the same free GPUs, and for the set to
    take there. Each node comes with its group, and with the bit mask of the set to take.
    """
    taken: dict[Candidates, dict[int, int]] = {}
    for option in tie:
        taken.setdefault(option.candidates, {})[option.free] = option.taken
    entries = [
        (name, each.group, sets[free]) for each, sets in taken.items() for name, free in each.first(sets.keys(), limit)
    ]
    entries.sort(key=lambda entry: entry[0])
    return entries[:limit]


def _options(
    candidates: Candidates, request: Whole, *, fallback_level: Criteria, passed: Sequence[Criteria], alike: bool
) -> Iterator[Option]:
    """Yield the options of the nodes of one group, the cheapest first.

    An option is the set that the pod would take on nodes with the same free GPUs. ``fallback_level`` has the criteria
    that the set must meet, ``passed`` those of the better levels. ``alike`` says that all sets of one size are equal on
    every node.
    """
    tables, gpus = candidates.group.tables, request.gpus
    include = candidates.group.include(request)
    if gpus > tables.size or include is None:
        return
    masks = candidates.masks
    criteria = fallback_level.including(include)
    masks = masks[tables.has(gpus, masks, criteria)]
    for above in passed:
        masks = masks[~tables.has(gpus, masks, above.including(include))]
    if not len(masks):
        return
    for rows in _ordered(tables, masks, request, criteria=criteria.any_busbw, alike=alike):
        for row in rows:
            free, taken, *cost = row.tolist()
            yield Option(tuple(cost), candidates, int(free), int(taken))


def _weighed(options: Iterator[Option], weights: NodeWeights) -> Iterator[Option]:
    """Return options with the price and the utilisation of nodes added to their costs.

    An option is a set of GPUs that a pod could take on nodes of one group. The cheapest option comes first. ``weights``
    say how much both count. Price and utilisation are compared right after bandwidth.
    """
    relative: dict[str, float] = {}

    def cost(option: Option) -> tuple[float, ...]:
        group = option.candidates.group
        products = [group.machine.gpus[position].product for position in positions_of(option.taken)]
        for product in products:
            if product not in relative:
                relative[product] = weights.relative_price(product)
        price = sum(relative[product] for product in products) / len(products)
        taken = 1 - option.free.bit_count() / group.tables.size
        term = weights.price * price - weights.utilisation * taken
        return (option.cost[0], round(term, 9), *option.cost[1:])

    return iter(sorted((option._replace(cost=cost(option)) for option in options), key=attrgetter("cost")))


def _ordered(tables: Tables, masks: Ints, request: Whole, *, criteria: Criteria, alike: bool) -> Iterator[Array]:
    """Yield arrays of options, the cheapest options first, one row for each option.

    The arrays are float64. An option is the set that a pod would take on nodes with the same free GPUs. The columns are
    the mask of free GPUs, the mask of the set, and the parts of the cost. ``tables`` has the figures of all sets,
    ``criteria`` what a set must have. ``alike`` says that all sets of one size are equal.
    """
    if tables.size <= TABULATED:
        key = ("node order", request.gpus, criteria, preference(request), alike)
        rows = tables.row(key, lambda: _tabulate(tables, request, criteria, alike=alike))
        present = np.zeros(1 << tables.size, dtype=np.bool_)
        present[masks] = True
        yield rows[present[rows[:, 0].astype(np.int64)]]
        return
    value = tables.best(request.gpus, criteria)[masks].round(2)
    for most in np.unique(value)[::-1]:
        equal = masks[value == most]
        count = np.bitwise_count(equal).astype(np.int64)
        equal = equal[np.argsort(-count if request.strategy is Strategy.SPREAD else count, kind="stable")]
        for block, start in enumerate(range(0, len(equal), _MOST_MASKS)):
            some = np.sort(equal[start : start + _MOST_MASKS])
            yield _rows(tables, some, request, criteria=criteria, alike=alike, block=block)


def _tabulate(tables: Tables, request: Whole, criteria: Criteria, *, alike: bool) -> Array:
    masks = np.arange(1 << tables.size)
    having = masks[tables.has(request.gpus, masks, criteria)]
    return _rows(tables, having, request, criteria=criteria, alike=alike)


def _rows(tables: Tables, masks: Ints, request: Whole, *, criteria: Criteria, alike: bool, block: int = 0) -> Array:
    gpus = request.gpus
    taken = best_sets(tables, masks, gpus=gpus, criteria=criteria, preference=preference(request))
    value = tables.best(gpus, criteria)[masks].astype(np.float64).round(2)
    count = np.bitwise_count(masks).astype(np.float64)
    every = (tables.still_offered[:, masks] - tables.still_offered[:, masks ^ taken]).round(2).astype(np.float64)
    lost = every[list(keep_order(gpus))]
    by_strategy = {
        Strategy.BEST_FIT: [every[_BEST_EIGHT], every[_FOURS]] if alike else [*lost, count],
        Strategy.PACK: [count, *lost],
        Strategy.SPREAD: [-count, *lost],
        Strategy.FIRST_FIT: [],
    }[request.strategy]
    cost = [-value, np.full(len(masks), float(block)), *by_strategy]
    rows: Array = np.stack([masks, taken, *cost], axis=1)
    return rows[np.lexsort(cost[::-1])]
