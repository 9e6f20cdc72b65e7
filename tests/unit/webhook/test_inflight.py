"""The budget of bytes under way: lent in turn, never more than there are, given back whatever happens."""

from __future__ import annotations

import asyncio

from webhook.inflight import Budget


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Borrower:
    """Borrows at once, as soon as it may, and holds until told."""

    def __init__(self, budget: Budget, size: int) -> None:
        self.holds = False
        self.done = asyncio.Event()
        self.task = asyncio.create_task(self._run(budget, size))

    async def _run(self, budget: Budget, size: int) -> None:
        async with budget.lent(size):
            self.holds = True
            await self.done.wait()
        self.holds = False


async def test_what_goes_beyond_waits_for_its_turn() -> None:
    budget = Budget(10)
    first, second, small = (Borrower(budget, size) for size in (6, 6, 1))
    await settle()
    assert [b.holds for b in (first, second, small)] == [True, False, False], "nobody overtakes"
    first.done.set()
    await settle()
    assert [b.holds for b in (first, second, small)] == [False, True, True]
    for borrower in (second, small):
        borrower.done.set()
        await borrower.task


async def test_who_gives_up_waiting_lets_the_next_one_pass() -> None:
    budget = Budget(10)
    first, large, small = (Borrower(budget, size) for size in (6, 10, 4))
    await settle()
    large.task.cancel()
    await settle()
    assert [first.holds, small.holds] == [True, True]
    for borrower in (first, small):
        borrower.task.cancel()
    await settle()
    whole = Borrower(budget, 10)
    await settle()
    assert whole.holds, "what was held by those who were cancelled is free again"
    whole.task.cancel()


async def test_bytes_lent_to_one_who_is_cancelled_in_that_moment_are_not_lost() -> None:
    budget = Budget(10)
    first, waiting = Borrower(budget, 10), Borrower(budget, 10)
    await settle()
    first.done.set()
    while not first.task.done():
        await asyncio.sleep(0)
    waiting.task.cancel()  # its turn has come, and it has not run since
    whole = Borrower(budget, 10)
    await settle()
    assert waiting.task.cancelled()
    assert whole.holds
    whole.task.cancel()
