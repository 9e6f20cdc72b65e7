"""How many bytes of request bodies are held at once: what goes beyond waits, and is refused when it waits too long."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator


class Budget:
    """Bytes that are lent out, first come, first served.

    Args:
        size: Most bytes lent at once; no single loan may be larger.
    """

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: collections.deque[tuple[int, asyncio.Future[None]]] = collections.deque()

    @contextlib.asynccontextmanager
    async def lent(self, size: int) -> AsyncIterator[None]:
        """Wait for so many bytes, and hold them while the block runs."""
        if self._waiting or size > self._free:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._free += size  # lent in the very moment in which nobody wanted it any more
                self._lend()
                raise
        else:
            self._free -= size
        try:
            yield
        finally:
            self._free += size
            self._lend()

    def _lend(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if turn.done():  # cancelled
                self._waiting.popleft()
            elif size <= self._free:
                self._waiting.popleft()
                self._free -= size
                turn.set_result(None)
            else:
                return
