"""Finds the workloads that must leave a node so that it gets a free set.

``gputopo`` calls it to find workloads to move. A *way* is a smallest possible group of workloads that must leave. If
one of them stayed, the set of GPUs would not be free. Ways are sorted by cost. So the caller can take the first way
whose workloads find places elsewhere.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from dradriver.allocator.choice.best_set import best_set
from dradriver.allocator.sets.tables import Tables

MOST_UNITS: Final = 12  # on one node, the cheapest of them: 4,096 ways to be looked at
_SLACK: Final = 1e-6

U = TypeVar("U", bound=Hashable)


class Node(NamedTuple, Generic[U]):
    """One node with its free GPUs and the workloads that can move.

    Attributes:
        name: The node's name.
        tables: The bandwidth and other figures of all sets of its machine's GPUs.
        free: The bit mask of its free GPUs.
        whole: The bit mask of the GPUs that can be used as whole GPUs, free or not. The best set of the node is looked
            for among these.
        held: By workload that can move, the bit mask of the GPUs that only this workload uses.
    """

    name: str
    tables: Tables
    free: int
    whole: int
    held: Mapping[U, int]


class Way(NamedTuple, Generic[U]):
    """The workloads that would have to leave, so that one node gets a free set.

    Attributes:
        lost: The total cost if these workloads leave.
        node: The node.
        units: The workloads that would have to leave, the cheapest first.
        gpus: The bit mask of the set that becomes free.
    """

    lost: float
    node: str
    units: tuple[U, ...]
    gpus: int


def ways(nodes: Iterable[Node[U]], lost: Mapping[U, float], size: int) -> list[Way[U]]:
    """Return the ways to free one more set of ``size`` GPUs, cheapest first.

    A way is the workloads that have to move. The freed set is as good as the best set of that size on the node: pods
    would not want a worse one. Nodes that already have a free set of that quality are left out. On each node, only the
    12 workloads are considered whose move costs least.

    Args:
        nodes: The nodes.
        lost: The cost of moving each workload away from all its nodes.
        size: The number of GPUs of the set.
    """
    found: list[Way[U]] = []
    for node in nodes:
        found += _of_node(node, lost, size)
    return sorted(found, key=lambda way: (way.lost, len(way.units), way.node, tuple(map(str, way.units))))


def _of_node(node: Node[U], lost: Mapping[U, float], size: int) -> list[Way[U]]:
    if node.whole.bit_count() < size or good_set(node.tables, node.free, node.whole, size) is not None:
        return []
    # The workloads whose end costs least, and the GPUs of each as a mask.
    units = sorted(node.held, key=lambda unit: (lost[unit], str(unit)))[:MOST_UNITS]
    masks = [node.held[unit] for unit in units]
    ways: list[Way[U]] = []
    enough: list[int] = []  # sets of workloads, as masks over ``units``, that free a good set of GPUs

    # The smallest sets of workloads first. A set that contains one that was enough ends a workload for nothing.
    for ended in sorted(range(1, 1 << len(units)), key=int.bit_count):
        if any(ended & less == less for less in enough):
            continue
        free = node.free | _together(masks, ended)
        if free.bit_count() < size:
            continue
        gpus = good_set(node.tables, free, node.whole, size)
        if gpus is not None:
            enough.append(ended)
            ended_units = tuple(unit for number, unit in enumerate(units) if ended >> number & 1)
            ways.append(Way(sum(lost[unit] for unit in ended_units), node.name, ended_units, gpus))
    return ways


def _together(masks: Sequence[int], some: int) -> int:
    together = 0
    for number, mask in enumerate(masks):
        if some >> number & 1:
            together |= mask
    return together


def good_set(tables: Tables, free: int, whole: int, size: int) -> int | None:
    """Return a free set of ``size`` GPUs as good as the machine's best one.

    The result is a bit mask; None if there is no such set.

    Args:
        tables: The bandwidth and other figures of all sets of the machine's GPUs.
        free: The bit mask of its free GPUs.
        whole: The bit mask of the GPUs that can be used as whole GPUs, free or not. The best set is looked for among
            these.
        size: The number of GPUs of the set.
    """
    best, chosen = best_set(tables, whole, gpus=size), best_set(tables, free, gpus=size)
    if best is None or chosen is None or tables.busbw[chosen] < tables.busbw[best] - _SLACK:
        return None
    return chosen
