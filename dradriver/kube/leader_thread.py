"""Runs a leader election in its own thread, so that the lease is renewed while the work's event loop is busy.

The controller's ``main`` uses it. A decision that takes seconds blocks the loop, and must not lose the lease. A loop
that hangs must lose it: the lease is renewed only if the loop made progress within the last seconds.

The election is the loop that takes and renews the lease. The work is the coroutine that runs only while this process is
the leader.
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
    """Tells other threads whether an event loop has made progress in the last seconds.

    ``run`` must run in that loop.
    """

    def __init__(self, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin as if the loop had made progress just now.

        The loop counts as hanging after ``most_s`` seconds without a call of ``show``. ``clock`` returns seconds that
        only grow.
        """
        self._most_s, self._clock = most_s, clock
        self._shown_at = clock()

    def show(self) -> None:
        """Record that the loop makes progress now."""
        self._shown_at = self._clock()

    def is_recent(self) -> bool:
        """Return whether the loop made progress within the last ``most_s`` seconds."""
        return self._clock() - self._shown_at < self._most_s

    async def run(self) -> None:
        """Record the loop's progress at short intervals, until cancelled."""
        while True:
            self.show()
            await asyncio.sleep(min(self._most_s / BEATS, LONGEST_BEAT_S))


async def elect(election: Callable[[Work], Awaitable[None]], work: Work) -> None:
    """Run an election in its own thread, and the leader's work in the caller's event loop.

    So the lease is renewed in time even if the work keeps its own loop busy for seconds.

    The function returns when the election returns, and raises the election's errors. If the function is cancelled, even
    more than once, it cancels the election, and ends when the election has ended.

    Args:
        election: The election, such as ``LeaderElector.run``. It is called in the thread and gets a function that runs
            the work. If the election cancels this function, the work is cancelled. The function returns only when the
            work has ended.
        work: The work of the leader.
    """
    work_loop = asyncio.get_running_loop()
    # Gets the election's result, or its error, in this loop.
    ended: asyncio.Future[None] = work_loop.create_future()
    # Gets its result in the thread when the election starts. The result is a function that cancels the election.
    election_canceller: concurrent.futures.Future[Callable[[], None]] = concurrent.futures.Future()
    context = contextvars.copy_context()  # a new thread does not inherit the context variables of this one

    async def run_election() -> None:
        task = asyncio.current_task()
        assert task is not None
        election_loop = asyncio.get_running_loop()
        election_canceller.set_result(lambda: _call_in_loop(election_loop, task.cancel))
        await election(lambda: _run_in_loop(work_loop, work, context))

    def set_ended(error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result(None) if error is None else ended.set_exception(error)

    def run_thread() -> None:
        error: BaseException | None = None
        try:
            asyncio.run(run_election())
        except asyncio.CancelledError:
            error = asyncio.CancelledError()
        except BaseException as raised:  # every error ends the process, which the work's loop must do
            error = raised
        _call_in_loop(work_loop, lambda: set_ended(error))

    # A daemon: a process that ends does not wait for the thread. The lease expires.
    threading.Thread(target=run_thread, name="election", daemon=True).start()
    try:
        # The shield keeps a cancellation of this function from cancelling ``ended``, which is waited for below.
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        # Cancel the election now, or as soon as it has started.
        if not ended.done():

            def cancel_election(started: concurrent.futures.Future[Callable[[], None]]) -> None:
                cancel = started.result()
                cancel()

            election_canceller.add_done_callback(cancel_election)
        # A second cancellation must not leave the election running either.
        while not ended.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([ended])
        # Reading the exception keeps asyncio from logging that it was never retrieved.
        _ = ended.exception() if not ended.cancelled() else None
        raise


async def _run_in_loop(loop: asyncio.AbstractEventLoop, work: Work, context: contextvars.Context) -> None:
    """Run the leader's work in another thread's event loop, and wait for its end.

    If this call is cancelled, the work is cancelled, and the call waits until the work has ended. ``context`` has the
    context variables for the work.
    """
    done: concurrent.futures.Future[None] = concurrent.futures.Future()
    tasks: list[asyncio.Task[None]] = []  # the task of the work; used in the other loop only

    async def run() -> None:
        await work()  # create_task takes a coroutine, and ``work`` may return any awaitable

    # 1. Start the work in the other loop; its end sets ``done``. Only futures of concurrent.futures may be set from
    # another thread.
    def start_work() -> None:
        tasks.append(loop.create_task(run(), context=context))
        tasks[0].add_done_callback(set_done)

    def set_done(task: asyncio.Task[None]) -> None:
        if task.cancelled():
            done.set_exception(_StoppedError())
        elif (error := task.exception()) is not None:
            done.set_exception(error)
        else:
            done.set_result(None)

    _call_in_loop(loop, start_work)

    # 2. Wait for it in this loop. The shield keeps ``done`` alive if this wait is cancelled.
    waiting = asyncio.wrap_future(done)
    try:
        await asyncio.shield(waiting)
    except asyncio.CancelledError:
        # 3. Cancelled: cancel the work, and wait until it has ended. Its error counts more than the cancellation.
        _call_in_loop(loop, lambda: [task.cancel() for task in tasks])
        # A second cancellation must not leave the work running either.
        while not waiting.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([waiting])
        error = waiting.exception()
        if error is not None and not isinstance(error, _StoppedError):
            raise error from None
        raise
    except _StoppedError:  # the work was cancelled in its own loop
        raise asyncio.CancelledError from None


class _StoppedError(Exception):
    """The leader's work was cancelled in its own event loop.

    A ``CancelledError`` could not be used: it would look as if the waiting coroutine itself had been cancelled.
    """


def _call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> None:
    """Call the function ``call`` in another thread's loop, if that loop still runs."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
