"""Calls that may hang, in threads that hold up nobody's end, unlike those of an executor."""

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
    """One thread that works are given to, one after the other."""

    def __init__(self, name: str) -> None:
        """Keep the name; the thread starts with the first work."""
        self._name = name
        self._works: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # work that waits for the thread
        self._started = False  # whether the thread was started

    async def run(self, work: Callable[[], T], *, question: bool = False) -> T:
        """Return what the work in the thread returns, once all work before it is done.

        A question is not asked any more where its caller gave up before its turn came: else those of an hour in which
        nobody answered would keep everybody waiting after it.
        """
        future, do = _promised(work, question=question)
        self._works.put(do)
        if not self._started:
            self._started = True
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        return await future

    def put(self, work: Callable[[], None]) -> None:
        """Do work in the thread that cannot fail, once all work before it is done."""
        if self._started:
            self._works.put(work)
        else:
            work()

    def _serve(self) -> None:
        while True:
            self._works.get()()


def beside(work: Callable[[], T]) -> asyncio.Future[T]:
    """Start work in a thread of its own and return its future result."""
    future, do = _promised(work)
    threading.Thread(target=do, name=BESIDE, daemon=True).start()
    return future


def _promised(work: Callable[[], T], *, question: bool = False) -> tuple[asyncio.Future[T], Callable[[], None]]:
    """Return a future for the result of some work, and a function for the thread.

    The function does the work and sets the future.

    ``question``: the work only reads, so it is skipped if the future is cancelled before it begins.
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
