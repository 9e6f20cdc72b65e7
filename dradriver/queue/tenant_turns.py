"""Which tenant is next, without asking each of them each time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Final

from dradriver.queue.equivalence_classes import Order

_SPARE: Final = 64  # entries that no tenant stands under any more, for which the heap is not made anew

Turn = tuple[int, float, str, str]
"""Priority, as in ``Order``; what the tenant has had for its weight; since when it waits; who it is."""


def turn_of(order: Order, share: float = 0.0) -> Turn:
    """Return a workload's position among all tenants, by its order in its tenant and the tenant's share."""
    return order[0], share, order[1], order[2]


class Turns:
    """Tenants by the turns of their first workloads.

    That a turn has moved back is found out when its tenant would be the first; that one may have moved up must be told.
    """

    def __init__(self, turn: Callable[[str], Turn | None]) -> None:
        """Begin with no tenant; ``turn`` gives that of a tenant's first workload, None if none may be served."""
        self._turn = turn
        self._heap: list[tuple[Turn, str]] = []  # tenants by turn, also by turns that count no more
        self._stands: dict[str, Turn] = {}  # by tenant: its entry in the heap that counts

    def put(self, tenant: str) -> None:
        """Note that a tenant's turn may come earlier than before."""
        turn = self._turn(tenant)
        if turn is not None and ((stands := self._stands.get(tenant)) is None or turn < stands):
            self._stands[tenant] = turn
            heapq.heappush(self._heap, (turn, tenant))
            if len(self._heap) > 2 * len(self._stands) + _SPARE:
                self._heap = [(turn, tenant) for tenant, turn in self._stands.items()]
                heapq.heapify(self._heap)

    def reorder(self, tenants: Iterable[str]) -> None:
        """Order all tenants' turns again; these are all tenants there are."""
        self._heap, self._stands = [], {}
        for tenant in tenants:
            self.put(tenant)

    def first(self) -> str | None:
        """Return the tenant that is next; None if there is none.

        Each is asked once at most: what two of them have grows while they are compared.
        """
        asked: set[str] = set()
        while self._heap:
            stands, tenant = self._heap[0]
            if self._stands.get(tenant) != stands:
                heapq.heappop(self._heap)
            elif tenant in asked:
                return tenant
            elif (turn := self._turn(tenant)) is None:
                heapq.heappop(self._heap)
                del self._stands[tenant]
            elif turn <= stands:
                return tenant
            else:
                asked.add(tenant)
                self._stands[tenant] = turn
                heapq.heapreplace(self._heap, (turn, tenant))
        return None
