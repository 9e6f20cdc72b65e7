"""Splits a streamed answer of the API server into lines."""

from __future__ import annotations

import asyncio
from typing import Self

from dradriver.kube.errors import Silent, Unreachable
from dradriver.kube.http import aiohttp


class Lines:
    """An iterator over the lines of an answer.

    A line can have any length: a full ResourceSlice exceeds aiohttp's limit. An incomplete last line is left out.
    ``silence_s`` may be changed at any time.

    Raises:
        Unreachable: The connection broke.
        Silent: Nothing came for ``silence_s`` seconds.
    """

    def __init__(self, response: aiohttp.ClientResponse, *, silence_s: float) -> None:
        self._response = response
        self.silence_s = silence_s
        self._lines: list[bytes] = []  # complete ones, last first
        self._rest: list[bytes] = []  # pieces of the line that is not complete

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._lines:
            chunk = await self._read()
            if not chunk:
                raise StopAsyncIteration
            head, *tail = chunk.split(b"\n")
            self._rest.append(head)
            if tail:
                complete = [b"".join(self._rest), *tail]
                self._rest = [complete.pop()]
                self._lines = [line for line in reversed(complete) if line]
        return self._lines.pop()

    async def _read(self) -> bytes:
        try:
            async with asyncio.timeout(self.silence_s):
                return await self._response.content.readany()
        except TimeoutError:
            raise Silent(f"WATCH {self._response.url.path}: silent for {self.silence_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"WATCH {self._response.url.path}: {error_text(error)}") from error


def error_text(error: Exception) -> str:
    """Return the text of the error that ended the stream.

    If the text is empty, as for a timeout, return the name of the error's type.
    """
    return str(error) or type(error).__name__
