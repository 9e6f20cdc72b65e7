"""An HTTP server that strangers reach too: how many connections it holds, how long, and which gives way to a new one.

Nobody says who he is, so what counts is what a connection has carried. It is a stranger's until it has carried a good
request, and strangers give way first; those who ask again and again, as API servers do, keep theirs. Where there are
too many it is the address that holds most that gives one up: what one pod opens costs that pod's own connections.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ssl
from asyncio import sslproto
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import Counter

from dradriver.kube.http import aiohttp  # noqa: F401  # before any other part of it

# isort: split
# All of aiohttp.web, with routes and files, would be a megabyte more.
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from aiohttp.web_server import Server

from dradriver.kube.labelled_metrics import Labelled

CLOSED: Final = Labelled(
    Counter,
    "gpu_topology_connections_closed_total",
    "Connections that were closed for a new one, or because no good request came over them in time.",
    why=("crowded", "quiet"),
)
_CROWDED, _QUIET = CLOSED.labels("crowded"), CLOSED.labels("quiet")

Handler = Callable[[BaseRequest], Awaitable[StreamResponse]]

FIRST_S: Final = 10.0  # from its opening a connection has so long to carry a good request, its handshake included
IDLE_S: Final = 120.0  # and so long until the next; Go's clients, as API servers are, close theirs after 90 s
WAITING: Final = 1024  # connections that the system holds until they are accepted
AT_ONCE: Final = 16  # of them are accepted in a turn of the loop, so that those who are in are heard between
# Of a request's head, which is read before anything is known of it: API servers send 10 fields, with a token at most.
_HEAD: Final[dict[str, Any]] = {"max_line_size": 2048, "max_field_size": 2048, "max_headers": 24}


@dataclass(slots=True)
class _Held:
    transport: asyncio.BaseTransport
    address: str
    until: float  # by the loop's clock


class Connections:
    """The connections of one server.

    Args:
        most: How many are held at once; a quarter of them is left to strangers, whoever has the others.
        first_s: Seconds from the opening until a good request has come.
        idle_s: Seconds from one good request to the next.
    """

    def __init__(self, most: int, *, first_s: float = FIRST_S, idle_s: float = IDLE_S) -> None:
        self._most, self._first_s, self._idle_s = most, first_s, idle_s
        self._clock = asyncio.get_running_loop().time
        # Both by socket, what has been quiet for longest first.
        self._strangers: dict[object, _Held] = {}
        self._known: dict[object, _Held] = {}

    def opened(self, transport: asyncio.BaseTransport) -> None:
        """Count a connection that was accepted; another gives way to it if there are too many."""
        if len(self._strangers) + len(self._known) >= self._most:
            self.close_expired()
            while len(self._strangers) + len(self._known) >= self._most:
                self._give_one_up()
        peer = transport.get_extra_info("peername")
        until = self._clock() + self._first_s
        self._strangers[transport.get_extra_info("socket")] = _Held(transport, peer[0] if peer else "", until)

    def served(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that a good request has come over a connection, whatever is spoken on it."""
        key = None if transport is None else transport.get_extra_info("socket")
        held = self._known.pop(key, None) or self._strangers.pop(key, None)
        if held is not None:
            held.until = self._clock() + self._idle_s
            self._known[key] = held

    def close_expired(self) -> None:
        """Close those that were quiet for too long, and forget those that are closed."""
        now = self._clock()
        for some in (self._strangers, self._known):
            for key, held in list(some.items()):
                if (gone := held.transport.is_closing()) or held.until <= now:
                    _QUIET.inc(not gone)
                    _close(some.pop(key))

    async def keep(self) -> None:
        """Close connections that are quiet for too long, until cancelled."""
        while True:
            await asyncio.sleep(min(1.0, self._first_s / 4))
            self.close_expired()

    def close(self) -> None:
        """Close all connections of the HTTP server."""
        for some in (self._strangers, self._known):
            while some:
                _close(some.popitem()[1])

    def _give_one_up(self) -> None:
        some = self._strangers if len(self._strangers) > self._most // 4 or not self._known else self._known
        ((address, _),) = collections.Counter(held.address for held in some.values()).most_common(1)
        _CROWDED.inc()
        _close(some.pop(next(key for key, held in some.items() if held.address == address)))


def _close(held: _Held) -> None:
    assert isinstance(held.transport, asyncio.Transport)
    held.transport.abort()  # what is still to be sent, or a last word of TLS that nobody answers, would hold it open


class _Tls(sslproto.SSLProtocol):
    """asyncio's TLS with buffers of one and two records (RFC 8446, 5.1): its own have 256 KiB each per connection."""

    max_size = 1 << 14

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Of what has arrived and waits to be decrypted. It must be more than one record, which is read as a whole.
        self._set_read_buffer_limits(2 * self.max_size)  # type: ignore[attr-defined]  # typeshed lacks it


class _Arrived(asyncio.Protocol):
    """A connection that was just accepted: it is counted before it costs anything, then handed on."""

    def __init__(self, connections: Connections, speak: Callable[[], asyncio.BaseProtocol]) -> None:
        self._connections, self._speak = connections, speak

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connections.opened(transport)
        spoken = self._speak()
        transport.set_protocol(spoken)
        spoken.connection_made(transport)


@contextlib.asynccontextmanager
async def listening(
    handler: Handler,
    *,
    host: str | None,
    port: int,
    connections: Connections,
    context: ssl.SSLContext | None = None,
    end_s: float,
    **options: Any,
) -> AsyncIterator[int]:
    """Serve HTTP connections by a handler while the block runs; gives the port, chosen by the system for 0.

    Args:
        handler: Answers every request. A good one is what it does not answer with a status of 400 to 499.
        host: Address to listen on; None for all.
        port: TCP port.
        connections: Holds the connections.
        context: What to speak TLS with; None for plain HTTP.
        end_s: Seconds that answers under way have at the end.
        options: More for ``aiohttp.web.Server``.

    Raises:
        OSError: The port is taken.
    """

    async def answer(request: BaseRequest) -> StreamResponse:
        response = await handler(request)
        if not 400 <= response.status < 500:
            connections.served(request.transport)
        return response

    loop = asyncio.get_running_loop()
    server = Server(answer, access_log=None, **(_HEAD | options))

    def speak() -> asyncio.BaseProtocol:
        http = server()
        return http if context is None else _Tls(loop, http, context, None, server_side=True)  # nobody waits

    listener = await loop.create_server(lambda: _Arrived(connections, speak), host, port, backlog=AT_ONCE)
    for bound in listener.sockets:
        with bound.dup() as same:
            same.listen(WAITING)
    keeping = asyncio.create_task(connections.keep())
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        keeping.cancel()
        await asyncio.sleep(0)  # what has arrived is begun
        server.pre_shutdown()
        await server.shutdown(end_s)
        connections.close()
