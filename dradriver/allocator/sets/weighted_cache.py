"""A cache with a limit on the weight of its values. The allocator keeps costly tables in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """A cache: it holds the values used last, up to a weight, and finds older ones while somebody else holds them.

    So what all nodes of a cluster need is there once, however much it is, and what nobody needs any more goes.
    """

    def __init__(self, most: int) -> None:
        """Keep nothing yet; ``most`` is the weight of all that is kept for nobody."""
        self._most = most
        self._weight = 0
        self._used: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._living: WeakValueDictionary[K, V] = WeakValueDictionary()

    def __contains__(self, key: K) -> bool:
        return key in self._living

    def find(self, key: K) -> V | None:
        """Return the value of a key that the weighted cache keeps; None if it has none."""
        if key in self._used:
            self._used.move_to_end(key)
        return self._living.get(key)

    def put(self, key: K, value: V, weight: int) -> V:
        """Keep a value in the weighted cache and return it; over the limit only another object keeps it."""
        if key in self._used:
            self._weight -= self._used.pop(key)[1]
        self._living[key] = value
        self._used[key] = value, weight
        self._weight += weight
        while self._weight > self._most:
            self._weight -= self._used.popitem(last=False)[1][1]
        return value

    def clear(self) -> None:
        """Empty the weighted cache; for measurements."""
        self._used.clear()
        self._living.clear()
        self._weight = 0
