"""The work queue."""

from __future__ import annotations

import asyncio

import pytest

from dradriver.kube.queue import WorkQueue


async def test_keys_come_out_once_and_in_order() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in "abacb":
        queue.add(key)

    assert [await queue.get() for _ in range(3)] == ["a", "b", "c"]
    assert len(queue) == 0


async def test_a_key_being_worked_on_is_handed_out_again_only_after_done() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0

    queue.done(key)

    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_done_without_another_add_hands_out_nothing() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.done(await queue.get())

    assert len(queue) == 0


async def test_a_worker_that_is_cancelled_while_it_waits_takes_nothing_along() -> None:
    queue: WorkQueue[str] = WorkQueue()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(queue.get())
        await asyncio.sleep(0)
        queue.add("a")
        waiting.cancel()

    assert await queue.get() == "a"


@pytest.mark.looptime
async def test_of_two_delays_the_one_that_ends_first_counts(looptime: float) -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 10)
    queue.add_after("a", 2)
    queue.add_after("a", 5)

    await queue.get()
    assert float(looptime) == 2
    queue.done("a")
    queue.add_after("a", 100)
    await asyncio.sleep(90)
    assert len(queue) == 0


@pytest.mark.looptime
async def test_retries_wait_longer_and_longer_until_the_key_is_forgotten(looptime: float) -> None:
    queue: WorkQueue[str] = WorkQueue(base_s=1, most_s=5)
    waits = []
    for _ in range(5):
        began = float(looptime)
        queue.retry("a")
        queue.done(await queue.get())
        waits.append(float(looptime) - began)
    assert pytest.approx(waits) == [1, 2, 4, 5, 5]

    queue.forget("a")
    began = float(looptime)
    queue.retry("a")
    await queue.get()

    assert pytest.approx(float(looptime) - began) == 1


@pytest.mark.looptime
async def test_a_failing_key_does_not_hold_up_another(looptime: float) -> None:
    queue: WorkQueue[str] = WorkQueue(base_s=1)
    queue.retry("bad")
    queue.add("good")

    assert await queue.get() == "good"
    assert float(looptime) == 0
