"""The health server that every process has: ``/healthz``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from prometheus_client import REGISTRY, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from dradriver.kube.http import aiohttp
from dradriver.process.server_connections import Connections, Handler, listening

# isort: split
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response

Answer = Callable[[], Response]

MOST: Final = 64  # connections: the kubelet has one for a moment, and each Prometheus one
_END_S: Final = 1.0  # an answer takes milliseconds


def always() -> bool:
    """Return True: this is the default of the argument ``alive`` of ``serve_health``.

    A process without a check of its own counts as alive as long as it answers ``/healthz``.
    """
    return True


@contextlib.asynccontextmanager
async def serve_health(
    port: int,
    *,
    ready: Callable[[], bool],
    alive: Callable[[], bool] = always,
    host: str = "0.0.0.0",  # noqa: S104  # probes and Prometheus come from outside the pod
) -> AsyncIterator[int]:
    """Serve health and metrics during an ``async with`` body; yield the port.

    For port 0 a free port is chosen.

    ``/healthz`` and ``/readyz`` answer 200 or 503; ``/metrics`` answers the metrics of the process as Prometheus text.

    Args:
        port: TCP port.
        ready: Returns whether the process does its work now.
        alive: Returns whether the process can still recover by itself; if not, the kubelet restarts it.
        host: Address to listen on.

    Raises:
        OSError: The port is taken.
    """
    answers = {"/healthz": _probe_answer(alive), "/readyz": _probe_answer(ready), "/metrics": _metrics}
    connections = Connections(MOST)
    async with listening(
        _handler_of(answers), host=host, port=port, connections=connections, end_s=_END_S
    ) as bound_port:
        yield bound_port


def _handler_of(answers: Mapping[str, Answer]) -> Handler:
    async def answer(request: BaseRequest) -> Response:
        if request.method not in (aiohttp.hdrs.METH_GET, aiohttp.hdrs.METH_HEAD):
            return Response(status=405, headers={aiohttp.hdrs.ALLOW: "GET,HEAD"})
        respond = answers.get(request.path)
        return respond() if respond is not None else Response(status=404)

    return answer


def _probe_answer(holds: Callable[[], bool]) -> Answer:
    return lambda: Response(text="ok\n") if holds() else Response(status=503, text="not yet\n")


def _metrics() -> Response:
    return Response(body=generate_latest(REGISTRY), headers={aiohttp.hdrs.CONTENT_TYPE: CONTENT_TYPE_PLAIN_0_0_4})
