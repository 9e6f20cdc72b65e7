"""Connections of a server that strangers reach too: real sockets, from several addresses of the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from dradriver.process.server_connections import Connections, listening
from webhook import certificates, tls

MOST = 16
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def answer(http: web.BaseRequest) -> web.Response:
    return web.Response(status=200 if http.path == "/good" else 404, text="x")


class Clients:
    """Opens connections to one server from addresses of the loopback, and closes them at the end."""

    def __init__(self, port: int, *, secure: bool) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self._context = None
        if secure:
            self._context = ssl.create_default_context()
            self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE

    async def open(self, address: str = "127.0.0.1", *, silent: bool = False) -> Streams:
        context = None if silent else self._context
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=context, local_addr=(address, 0), limit=1 << 16
        )
        self._writers.append(writer)
        return reader, writer

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


async def ask(streams: Streams, path: str = "/good") -> bytes:
    """Return the status line of what is answered to one request."""
    reader, writer = streams
    writer.write(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
    async with asyncio.timeout(50):
        head = await reader.readuntil(b"\r\n\r\nx")
    return head.split(b"\r\n")[0]


async def ended(streams: Streams) -> bool:
    """Return True once the server has closed a connection."""
    async with asyncio.timeout(50):
        with contextlib.suppress(ConnectionResetError, ssl.SSLError):
            await streams[0].read()
    return True


@contextlib.asynccontextmanager
async def served(*, secure: bool, first_s: float = 60, idle_s: float = 60) -> AsyncIterator[Clients]:
    context = None
    if secure:
        context = tls.server_context()
        bundle = certificates.renew(None, now=datetime.datetime.now(datetime.UTC), hosts=["webhook"])
        tls.load(context, certificate=bundle.certificate, key=bundle.key)
    connections = Connections(MOST, first_s=first_s, idle_s=idle_s)
    async with listening(answer, host="127.0.0.1", port=0, connections=connections, context=context, end_s=1.0) as port:
        clients = Clients(port, secure=secure)
        try:
            yield clients
        finally:
            clients.close()


@pytest.mark.parametrize("secure", [False, True])
async def test_a_connection_that_carried_a_good_request_outlives_any_number_of_strangers(secure: bool) -> None:
    async with served(secure=secure) as clients:
        known = [await clients.open() for _ in range(4)]
        for one in known:
            assert await ask(one) == b"HTTP/1.1 200 OK"
        strangers = [await clients.open("127.0.0.2", silent=True) for _ in range(4 * MOST)]
        for one in strangers[: 3 * MOST]:
            assert await ended(one)
        for one in known:
            assert await ask(one) == b"HTTP/1.1 200 OK"
        assert await ask(await clients.open("127.0.0.3")) == b"HTTP/1.1 200 OK"


async def test_closed_connections_are_counted() -> None:
    def counted(why: str) -> float:
        return REGISTRY.get_sample_value("gpu_topology_connections_closed_total", {"why": why}) or 0.0

    crowded, quiet = counted("crowded"), counted("quiet")
    async with served(secure=False) as clients:
        every = [await clients.open() for _ in range(MOST + 3)]
        for one in every[:3]:
            assert await ended(one)
    async with served(secure=False, first_s=0.2) as clients:
        assert await ended(await clients.open())
    assert (counted("crowded") - crowded, counted("quiet") - quiet) == (3, 1)


async def test_a_request_that_is_refused_makes_no_tenant_known() -> None:
    async with served(secure=False) as clients:
        known, refused = await clients.open(), await clients.open("127.0.0.2")
        assert await ask(refused, "/bad") == b"HTTP/1.1 404 Not Found"
        assert await ask(known) == b"HTTP/1.1 200 OK"
        for _ in range(MOST):
            await clients.open("127.0.0.2")
        assert await ended(refused)
        assert await ask(known) == b"HTTP/1.1 200 OK"


async def test_the_address_with_most_strangers_gives_one_up_its_oldest_first() -> None:
    async with served(secure=False) as clients:
        few = [await clients.open("127.0.0.3") for _ in range(2)]
        many = [await clients.open("127.0.0.2") for _ in range(MOST - 2)]
        more = [await clients.open("127.0.0.4") for _ in range(3)]
        for one in many[:3]:
            assert await ended(one)
        for one in (*few, *many[3:], *more):
            assert await ask(one) == b"HTTP/1.1 200 OK"


async def test_good_requests_of_one_address_lock_no_other_out() -> None:
    """A quarter is left to strangers; of the others the address with most gives up what was quiet for longest."""
    async with served(secure=False) as clients:
        server = [await clients.open() for _ in range(3)]
        for one in server:
            await ask(one)
        hostile = [await clients.open("127.0.0.2") for _ in range(MOST - 3)]
        for one in hostile:
            await ask(one)
        await ask(hostile[0])
        new = [await clients.open("127.0.0.3") for _ in range(MOST // 4)]
        for one in hostile[1 : 1 + MOST // 4]:
            assert await ended(one)
        for one in (*server, *new, hostile[0], *hostile[1 + MOST // 4 :]):
            assert await ask(one) == b"HTTP/1.1 200 OK"


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("sent", [b"", b"GET /good HTTP/1.1\r\n", b"GET /bad HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_a_stranger_without_a_good_request_is_closed_in_time(secure: bool, sent: bytes) -> None:
    async with served(secure=secure, first_s=0.5) as clients:
        with contextlib.suppress(OSError):  # closed within the handshake already, on a slow machine
            one = await clients.open()
            one[1].write(sent)
            assert await ended(one)


async def test_a_handshake_that_never_ends_is_closed_in_time() -> None:
    async with served(secure=True, first_s=0.2) as clients:
        assert await ended(await clients.open(silent=True))


@pytest.mark.slow
async def test_a_good_request_gives_more_time() -> None:
    async with served(secure=False, first_s=2.0) as clients:  # not less, on a slow machine
        known = await clients.open()
        await ask(known)
        assert await ended(await clients.open())
        assert await ask(known) == b"HTTP/1.1 200 OK"


@pytest.mark.slow
async def test_a_connection_that_goes_idle_is_closed_in_time() -> None:
    async with served(secure=True, idle_s=0.2) as clients:
        known = await clients.open()
        await ask(known)
        assert await ended(known)


async def test_a_head_without_bounds_is_refused() -> None:
    async with served(secure=False) as clients:
        reader, writer = await clients.open()
        writer.write(b"GET /good HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(100)) + b"\r\n")
        assert (await reader.readline()).split()[1] == b"400"


async def test_connections_that_were_closed_take_no_place() -> None:
    async with served(secure=False) as clients:
        kept = await clients.open("127.0.0.2")
        for _ in range(3 * MOST):
            one = await clients.open("127.0.0.2")
            await ask(one)
            one[1].close()
            await one[1].wait_closed()
        assert await ask(kept) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("silent", [False, True])
async def test_the_end_waits_for_no_client(silent: bool) -> None:
    async with asyncio.timeout(50):
        async with served(secure=True) as clients:
            one = await clients.open(silent=silent)
        assert await ended(one)
