"""HTTP server of the page: the page and its files, all pieces at once, changes as events, and details."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from dradriver.cli.page.feed import Feed
from dradriver.cli.page.guard import HEADERS, Guard
from dradriver.cli.page.history import History
from dradriver.cli.page.page_details import Answer, Asked, BusyError
from dradriver.kube.http import aiohttp  # noqa: F401  # before any other part of it
from dradriver.process.server_connections import Connections, Handler, listening
from dradriver.view.page import FILES, file

# isort: split
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse

MOST: Final = 128  # connections
MOST_STREAMS: Final = 48  # readers who are sent events
BEAT_S: Final = 15.0  # a proxy ends what says nothing for a minute or so
WRITE_S: Final = 20.0  # whoever has not taken in what was written by then is gone
PAUSE_S: Final = 0.5  # between two events of one reader
_END_S: Final = 1.0
# What proxies that log people in add to a request is long.
_HEAD: Final[dict[str, Any]] = {"max_line_size": 8192, "max_field_size": 16384, "max_headers": 96}


class Page:
    """The page.

    Attributes:
        feed: Its pieces.
        history: The figures of the last day, over all logins.
        details: Gives the details of one node or pod; None before the cluster was read.
        streams: Number of readers that receive events now.
    """

    def __init__(self, guard: Guard) -> None:
        self.feed = Feed()
        self.history = History()
        self.details: Asked | None = None
        self.guard = guard
        self.streams = 0
        self._connections: Connections | None = None

    @contextlib.asynccontextmanager
    async def serve(self, *, host: str, port: int) -> AsyncIterator[int]:
        """Serve the page over HTTP during an ``async with`` body. Yields the port.

        Raises:
            OSError: The port is in use.
        """
        self._connections = Connections(MOST)
        serving = listening(self._handler(), host=host, port=port, connections=self._connections, end_s=_END_S, **_HEAD)
        async with serving as bound:
            yield bound

    def _handler(self) -> Handler:
        async def answer(request: BaseRequest) -> StreamResponse:
            refused = self.guard.refusal(request)  # a wrong key, or another host name; None if it may pass
            if refused is not None:
                return refused
            path = request.path.removeprefix("/") or "index.html"
            if path in FILES:
                return _file(path, request)
            match path:
                case "api/state":
                    compressed = HEADERS | {"Content-Type": "application/json", "Content-Encoding": "gzip"}
                    return Response(body=self.feed.whole(), headers=compressed)
                case "api/events":
                    return await self._events(request)
                case "api/node":
                    if self.details is None:
                        return _not_yet()
                    return _json(self.details.node(request.query.get("name", "")))
                case "api/pod":
                    return await self._pod(request)
            return Response(status=404, text="there is no such page\n", headers=HEADERS)

        return answer

    async def _pod(self, request: BaseRequest) -> StreamResponse:
        if self.details is None:
            return _not_yet()
        try:
            return _json(await self.details.pod(request.query.get("namespace", ""), request.query.get("name", "")))
        except BusyError:
            return Response(
                status=503,
                text="too many pods are being explained. Try again later.\n",
                headers=HEADERS | {"Retry-After": "2"},
            )

    async def _events(self, request: BaseRequest) -> StreamResponse:
        """Send changes to a reader until it disconnects: each time all pieces that it has not received yet."""
        if self.streams >= MOST_STREAMS:
            return Response(
                status=503, text="this page has too many readers\n", headers=HEADERS | {"Retry-After": "30"}
            )
        response = StreamResponse(headers=HEADERS | {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        self.streams += 1
        try:
            await response.prepare(request)
            await self._send_all(request, response)
        except (ConnectionError, TimeoutError):  # it is gone, or takes nothing in
            if request.transport is not None:
                request.transport.abort()
        finally:
            self.streams -= 1
        return response

    async def _send_all(self, request: BaseRequest, response: StreamResponse) -> None:
        seen = self.feed.read(request.headers.get("Last-Event-ID") or request.query.get("since", ""))
        if seen is None:
            await _write(response, b"event: anew\ndata: {}\n\n")
            return
        await _write(response, b"retry: 2000\n\n")
        while True:
            assert self._connections is not None
            self._connections.served(request.transport)
            try:
                async with asyncio.timeout(BEAT_S):
                    await self.feed.news(seen)
            except TimeoutError:
                await _write(response, b": here\n\n")
                continue
            news, mark = self.feed.since(seen), self.feed.mark()
            seen = self.feed.version
            await _write(response, b"id: %b\ndata: %b\n\n" % (mark.encode(), news))
            await asyncio.sleep(PAUSE_S)


async def _write(response: StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(WRITE_S):
        await response.write(data)


def _not_yet() -> Response:
    said = "the cluster is being read\n"
    return Response(status=503, text=said, headers=HEADERS | {"Retry-After": "2"})


def _json(answer: Answer | None) -> Response:
    if answer is None:
        return Response(status=404, text="there is no such object\n", headers=HEADERS)
    return Response(body=msgspec.json.encode(answer), headers=HEADERS | {"Content-Type": "application/json"})


def _file(path: str, request: BaseRequest) -> Response:
    found = file(path)
    headers = HEADERS | {"Cache-Control": "no-cache", "ETag": found.etag, "Content-Type": found.kind}
    if request.headers.get("If-None-Match") == found.etag:
        return Response(status=304, headers=headers)
    return Response(body=found.content, headers=headers)
