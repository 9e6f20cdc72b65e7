"""Runs calls that may hang in daemon threads, which do not delay the end of the process.

The threads of a ``ThreadPoolExecutor`` would delay the end until the call returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Final, TypeVar, cast

T = TypeVar("T")

BESIDE: Final = "beside the event loop"


class Thread:
    """One thread that runs functions, one after the other."""

    def __init__(self, name: str) -> None:
        """Store the name; the thread starts with the first work."""
        self._name = name
        self._works: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # work that waits for the thread
        self._started = False  # whether the thread was started

    async def run(self, work: Callable[[], T], *, question: bool = False) -> T:
        """Run a function in the thread after all earlier work, and return its result.

        Args:
            work: The function.
            question: Whether the function only reads. If so, the function is not run if its caller has stopped waiting.
                Otherwise, after the driver hung for an hour, all questions of that hour would delay later work.
        """
        future, do = _promised(work, question=question)
        self._works.put(do)
        if not self._started:
            self._started = True
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        return await future

    def put(self, work: Callable[[], None]) -> None:
        """Queue a function that cannot fail; the thread runs it after all earlier work.

        If the thread never had work, the caller runs the function at once.
        """
        if self._started:
            self._works.put(work)
        else:
            work()

    def _serve(self) -> None:
        while True:
            self._works.get()()


def beside(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run a function in its own new thread, and return a future for its result."""
    future, do = _promised(work)
    threading.Thread(target=do, name=BESIDE, daemon=True).start()
    return future


def _promised(work: Callable[[], T], *, question: bool = False) -> tuple[asyncio.Future[T], Callable[[], None]]:
    """Return a future for the result of ``work``, and a function for the thread.

    That function, which the thread must call, calls ``work`` and sets the future.

    Args:
        work: The function with the result.
        question: Whether ``work`` only reads. If so, it is skipped if the future is cancelled before it begins.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast("T", result))

    def do() -> None:
        result, error = None, None
        if question and future.cancelled():
            return
        try:
            result = work()
        except BaseException as caught:  # raised where the future is awaited
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    return future, do
