"""Computes the least cost of several fractions (shares or MIG slices) of one pod on each node. ``part_sets`` calls it.

It is the exact search of ``part_assignment.py`` for many nodes at once. The search takes the same steps on every node,
so it runs for all nodes together, with numpy. It adds one GPU after another. Equal fractions are of one kind, and a
combination is a number of fractions of each kind. For each combination that the GPUs so far can hold, it keeps the
least cost, as an array over the nodes.

``FAR`` is the cost on a node without a place.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from dradriver.allocator.choice.best_set import best_set
from dradriver.allocator.fleet.part_nodes import Nodes
from dradriver.allocator.parts.layouts import NONE
from dradriver.allocator.parts.part_assignment import OPENING
from dradriver.allocator.parts.part_requests import Ask, Counts, every_count
from dradriver.allocator.sets.masks import positions_of
from dradriver.allocator.sets.subsets import Array, Ints
from dradriver.allocator.sets.tables import Tables, remembered

FAR: Final = 1 << 50  # the cost where there is no place
_NOT_YET = np.int32(NONE // 2)  # the sum with any cost stays within 32 bits


class Step(NamedTuple):
    """One step of the search: adding ``more`` fractions on one GPU turns ``placed`` fractions into ``total`` fractions.

    Each is a combination of fractions, as an index into the list of all combinations (``every_count``). ``more`` has at
    least one fraction.
    """

    total: int
    placed: int
    more: int


@lru_cache(maxsize=256)
def steps(wanted: Counts) -> list[Step]:
    """Return all steps of the search; the steps to the largest totals come first.

    A step adds some fractions on one more GPU to the fractions placed so far. The costs are lowered in place. In this
    order each step reads only costs that do not include the current GPU yet, so no GPU is used twice. ``wanted`` is the
    number of requested fractions of each kind.
    """
    every = every_count(wanted)
    number = {counts: at for at, counts in enumerate(every)}
    return [
        Step(number[total], number[tuple(map(int.__sub__, total, more))], number[more])
        for total in reversed(every)
        for more in itertools.product(*(range(count + 1) for count in total))
        if any(more)
    ]


def least_costs(ask: Ask, nodes: Nodes, slots: Ints, *, enough: int) -> Ints:
    """Return the least cost of all fractions of a pod on each node of one group.

    The cost says what later pods lose; lower is better.

    Args:
        ask: The request for fractions.
        nodes: The nodes of one group.
        slots: The slots (indices in the group) of the nodes to evaluate, ascending.
        enough: If at least this number of nodes have a place on GPUs that have fractions already, places on empty GPUs
            are not computed. The other nodes then get ``FAR``.

    Returns:
        (len(slots),) int64; ``FAR`` for a node without a place.
    """
    rooms = nodes.rooms  # what the GPUs have free for fractions

    # 1. The GPUs that have fractions already. ``least_so_far[i]`` is the least cost on each node, (len(slots),), of
    #    placing the i-th part of the request. ``every_count`` lists these parts, from no fraction to the whole request,
    #    for example for 2 + 1 fractions: (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1).
    least_so_far = [np.full(len(slots), _NOT_YET) for _ in every_count(ask.wanted)]
    for position in positions_of(nodes.suitable):
        # ``each_cost``: what each part of the request costs on the GPU at this position, on each node.
        _lower_by_one_gpu(ask.wanted, least_so_far, ask.each_cost(rooms, position, slots))
    costs = least_so_far[-1].astype(np.int64)
    is_missing = least_so_far[-1] == _NOT_YET
    costs[is_missing] = FAR

    # By node, the mask of empty GPUs that may be opened for fractions of this kind.
    opening = rooms.opening(sliced=ask.sliced)[slots] & np.uint16(nodes.openable)
    if len(slots) - int(is_missing.sum()) >= enough or not (is_missing & (opening > 0)).any():
        return costs

    # 2. Then empty GPUs are opened, on the nodes that have no place without. Their cost does not fit into 32 bits.
    with_empty_gpus = np.flatnonzero(is_missing & (opening > 0))
    least_wide = [
        np.where(row[with_empty_gpus] == _NOT_YET, FAR, row[with_empty_gpus].astype(np.int64)) for row in least_so_far
    ]

    # ``part_assignment.assign`` later places the pod on the chosen node, and must find the same cost. It numbers the
    # node's GPUs, those in use first, and opening number ``i`` costs ``OPENING + i``. So the first empty GPU has the
    # number ``used_gpus``.
    used_gpus = np.bitwise_count(rooms.masks_with_fractions[slots[with_empty_gpus]] & np.uint16(nodes.suitable))
    _open(ask, nodes, least_wide, opening[with_empty_gpus], used_gpus.astype(np.int64))
    costs[with_empty_gpus] = np.minimum(least_wide[-1], FAR)
    return costs


def _lower_by_one_gpu(wanted: Counts, reached: list[Array], costs: Mapping[int, Array]) -> None:
    """Add one more GPU of each node to the search: lower the costs in ``reached``, in place.

    ``reached`` has for each combination of fractions the least cost on each node. ``costs`` has for each combination
    its cost on the new GPU alone. ``wanted`` is the number of requested fractions of each kind.
    """
    for total, placed, more in steps(wanted):
        if more in costs:
            np.minimum(reached[total], costs[more] + reached[placed] if placed else costs[more], out=reached[total])


def _open(ask: Ask, nodes: Nodes, reached: list[Array], opening: Array, used_gpus: Ints) -> None:
    """Add each node's empty GPUs to the search: lower the costs in ``reached``, in place.

    First come the GPUs that later requests for whole GPUs can best do without (``order``).

    Args:
        ask: The request for fractions.
        nodes: The nodes of one group.
        reached: For each combination of fractions the least cost on each node.
        opening: For each node the bit mask of the empty GPUs that may be used.
        used_gpus: For each node the number of GPUs that are in use by fractions.
    """
    rooms = nodes.rooms
    g = len(rooms.layouts)
    empty = np.full((len(reached), g + 1), FAR, dtype=np.int64)  # the last is no GPU
    for position in positions_of(nodes.openable):
        for way, cost in ask.each_cost_empty(rooms, position).items():
            empty[way, position] = cost
    ways = [way for way in range(1, len(reached)) if empty[way].min() < FAR]
    first = order(nodes.group.tables, int(np.bitwise_or.reduce(opening)))
    alike = all((empty[:, position] == empty[:, first[0]]).all() for position in first)
    orders = _orders(nodes.group.tables, opening, g)
    for nth in range(min(len(first), sum(ask.wanted)) if alike else len(first)):
        position = orders[opening, nth]
        opening_costs = used_gpus + (OPENING + nth)  # by node; the same as in ``part_assignment.assign``
        _lower_by_one_gpu(ask.wanted, reached, {way: empty[way][position] + opening_costs for way in ways})


def _orders(tables: Tables, masks: Array, g: int) -> Array:
    """Return for each mask of GPUs in ``masks`` a list of its GPUs, in order of use.

    First come the GPUs that later requests for whole GPUs can best do without (``order``). ``tables`` has the figures
    of all sets of GPUs. The shape is (2**g, g) for g GPUs; the index is the mask. A row with fewer than g GPUs is
    filled up with ``g``.
    """
    out = np.full((1 << g, g), g, dtype=np.int8)
    for mask in np.flatnonzero(np.bincount(masks)).tolist():
        positions = order(tables, mask)
        out[mask, : len(positions)] = positions
    return out


@remembered
def order(tables: Tables, mask: int) -> tuple[int, ...]:
    """Return the GPUs of a bit mask in the order in which they should be used for fractions.

    ``tables`` has the figures of all sets of GPUs. First comes the GPU that later requests for whole GPUs can best do
    without.
    """
    positions: list[int] = []
    while mask:
        taken = best_set(tables, mask, gpus=1)
        assert taken is not None, "a GPU is free"
        positions += positions_of(taken)
        mask &= ~taken
    return tuple(positions)
