"""The body of a request while it arrives: ``server.Endpoint`` reads it, and ends the request if its sender is slow.

A sender is slow if it sends less than ``RATE`` bytes a second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from aiohttp import StreamReader

RATE: Final = 2 << 20  # bytes a second; the largest body then takes as long as a request may
GRACE_S: Final = 1.0  # so far behind that rate a sender may be; a packet that is lost twice costs 0.6 s
HURRY_S: Final = 0.2  # and so far while others wait for its bytes
_TICK_S: Final = 0.05


class Body:
    """The body of an HTTP request: the bytes that have arrived so far.

    Args:
        content: The stream from the sender.
        limit: The timeout of the request (``asyncio.Timeout``). To end the request early, this object sets it to the
            present time.
        grace_s: For how many seconds the sender may be slower than ``RATE``.
    """

    def __init__(self, content: StreamReader, *, limit: asyncio.Timeout, grace_s: float = GRACE_S) -> None:
        self._content, self._limit, self._grace_s = content, limit, grace_s
        self._parts: list[bytes] = []  # what has come so far
        self._is_read_now = False  # whether the server waits for the sender now
        self.length = 0  # bytes that have come so far
        self.is_cut_off = False  # whether the request was ended because others need its bytes

    async def read(self, most: int, *, is_waited_for: Callable[[], bool] = bool) -> bool:
        """Read until the body ends or exceeds a size. Return whether the body ended.

        The sender's time runs only during this call, because a sender cannot send while the server does not read.

        Args:
            most: The largest size, bytes.
            is_waited_for: Returns whether other bodies wait for the bytes that this body has borrowed
                (``bytes_in_flight``). Then a slow sender gets less time. By default it returns False.
        """
        self._is_waited_for = is_waited_for
        with self._watched():
            while self.length <= most:
                part = await self._content.readany()
                if not part:
                    return True
                self._parts.append(part)
                self.length += len(part)
        return False

    def whole(self) -> bytes:
        """Return the bytes of the request's body that were read."""
        return b"".join(self._parts)

    def cut_off(self) -> None:
        """End the request early if the server is waiting for the sender's next bytes; else do nothing."""
        if self._is_read_now and not self._limit.expired():
            self.is_cut_off = True
            self._limit.reschedule(asyncio.get_running_loop().time())

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        self._is_read_now = True
        self._seen, self._behind_s = self._content.total_bytes, 0.0
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)
        try:
            yield
        finally:
            self._is_read_now = False
            self._timer.cancel()

    def _tick(self) -> None:
        # What the parser has got counts, not what was read, and a tick counts as one however late it comes: a loop
        # that was busy makes nobody slow.
        arrived = self._content.total_bytes
        self._behind_s = max(0.0, self._behind_s + _TICK_S - (arrived - self._seen) / RATE)
        self._seen = arrived
        if self._content.is_eof():
            return
        if self._behind_s >= (min(HURRY_S, self._grace_s) if self._is_waited_for() else self._grace_s):
            self.cut_off()
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)
