"""The webhook while strangers hold its bytes: large reviews of others are answered all the same. Real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest

from dradriver.api.base import names
from tests.fakes.admission import CONTROLLER, body, defaulted, pod
from webhook import server
from webhook.admission import Admission

KIB, MIB = 1 << 10, 1 << 20
API_SERVER = "127.0.0.1"
WAIT_S = 50.0  # a slow machine is no reason for a refusal here
HEAD = b"POST /mutate-pods HTTP/1.1\r\nHost: x\r\n"


@dataclass(frozen=True)
class Stranger:
    """What a connection announces, what it sends at once, and whether it then goes on byte by byte."""

    announced: int | None = 8 * MIB  # None: a chunk of 8 MiB
    sent: int = 0
    trickles: bool = False

    async def hold(self, port: int, address: str) -> None:
        """Hold a connection until the server closes it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        try:
            if self.announced is None:
                writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % (8 * MIB) + b" " * self.sent)
            else:
                writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % self.announced + b" " * self.sent)
            answer = asyncio.create_task(reader.read())
            while self.trickles and not answer.done():
                writer.write(b" ")
                await asyncio.wait([answer], timeout=0.1)
            await answer
        finally:
            writer.transport.abort()


def review(size: int) -> bytes:
    """Return a review of so many bytes, a little more."""
    sent = body(defaulted(pod(2, annotations={names.POLICY: "nvlink"})), padding="x" * size)
    return json.dumps(sent).encode()


@contextlib.asynccontextmanager
async def served(*, grace_s: float = 1.0) -> AsyncIterator[int]:
    endpoint = server.Endpoint(Admission(controller_user=CONTROLLER), wait_s=WAIT_S, grace_s=grace_s)
    async with server.serve(endpoint.handle, port=0, context=None, host="127.0.0.1") as port:
        yield port


@contextlib.asynccontextmanager
async def held(port: int, strangers: list[tuple[Stranger, str]]) -> AsyncIterator[None]:
    """Hold connections, and another for each that the server closes."""

    async def again(stranger: Stranger, address: str) -> None:
        while True:
            with contextlib.suppress(OSError):
                await stranger.hold(port, address)

    tasks = [asyncio.create_task(again(*stranger)) for stranger in strangers]
    await asyncio.sleep(0.1)  # they are there first; the tests hold if they are not
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Client:
    """Posts reviews from one address, each over a connection of its own."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session, self._url = session, f"http://127.0.0.1:{port}/mutate-pods"

    async def post(self, sent: bytes) -> int:
        """Return the status of the answer."""
        async with self._session.post(self._url, data=io.BytesIO(sent)) as answer:
            await answer.read()
        return answer.status

    async def post_all(self, *sent: bytes) -> set[int]:
        return set(await asyncio.gather(*map(self.post, sent)))


@contextlib.asynccontextmanager
async def client(port: int, address: str = API_SERVER) -> AsyncIterator[Client]:
    connector = aiohttp.TCPConnector(limit=0, local_addr=(address, 0))
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Client(session, port)


STRANGERS = {
    "silent": Stranger(),
    "begun": Stranger(sent=1000),
    "stopped": Stranger(sent=100 * KIB),
    "half": Stranger(sent=4 * MIB),
    "half of a smaller one": Stranger(announced=MIB, sent=MIB // 2),
    "trickling": Stranger(sent=100, trickles=True),
    "half, then trickling": Stranger(sent=4 * MIB, trickles=True),
    "chunked": Stranger(announced=None, sent=100),
    "half of a chunk": Stranger(announced=None, sent=4 * MIB),
}


@pytest.mark.parametrize("kind", STRANGERS)
@pytest.mark.parametrize("addresses", [[API_SERVER], ["127.0.0.2"], [f"127.0.0.{2 + i}" for i in range(50)]])
@pytest.mark.slow
async def test_fifty_strangers_cost_no_large_review_its_answer(kind: str, addresses: list[str]) -> None:
    strangers = [(STRANGERS[kind], addresses[i % len(addresses)]) for i in range(50)]
    async with served() as port, held(port, strangers), client(port) as api_server:
        assert await api_server.post_all(*[review(100 * KIB)] * 11, review(MIB)) == {200}


async def test_silent_strangers_hold_no_bytes_that_others_wait_for() -> None:
    async with (
        served(grace_s=WAIT_S) as port,  # nobody is cut off
        held(port, [(Stranger(), API_SERVER)] * 50),
        client(port) as api_server,
    ):
        assert await api_server.post_all(*[review(100 * KIB)] * 12) == {200}


@pytest.mark.slow
@pytest.mark.parametrize("size", [100 * KIB, MIB])
async def test_a_burst_of_one_address_is_answered_as_a_whole(size: int) -> None:
    async with served() as port, client(port) as api_server:
        assert await api_server.post_all(*[review(size)] * (200 * 100 * KIB // size)) == {200}


@pytest.mark.slow
async def test_bursts_of_three_api_servers_are_answered_as_a_whole() -> None:
    async with (
        served() as port,
        client(port) as first,
        client(port, "127.0.0.2") as second,
        client(port, "127.0.0.3") as third,
    ):
        sent = [review(MIB)] * 15
        assert await asyncio.gather(*(some.post_all(*sent) for some in (first, second, third))) == [{200}] * 3


async def test_small_reviews_wait_for_no_bytes() -> None:
    """Strangers have announced three times what there is; a small body that comes after its head is answered."""
    strangers = [(Stranger(announced=64 * KIB, sent=100), "127.0.0.2")] * 300
    strangers += [(Stranger(sent=4 * MIB), f"127.0.0.{3 + i}") for i in range(10)]
    async with served(grace_s=WAIT_S) as port, held(port, strangers), client(port) as api_server:
        assert await api_server.post_all(*[review(40 * KIB)] * 20) == {200}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STRANGERS)
async def test_a_stranger_that_is_too_slow_is_cut_off(kind: str) -> None:
    async with served(grace_s=0.05) as port, asyncio.timeout(WAIT_S / 2):
        await asyncio.gather(STRANGERS[kind].hold(port, "127.0.0.2"), return_exceptions=True)


async def test_a_sender_that_is_cut_off_is_asked_to_come_again() -> None:
    async with served(grace_s=0.05) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"Content-Length: 1000\r\n\r\n" + b" " * 10)
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 429")
    assert b"Retry-After: 1" in answer
    assert b"The body arrived too slowly: 10 bytes" in answer
