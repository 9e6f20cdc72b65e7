"""One thread that works are given to, one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Thread:
    """A thread for calls that may hang. It holds up nobody's end, unlike those of an executor."""

    def __init__(self, name: str) -> None:
        """Keep the name; the thread starts with the first work."""
        self._name = name
        self._works: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._started = False

    async def run(self, work: Callable[[], T]) -> T:
        """Return what the work gives, when all that was given before is done; it goes on when the caller gives up."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(result: object, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def do() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as caught:  # handed to whoever waits
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, result, error)

        self._works.put(do)
        if not self._started:
            self._started = True
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        return cast("T", await future)

    def _serve(self) -> None:
        while True:
            self._works.get()()
