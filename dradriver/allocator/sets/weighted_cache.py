"""A cache with a limit on the total weight (such as size) of its values.

The allocator stores costly figures in it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """A cache that holds the values that were used last, up to a total weight.

    It also finds older values that some other object still refers to. So values that all nodes of a cluster need exist
    only once, however large they are. Values that no object needs are freed.
    """

    def __init__(self, most: int) -> None:
        """Make an empty cache.

        ``most`` is the largest total weight of the values that the cache itself holds.
        """
        self._most = most
        self._weight = 0
        self._used: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._living: WeakValueDictionary[K, V] = WeakValueDictionary()

    def __contains__(self, key: K) -> bool:
        return key in self._living

    def find(self, key: K) -> V | None:
        """Return the value of a key; None if the cache has none."""
        if key in self._used:
            self._used.move_to_end(key)
        return self._living.get(key)

    def put(self, key: K, value: V, weight: int) -> V:
        """Add a value to the cache and return it.

        ``weight`` is, for example, the size of the value. A value whose weight is above the limit is not held by the
        cache itself: ``find`` returns it only as long as another object refers to it.
        """
        if key in self._used:
            self._weight -= self._used.pop(key)[1]
        self._living[key] = value
        self._used[key] = value, weight
        self._weight += weight
        while self._weight > self._most:
            self._weight -= self._used.popitem(last=False)[1][1]
        return value

    def clear(self) -> None:
        """Empty the cache; for measurements."""
        self._used.clear()
        self._living.clear()
        self._weight = 0
