"""An HTTP server that limits the number and the duration of its connections.

The webhook, the health servers and the page of ``gputopo serve`` use it. The server does not know who its clients are,
so it judges a connection by its requests. A connection is untrusted until it has carried a good request. If there are
too many connections, the server first closes untrusted ones. So clients that send requests again and again, such as API
servers, keep their connections. Among the untrusted connections, the server closes one of the address that has the
most. So a pod that opens many connections loses one of its own.
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
    "Connections that were closed to make room (crowded), or because no good request came in time (quiet).",
    why=("crowded", "quiet"),
)
_CROWDED, _QUIET = CLOSED.labels("crowded"), CLOSED.labels("quiet")

Handler = Callable[[BaseRequest], Awaitable[StreamResponse]]

FIRST_S: Final = 10.0  # from the opening of a connection to its first good request, TLS handshake included
IDLE_S: Final = 120.0  # from one good request to the next; Go clients, such as API servers, close after 90 s
WAITING: Final = 1024  # connections that the kernel queues until they are accepted
AT_ONCE: Final = 16  # connections accepted per turn of the event loop, so that accepted ones are served in between
# Bounds of a request's head, which is read before the client is trusted. API servers send about 10 fields; the longest
# is a token.
_BOUNDS_OF_HEAD: Final[dict[str, Any]] = {"max_line_size": 2048, "max_field_size": 2048, "max_headers": 24}


@dataclass(slots=True)
class _Held:
    transport: asyncio.BaseTransport
    address: str
    until: float  # by the loop's clock


class Connections:
    """The open connections of one server.

    A connection is trusted after its first good request.

    Args:
        most: The largest number of connections at a time. Trusted connections may take three quarters of them.
        first_s: Seconds from the opening of a connection to its first good request. A connection that is later is
            closed.
        idle_s: Seconds from one good request to the next. A connection that is later is closed.
    """

    def __init__(self, most: int, *, first_s: float = FIRST_S, idle_s: float = IDLE_S) -> None:
        self._most, self._first_s, self._idle_s = most, first_s, idle_s
        self._clock = asyncio.get_running_loop().time
        # Both by socket, with the longest quiet first.
        self._untrusted: dict[object, _Held] = {}
        self._trusted: dict[object, _Held] = {}

    def opened(self, transport: asyncio.BaseTransport) -> None:
        """Add a connection that was accepted; ``transport`` is asyncio's object for it.

        If the limit ``most`` is already reached, older connections are closed first.
        """
        if len(self._untrusted) + len(self._trusted) >= self._most:
            self.close_expired()
            while len(self._untrusted) + len(self._trusted) >= self._most:
                self._close_for_new()
        peer = transport.get_extra_info("peername")
        until = self._clock() + self._first_s
        self._untrusted[transport.get_extra_info("socket")] = _Held(transport, peer[0] if peer else "", until)

    def served(self, transport: asyncio.BaseTransport | None) -> None:
        """Trust a connection that carried a good request, and restart its idle time.

        ``transport`` is asyncio's object for the connection, TLS or plain HTTP; None is ignored.
        """
        key = None if transport is None else transport.get_extra_info("socket")
        held = self._trusted.pop(key, None) or self._untrusted.pop(key, None)
        if held is not None:
            held.until = self._clock() + self._idle_s
            self._trusted[key] = held

    def close_expired(self) -> None:
        """Close the connections that have had no good request for too long.

        ``first_s`` is the limit before the first good request, ``idle_s`` the limit after it. Connections that have
        ended are removed from the list.
        """
        now = self._clock()
        for connections in (self._untrusted, self._trusted):
            for key, held in list(connections.items()):
                is_closing = held.transport.is_closing()
                if is_closing or held.until <= now:
                    _QUIET.inc(not is_closing)
                    _close(connections.pop(key))

    async def keep(self) -> None:
        """Close connections without a good request for too long (``close_expired``), until cancelled."""
        while True:
            await asyncio.sleep(min(1.0, self._first_s / 4))
            self.close_expired()

    def close(self) -> None:
        """Close all connections of the HTTP server."""
        for connections in (self._untrusted, self._trusted):
            while connections:
                _close(connections.popitem()[1])

    def _close_for_new(self) -> None:
        """Close one connection, to make room for a new one.

        1. If untrusted connections take more than a quarter of the limit, or no connection is trusted, an untrusted one
           is closed. Otherwise a trusted one is closed.
        2. It belongs to the address that has the most connections of this kind.
        3. It is the address's oldest untrusted connection, or the trusted one whose last good request is longest ago.
        """
        # A quarter is left to untrusted connections: a new API server must be able to get in.
        is_untrusted = len(self._untrusted) > self._most // 4 or not self._trusted
        connections = self._untrusted if is_untrusted else self._trusted
        ((address, _),) = collections.Counter(held.address for held in connections.values()).most_common(1)
        _CROWDED.inc()
        _close(connections.pop(next(key for key, held in connections.items() if held.address == address)))


def _close(held: _Held) -> None:
    assert isinstance(held.transport, asyncio.Transport)
    # Not close(): unsent data, or a TLS close notification that is not answered, would keep the connection open.
    held.transport.abort()


class _Tls(sslproto.SSLProtocol):
    """asyncio's TLS protocol with smaller buffers, so that many open connections need little memory.

    The buffers have 16 KiB and 32 KiB: one and two TLS records (RFC 8446, 5.1). asyncio's own have 256 KiB each, for
    every connection.
    """

    max_size = 1 << 14

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Of what has arrived and waits to be decrypted. It must be more than one record, which is read as a whole.
        self._set_read_buffer_limits(2 * self.max_size)  # type: ignore[attr-defined]  # typeshed lacks it


class _CountingProtocol(asyncio.Protocol):
    """The first protocol of an accepted connection: adds the connection to ``Connections``.

    Then it switches to HTTP or TLS, which needs more memory.
    """

    def __init__(self, connections: Connections, new_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        self._connections, self._new_protocol = connections, new_protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connections.opened(transport)
        protocol = self._new_protocol()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


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
    """Serve HTTP or HTTPS with bounded connections during an ``async with`` body; yield the port.

    Args:
        handler: Answers every request. An answer with a status other than 4xx makes the connection trusted.
        host: Address to listen on; None for all.
        port: TCP port; 0 for one that the system chooses.
        connections: Limits the number of connections; closes some if there are too many.
        context: The TLS context; None for plain HTTP.
        end_s: When the body ends, answers that are not finished get this many seconds.
        options: Further options of ``aiohttp.web.Server``.

    Raises:
        OSError: The port is taken.
    """

    async def answer(request: BaseRequest) -> StreamResponse:
        response = await handler(request)
        # Only clients that send good requests keep their connections when there are too many.
        if not 400 <= response.status < 500:
            connections.served(request.transport)
        return response

    loop = asyncio.get_running_loop()
    server = Server(answer, access_log=None, **(_BOUNDS_OF_HEAD | options))

    # Called once for each connection. TLS is added by hand, because create_server(ssl=...) would use asyncio's own
    # class with its large buffers.
    def new_protocol() -> asyncio.BaseProtocol:
        http = server()  # an aiohttp server is a factory of protocols
        if context is None:
            return http
        handshake_done = None  # nothing awaits the handshake
        return _Tls(loop, http, context, handshake_done, server_side=True)

    listener = await loop.create_server(
        lambda: _CountingProtocol(connections, new_protocol), host, port, backlog=AT_ONCE
    )
    # asyncio accepts up to ``backlog`` connections per turn of its loop, and sets the kernel's queue to the same small
    # number. A second listen() on the same socket sets the queue alone.
    for listening_socket in listener.sockets:
        with listening_socket.dup() as duplicate:
            duplicate.listen(WAITING)
    closing_expired = asyncio.create_task(connections.keep())
    try:
        port_in_use = listener.sockets[0].getsockname()[1]
        yield port_in_use
    finally:
        # No new connections, then the running answers, then all connections.
        listener.close()
        closing_expired.cancel()
        # One turn of the loop, in which the handler starts for requests that have already been received.
        await asyncio.sleep(0)
        server.pre_shutdown()
        await server.shutdown(end_s)
        connections.close()
