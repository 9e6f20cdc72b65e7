"""Objects that want work: what is done in which order, what waits, and what is kept of them."""

from __future__ import annotations

import asyncio

from dradriver.controller.rounds import MOST, Rounds

Key = tuple[str, str]


class Work:
    def __init__(self, pause_s: float = 0.0) -> None:
        self.rounds = Rounds(self.work, pause_s=pause_s)
        self.done: list[Key] = []
        self.fails: set[Key] = set()
        self.hang: set[str] = set()
        self.go = asyncio.Event()

    async def work(self, key: Key) -> None:
        if key[0] in self.hang:
            await self.go.wait()
        self.done.append(key)
        if key in self.fails:
            raise RuntimeError("a bug")
        self.rounds.done(key)

    async def act(self) -> None:
        async with asyncio.TaskGroup() as group:
            self.rounds.begin(group)


async def test_each_is_worked_on_once_in_order() -> None:
    work = Work()
    for name in ("b", "a", "b"):
        work.rounds.put(("n", name))
    await work.act()
    await work.act()
    assert work.done == [("n", "b"), ("n", "a")]


async def test_a_namespace_that_hangs_holds_up_no_other_and_many_take_turns() -> None:
    work = Work()
    work.hang = {"slow"}
    work.rounds.put(("slow", "x"))
    for number in range(2 * MOST):
        work.rounds.put((f"n{number}", "x"))
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            work.rounds.begin(group)
            for _ in range(5):
                await asyncio.sleep(0)
        assert len(work.done) == 2 * MOST
        work.go.set()
    assert work.done[-1] == ("slow", "x")


async def test_a_failure_is_tried_again_and_stops_no_other() -> None:
    work = Work()
    work.fails = {("n", "bad")}
    work.rounds.put(("n", "bad"))
    work.rounds.put(("n", "good"))
    await work.act()
    assert work.done == [("n", "bad"), ("n", "good")]
    work.fails.clear()
    await work.act()
    await work.act()
    assert work.done[2:] == [("n", "bad")]


async def test_nothing_is_tried_before_its_pause_is_over() -> None:
    work = Work(pause_s=1000.0)
    work.fails = {("n", "bad")}
    work.rounds.put(("n", "bad"))
    await work.act()
    work.rounds.put(("n", "bad"))
    await work.act()
    assert work.done == [("n", "bad")]
    async with asyncio.TaskGroup() as group:
        again_at = work.rounds.begin(group)
    assert again_at is not None
    assert again_at > asyncio.get_running_loop().time() + 100


async def test_what_is_taken_back_before_its_turn_is_forgotten_and_may_come_again() -> None:
    work = Work()
    work.fails = {("n", "x")}
    work.rounds.put(("n", "x"))
    await work.act()
    async with asyncio.TaskGroup() as group:
        work.rounds.begin(group)  # its pause is over: it stands in line
        work.rounds.drop(("n", "x"))
    assert work.done == [("n", "x")]
    work.rounds.put(("n", "x"))
    await work.act()
    assert work.done == [("n", "x")] * 2
    for number in range(100):
        work.rounds.put((f"n{number}", "x"))
        work.rounds.drop((f"n{number}", "x"))
    assert not any(namespace.startswith("n") and namespace != "n" for namespace in work.rounds._due)
