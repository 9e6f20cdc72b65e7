"""Units that could go on but for something that many of them wait for."""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable
from typing import NamedTuple

from dradriver.api.pins import Key
from dradriver.queue.waiting import Order


class Kind(enum.Enum):
    """What is waited for."""

    WRITER = enum.auto()  # a slot of the limiter
    NAMESPACE = enum.auto()  # an end of slow writes in a namespace
    SCHEDULER = enum.auto()  # a scheduler that is behind with its work


class WaitReason(NamedTuple):
    """What is waited for, and the name of it where there are several."""

    kind: Kind
    name: str = ""


class Parking:
    """Keys by the one thing that each waits for, the oldest first."""

    def __init__(self) -> None:
        self._lots: dict[WaitReason, list[tuple[Order, Key]]] = {}  # heaps; who waits no more is dropped at the top
        self._waiting: dict[Key, tuple[WaitReason, Order]] = {}
        self._size: dict[WaitReason, int] = {}

    def park(self, key: Key, order: Order, cause: WaitReason) -> None:
        """Let a unit wait, for nothing else any more."""
        if self._waiting.get(key) == (cause, order):
            return
        self.forget(key)
        self._waiting[key] = cause, order
        self._size[cause] = self._size.get(cause, 0) + 1
        heapq.heappush(self._lots.setdefault(cause, []), (order, key))

    def forget(self, key: Key) -> None:
        """Say that a unit waits no more; an unknown one is no error."""
        entry = self._waiting.pop(key, None)
        if entry is None:
            return
        cause = entry[0]
        self._size[cause] -= 1
        lot = self._lots[cause]
        if not self._size[cause]:
            del self._lots[cause], self._size[cause]
        elif len(lot) > 2 * self._size[cause] + 16:
            self._lots[cause] = sorted({item for item in lot if self._here(item, cause)})

    def release(self, over: Callable[[WaitReason, Order], bool]) -> Key | None:
        """Return the oldest unit that need wait no longer, and forget that it waited; None where there is none.

        Args:
            over: Whether the first unit that waits for a cause, of that order, may go on. It is asked again before the
                next one goes: so many are released as there is room for.
        """
        first = min(
            (lot[0] for cause in list(self._lots) if over(cause, (lot := self._lot(cause))[0][0])), default=None
        )
        if first is None:
            return None
        self.forget(first[1])
        return first[1]

    def _lot(self, cause: WaitReason) -> list[tuple[Order, Key]]:
        lot = self._lots[cause]
        while not self._here(lot[0], cause):
            heapq.heappop(lot)
        return lot

    def _here(self, item: tuple[Order, Key], cause: WaitReason) -> bool:
        return self._waiting.get(item[1]) == (cause, item[0])
