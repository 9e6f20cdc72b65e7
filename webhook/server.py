"""The HTTPS server that the API server calls: it receives reviews, within bounds, and sends answers.

It uses aiohttp's low-level server, because routing and application middleware would cost more than an answer does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import hdrs, web
from multidict import CIMultiDict

from dradriver.api.base import names
from dradriver.process.server_connections import Connections, Handler, listening
from webhook import review
from webhook.admission import POLICIES_PATH, Admission
from webhook.body import GRACE_S, Body
from webhook.bytes_in_flight import Budget

logger = logging.getLogger(__name__)

MOST_BYTES: Final = 8 << 20  # of a body: a review holds two objects of at most 3 MiB (apiserver's MaxRequestBodyBytes)
SMALL: Final = 1 << 16  # bytes: what nearly every review is below; bodies as small as this wait for nothing
LARGE_BYTES: Final = 12 << 20  # of all larger bodies at once
WAIT_S: Final = 4.0  # for a body, its turn and its answer; the API server waits 5 s by default
READ_BYTES: Final = 1 << 14  # of a large body before its turn; TLS and the HTTP parser hold up to six times as many
CONNECTIONS: Final = 512  # three API servers that each admit 250 pods at the same moment, over two replicas


class Endpoint:
    """Answers POST requests to the paths of ``Admission``.

    Args:
        admission: Answers reviews.
        wait_s: The longest time of a request, seconds.
        grace_s: For how many seconds a sender may send more slowly than the speed ``body.RATE``.
    """

    def __init__(self, admission: Admission, *, wait_s: float = WAIT_S, grace_s: float = GRACE_S) -> None:
        self._admission = admission
        self._wait_s, self._grace_s = wait_s, grace_s
        self._large = Budget(LARGE_BYTES)  # bytes of large bodies that may be in memory at once
        self._slow_answer = asyncio.Lock()  # held during an answer that takes long: one at a time
        self._pause_end = 0.0  # by the loop's clock: until then no answer that takes long begins

    async def handle(self, http: web.BaseRequest) -> web.Response:
        """Return the server's HTTP answer to an admission review.

        The status is 400 if the body is not a review, 413 if it is too large, and 429 if it takes too long. With these
        statuses the API server refuses the object, or accepts it if the webhook's ``failurePolicy`` is Ignore. The API
        server shows users the message of the Status in the answer's body.
        """
        paths = self._admission.paths
        if http.path not in paths:
            return web.Response(status=404, text=f"Unknown path {http.path[:64]!r}. Use one of: {', '.join(paths)}.")
        if http.method != hdrs.METH_POST:
            return web.Response(status=405, headers={hdrs.ALLOW: hdrs.METH_POST})
        content = http.content  # the body; aiohttp may still be receiving it

        # 1. Nearly all reviews are small and arrive together with their head.
        is_slow = http.path == POLICIES_PATH  # even a small one, so it is answered as large bodies are
        if content.is_eof() and content.total_bytes <= SMALL and not is_slow:
            return self._answer(http.path, content.read_nowait())
        size = MOST_BYTES if http.content_length is None else http.content_length
        if size > MOST_BYTES:
            return _too_large(f"{size}")

        # 2. Others are read as they come, within ``wait_s``. A large body first sends ``READ_BYTES`` and waits then for
        # its turn, so that a client that sends nothing takes no turn. A small body waits for no turn.
        try:
            async with asyncio.timeout(self._wait_s) as limit:
                # ``limit`` is ended early if the sender is slow.
                body = Body(content, limit=limit, grace_s=self._grace_s)
                # True if the body has ended within so many bytes.
                if await body.read(SMALL if size <= SMALL else READ_BYTES):
                    if is_slow:
                        return await self._answer_slowly(http.path, body)
                    return self._answer(http.path, body.whole())
                # The turn: ``size`` of the bytes that all large bodies share. The body is cut off if others need them.
                async with self._large.lent(size, address=http.remote or "", revoke=body.cut_off):
                    if not await body.read(size, is_waited_for=self._large.is_waited_for):
                        return _too_large(f"more than {size}")
                    return await self._answer_slowly(http.path, body)
        except ConnectionError:
            return _refused(400, "The connection ended before the whole body was read.")  # no client receives it
        except TimeoutError:  # the API server may ask again; Retry-After says when
            if body.is_cut_off:
                return _refused(
                    429, f"The body arrived too slowly: {body.length} bytes so far. Send the request again."
                )
            return _refused(429, "Too many bytes of requests are being read. Send the request again.")

    async def _answer_slowly(self, path: str, body: Body) -> web.Response:
        """Return the answer to a large body, or to a review of the policies file.

        They are answered one at a time, and half of the event loop's time is kept for all other bodies.
        """
        async with self._slow_answer:
            await asyncio.sleep(self._pause_end - asyncio.get_running_loop().time())
            began = time.perf_counter()
            try:
                return self._answer(path, body.whole())
            finally:
                self._pause_end = asyncio.get_running_loop().time() + time.perf_counter() - began

    def _answer(self, path: str, body: bytes) -> web.Response:
        try:
            answer = self._admission.answer(path, body)
        except review.ReviewError as error:
            text = review.shorten(str(error), review.MOST_MESSAGE)
            logger.warning("The webhook refused a request with a body of %d bytes: %s", len(body), text)
            return web.Response(status=400, body=review.failure(400, text), headers=_JSON)
        return web.Response(body=answer, headers=_JSON)


_JSON: Final = CIMultiDict({hdrs.CONTENT_TYPE: "application/json"})


def _too_large(length: str) -> web.Response:
    return _refused(
        413,
        f"The old and the new object have {length} bytes of JSON together, and {names.DRIVER} reads at most "
        f"{MOST_BYTES}. Make the object smaller. Each <, > and & counts as six bytes.",
    )


def _refused(status: int, text: str) -> web.Response:
    logger.warning("The webhook answered a request with status %d: %s", status, text)
    response = web.Response(status=status, body=review.failure(status, text), headers=_JSON)
    if status == 429:
        response.headers[hdrs.RETRY_AFTER] = "1"
    response.force_close()  # the rest of the body is not wanted
    return response


@contextlib.asynccontextmanager
async def serve(
    handler: Handler,
    *,
    port: int,
    context: ssl.SSLContext | None,
    host: str | None = None,
) -> AsyncIterator[int]:
    """Serve a handler while the ``async with`` block runs, and yield the port.

    Args:
        handler: Answers every request.
        port: TCP port; 0 for one that the system chooses.
        context: The TLS context; None for plain HTTP.
        host: Address to listen on; None for all.

    Raises:
        OSError: The port is taken.
    """
    async with listening(
        handler,
        host=host,
        port=port,
        connections=Connections(CONNECTIONS),
        context=context,
        end_s=5.0,  # for running answers when the process stops
        # A compressed body is not unpacked, so it is refused as no JSON: API servers send none, and a small one could
        # unpack to any size.
        auto_decompress=False,
        lingering_time=1.0,  # seconds to read the rest of a body that was answered before its end
        read_bufsize=READ_BYTES,  # so much of a body is received before it is read
    ) as bound_port:
        yield bound_port
