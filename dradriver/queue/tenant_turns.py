"""Whose workloads are next, without asking each tenant each time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Final

from dradriver.queue.equivalence_classes import Asker, Order

# Of nodes in a pass, after which an asker steps back: 25 ms of CPU time, 100 looks at pods or a tenth of one at a gang.
MOST_IN_VAIN: Final = 4_000_000
_SPARE: Final = 64  # entries that no asker stands under any more, for which the heap is not made anew

Turn = tuple[int, float, str, str]
"""Priority, as in ``Order``; what the tenant has had for its weight; since when it waits; who it is."""


def turn_of(order: Order, share: float = 0.0) -> Turn:
    """Return a workload's position among all tenants, by its order in its tenant and the tenant's share."""
    return order[0], share, order[1], order[2]


class Turns:
    """Askers by the turns of their first workloads: of each tenant its namespaces, and gangs apart from single pods.

    That a turn has moved back is found out when its asker would be the first; that one may have moved up must be told.

    An asker whose workloads were looked at in vain for long steps back until all others had their turn. So looks that
    cost much and lead to nothing delay nobody else for long, however little GPU time their tenant has had.
    """

    def __init__(self, turn: Callable[[Asker], Turn | None]) -> None:
        """Begin with no asker; ``turn`` gives that of an asker's first workload, None if none may be served."""
        self._turn = turn
        self._heap: list[tuple[Turn, Asker]] = []  # askers by turn, also by turns that count no more
        self._stands: dict[Asker, Turn] = {}  # by asker: its entry in the heap that counts
        self._vain: dict[Asker, int] = {}  # by asker: evaluations in vain since all had their turn
        self._behind: dict[Asker, None] = {}  # those that have stepped back
        self._served = 0  # evaluations that led to a place since one stepped back

    def put(self, asker: Asker) -> None:
        """Note that an asker's turn may come earlier than before."""
        turn = None if asker in self._behind else self._turn(asker)
        if turn is not None and ((stands := self._stands.get(asker)) is None or turn < stands):
            self._stands[asker] = turn
            heapq.heappush(self._heap, (turn, asker))
            if len(self._heap) > 2 * len(self._stands) + _SPARE:
                self._heap = [(turn, asker) for asker, turn in self._stands.items()]
                heapq.heapify(self._heap)

    def reorder(self, askers: Iterable[Asker]) -> None:
        """Order all askers' turns again; these are all askers there are."""
        self._heap, self._stands = [], {}
        for asker in askers:
            self.put(asker)

    def looked(self, asker: Asker, work: int, *, in_vain: bool) -> None:
        """Count what a look at a workload cost, in evaluations of nodes."""
        if in_vain:
            self._vain[asker] = self._vain.get(asker, 0) + work
            if self._vain[asker] >= MOST_IN_VAIN:
                self._behind[asker] = None
                self._stands.pop(asker, None)
        elif self._behind:
            self._served += work
            if self._served >= MOST_IN_VAIN:
                self._all_had_their_turn()

    def first(self) -> Asker | None:
        """Return the asker that is next; None if there is none.

        Each is asked once at most: what two of them have grows while they are compared.
        """
        first = self._first()
        if first is None and (self._behind or self._vain):
            self._all_had_their_turn()
            first = self._first()
        return first

    def _all_had_their_turn(self) -> None:
        behind, self._behind = self._behind, {}
        self._vain.clear()
        self._served = 0
        for asker in behind:
            self.put(asker)

    def _first(self) -> Asker | None:
        asked: set[Asker] = set()
        while self._heap:
            stands, asker = self._heap[0]
            if self._stands.get(asker) != stands:
                heapq.heappop(self._heap)
            elif asker in asked:
                return asker
            elif (turn := self._turn(asker)) is None:
                heapq.heappop(self._heap)
                del self._stands[asker]
            elif turn <= stands:
                return asker
            else:
                asked.add(asker)
                self._stands[asker] = turn
                heapq.heapreplace(self._heap, (turn, asker))
        return None
