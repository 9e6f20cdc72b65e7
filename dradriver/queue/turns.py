"""Whose turn it is among tenants, without asking each of them each time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Final

from dradriver.queue.kinds import Order

_SPARE: Final = 64  # entries that no tenant stands under any more, for which the heap is not made anew

Value = tuple[int, float, Order]
"""Priority of a tenant's first unit; what the tenant has had for its weight; the unit's order."""


class Turns:
    """Tenants by the values of their first units.

    That a value has grown is found out when its tenant would be the first; that one may have fallen must be told.
    """

    def __init__(self, value: Callable[[str], Value | None]) -> None:
        """Begin with nobody; ``value`` gives a tenant's now, None where none of its may be served."""
        self._value = value
        self._heap: list[tuple[Value, str]] = []
        self._stands: dict[str, Value] = {}

    def put(self, tenant: str) -> None:
        """Take in that a tenant's value may be less than it was."""
        value = self._value(tenant)
        if value is not None and ((stands := self._stands.get(tenant)) is None or value < stands):
            self._stands[tenant] = value
            heapq.heappush(self._heap, (value, tenant))
            if len(self._heap) > 2 * len(self._stands) + _SPARE:
                self._heap = [(value, tenant) for tenant, value in self._stands.items()]
                heapq.heapify(self._heap)

    def reorder(self, tenants: Iterable[str]) -> None:
        """Take in that every value may be another; these are all tenants there are."""
        self._heap, self._stands = [], {}
        for tenant in tenants:
            self.put(tenant)

    def first(self) -> str | None:
        """Return the tenant of the least value; None where there is none.

        Each is asked once at most: what two of them have grows while they are compared.
        """
        asked: set[str] = set()
        while self._heap:
            stands, tenant = self._heap[0]
            if self._stands.get(tenant) != stands:
                heapq.heappop(self._heap)
            elif tenant in asked:
                return tenant
            elif (value := self._value(tenant)) is None:
                heapq.heappop(self._heap)
                del self._stands[tenant]
            elif value <= stands:
                return tenant
            else:
                asked.add(tenant)
                self._stands[tenant] = value
                heapq.heapreplace(self._heap, (value, tenant))
        return None
