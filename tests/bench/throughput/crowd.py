"""The same step for many things, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def crowd(step: Callable[[T], Awaitable[object]], things: Iterable[T], *, at_once: int) -> None:
    """Run `step` for every thing, `at_once` at a time, in their order."""
    left = iter(things)

    async def work() -> None:
        for thing in left:
            await step(thing)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(work())
