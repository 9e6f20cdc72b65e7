"""Which of many keys is the first, without comparing all of them each time. Used by ``tenant_turns``."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, Generic, TypeVar

_SPARE: Final = 64  # entries that count no more, for which the heap is not rebuilt

K = TypeVar("K")

Position = tuple[int | bool | float | str, ...]


class LazyHeap(Generic[K]):
    """Keys by their positions.

    That a key's position has moved back is found out when the key would be the first; ``put`` tells that it may have
    moved up.
    """

    def __init__(self, position: Callable[[K], Position | None]) -> None:
        """Begin with no key; ``position`` returns that of a key, None if the key is to be forgotten."""
        self._position = position
        self._heap: list[tuple[Position, K]] = []  # keys by position, also by positions that count no more
        self._stands: dict[K, Position] = {}  # by key: its entry in the heap that counts

    def put(self, key: K) -> None:
        """Note that a key may come earlier than before."""
        position = self._position(key)
        if position is not None and ((stands := self._stands.get(key)) is None or position < stands):
            self._stands[key] = position
            heapq.heappush(self._heap, (position, key))
            if len(self._heap) > 2 * len(self._stands) + _SPARE:
                self._heap = [(position, key) for key, position in self._stands.items()]
                heapq.heapify(self._heap)

    def first(self) -> tuple[Position, K] | None:
        """Return the first key with its position; None if there is none.

        Each key is asked once at most: the positions of two of them may move back while they are compared.
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
