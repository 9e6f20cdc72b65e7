"""A queue of objects to work on, with growing pauses after failures.

Different namespaces are worked on in parallel, the objects of one namespace one after another.

The queue names an object by its key: namespace and name. If work fails, the caller queues the object again with
``fail``.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from dradriver.api.claims.pins import Key
from dradriver.kube.backoff import EARLY_S, wait_s

logger = logging.getLogger(__name__)

LONGEST_PAUSE_S: Final = 120.0
TURN_S: Final = 1.0  # after which a namespace stands behind the others that wait
MOST: Final = 16  # namespaces at once


class WorkQueue:
    """A queue of objects to work on.

    Failures in one namespace, because of its quota or a webhook, do not delay other namespaces. The time of one call of
    ``begin`` does not grow with the number of queued objects. The queue stores nothing about objects without work.

    Attributes:
        woken: Set when there may be new work to start, so that ``begin`` should be called.
    """

    def __init__(
        self, work: Callable[[Key], Awaitable[None]], *, pause_s: float, longest_s: float = LONGEST_PAUSE_S
    ) -> None:
        """Make an empty queue.

        Args:
            work: Called with each object.
            pause_s: The pause after the first failure, in seconds. It doubles with each further failure.
            longest_s: The longest pause, in seconds.
        """
        self._work = work
        self._pause_s = pause_s
        self._longest_s = longest_s
        self._due: dict[str, OrderedDict[Key, None]] = {}  # by namespace: objects to work on now
        self._waiting_namespaces: OrderedDict[str, None] = (
            OrderedDict()
        )  # namespaces with something due that nobody works in
        self._busy: set[str] = set()  # namespaces in which an object is worked on
        self._pauses: dict[Key, tuple[int, float]] = {}  # how often it failed in a row, and until when to leave it
        self._later: list[tuple[float, Key]] = []  # a heap of the pauses' ends
        self.woken = asyncio.Event()

    def put(self, key: Key) -> None:
        """Queue an object to be worked on now.

        If the object is in a pause, it is worked on at the end of the pause.
        """
        if not self._paused(key):
            self._add_due(key)

    def put_at(self, key: Key, when: float) -> None:
        """Queue an object to be worked on at the time ``when`` of the loop's clock.

        The object is worked on earlier only if ``put`` was called for it before.
        """
        times, until = self._pauses.get(key, (0, None))
        if until != when:
            self._pauses[key] = times, when
            heapq.heappush(self._later, (when, key))
            self.woken.set()

    def drop(self, key: Key) -> None:
        """Remove an object from the queue if the work on it has not begun."""
        namespace = key[0]
        due = self._due.get(namespace, OrderedDict())
        due.pop(key, None)
        if not due and namespace not in self._busy:
            self._due.pop(namespace, None)
            self._waiting_namespaces.pop(namespace, None)
        if not self._paused(key):
            self.done(key)  # no pause's end will bring it up again

    def fail(self, key: Key, *, least_s: float = 0.0) -> bool:
        """Queue an object again after a pause, which grows with the object's failures.

        Args:
            key: The object.
            least_s: The shortest pause, in seconds.

        Returns:
            Whether this is the first failure of the object since ``done``.
        """
        times = self._pauses.get(key, (0, 0.0))[0]
        pause_s = wait_s(times, first_s=self._pause_s, longest_s=self._longest_s)
        until = asyncio.get_running_loop().time() + max(pause_s, least_s)
        self._pauses[key] = times + 1, until
        heapq.heappush(self._later, (until, key))
        self.woken.set()  # whoever says so may be at work for others
        return times == 0

    def waiting(self) -> list[Key]:
        """Return the objects that are queued, for now or for later."""
        return list(dict.fromkeys((*(key for due in self._due.values() for key in due), *self._pauses)))

    def done(self, key: Key) -> None:
        """Forget an object's failures, and the time for which ``put_at`` queued it."""
        self._pauses.pop(key, None)

    async def run(self) -> None:
        """Work on the queue until cancelled.

        Work that the cancellation interrupted is done again at the next call of ``run``.
        """
        self._busy.clear()  # of those whose turn never began
        self._waiting_namespaces.update(dict.fromkeys(self._due))
        async with asyncio.TaskGroup() as group:
            while True:
                self.woken.clear()
                again_at = self.begin(group)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(None if again_at is None else again_at + EARLY_S):
                        await self.woken.wait()

    async def flush(self) -> None:
        """Work on the queue until nothing is due, for callers that do not use ``run``."""
        while self._waiting_namespaces:
            async with asyncio.TaskGroup() as group:
                self.begin(group)

    def begin(self, group: asyncio.TaskGroup) -> float | None:
        """Start all work that is due, as tasks of ``group``.

        Returns:
            When to call ``begin`` again, by the loop's clock; earlier if ``woken`` is set. None if nothing is queued
                for a later time.
        """
        now = asyncio.get_running_loop().time()
        while self._later and self._later[0][0] <= now:
            until, key = heapq.heappop(self._later)
            if self._pauses.get(key, (0, None))[1] == until:
                self._add_due(key)
        while self._waiting_namespaces and len(self._busy) < MOST:
            namespace, _ = self._waiting_namespaces.popitem(last=False)
            self._busy.add(namespace)
            group.create_task(self._take_turn(namespace))
        return self._later[0][0] if self._later else None

    def _paused(self, key: Key) -> bool:
        return key in self._pauses and self._pauses[key][1] > asyncio.get_running_loop().time()

    def _add_due(self, key: Key) -> None:
        namespace = key[0]
        self._due.setdefault(namespace, OrderedDict())[key] = None
        if namespace not in self._busy:
            self._waiting_namespaces[namespace] = None
            self.woken.set()

    async def _take_turn(self, namespace: str) -> None:
        """Work on the objects of a namespace for at most ``TURN_S`` seconds; then other namespaces are served."""
        clock = asyncio.get_running_loop().time
        turn_end = clock() + TURN_S
        due = self._due[namespace]
        try:
            while due and clock() < turn_end:
                key, _ = due.popitem(last=False)
                try:
                    await self._work(key)
                except asyncio.CancelledError:
                    due[key] = None  # ``run`` may be called again
                    raise
                except Exception:  # a bug in what one of them meets must not stop the others
                    logger.exception("%s/%s: internal error. It is tried again later.", *key)
                    self.fail(key)
                # Work that finds nothing to do never waits, so let other tasks run.
                await asyncio.sleep(0)
        finally:
            self._busy.discard(namespace)
            if due:
                self._waiting_namespaces[namespace] = None
            else:
                del self._due[namespace]
            self.woken.set()
