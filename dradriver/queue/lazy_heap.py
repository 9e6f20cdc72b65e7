"""A heap that returns the first of many keys although their positions change.

It does not compare all keys each time. ``tenant_turns`` uses it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, Generic, TypeVar

_SPARE: Final = 64  # entries that count no more, for which the heap is not rebuilt

K = TypeVar("K")

Position = tuple[int | bool | float | str, ...]


class LazyHeap(Generic[K]):
    """A heap of keys with positions that can change, the lowest position first.

    If the position of a key grows, no call is needed: the heap checks it when the key comes to the top. If the position
    may have become lower, the caller must call ``put``.
    """

    def __init__(self, position: Callable[[K], Position | None]) -> None:
        """Make an empty heap.

        ``position`` returns the position of a key; None if the key must be forgotten.
        """
        self._position = position
        self._heap: list[tuple[Position, K]] = []  # keys by position, also by positions that count no more
        self._stands: dict[K, Position] = {}  # by key: its entry in the heap that counts

    def put(self, key: K) -> None:
        """Add a key, or move a known key forward if its position is lower now."""
        position = self._position(key)
        if position is not None and ((stands := self._stands.get(key)) is None or position < stands):
            self._stands[key] = position
            heapq.heappush(self._heap, (position, key))
            if len(self._heap) > 2 * len(self._stands) + _SPARE:
                self._heap = [(position, key) for key, position in self._stands.items()]
                heapq.heapify(self._heap)

    def first(self) -> tuple[Position, K] | None:
        """Return the first key with its position; None if the heap is empty.

        Positions can grow during this call. The call reads the position of each key at most once, so it always ends.
        """
        asked: set[K] = set()
        while self._heap:
            stands, key = self._heap[0]
            if self._stands.get(key) != stands:
                heapq.heappop(self._heap)
            elif key in asked:
                return stands, key
            elif (position := self._position(key)) is None:
                heapq.heappop(self._heap)
                del self._stands[key]
            elif position <= stands:
                return position, key
            else:
                asked.add(key)
                self._stands[key] = position
                heapq.heapreplace(self._heap, (position, key))
        return None
