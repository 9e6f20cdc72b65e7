"""Objects that want work: what is done in which order, what waits, and what is kept of them."""

from __future__ import annotations

import asyncio

import pytest

from dradriver.kube.workqueue import MOST, WorkQueue

Key = tuple[str, str]


class Work:
    def __init__(self, pause_s: float = 0.0) -> None:
        self.rounds = WorkQueue(self.work, pause_s=pause_s)
        self.begun: list[Key] = []
        self.done: list[Key] = []
        self.fails: set[Key] = set()
        self.hang: set[str] = set()
        self.go = asyncio.Event()

    async def work(self, key: Key) -> None:
        self.begun.append(key)
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


@pytest.mark.looptime
async def test_what_is_taken_back_keeps_its_pause_and_no_more() -> None:
    """Else whoever has a pod come and go could have it tried as often as he likes."""
    work = Work(pause_s=10.0)
    assert work.rounds.fail(("n", "x"))
    work.rounds.drop(("n", "x"))
    work.rounds.put(("n", "x"))
    await work.act()
    assert work.done == []
    await asyncio.sleep(11)
    work.rounds.put(("n", "x"))
    work.rounds.drop(("n", "x"))
    await work.act()
    assert work.rounds._pauses == {}
    assert work.rounds.fail(("n", "x"))  # the first time in a row


@pytest.mark.looptime
async def test_what_wants_nothing_any_more_is_not_brought_up_by_its_pauses_end() -> None:
    work = Work(pause_s=1.0)
    work.rounds.fail(("n", "x"))
    work.rounds.done(("n", "x"))
    await asyncio.sleep(2)
    await work.act()
    assert work.done == []
    assert work.rounds.fail(("n", "x"))


@pytest.mark.looptime
async def test_pauses_grow_up_to_a_longest() -> None:
    work = Work(pause_s=1.0)
    now = asyncio.get_running_loop().time()
    pauses = []
    for _ in range(9):
        work.rounds.fail(("n", "x"))
        pauses.append(work.rounds._pauses["n", "x"][1] - now)
    assert pauses == pytest.approx([1, 2, 4, 8, 16, 32, 64, 120, 120])


async def test_a_caller_that_drives_it_by_hand_has_all_done_that_is_due() -> None:
    work = Work(pause_s=1.0)
    keys = [(f"n{number % (MOST + 4)}", str(number)) for number in range(50)]
    work.fails = {keys[0]}
    for key in keys:
        work.rounds.put(key)
    await work.rounds.flush()
    assert sorted(work.done) == sorted(keys), "what failed is left alone for its pause"


async def test_so_many_namespaces_at_once_and_in_each_one_object() -> None:
    work = Work()
    names = [f"n{number}" for number in range(MOST + 4)]
    work.hang = {*names}
    for name in names:
        work.rounds.put((name, "x"))
    async with asyncio.TaskGroup() as group:
        work.rounds.begin(group)
        await asyncio.sleep(0)
        work.rounds.put(("n0", "y"))
        work.rounds.begin(group)
        await asyncio.sleep(0)
        assert len(work.begun) == MOST == 16
        work.go.set()
    assert {name for name, _ in work.done} == {*names[:MOST]}
    assert work.done.count(("n0", "y")) == 1


@pytest.mark.looptime
async def test_a_worker_that_waits_for_work_is_woken_when_there_is_some() -> None:
    work = Work()

    async def slow(key: Key) -> None:
        await asyncio.sleep(0.7)
        work.done.append(key)

    work.rounds = WorkQueue(slow, pause_s=1.0)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                work.rounds.woken.clear()
                work.rounds.begin(group)
                await work.rounds.woken.wait()

    running = asyncio.create_task(run())
    await asyncio.sleep(1)
    for number in range(5):
        work.rounds.put(("n", str(number)))
    work.rounds.put(("m", "x"))
    await asyncio.sleep(5)  # five of them take longer than a namespace's turn
    running.cancel()
    assert len(work.done) == 6


@pytest.mark.looptime
async def test_a_namespace_with_much_to_do_lets_others_have_their_turn() -> None:
    work = Work()

    async def slow(key: Key) -> None:
        await asyncio.sleep(0.7)
        work.done.append(key)

    work.rounds = WorkQueue(slow, pause_s=1.0)
    for name in (*(f"n{number}" for number in range(MOST)), "last"):
        for number in range(10):
            work.rounds.put((name, str(number)))
    async with asyncio.TaskGroup() as group:
        for _ in range(30):
            work.rounds.begin(group)
            await asyncio.sleep(0.1)
        assert work.done.index(("last", "0")) < 4 * MOST
        while work.rounds._due:
            work.rounds.begin(group)
            await asyncio.sleep(0.1)


@pytest.mark.looptime
async def test_what_is_put_for_a_time_is_done_then_and_not_sooner() -> None:
    work = Work()
    loop = asyncio.get_running_loop()
    task = loop.create_task(work.rounds.run())
    await asyncio.sleep(31.001)
    work.rounds.put_at(("n", "x"), loop.time() + 1.000000000000005)  # a timer for it comes a moment too early
    work.rounds.put(("n", "x"))
    await asyncio.sleep(0.9)
    assert (work.done, work.rounds.waiting()) == ([], [("n", "x")])
    await asyncio.sleep(0.2)
    assert (work.done, work.rounds.waiting()) == ([("n", "x")], [])
    task.cancel()
    await asyncio.wait([task])


async def test_what_was_under_way_when_the_work_ended_is_done_by_the_next_who_runs_it() -> None:
    work = Work()
    work.hang = {"n"}
    when = asyncio.get_running_loop().time()
    work.rounds.put_at(("n", "a"), when)
    running = asyncio.create_task(work.rounds.run())
    while not work.begun:
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    work.go.set()
    work.rounds.put_at(("n", "a"), when)  # the same that it was put for before
    running = asyncio.create_task(work.rounds.run())
    for _ in range(10):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert work.done == [("n", "a")]


@pytest.mark.looptime
async def test_a_pause_that_a_server_asks_for_is_kept_and_a_longer_one_too() -> None:
    work = Work(pause_s=1.0)
    now = asyncio.get_running_loop().time()
    work.rounds.fail(("n", "x"), least_s=7.0)
    assert work.rounds._pauses["n", "x"][1] == pytest.approx(now + 7.0)
    for _ in range(3):
        work.rounds.fail(("n", "x"))
    work.rounds.fail(("n", "x"), least_s=7.0)
    assert work.rounds._pauses["n", "x"][1] == pytest.approx(now + 16.0)
