from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest

from dradriver.process.health_server import MOST, serve_health


async def test_health_readiness_and_metrics_answer_while_the_block_runs() -> None:
    state = {"ready": False, "alive": True}
    async with (
        serve_health(0, ready=lambda: state["ready"], alive=lambda: state["alive"], host="127.0.0.1") as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):

        async def status(path: str) -> int:
            async with session.get(path) as answer:
                return answer.status

        assert (await status("/healthz"), await status("/readyz")) == (200, 503)
        state.update(ready=True, alive=False)
        assert (await status("/healthz"), await status("/readyz")) == (503, 200)
        async with session.get("/metrics") as answer:
            assert answer.content_type == "text/plain"
            assert "python_info" in await answer.text()
        assert (await status("/"), await status("/healthz/x")) == (404, 404)
        async with session.post("/healthz", data="x") as answer:
            assert answer.status == 405
        async with session.head("/readyz") as answer:
            assert (answer.status, await answer.read()) == (200, b"")


async def test_a_connection_that_is_kept_open_does_not_hold_up_the_end() -> None:
    async with aiohttp.ClientSession() as session:
        async with serve_health(0, ready=lambda: True, host="127.0.0.1") as port:
            async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                assert answer.status == 200
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(f"http://127.0.0.1:{port}/readyz")


@pytest.mark.slow
async def test_connections_that_are_held_open_keep_no_other_out() -> None:
    async with serve_health(0, ready=lambda: True, host="127.0.0.1") as port:
        held = []
        for asked in (b"", b"GET /readyz HTTP/1.1\r\nX: ", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"):
            for _ in range(MOST):
                held.append(await asyncio.open_connection("127.0.0.1", port))
                held[-1][1].write(asked)
                await held[-1][1].drain()
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/readyz") as answer:
            assert answer.status == 200
        for reader, writer in held[:MOST]:
            with contextlib.suppress(ConnectionResetError):
                async with asyncio.timeout(50):
                    assert await reader.read() == b""
            writer.close()
        for _, writer in held[MOST:]:
            writer.close()


async def test_a_port_that_is_taken_is_an_error() -> None:
    async with serve_health(0, ready=lambda: True, host="127.0.0.1") as port:
        with pytest.raises(OSError, match="in use"):
            async with serve_health(port, ready=lambda: True, host="127.0.0.1"):
                pass
