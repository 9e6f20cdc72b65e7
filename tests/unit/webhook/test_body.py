"""The body of one request on a clock of its own: who sends too slowly is cut off, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol

from webhook.body import HURRY_S, RATE, Body

pytestmark = pytest.mark.looptime

GRACE_S = 1.0
END_S = 100.0
KIB = 1 << 10
Send = Callable[[StreamReader], Coroutine[Any, Any, None]]


def stream() -> StreamReader:
    class Protocol(BaseProtocol):
        def pause_reading(self) -> None: ...
        def resume_reading(self, resume_parser: bool = True) -> None: ...

    loop = asyncio.get_running_loop()
    protocol = Protocol(loop)
    protocol.transport = asyncio.Transport()
    return StreamReader(protocol, 1 << 16, loop=loop)


async def cut_off_s(send: Send, *, is_waited_for: bool = False) -> float | None:
    """Return the time at which a sender was cut off; None if its body was read."""
    loop, content = asyncio.get_running_loop(), stream()
    began = loop.time()
    sending = asyncio.create_task(send(content))
    try:
        async with asyncio.timeout(END_S) as limit:
            body = Body(content, limit=limit, grace_s=GRACE_S)
            assert await body.read(1 << 30, is_waited_for=lambda: is_waited_for)
    except TimeoutError:
        assert body.is_cut_off
        return loop.time() - began
    finally:
        sending.cancel()
    assert not body.is_cut_off
    return None


async def send_nothing(content: StreamReader) -> None:
    """Send nothing."""


async def trickle(content: StreamReader) -> None:
    while True:
        content.feed_data(b" ")
        await asyncio.sleep(0.01)


async def send_once(content: StreamReader) -> None:
    content.feed_data(b" " * (4 * RATE))


async def send_in_bursts(content: StreamReader) -> None:
    while True:
        content.feed_data(b" " * (RATE // 10))
        await asyncio.sleep(0.15)


@pytest.mark.parametrize("send", [send_nothing, trickle, send_once])
@pytest.mark.parametrize(("is_waited_for", "after_s"), [(False, GRACE_S), (True, HURRY_S)])
async def test_a_sender_that_stalls_is_cut_off_sooner_if_others_wait(
    send: Send, is_waited_for: bool, after_s: float
) -> None:
    assert await cut_off_s(send, is_waited_for=is_waited_for) == pytest.approx(after_s, abs=0.1)


async def test_a_sender_below_the_rate_is_cut_off_when_it_is_too_far_behind() -> None:
    assert await cut_off_s(send_in_bursts) == pytest.approx(3 * GRACE_S, abs=0.3)  # two thirds of the rate


@pytest.mark.parametrize("seconds", [0.1, 10.0])
@pytest.mark.parametrize("is_waited_for", [False, True])
async def test_a_sender_at_the_rate_is_read_to_its_end(seconds: float, is_waited_for: bool) -> None:
    async def send(content: StreamReader) -> None:
        for _ in range(int(seconds / 0.1)):
            content.feed_data(b" " * (RATE // 10))
            await asyncio.sleep(0.1)
        content.feed_eof()

    assert await cut_off_s(send, is_waited_for=is_waited_for) is None


async def test_a_small_body_has_the_whole_grace() -> None:
    async def send(content: StreamReader) -> None:
        await asyncio.sleep(0.9 * GRACE_S)
        content.feed_data(b"{}")
        content.feed_eof()

    assert await cut_off_s(send) is None


async def test_time_that_the_server_takes_is_not_the_senders() -> None:
    content = stream()
    content.feed_data(b" " * KIB)
    async with asyncio.timeout(END_S) as limit:
        body = Body(content, limit=limit, grace_s=GRACE_S)
        assert not await body.read(0)
        body.cut_off()  # its bytes are wanted elsewhere, but it is the server that does not read
        await asyncio.sleep(10 * GRACE_S)
        content.feed_data(b" " * KIB)
        content.feed_eof()
        assert await body.read(1 << 30)
    assert (body.length, body.is_cut_off) == (2 * KIB, False)


async def test_a_body_that_is_cut_off_for_another_ends_at_once() -> None:
    content, loop = stream(), asyncio.get_running_loop()
    async with asyncio.timeout(END_S) as limit:
        body = Body(content, limit=limit, grace_s=GRACE_S)
        reading = asyncio.create_task(body.read(1))
        await asyncio.sleep(0.2)
        for _ in range(2):
            body.cut_off()
        assert limit.when() == loop.time()
        reading.cancel()
    assert body.is_cut_off


async def test_a_body_longer_than_allowed_is_read_no_further() -> None:
    content = stream()
    content.feed_data(b"xyz")
    async with asyncio.timeout(END_S) as limit:
        body = Body(content, limit=limit, grace_s=GRACE_S)
        assert not await body.read(2)
    assert body.whole() == b"xyz"
