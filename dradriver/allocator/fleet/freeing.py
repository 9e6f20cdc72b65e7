"""Which of those that hold GPUs would have to go elsewhere, so that a node has a free set of a size, and at what cost.

A way is the fewest that are needed: without one of them the set would not be free. All ways come in the order of what
is lost by them, so that the first one whose units find places elsewhere is the cheapest there is.
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
    """One node.

    Attributes:
        name: Its name.
        tables: The tables of its machine.
        free: The mask of its free GPUs.
        whole: That of all that are handed out whole: what its best set is measured by.
        held: The masks of those that hold some and may go, each alone on its GPUs.
    """

    name: str
    tables: Tables
    free: int
    whole: int
    held: Mapping[U, int]


class Way(NamedTuple, Generic[U]):
    """Units that would have to go, for a set of one node.

    Attributes:
        lost: What is lost by it: of all units together.
        node: The node.
        units: The units, in the node's order.
        gpus: The mask of the set that is free then.
    """

    lost: float
    node: str
    units: tuple[U, ...]
    gpus: int


def ways(nodes: Iterable[Node[U]], lost: Mapping[U, float], size: int) -> list[Way[U]]:
    """Return the ways of freeing one more set of so many GPUs on a node by moving workloads, the cheapest first.

    It is as good a set as the node has of that size: a worse one is no set that anybody asks for. Nodes that have a
    free one already have none.

    Args:
        nodes: The nodes.
        lost: What is lost when each unit goes; it goes from all its nodes.
        size: GPUs of a set.
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
    """Return the free set of a size that needs no freeing: as good as the machine's best; None if there is none."""
    best, chosen = best_set(tables, whole, gpus=size), best_set(tables, free, gpus=size)
    if best is None or chosen is None or tables.busbw[chosen] < tables.busbw[best] - _SLACK:
        return None
    return chosen
