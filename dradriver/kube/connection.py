"""Connections to the API server: requests with its token, answers as they come, and what went wrong in our words."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Final, Self

import yarl

from dradriver.kube import codec
from dradriver.kube.config import ServerConfig
from dradriver.kube.errors import Unreachable, from_status
from dradriver.kube.http import aiohttp
from dradriver.kube.stream_lines import Lines, cause

CONNECT_S: Final = 10.0
# Writes held by somebody's slow webhook must leave room for a lease's renewal and the watches.
CONNECTIONS: Final = 400


class TooLongError(Exception):
    """The answer is longer than the caller wants to read."""


class Connection:
    """Connections to an API server that are kept alive; an async context manager.

    Attributes:
        date: The header of that name of the last answer, by the server's own clock; empty without one.
    """

    def __init__(self, config: ServerConfig, *, user_agent: str, timeout_s: float) -> None:
        """Connect when something is asked; an answer takes ``timeout_s`` at most."""
        self._config = config
        self._user_agent = user_agent
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
        self._session: aiohttp.ClientSession | None = None
        self.date = ""

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
        most: int | None = None,
    ) -> bytes:
        """Return the body of the API server's answer to a request.

        Args:
            method: HTTP's.
            path: What of the server.
            params: The query.
            body: What is sent, as JSON; nothing where it is None.
            content_type: How the server is to read that.
            most: How many bytes of the answer are read; all where it is None.

        Raises:
            TooLongError: It has more.
            ApiError: The server refuses.
            Unreachable: It gives no answer in time.
            ConfigError: The token's file cannot be read.
        """
        content = None if body is None else codec.encode(body)
        response = await self._open(method, path, params=params, content=content, content_type=content_type)
        try:
            if most is None:
                return await response.read()
            pieces: list[bytes] = []
            async for piece in response.content.iter_any():
                pieces.append(piece)
                most -= len(piece)
                if most < 0:
                    _hang_up(response)
                    raise TooLongError
            return b"".join(pieces)
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{method} {path}: {cause(error)}", timed_out=_timed_out(error)) from error
        finally:
            response.release()

    @contextlib.asynccontextmanager
    async def stream(self, path: str, *, params: Mapping[str, str], silence_s: float) -> AsyncIterator[Lines]:
        """Yield the lines of an answer of the API server that goes on; the connection is closed at the end.

        Args:
            path: What of the server.
            params: The query.
            silence_s: The stream counts as dead when nothing came for so long.

        Raises:
            ApiError: The server refused to begin.
            Unreachable: Here or from the lines: no connection, or it broke, or nothing was heard.
        """
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
        """Return an answer of success whose body is not read yet."""
        if self._session is None:
            raise RuntimeError("use the Client as an async context manager")
        url = yarl.URL(self._config.url + path, encoded=True)
        headers = {"Content-Type": content_type} if content is not None else {}
        token = self._config.bearer()
        while True:
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
                    allow_redirects=False,
                )
                self.date = response.headers.get("Date", "")
                if 200 <= response.status < 300:
                    return response
                async with response:
                    answer = await response.read()
            except (aiohttp.ClientError, OSError) as error:
                raise Unreachable(
                    f"{method} {path}: {cause(error)}",
                    timed_out=_timed_out(error),
                    absent=not isinstance(error, TimeoutError),
                ) from error
            if response.status == 401 and (newer := self._config.bearer()) != token:
                token = newer
                continue
            raise from_status(
                answer,
                status=response.status,
                retry_after=response.headers.get("Retry-After"),
                request=f"{method} {path}",
            )


def _timed_out(error: Exception) -> bool:
    """Return whether a server took a request and did not answer it in time."""
    return isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError)


def _hang_up(response: aiohttp.ClientResponse) -> None:
    """End an answer that goes on, and its connection, at once.

    A plain close says TLS's farewell and waits up to 30 s for the server's, which is behind all that the server still
    has to say; nobody waits for it, and a loop that ends meanwhile leaves the socket open.
    """
    if response.connection is not None and (transport := response.connection.transport) is not None:
        transport.abort()
    response.close()
