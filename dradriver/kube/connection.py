"""Connections to the API server: send requests with the bearer token, and turn failures into our errors."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import Final, Self

import yarl

from dradriver.kube import codec
from dradriver.kube.config import ServerConfig
from dradriver.kube.errors import Unreachable, from_status
from dradriver.kube.http import aiohttp
from dradriver.kube.stream_lines import Lines, error_text

CONNECT_S: Final = 10.0
# Writes that a slow webhook of the cluster delays must leave connections for the lease's renewal and the watches.
CONNECTIONS: Final = 400


class TooLongError(Exception):
    """The answer is longer than the caller's limit."""


class Connection:
    """Kept-alive connections to an API server; an async context manager.

    Attributes:
        date: The ``Date`` header of the last answer, by the server's clock; empty without one.
        date_at: The time at which that answer arrived, by the monotonic clock.
    """

    def __init__(self, config: ServerConfig, *, user_agent: str, timeout_s: float) -> None:
        """Make an object that connects at the first request.

        Args:
            config: The server's address and our credentials.
            user_agent: The name of this program in the server's logs.
            timeout_s: How long an answer may take, in seconds.
        """
        self._config = config
        self._user_agent = user_agent
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
        self._session: aiohttp.ClientSession | None = None  # the open session; None outside of ``async with``
        self.date = ""
        self.date_at = 0.0

    async def __aenter__(self) -> Self:
        context = self._config.ssl_context()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=True if context is None else context),
            # Compression costs both sides more than the bytes inside a cluster.
            headers={"User-Agent": self._user_agent, "Accept": "application/json", "Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        max_bytes: int | None = None,
    ) -> bytes:
        """Send a request to the API server, and return the body of its answer.

        Args:
            method: The HTTP method.
            path: The path of the URL.
            params: The query.
            body: Object to send as JSON; None for no body.
            content_type: Media type of the body.
            max_bytes: Longest body to read, in bytes; None for any length.

        Raises:
            TooLongError: The body of the answer has more than ``max_bytes`` bytes.
            ApiError: The server refuses the request.
            Unreachable: The server gives no answer in time.
            ConfigError: The token's file cannot be read.
        """
        content = None if body is None else codec.encode(body)
        response = await self._open(method, path, params=params, content=content, content_type=content_type)
        try:
            if max_bytes is None:
                return await response.read()

            # Count while reading: the length is not known before, and a longer body must not fill the memory.
            pieces: list[bytes] = []
            length = 0
            async for piece in response.content.iter_any():
                pieces.append(piece)
                length += len(piece)
                if length > max_bytes:
                    _hang_up(response)
                    raise TooLongError
            return b"".join(pieces)
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{method} {path}: {error_text(error)}", timed_out=_timed_out(error)) from error
        finally:
            response.release()

    @contextlib.asynccontextmanager
    async def stream(self, path: str, *, params: Mapping[str, str], silence_s: float) -> AsyncIterator[Lines]:
        """Open a watch and yield the lines of its answer.

        The watch is closed at the end of the ``async with`` block.

        Args:
            path: The path of the URL.
            params: The query.
            silence_s: The stream counts as broken after this time without data, in seconds.

        Raises:
            ApiError: The server refused the request.
            Unreachable: There is no connection, it broke, or it was silent. Reading the lines may raise it, too.
        """
        # A watch lasts for minutes, so no total time is set. The headers must come within ``silence_s``.
        try:
            async with asyncio.timeout(silence_s):
                response = await self._open("GET", path, params=params, timeout=aiohttp.ClientTimeout(total=None))
        except TimeoutError:
            raise Unreachable(f"WATCH {path}: no answer for {silence_s:g} s") from None
        try:
            yield Lines(response, silence_s=silence_s)
        finally:
            _hang_up(response)

    async def _open(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        content_type: str = "application/json",
        timeout: aiohttp.ClientTimeout | None = None,  # noqa: ASYNC109 - aiohttp's own
    ) -> aiohttp.ClientResponse:
        """Send a request and return a successful answer (2xx), whose body is not read yet.

        Args:
            method: The HTTP method.
            path: The path of the URL.
            params: The query.
            content: The body; None for no body.
            content_type: Media type of the body.
            timeout: Replaces the connection's own timeout.

        Raises:
            ApiError: The server answered with another status.
            Unreachable: The server did not answer.
        """
        if self._session is None:
            raise RuntimeError("use the Client as an async context manager")
        url = yarl.URL(self._config.url + path, encoded=True)  # the caller has escaped the path
        headers = {"Content-Type": content_type} if content is not None else {}
        token = self._config.bearer()
        while True:  # a second time only with another token
            if token:
                headers["Authorization"] = f"Bearer {token}"
            try:
                response = await self._session.request(
                    method,
                    url,
                    params=params,
                    data=content,
                    headers=headers,
                    timeout=timeout or self._timeout,
                    server_hostname=self._config.server_name,
                    allow_redirects=False,  # another host must not get the token
                )
                self.date, self.date_at = response.headers.get("Date", ""), time.monotonic()
                if 200 <= response.status < 300:
                    return response
                async with response:
                    answer = await response.read()
            except (aiohttp.ClientError, OSError) as error:
                raise Unreachable(
                    f"{method} {path}: {error_text(error)}",
                    timed_out=_timed_out(error),
                    # No server took the connection, so the caller may ask again soon without burdening one.
                    absent=not isinstance(error, TimeoutError),
                ) from error

            # The token may have been rotated after it was read: try once more with the new one.
            if response.status == 401:  # ``bearer`` reads the token's file again
                new_token = self._config.bearer()
                if new_token != token:
                    token = new_token
                    continue
            # The body of a refusal is a Status object, which becomes an ApiError.
            raise from_status(
                answer,
                status=response.status,
                retry_after=response.headers.get("Retry-After"),
                request=f"{method} {path}",
            )


def _timed_out(error: Exception) -> bool:
    """Return whether the server accepted the connection and did not answer in time."""
    return isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError)


def _hang_up(response: aiohttp.ClientResponse) -> None:
    """Abort ``response``, an answer that is not complete, and its connection.

    A plain close would send TLS's close notification, and wait up to 30 s for the server's notification. The server
    sends its notification only after all data of the answer. If the event loop ended during this wait, the socket would
    stay open.
    """
    if response.connection is not None and (transport := response.connection.transport) is not None:
        transport.abort()
    response.close()
