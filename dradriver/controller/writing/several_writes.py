"""Runs several writes for one workload, a few at once. ``Commit`` and ``Evictions`` call it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from dradriver.controller.writing.write_outcome import Outcome, UnsureError, outcome
from dradriver.kube.client import ApiError
from dradriver.kube.errors import Unreachable

Action = Callable[[], Coroutine[Any, Any, Any]]


async def each(actions: Iterable[Action], *, at_once: int, on_error: Callable[[Exception], None] | None = None) -> None:
    """Run several writes at once, and raise the worst error after all have ended.

    After an error no other write begins. Writes that are running go on: if they were cancelled, their outcome would not
    be known.

    Args:
        actions: The writes.
        at_once: How many run at the same time at most.
        on_error: Called with each error at once, without waiting for the other writes, which may hang.
    """
    room = asyncio.Semaphore(at_once)
    is_stopped = False

    async def run(action: Action) -> Exception | None:
        nonlocal is_stopped
        async with room:
            try:
                if not is_stopped:
                    await action()
            except Exception as error:  # all others are told of it first
                is_stopped = True
                if on_error is not None:
                    on_error(error)
                return error
        return None

    errors = [error for error in await asyncio.gather(*map(run, actions)) if error is not None]
    if errors:
        raise min(errors, key=_mildness)


def _mildness(error: Exception) -> int:
    """Return the rank of an error; the error with the lowest rank is raised.

    Creations with an unknown outcome have the lowest rank, then failures of the server itself, then other refusals,
    then all other errors.
    """
    if isinstance(error, UnsureError):
        return 0
    if isinstance(error, (ApiError, Unreachable)):
        return 1 if outcome(error) is Outcome.SERVER else 2
    return 3
