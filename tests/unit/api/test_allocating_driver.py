"""Whose devices are handed out: one fact of a process, which tasks that it starts know, and no other process's."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from dradriver.api.base.allocating_driver import LEDGERS, NVIDIA, OURS, Ledger, bind, bound, current_ledger


async def _asked(before: asyncio.Event) -> Ledger:
    await before.wait()
    return current_ledger()


async def test_a_process_hands_out_what_it_bound_and_another_process_what_that_did() -> None:
    both = asyncio.Barrier(len(LEDGERS))

    async def process(ledger: Ledger) -> list[Ledger]:
        bind(ledger)
        await both.wait()  # all have bound theirs
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(_asked(asked))
            thread = asyncio.to_thread(current_ledger)
            asked.set()
            return [current_ledger(), await thread, await task]

    asked = asyncio.Event()
    found = await asyncio.gather(*map(process, LEDGERS.values()))
    assert found == [[one] * 3 for one in LEDGERS.values()]
    assert current_ledger() is OURS


async def test_a_task_keeps_what_was_bound_when_it_was_created() -> None:
    asked = asyncio.Event()
    before = asyncio.create_task(_asked(asked))
    with bound(NVIDIA):
        within = asyncio.create_task(_asked(asked))
    asked.set()
    assert (await before, await within, current_ledger()) == (OURS, NVIDIA, OURS)


def test_what_was_bound_before_comes_back_even_after_an_error() -> None:
    with bound(NVIDIA):
        with pytest.raises(ZeroDivisionError), bound(OURS):
            _ = 1 // 0
        assert current_ledger() is NVIDIA
    assert current_ledger() is OURS


def test_a_context_of_its_own_begins_with_our_own_devices() -> None:
    with bound(NVIDIA):
        assert contextvars.Context().run(current_ledger) is OURS
