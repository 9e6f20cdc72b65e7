"""A queue of keys to look at: what reflectors put in and workers take out."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Keys, each at most once, and none handed out while somebody works on it.

    A key that is added while it is worked on is handed out again after ``done``. The queue is bounded by the number of
    distinct keys. The rules are those of client-go's workqueue. Use it from one event loop.
    """

    def __init__(self, *, base_s: float = 0.2, most_s: float = 60.0) -> None:
        """Make an empty queue whose ``retry`` waits ``base_s``, doubled with every failure up to ``most_s``."""
        self._base_s = base_s
        self._most_s = most_s
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._wanted: set[K] = set()
        self._working: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}

    def __len__(self) -> int:
        """Number of keys that a worker could take now."""
        return self._ready.qsize()

    def add(self, key: K) -> None:
        """Hand the key out as soon as nobody works on it."""
        if key in self._wanted:
            return
        self._wanted.add(key)
        if key not in self._working:
            self._ready.put_nowait(key)

    def add_after(self, key: K, delay_s: float) -> None:
        """Add the key after a while; of several delays for one key the one that ends first counts."""
        loop = asyncio.get_running_loop()
        earlier = self._timers.get(key)
        if earlier is not None:
            if earlier.when() <= loop.time() + delay_s:
                return
            earlier.cancel()
        self._timers[key] = loop.call_later(delay_s, self._due, key)

    async def get(self) -> K:
        """Return the next key. The caller says ``done`` when it has worked on it, whatever came of it."""
        key = await self._ready.get()
        self._wanted.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """Say that nobody works on the key any more."""
        self._working.discard(key)
        if key in self._wanted:
            self._ready.put_nowait(key)

    def retry(self, key: K) -> None:
        """Add the key after a wait that doubles with every ``retry`` since the last ``forget``."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.add_after(key, min(self._most_s, self._base_s * 2.0 ** min(failures, 32)))

    def forget(self, key: K) -> None:
        """Let the key's next ``retry`` be a first one."""
        self._failures.pop(key, None)

    def _due(self, key: K) -> None:
        del self._timers[key]
        self.add(key)
