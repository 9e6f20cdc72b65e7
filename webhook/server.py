"""The HTTPS server that the API server calls."""

from __future__ import annotations

import contextlib
import functools
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from aiohttp import web
from prometheus_client import Counter, Histogram

from dradriver.api.errors import WordError
from dradriver.kube.labels import Labelled
from webhook import mutate, patch, pods, review, update, validate

logger = logging.getLogger(__name__)

_OPERATIONS: Final = ("CREATE", "UPDATE", "DELETE", "CONNECT")

REQUESTS: Final = Labelled(
    Counter,
    "gpu_topology_admission_requests_total",
    "Answered admission requests.",
    operation=_OPERATIONS,
    result=("allowed", "patched", "denied", "invalid"),
)
SECONDS: Final = Labelled(
    functools.partial(Histogram, buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)),
    "gpu_topology_admission_request_duration_seconds",
    "Time from a request's body to its answer.",
    operation=_OPERATIONS,
)

Answer = tuple[bytes, str]  # the body, and the result for the metric


def application(*, controller_user: str) -> web.Application:
    """Return the application with ``POST /mutate-pods`` and ``POST /validate-claims``.

    Args:
        controller_user: The controller's user name; its updates of pods pass untouched.
    """

    def pods_answer(request: review.Request) -> Answer:
        return mutate_pod(request, controller_user=controller_user)

    app = web.Application(client_max_size=review.MOST_BYTES)
    app.router.add_post("/mutate-pods", _handler(pods_answer))
    app.router.add_post("/validate-claims", _handler(validate_claim))
    return app


@contextlib.asynccontextmanager
async def serve(
    app: web.Application, *, port: int, context: ssl.SSLContext, host: str | None = None
) -> AsyncIterator[int]:
    """Serve the application over TLS while the block runs; gives the port, which the system chooses when it is 0."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=5)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=context).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _handler(answer: Callable[[review.Request], Answer]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(http: web.Request) -> web.Response:
        body = await http.read()
        started = time.perf_counter()
        operation, result, text = "other", "invalid", ""
        try:
            request = review.decode(body)
            operation = request.operation if request.operation in _OPERATIONS else "other"
            encoded, result = answer(request)
        except review.ReviewError as error:
            text = str(error)
        except RecursionError:
            text = "the object is nested too deeply"
        finally:
            REQUESTS.labels(operation, result).inc()
            SECONDS.labels(operation).observe(time.perf_counter() - started)
        if text:
            logger.warning("refused a body of %d bytes: %s", len(body), review.shorten(text, review.MOST_MESSAGE))
            return web.Response(status=400, text=text)
        return web.Response(body=encoded, content_type="application/json")

    return handle


def mutate_pod(request: review.Request, *, controller_user: str) -> Answer:
    """Return the answer to CREATE or UPDATE of a pod; anything else passes."""
    by_controller = request.operation == "UPDATE" and request.user_info.username == controller_user
    if request.kind.kind != "Pod" or request.sub_resource or by_controller:
        return review.allow(request), "allowed"
    try:
        if request.operation == "CREATE":
            sent = pods.check(request.object)
            wanted, warnings = mutate.create(sent)
        elif request.operation == "UPDATE":
            sent = pods.check(request.object)
            wanted, warnings = update.update(sent, pods.check(request.old_object))
        else:
            return review.allow(request), "allowed"
    except WordError as error:
        return _deny(request, error)
    operations = list(patch.diff(sent, wanted))
    return review.allow(request, patch=operations, warnings=warnings), "patched" if operations else "allowed"


def validate_claim(request: review.Request) -> Answer:
    """Return the answer to CREATE or UPDATE of a claim or template; anything else passes."""
    if request.sub_resource or request.operation not in ("CREATE", "UPDATE"):
        return review.allow(request), "allowed"
    try:
        validate.claim(request.kind.kind, request.object, request.old_object)
    except WordError as error:
        return _deny(request, error)
    return review.allow(request), "allowed"


def _deny(request: review.Request, error: WordError) -> Answer:
    what = f"{request.operation} of {request.kind.kind} {request.namespace}/{request.name or '(generated name)'}"
    message = review.shorten(f"denied {what}: {error}", review.MOST_MESSAGE)
    logger.info("%s", message)
    return review.deny(request, str(error)), "denied"
