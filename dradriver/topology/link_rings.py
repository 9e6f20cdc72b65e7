"""Rings of direct links through sets of GPUs: which sets have one, and how strong its weakest step can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from operator import itemgetter

from dradriver.topology.machine import Machine


class Rings:
    """The direct links among some GPUs, as one bit mask of neighbours for each GPU and number of links.

    A set has a ring of ``n`` links when a cycle through all its members takes only pairs with at least that many
    (NCCL's rings do). Two GPUs have a ring when they are linked.
    """

    def __init__(self, machine: Machine, members: Sequence[int]) -> None:
        """Prepare for subsets of ``members``, GPU positions."""
        self.members = tuple(members)
        self.links = [[machine.links[i][j] for j in self.members] for i in self.members]
        self.paths = [[int(machine.paths[i][j]) for j in self.members] for i in self.members]
        counts = {count for row in self.links for count in row} - {0}
        self.near = {
            least: [sum(1 << b for b, count in enumerate(row) if count >= least) for row in self.links]
            for least in sorted(counts, reverse=True)
        }

    def weakest(self, places: Sequence[int]) -> int:
        """Return how many links the weakest step of the best ring of links through ``places`` has; 0 without a ring."""
        if len(places) == 2:
            return self.links[places[0]][places[1]]
        pick = itemgetter(*places)
        bound = min(sorted(pick(self.links[b]))[-2] for b in places)  # a ring takes two links of each member
        mask = sum(1 << b for b in places)
        return next((n for n, near in self.near.items() if n <= bound and _has_ring(near, places, mask)), 0)

    def sets(self, size: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield the places of every set of ``size`` members with a ring of links, and the set's value.

        The value is four numbers, the higher the better: the links that the least linked GPU has inside, the ring's
        weakest step, all links inside, and less the distance over PCIe.
        """
        for places in combinations(range(len(self.members)), size):
            weakest = self.weakest(places)
            if weakest:
                pick = itemgetter(*places)
                inside = [sum(pick(self.links[b])) for b in places]
                far = sum(sum(pick(self.paths[b])) for b in places) // 2
                yield places, (min(inside), weakest, sum(inside), -far)


def _has_ring(near: Sequence[int], places: Sequence[int], mask: int) -> bool:
    degrees = [(near[b] & mask).bit_count() for b in places]
    if min(degrees) < 2:
        return False
    if min(degrees) * 2 >= len(places):  # Dirac 1952
        return True
    start = places[degrees.index(min(degrees))]
    return _closes(near, start, start, mask & ~(1 << start), set())


def _closes(near: Sequence[int], start: int, end: int, left: int, dead: set[tuple[int, int]]) -> bool:
    """Return whether a path from ``end`` through all of ``left`` can end beside ``start``; ``dead``: what cannot."""
    if not left:
        return bool(near[end] >> start & 1)
    if (end, left) in dead:
        return False
    steps = near[end] & left
    while steps:
        low = steps & -steps
        if _closes(near, start, low.bit_length() - 1, left ^ low, dead):
            return True
        steps ^= low
    dead.add((end, left))
    return False
