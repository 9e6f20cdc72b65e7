"""The agenda: what the worker looks at, in which order, and when it wakes."""

from __future__ import annotations

import asyncio

from dradriver.queue.agenda import Agenda

A, B, C = ("default", "a"), ("default", "b"), ("default", "c")


def begun() -> Agenda:
    agenda = Agenda()
    agenda.begin(())
    return agenda


def all_of(agenda: Agenda) -> list[tuple[str, str]]:
    keys = []
    while (key := agenda.pop()) is not None:
        keys.append(key)
    return keys


def test_a_key_is_looked_at_once_in_the_order_of_the_first_addition() -> None:
    agenda = begun()
    for key in (B, A, B):
        agenda.add(key)
    assert len(agenda) == 2
    assert all_of(agenda) == [B, A]
    assert not agenda


def test_a_standby_accepts_nothing_and_a_new_leader_begins_with_all() -> None:
    agenda = Agenda()
    agenda.add(A)
    assert not agenda
    assert not agenda.is_open
    agenda.begin([B, C])
    agenda.add(A)
    assert agenda.is_open
    assert all_of(agenda) == [B, C, A]
    agenda.add(A)
    agenda.end()
    agenda.add(B)
    assert not agenda


def test_of_several_times_of_a_key_the_first_counts() -> None:
    agenda = begun()
    agenda.add_at(5.0, A)
    agenda.add_at(3.0, A)
    agenda.add_at(4.0, A)
    agenda.ring(2.9)
    assert not agenda
    agenda.ring(3.0)
    assert all_of(agenda) == [A]
    agenda.ring(10.0)
    assert not agenda, "each look sets the next time again"
    agenda.add_at(11.0, A)
    agenda.ring(11.0)
    assert all_of(agenda) == [A]


async def test_the_worker_sleeps_until_something_happens() -> None:
    agenda = begun()
    for happens in (agenda.wake, lambda: agenda.add(A)):
        agenda.clear_wake()
        sleeping = asyncio.create_task(agenda.sleep())
        await asyncio.sleep(0.01)
        assert not sleeping.done()
        happens()
        await sleeping
    agenda.clear_wake()
    agenda.add_at(asyncio.get_running_loop().time() + 0.01, B)
    await agenda.sleep()
    agenda.ring(asyncio.get_running_loop().time())
    assert all_of(agenda) == [A, B]
