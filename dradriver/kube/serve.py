"""The health server that every process has: ``/healthz``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4


def always() -> bool:
    """Return True: the check of a process that is alive while it answers at all."""
    return True


@contextlib.asynccontextmanager
async def serve_health(
    port: int,
    *,
    ready: Callable[[], bool],
    alive: Callable[[], bool] = always,
    host: str = "0.0.0.0",  # noqa: S104  # probes and Prometheus come from outside the pod
) -> AsyncIterator[int]:
    """Serve health and metrics while the block runs; yields the port, a free one where 0 was asked for.

    ``/healthz`` and ``/readyz`` answer 200 or 503; ``/metrics`` is the default registry as Prometheus text.

    Args:
        port: TCP port.
        ready: Whether the process does its work now.
        alive: Whether the process can still come right by itself; where it cannot, the kubelet restarts it.
        host: Address to listen on.

    Raises:
        OSError: The port is taken.
    """
    app = web.Application()
    app.router.add_get("/healthz", _check(alive))
    app.router.add_get("/readyz", _check(ready))
    app.router.add_get("/metrics", _metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _check(holds: Callable[[], bool]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="ok\n") if holds() else web.Response(status=503, text="not yet\n")

    return answer


async def _metrics(_: web.Request) -> web.Response:
    return web.Response(body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})
