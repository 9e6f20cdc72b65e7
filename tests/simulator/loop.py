"""An event loop whose time passes only when nobody has anything to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

MOST_TURNS: Final = 20_000  # of the loop without time passing: nothing that ends needs as many


class Stuck(Exception):  # noqa: N818 - what became of the loop
    """The loop turned and turned without any time passing, or nothing was left that could ever happen."""


class _Clock:
    """What the loop takes for its selector: instead of waiting for sockets it moves the time on."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._turns = 0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing is left that could happen")
        if timeout > 0:
            self._loop.now = self._loop.next_at()
            self._turns = 0
            return []
        self._turns += 1
        if self._turns > MOST_TURNS:
            raise Stuck(f"{MOST_TURNS} turns of the loop while no time passed")
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop without sockets and threads; ``now`` is its time in seconds.

    What is given to an executor is done at once: a thread would not know of this time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._clock_resolution = 1e-9
        self._selector = _Clock(self)

    def time(self) -> float:
        return self.now

    def next_at(self) -> float:
        """Return the time of the next thing that is planned."""
        planned: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return max(self.now, planned[0].when())

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # as the executor would hand it on
            done.set_exception(error)
        return done

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
