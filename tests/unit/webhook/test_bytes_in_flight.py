"""The budget of bytes under way: shared among addresses, never exceeded, returned whatever happens."""

from __future__ import annotations

import asyncio

import pytest

from webhook.bytes_in_flight import Budget
from webhook.server import LARGE_BYTES, MOST_BYTES, WAIT_S

TERM_S = 10.0
MIB = 1 << 20


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Borrower:
    """Borrows at once, as soon as it may, and holds until told or until its loan is revoked."""

    def __init__(self, budget: Budget, size: int, address: str = "10.0.0.1") -> None:
        self.holds = self.is_revoked = False
        self.done = asyncio.Event()
        self.task = asyncio.create_task(self._run(budget, size, address))

    async def _run(self, budget: Budget, size: int, address: str) -> None:
        async with budget.lent(size, address=address, revoke=self._revoke):
            self.holds = True
            await self.done.wait()
        self.holds = False

    def _revoke(self) -> None:
        self.is_revoked = True
        self.done.set()


async def end(*borrowers: Borrower) -> None:
    for borrower in borrowers:
        borrower.task.cancel()
    await asyncio.gather(*(borrower.task for borrower in borrowers), return_exceptions=True)


async def test_bodies_that_fit_together_are_lent_at_once() -> None:
    budget = Budget(10)
    borrowers = [Borrower(budget, size) for size in (5, 3, 2)]
    await settle()
    assert all(borrower.holds for borrower in borrowers)
    await end(*borrowers)


async def test_a_small_body_overtakes_a_large_one_that_came_shortly_before() -> None:
    budget = Budget(10 * MIB)
    holder, large, small = (Borrower(budget, size * MIB) for size in (9, 10, 1))
    await settle()
    assert [b.holds for b in (holder, large, small)] == [True, False, True]
    await end(holder)
    await settle()
    assert [b.holds for b in (large, small)] == [False, True]
    await end(small)
    await settle()
    assert large.holds
    await end(large)


@pytest.mark.looptime
async def test_a_large_body_is_not_overtaken_forever() -> None:
    budget = Budget(8 * MIB)
    large = Borrower(budget, 8 * MIB)
    small = [Borrower(budget, MIB) for _ in range(8)]
    await settle()
    large.done.set()
    await settle()
    large = Borrower(budget, 8 * MIB)
    for number in range(100):
        small.append(Borrower(budget, MIB))
        await asyncio.sleep(0.1)
        await end(small[number])
        if large.holds:
            break
    assert 10 < number < 30, "it is due after 1 s"
    await end(large, *small)


async def test_bodies_of_the_same_size_go_in_their_order() -> None:
    budget = Budget(10)
    borrowers = [Borrower(budget, 10) for _ in range(4)]
    for borrower in borrowers:
        await settle()
        assert [b.holds for b in borrowers if not b.task.done()].index(True) == 0
        assert borrower.holds
        borrower.done.set()
        await borrower.task


async def test_the_address_that_holds_least_goes_first() -> None:
    budget = Budget(10)
    first, second = Borrower(budget, 6, "a"), Borrower(budget, 4, "a")
    await settle()
    of_a, of_b = Borrower(budget, 3, "a"), Borrower(budget, 4, "b")
    await settle()
    second.done.set()
    await settle()
    assert [b.holds for b in (first, of_a, of_b)] == [True, False, True]
    await end(first, of_a, of_b)


async def test_bytes_of_those_who_give_up_are_free_again() -> None:
    budget = Budget(10)
    holder, waiting = Borrower(budget, 6), Borrower(budget, 10)
    await settle()
    await end(waiting, holder)
    whole = Borrower(budget, 10)
    await settle()
    assert whole.holds
    await end(whole)


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
    await end(whole)


@pytest.mark.looptime
async def test_the_oldest_loan_of_the_address_that_holds_most_is_revoked_for_another_after_its_term() -> None:
    budget = Budget(10, term_s=TERM_S)
    small = Borrower(budget, 2, "b")
    await settle()
    large = [Borrower(budget, 4, "a") for _ in range(2)]
    await settle()
    waiting = Borrower(budget, 3, "c")
    await asyncio.sleep(TERM_S - 0.1)
    assert not waiting.holds
    await asyncio.sleep(0.2)
    assert [b.is_revoked for b in (small, *large)] == [False, True, False]
    assert waiting.holds
    await end(small, waiting, *large)


@pytest.mark.looptime
async def test_an_address_that_sends_alone_loses_nothing() -> None:
    budget = Budget(10, term_s=TERM_S)
    borrowers = [Borrower(budget, 4) for _ in range(5)]
    await asyncio.sleep(10 * TERM_S)
    assert [b.holds for b in borrowers] == [True, True, False, False, False]
    assert not any(b.is_revoked for b in borrowers)
    await end(*borrowers)


@pytest.mark.looptime
async def test_addresses_that_hold_equally_much_wait_for_each_other() -> None:
    budget = Budget(8, term_s=TERM_S)
    holders = [Borrower(budget, 4, address) for address in ("a", "b")]
    waiting = [Borrower(budget, 4, address) for address in ("a", "b")]
    await asyncio.sleep(10 * TERM_S)
    assert not any(b.is_revoked for b in holders)
    assert not any(b.holds for b in waiting)
    await end(*holders, *waiting)


@pytest.mark.looptime
async def test_a_loan_that_no_pod_waits_for_outlives_its_term_and_is_then_revoked_at_once() -> None:
    budget = Budget(10, term_s=TERM_S)
    holder = Borrower(budget, 10, "a")
    await asyncio.sleep(10 * TERM_S)
    assert holder.holds
    waiting = Borrower(budget, 10, "b")
    await settle()
    assert holder.is_revoked
    assert waiting.holds
    await end(holder, waiting)


@pytest.mark.looptime
async def test_strangers_of_many_addresses_hold_up_another_for_few_terms() -> None:
    """Forty of them fill the budget again and again; each loan lasts until it is revoked."""
    budget = Budget(10, term_s=TERM_S)
    strangers = [Borrower(budget, 1, f"10.0.1.{i}") for i in range(40)]
    await settle()
    good = Borrower(budget, 1, "10.0.0.1")
    await asyncio.sleep(4 * TERM_S + 1)
    assert good.holds
    await end(good, *strangers)


@pytest.mark.slow
@pytest.mark.looptime
@pytest.mark.parametrize("strangers", [70, 400])
async def test_small_loans_of_many_addresses_do_not_keep_out_the_largest_body(strangers: int) -> None:
    """Each stranger borrows again as soon as its loan is revoked."""
    budget = Budget(LARGE_BYTES)

    async def borrow_again_and_again(address: str) -> None:
        while True:
            revoked = asyncio.Event()
            async with budget.lent(65 << 10, address=address, revoke=revoked.set):
                await revoked.wait()

    tasks = [asyncio.create_task(borrow_again_and_again(f"10.0.1.{number}")) for number in range(strangers)]
    await asyncio.sleep(1)
    async with asyncio.timeout(WAIT_S - 1), budget.lent(MOST_BYTES, address="10.0.0.1", revoke=lambda: None):
        pass
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
