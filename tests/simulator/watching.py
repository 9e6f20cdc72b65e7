"""What one controller sees of the server: a stream of events for each kind, late, frozen or broken."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import msgspec

from dradriver.kube.client import Unreachable
from dradriver.kube.resources import Resource
from tests.fakes.apirequests import Selector, selector, status_object
from tests.fakes.apistore import Event, Object, told
from tests.simulator.loop import VirtualLoop
from tests.simulator.server import KINDS, Server

BOOKMARK_S: Final = 60.0  # how often the real server sends one


class Feed:
    """The watches of one process, of all kinds.

    Attributes:
        frozen: Until when nothing of a kind is delivered.
        seen: The version up to which a kind was delivered; what came later this process cannot know.
        late_until: Until when an event is under way that takes longer than usual.
        away_since: Since when there has been no watch of a kind.
        given_up: How often the process gave up a watch, or a list, of a kind that the server had not ended.
        shown: Called with a kind and each line that is delivered.
    """

    def __init__(
        self, server: Server, loop: VirtualLoop, delay_s: Callable[[], float], shown: Callable[[str, bytes], None]
    ) -> None:
        self.server = server
        self.loop = loop
        self.frozen: dict[str, float] = {}
        self.seen: dict[str, int] = {}
        self.late_until = 0.0
        self.away_since = dict.fromkeys((kind.plural for kind in KINDS), loop.now)
        self.given_up: collections.Counter[str] = collections.Counter()
        self._delay_s = delay_s
        self.shown = shown
        self._open: list[Watch] = []
        server.listeners.append(self._happened)

    def close(self) -> None:
        """Let nothing reach this process any more."""
        self.server.listeners.remove(self._happened)

    def watch(self, resource: Resource, namespace: str | None, params: Mapping[str, str], silence_s: float) -> Watch:
        labels, fields = params.get("labelSelector", ""), params.get("fieldSelector", "")
        chosen = selector(resource.plural, labels=labels, fields=fields) if labels or fields else _everything
        watch = Watch(self, resource, namespace or "", chosen, silence_s)
        since = params.get("resourceVersion", "")
        if since:
            watch.resume(int(since))
        else:
            watch.begin()
        self._open.append(watch)
        self.away_since.pop(watch.plural, None)
        return watch

    def forget(self, watch: Watch) -> None:
        if watch in self._open:
            self._open.remove(watch)
            self.given_up[watch.plural] += not watch.ended
            self.away_since[watch.plural] = self.loop.now

    def missed(self, resource: Resource) -> None:
        """Note that an attempt to watch a kind, or to read it anew, failed: the next one comes after a pause."""
        if resource.plural in self.away_since:
            self.away_since[resource.plural] = self.loop.now

    def freeze(self, plural: str, until: float) -> None:
        self.frozen[plural] = max(self.frozen.get(plural, 0.0), until)

    def cut(self, plural: str | None, how: str) -> None:
        """Break the watches of a kind, or all: ``error``, ``end`` or ``gone`` (410, so that it is listed again)."""
        for watch in list(self._open):
            if plural in (None, watch.plural):
                watch.cut(how)

    def delay_s(self) -> float:
        delay_s = self._delay_s()
        if delay_s > 0.3:
            self.late_until = max(self.late_until, self.loop.now + delay_s)
        return delay_s

    def _happened(self, event: Event) -> None:
        for watch in self._open:
            if watch.plural == event.plural:
                watch.happened(event)


class Watch:
    """One stream: an iterator over lines, as ``Client.stream`` gives. ``silence_s`` may be changed at any time."""

    def __init__(self, feed: Feed, resource: Resource, namespace: str, chosen: Selector, silence_s: float) -> None:
        self.plural = resource.plural
        self._feed = feed
        self._resource = resource
        self._namespace = namespace
        self._chosen = chosen
        self.silence_s = silence_s
        self.ended = False
        self._coming: collections.deque[tuple[float, int, bytes | Exception | None]] = collections.deque()
        self._last_at = self._heard_at = feed.loop.now
        self._bookmark_at = feed.loop.now + BOOKMARK_S
        self._waiter: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Send all objects, then the mark that these were all."""
        version, feed = self._feed.server.version, self._feed
        for obj in feed.server.all(self._resource):
            if self._within(obj) and self._chosen(obj):
                self._push(0, _line("ADDED", msgspec.json.encode(obj)))
        mark = {"resourceVersion": str(version), "annotations": {"k8s.io/initial-events-end": "true"}}
        self._push(version, _line("BOOKMARK", msgspec.json.encode({"kind": self._resource.kind, "metadata": mark})))

    def resume(self, since: int) -> None:
        """Send what happened since a version; 410 where that is forgotten."""
        if since < self._feed.server.oldest:
            self.cut("gone")
            return
        for event in self._feed.server.of(self._resource).log:
            if event.version > since:
                self.happened(event)

    def happened(self, event: Event) -> None:
        if self._within(event.obj) and (news := told(event, self._namespace, self._chosen)) is not None:
            kind, obj = news
            self._push(event.version, _line(kind, event.json(obj)))

    def cut(self, how: str) -> None:
        self._coming.clear()
        self.ended = how == "gone"  # which a line says, and the reader ends the stream
        if how == "gone":
            gone = status_object(410, "Expired", "too old resource version")
            self._push(0, _line("ERROR", msgspec.json.encode(gone)), late=False)
        self._push(0, Unreachable(f"WATCH {self.plural}: connection reset") if how == "error" else None, late=False)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        loop, feed = self._feed.loop, self._feed
        while True:
            thawed_at = feed.frozen.get(self.plural, 0.0)
            next_at = max(self._coming[0][0] if self._coming else self._bookmark_at, thawed_at)
            silent_at = self._heard_at + self.silence_s
            if next_at <= loop.now:
                self._heard_at = loop.now
                return self._take()
            if silent_at <= loop.now:
                self.ended = True
                raise Unreachable(f"WATCH {self.plural}: silent for {self.silence_s:g} s")
            await self._wait(min(next_at, silent_at))

    def _take(self) -> bytes:
        feed = self._feed
        if not self._coming:
            self._bookmark_at = feed.loop.now + BOOKMARK_S
            bookmark = {"metadata": {"resourceVersion": str(feed.server.version)}}
            return _line("BOOKMARK", msgspec.json.encode(bookmark))
        _, version, what = self._coming.popleft()
        self.ended = self.ended or not isinstance(what, bytes)
        if what is None:
            raise StopAsyncIteration
        if isinstance(what, Exception):
            raise what
        feed.seen[self.plural] = max(version, feed.seen.get(self.plural, 0))
        feed.shown(self.plural, what)
        return what

    async def _wait(self, until: float) -> None:
        self._waiter = self._feed.loop.create_future()
        timer = self._feed.loop.call_at(until, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _push(self, version: int, what: bytes | Exception | None, *, late: bool = True) -> None:
        self._last_at = max(self._last_at, self._feed.loop.now + (self._feed.delay_s() if late else 0.0))
        self._coming.append((self._last_at, version, what))
        if len(self._coming) == 1:
            self._wake()

    def _within(self, obj: Object) -> bool:
        return not self._namespace or obj["metadata"].get("namespace") == self._namespace


def _everything(obj: Any) -> bool:
    return True


def _line(kind: str, encoded: bytes) -> bytes:
    return b'{"type":"%s","object":%s}' % (kind.encode(), encoded)
