"""Objects that want work: namespaces side by side, the objects of each in turn, and a growing pause after a failure."""

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
    """What goes wrong in one namespace (its quota, somebody's webhook) holds up no other.

    Every step costs the same, however many objects there are. Nothing is kept of one that wants nothing.

    Attributes:
        woken: Set when ``begin`` should be called.
    """

    def __init__(
        self, work: Callable[[Key], Awaitable[None]], *, pause_s: float, longest_s: float = LONGEST_PAUSE_S
    ) -> None:
        """Have ``work`` done on objects; ``pause_s`` is the first pause, and each further one is twice as long."""
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
        """Have the work queue process an object: now, or once its pause is over."""
        if not self._paused(key):
            self._add_due(key)

    def put_at(self, key: Key, when: float) -> None:
        """Have the work queue process an object at a time of the loop's clock, and not before."""
        times, until = self._pauses.get(key, (0, None))
        if until != when:
            self._pauses[key] = times, when
            heapq.heappush(self._later, (when, key))
            self.woken.set()

    def drop(self, key: Key) -> None:
        """Undo ``put`` for an object in the work queue if the work has not begun."""
        namespace = key[0]
        due = self._due.get(namespace, OrderedDict())
        due.pop(key, None)
        if not due and namespace not in self._busy:
            self._due.pop(namespace, None)
            self._waiting_namespaces.pop(namespace, None)
        if not self._paused(key):
            self.done(key)  # no pause's end will bring it up again

    def fail(self, key: Key, *, least_s: float = 0.0) -> bool:
        """Have the work queue retry an object after a pause, which grows with its failures.

        Returns whether this is the first time in a row.
        """
        times = self._pauses.get(key, (0, 0.0))[0]
        pause_s = wait_s(times, first_s=self._pause_s, longest_s=self._longest_s)
        until = asyncio.get_running_loop().time() + max(pause_s, least_s)
        self._pauses[key] = times + 1, until
        heapq.heappush(self._later, (until, key))
        self.woken.set()  # whoever says so may be at work for others
        return times == 0

    def waiting(self) -> list[Key]:
        """Return what waits in the work queue, now or for later."""
        return list(dict.fromkeys((*(key for due in self._due.values() for key in due), *self._pauses)))

    def done(self, key: Key) -> None:
        """Forget that an object in the work queue has failed, or was to be worked on later."""
        self._pauses.pop(key, None)

    async def run(self) -> None:
        """Process the work queue until cancelled; what was under way then is due when this is run again."""
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
        """Process what is due in the work queue until nothing is; for callers that drive it by hand."""
        while self._waiting_namespaces:
            async with asyncio.TaskGroup() as group:
                self.begin(group)

    def begin(self, group: asyncio.TaskGroup) -> float | None:
        """Start all work that is due. Returns when to call again, by the loop's clock, unless ``woken`` is set."""
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
        """Work on the objects of a namespace for ``TURN_S`` at most; then serve others."""
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
                    logger.exception("%s/%s: an error in this program; trying again later", *key)
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
