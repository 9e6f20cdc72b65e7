"""Why pods wait, written on them and told as Events: seldom, and never ahead of a placement."""

from __future__ import annotations

import asyncio
import collections
import heapq
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from dradriver.api import names
from dradriver.api.objects import Pod
from dradriver.api.pins import Key
from dradriver.controller.api_writer import ApiWriter
from dradriver.controller.outcome import MovedOnError, Outcome, outcome
from dradriver.errors import DriverError
from dradriver.kube.client import Client
from dradriver.kube.events import Recorder, Reference
from dradriver.queue.limiter import EARLY_S, Limiter

logger = logging.getLogger(__name__)

FIRST_S: Final = 1.0  # most pods have their place sooner
AGAIN_S: Final = 30.0  # between two writes on one pod
PATIENCE_S: Final = 10.0  # after so long a reason is written although placements go on
MOST: Final = 16  # written at once
MOST_OF_ONE: Final = 4  # of one namespace
AGAIN_THERE_S: Final = 1.0

Record = Callable[[Pod, str], Awaitable[None]]
"""Writes an Event about a pod."""


def recorder(client: Client, *, instance: str) -> Record:
    """Return what writes an Event about a pod that waits; ``instance`` is the replica that says so."""
    events = Recorder(client, component="gpu-topology", instance=instance)

    async def record(pod: Pod, reason: str) -> None:
        about = Reference("Pod", pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
        await events.record(about=about, type="Warning", reason="WaitsForGPUs", message=reason, action="Placing")

    return record


class _Told:
    """What one pod should say; ``queued`` while it stands in the heap of what is due, or is being written."""

    __slots__ = ("due", "queued", "text", "uid")

    def __init__(self, uid: str, due: float) -> None:
        self.uid = uid
        self.text: str | None = None
        self.due = due
        self.queued = False


class Reasons:
    """What each waiting pod should say, and what it says.

    Reasons are words without figures that change with every event, so most pods get one write for all their waiting.
    """

    def __init__(
        self,
        writer: ApiWriter,
        *,
        pods: Callable[[Key], Pod | None],
        limiter: Limiter,
        record: Record | None = None,
        first_s: float = FIRST_S,
        again_s: float = AGAIN_S,
    ) -> None:
        """Make an empty book.

        Args:
            writer: Writes annotations.
            pods: The living pods.
            limiter: Of the placements, which come first.
            record: Writes an Event about a pod.
            first_s: How long a pod waits before it is told why.
            again_s: How long until it is told something else.
        """
        self._writer = writer
        self._pods = pods
        self._limiter = limiter
        self._record = record
        self._first_s = first_s
        self._again_s = again_s
        self._told: dict[Key, _Told] = {}
        self._due: list[tuple[float, Key]] = []
        self._writing: collections.Counter[str] = collections.Counter()  # by namespace
        self._woken = asyncio.Event()

    def want(self, pod: Pod, reason: str | None) -> None:
        """Let a pod say why it waits from its next turn on; None for nothing."""
        key = pod.metadata.namespace, pod.metadata.name
        known = self._told.get(key)
        if known is None or known.uid != pod.metadata.uid:
            if reason is None and names.REASON not in pod.metadata.annotations:
                return
            # Somebody before us wrote what stands there, and nobody knows when.
            first_s = self._again_s if names.REASON in pod.metadata.annotations else self._first_s
            known = self._told[key] = _Told(pod.metadata.uid, asyncio.get_running_loop().time() + first_s)
        known.text = reason
        if pod.metadata.annotations.get(names.REASON) != reason:
            self._queue(key, known)

    def insist(self, pod: Pod) -> bool:
        """Let a pod say again what it should, if somebody took that away. Returns whether there is anything to say."""
        known = self._told.get((pod.metadata.namespace, pod.metadata.name))
        if known is None or known.uid != pod.metadata.uid or known.text is None:
            return False
        self.want(pod, known.text)
        return True

    def taken_away(self, key: Key) -> None:
        """Say that another write took a pod's reason away; when it may have the next one stays as it is."""
        if (known := self._told.get(key)) is not None:
            known.text = None

    def forget(self, key: Key) -> None:
        """Forget a pod that waits no more."""
        self._told.pop(key, None)

    async def run(self) -> None:
        """Write what is due until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._woken.clear()
                wait_s = self._due[0][0] - loop.time() if self._due else None
                if wait_s is not None and wait_s <= EARLY_S:  # a timer may come a moment too early, again and again
                    busy = not self._limiter.idle and loop.time() < self._due[0][0] + PATIENCE_S
                    if busy or not self._limiter.room() or self._writing.total() >= MOST:
                        wait_s = 0.1
                    else:
                        key = heapq.heappop(self._due)[1]
                        if self._writing[key[0]] < MOST_OF_ONE:
                            tasks.create_task(self._written(key))
                        else:  # a webhook there may hold all writes up
                            heapq.heappush(self._due, (loop.time() + AGAIN_THERE_S, key))
                        continue
                try:
                    async with asyncio.timeout(wait_s):
                        await self._woken.wait()
                except TimeoutError:
                    pass

    async def flush(self) -> int:
        """Write all reasons now, due or not. Returns how many writes were made."""
        keys = list(dict.fromkeys(key for _, key in self._due))
        self._due.clear()
        return sum([await self._write(key) for key in keys])

    async def _written(self, key: Key) -> None:
        self._writing[key[0]] += 1
        try:
            await self._write(key)
        except Exception:
            logger.exception("pod %s/%s: an error in this program; no reason written", *key)
        finally:
            self._writing[key[0]] -= 1
            if not self._writing[key[0]]:
                del self._writing[key[0]]
            self._woken.set()

    async def _write(self, key: Key) -> int:
        known, pod = self._told.get(key), self._pods(key)
        if known is None or pod is None or pod.metadata.uid != known.uid:
            self._told.pop(key, None)
            return 0
        text, written = known.text, False
        try:
            if pod.metadata.annotations.get(names.REASON) == text:
                return 0
            try:
                written = await self._writer.tell(pod, text)
            finally:
                known.due = asyncio.get_running_loop().time() + self._again_s
            if written and text is not None and self._record is not None:
                await self._record(pod, text)
        except MovedOnError as error:
            logger.debug("pod %s/%s: no reason written: %s", *key, error)
        except DriverError as error:
            logger.warning("pod %s/%s: no reason written: %s", *key, error)
            if outcome(error) is Outcome.SERVER:
                self._limiter.failed(error)
        finally:
            known.queued = False
            now = self._pods(key)
            if now is not None and now.metadata.annotations.get(names.REASON) != known.text:
                self._queue(key, known)
        return int(written)

    def _queue(self, key: Key, known: _Told) -> None:
        if not known.queued:
            known.queued = True
            heapq.heappush(self._due, (known.due, key))
            self._woken.set()
