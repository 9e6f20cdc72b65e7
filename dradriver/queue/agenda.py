"""The pods and gangs that the controller's worker must process, now or at a given time.

A pod or gang is named by its key: namespace and name. Many parts of the controller add keys to the agenda.

To *process* a pod or gang is to observe its state and to do its next step.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable

from dradriver.api.claims.pins import Key
from dradriver.kube.backoff import EARLY_S


class Agenda:
    """Keys of pods and gangs to process, each once, first added first."""

    def __init__(self) -> None:
        """Make an empty agenda, which ignores keys until ``begin`` opens it.

        The worker calls ``begin`` when this process becomes the leader.
        """
        self._is_open = False  # whether this replica leads, so that keys are taken
        self._keys: OrderedDict[Key, None] = OrderedDict()  # keys to look at now, the oldest first
        self._timers: list[tuple[float, Key]] = []  # a heap of keys to look at later, by time
        self._earliest: dict[Key, float] = {}  # the first of the timers of each key
        self._woken = asyncio.Event()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def is_open(self) -> bool:
        """Return whether the agenda accepts keys: only while this process is the leader."""
        return self._is_open

    def begin(self, keys: Iterable[Key]) -> None:
        """Open the agenda, with these keys on it."""
        self._is_open = True
        self._keys.update(dict.fromkeys(keys))

    def end(self) -> None:
        """Close the agenda: forget its keys, and ignore new ones until the next ``begin``.

        A key whose time of ``add_at`` comes before that is ignored, too.
        """
        self._is_open = False
        self._keys.clear()

    def add(self, key: Key) -> None:
        """Put a pod or a gang on the agenda, to be processed soon."""
        # A standby never looks at any, and a new leader begins with all of them.
        if self._is_open:
            self._keys[key] = None
            self._woken.set()

    def add_at(self, when: float, key: Key) -> None:
        """Put a pod or gang on the agenda when a later time comes.

        ``when`` is this time by the event loop's clock, in seconds. If the key is added with several times, only the
        earliest is kept. Nothing is lost: when the worker processes the key, it adds the key again with its next time.
        """
        if when < self._earliest.get(key, math.inf):
            self._earliest[key] = when
            heapq.heappush(self._timers, (when, key))

    def pop(self) -> Key | None:
        """Remove and return the key that was added first; None if there is none."""
        return self._keys.popitem(last=False)[0] if self._keys else None

    def ring(self, now: float) -> None:
        """Put on the agenda all keys whose time, set by ``add_at``, has come.

        ``now`` is the present time of the event loop's clock, seconds.
        """
        while self._timers and self._timers[0][0] <= now:
            when, key = heapq.heappop(self._timers)
            # Another timer of the same key was earlier and has rung.
            if self._earliest.get(key) == when:
                del self._earliest[key]
                self.add(key)

    # The worker sleeps while nothing happens.

    def wake(self) -> None:
        """Wake the worker from ``sleep`` without a key: a waiting pod may find a place."""
        self._woken.set()

    def clear_wake(self) -> None:
        """Forget all earlier calls of ``wake``.

        The worker calls this before it reads the state that has changed. A change during its work then wakes it again.
        """
        self._woken.clear()

    async def sleep(self) -> None:
        """Wait until ``wake`` is called, a key is added, or a time of ``add_at`` comes."""
        with contextlib.suppress(TimeoutError):
            # A timer may ring a moment too early. The worker would find nothing to do, again and again.
            async with asyncio.timeout_at(self._timers[0][0] + EARLY_S if self._timers else None):
                await self._woken.wait()
