"""An election in a thread of its own, so that a lease is renewed while the loop with the work is busy.

The controller's ``main`` uses it. A decision that takes seconds keeps the loop from everything else; it must not cost
the lease. A loop that hangs must: the lease is renewed only while the loop showed progress within the last seconds.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

LONGEST_BEAT_S: Final = 0.5  # between two signs of progress of the loop
# Signs of progress within the time after which a loop makes none: a healthy loop may be late with some.
BEATS: Final = 4

Work = Callable[[], Awaitable[None]]


class Progress:
    """Says in any thread whether a loop made progress lately. ``run`` must run in that loop meanwhile."""

    def __init__(self, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin now; a loop that showed nothing for ``most_s`` makes no progress."""
        self._most_s, self._clock = most_s, clock
        self._shown_at = clock()

    def show(self) -> None:
        """Note that the leader's loop makes progress."""
        self._shown_at = self._clock()

    def is_recent(self) -> bool:
        """Return whether the leader's loop made progress within the last seconds."""
        return self._clock() - self._shown_at < self._most_s

    async def run(self) -> None:
        """Note the progress of the leader's loop until cancelled."""
        while True:
            self.show()
            await asyncio.sleep(min(self._most_s / BEATS, LONGEST_BEAT_S))


async def elect(election: Callable[[Work], Awaitable[None]], work: Work) -> None:
    """Run an election in a thread with a loop of its own, and the work of the leader in this loop.

    Returns when the election returns, and raises what it raises. If this is cancelled, once or again, the election is,
    and has ended when this ends.

    Args:
        election: Called in the thread with what starts the work, as ``LeaderElector.run``. If that is cancelled, the
            work is, and has ended when it ends.
        work: What the leader does.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    started: concurrent.futures.Future[Callable[[], None]] = concurrent.futures.Future()
    context = contextvars.copy_context()  # of the process that has the work; the thread has none of its own

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        there = asyncio.get_running_loop()
        started.set_result(lambda: _call(there, task.cancel))
        await election(lambda: _elsewhere(loop, work, context))

    def end(error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result(None) if error is None else ended.set_exception(error)

    def main() -> None:
        error: BaseException | None = None
        try:
            asyncio.run(run())
        except asyncio.CancelledError:
            error = asyncio.CancelledError()
        except BaseException as raised:  # whatever it is, it ends the process from the loop with the work
            error = raised
        _call(loop, lambda: end(error))

    # A process that ends does not wait for it: the work has its own loop, and the lease runs out.
    threading.Thread(target=main, name="election", daemon=True).start()
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        if not ended.done():
            started.add_done_callback(lambda cancel: cancel.result()())  # at once if it has begun
        while not ended.done():  # a second cancellation must not leave the election behind either
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([ended])
        _ = ended.exception() if not ended.cancelled() else None
        raise


async def _elsewhere(loop: asyncio.AbstractEventLoop, work: Work, context: contextvars.Context) -> None:
    """Run work in another loop; if this is cancelled, the work is, and this ends when the work has ended."""
    done: concurrent.futures.Future[None] = concurrent.futures.Future()
    tasks: list[asyncio.Task[None]] = []

    async def run() -> None:
        await work()

    def begin() -> None:
        tasks.append(loop.create_task(run(), context=context))
        tasks[0].add_done_callback(finish)

    def finish(task: asyncio.Task[None]) -> None:
        if task.cancelled():
            done.set_exception(_StoppedError())
        elif (error := task.exception()) is not None:
            done.set_exception(error)
        else:
            done.set_result(None)

    _call(loop, begin)
    waiting = asyncio.wrap_future(done)
    try:
        await asyncio.shield(waiting)
    except asyncio.CancelledError:
        _call(loop, lambda: [task.cancel() for task in tasks])
        while not waiting.done():  # a second cancellation must not leave the work behind either
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([waiting])
        error = waiting.exception()
        if error is not None and not isinstance(error, _StoppedError):
            raise error from None
        raise
    except _StoppedError:
        raise asyncio.CancelledError from None


class _StoppedError(Exception):
    """Work was cancelled: a cancelled future cannot be told from a cancelled wait for it."""


def _call(loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> None:
    """Have a function called in another thread's loop; nothing if that loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
