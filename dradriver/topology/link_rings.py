"""Rings of direct links through sets of GPUs: which sets have a ring, and how good the ring is. ``groups`` uses it.

A step of a ring is a pair of neighbours in it. A ring is as good as its weakest step, the step with the fewest links.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from operator import itemgetter

from dradriver.topology.machine import Machine


class Rings:
    """The direct links among some GPUs, to search for rings through them.

    A set has a ring of ``n`` links if a cycle visits all its members, and each pair of neighbours in the cycle has at
    least ``n`` links (as in NCCL's rings). Two GPUs have a ring if they are linked.
    """

    def __init__(self, machine: Machine, members: Sequence[int]) -> None:
        """Prepare the search in subsets of ``members``, which are GPU positions."""
        self.members = tuple(members)
        self.links = [[machine.links[i][j] for j in self.members] for i in self.members]
        self.paths = [[int(machine.paths[i][j]) for j in self.members] for i in self.members]
        counts = {count for row in self.links for count in row} - {0}
        self.near = {
            least: [sum(1 << b for b, count in enumerate(row) if count >= least) for row in self.links]
            for least in sorted(counts, reverse=True)
        }

    def weakest(self, places: Sequence[int]) -> int:
        """Return how many links the weakest step of the best ring has.

        The ring goes through ``places``, which are indices into the ``members`` with which the object was made. A step
        is a pair of neighbours in the ring; the weakest step has the fewest links. The result is 0 without a ring.
        """
        if len(places) == 2:
            return self.links[places[0]][places[1]]
        pick = itemgetter(*places)
        bound = min(sorted(pick(self.links[b]))[-2] for b in places)  # a ring takes two links of each member
        mask = sum(1 << b for b in places)
        return next((n for n, near in self.near.items() if n <= bound and _has_ring(near, places, mask)), 0)

    def sets(self, size: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield every set of ``size`` GPUs with a ring of links, and the set's value.

        A set is given as indices into the ``members`` with which the object was made. The value is four numbers, the
        higher the better:

        1. the links that the least linked GPU has inside the set
        2. the links of the ring's weakest step
        3. all links inside
        4. the sum of the PCIe distances inside, as a negative number, so that near GPUs are better
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
    """Return whether a path through ``end`` can be completed to a ring.

    From ``end``, the path must visit all GPUs of ``left`` and finish at a neighbour of ``start``.

    Args:
        near: For each GPU, the bit mask of its neighbours.
        start: The GPU to which the path must return.
        end: The last GPU of the path so far.
        left: The bit mask of GPUs that the path has not visited.
        dead: The pairs of ``end`` and ``left`` that earlier calls tried without success; this call adds to them.
    """
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
