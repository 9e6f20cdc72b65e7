"""An election in a thread of its own: the lease stays while the loop with the work is busy, and goes when it hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from dradriver.kube.client import Client
from dradriver.kube.leader import ElectionLease, LeaderElector, Timings
from dradriver.kube.leader_thread import Progress, Work, elect
from dradriver.kube.resources import LEASES
from tests.fakes.apistore import Store
from tests.fakes.storeclient import Call, StoreClient

LIMIT_S = 20.0  # only for a test that fails


class Counted(StoreClient):
    """A client of a store, in any thread, that lets others wait for its writes."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.wrote = threading.Semaphore(0)

    async def _send(self, call: Call, act: Callable[[], Any]) -> Any:
        answer = await super()._send(call, act)
        if call.writes:
            self.wrote.release()
        return answer

    def wait(self, writes: int) -> None:
        """Block until there were so many more writes."""
        for _ in range(writes):
            assert self.wrote.acquire(timeout=LIMIT_S), "the lease is not renewed"


def elector(client: Counted, **options: Any) -> LeaderElector:
    options = {"timings": Timings(retry_period_s=0.01)} | options
    return LeaderElector(cast("Client", client), ElectionLease("ns", "x"), identity="a", **options)


def holder(store: Store) -> str:
    name: str = store.of(LEASES).objects["ns", "x"]["spec"]["holderIdentity"]
    return name


async def test_the_lease_is_renewed_while_the_loop_with_the_work_does_nothing_else() -> None:
    store = Store()
    client = Counted(store)

    async def work() -> None:
        client.wait(5)  # this keeps the whole loop

    await elect(elector(client).run, work)
    assert holder(store) == ""


@pytest.mark.slow
async def test_a_loop_that_hangs_loses_the_lease_and_its_process_is_ended() -> None:
    ended = threading.Event()
    client = Counted(Store())
    now = 0.0
    progress, was_ended = Progress(5, lambda: now), asyncio.Event()

    async def work() -> None:
        nonlocal now
        client.wait(1)
        now = 6.0  # and nothing was shown since
        assert ended.wait(LIMIT_S), "the lease stays with a leader that hangs"
        was_ended.set()

    timings = Timings(lease_duration_s=1, renew_deadline_s=0.1, retry_period_s=0.01)
    made = elector(client, makes_progress=progress.is_recent, end_process=lambda _: ended.set(), timings=timings)
    running = asyncio.ensure_future(elect(made.run, work))
    await was_ended.wait()
    running.cancel()
    await asyncio.wait([running])


async def test_work_is_in_its_own_loop_and_has_ended_before_the_election_goes_on() -> None:
    here, seen = threading.get_ident(), list[object]()
    begun = threading.Event()

    async def work() -> None:
        seen.append(threading.get_ident() == here)
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            seen.append("work ended")

    async def election(work: Work) -> None:
        seen.append(threading.get_ident() == here)
        task = asyncio.ensure_future(work())
        await asyncio.to_thread(begun.wait, LIMIT_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        seen.append("election ended")

    await elect(election, work)
    assert seen == [False, True, "work ended", "election ended"]


async def test_who_cancels_it_waits_for_the_work_and_for_the_lease_to_be_given_back() -> None:
    store, begun, ended = Store(), asyncio.Event(), False

    async def work() -> None:
        nonlocal ended
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended = True

    async with asyncio.timeout(LIMIT_S):
        running = asyncio.ensure_future(elect(elector(Counted(store)).run, work))
        await begun.wait()
        assert holder(store) == "a"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert ended
    assert holder(store) == ""


async def test_who_cancels_it_again_waits_for_the_election_all_the_same() -> None:
    begun, stopping, may_end, has_ended = (threading.Event() for _ in range(4))

    async def election(_: Work) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopping.set()
            may_end.wait(LIMIT_S)  # as while the lease is given back
            has_ended.set()

    async def work() -> None:
        raise AssertionError("nobody starts it")

    running = asyncio.ensure_future(elect(election, work))
    assert await asyncio.to_thread(begun.wait, LIMIT_S)
    running.cancel()
    assert await asyncio.to_thread(stopping.wait, LIMIT_S)
    for _ in range(2):
        running.cancel()
        await asyncio.wait([running], timeout=0)
    assert not running.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert has_ended.is_set()


async def test_who_cancels_it_twice_before_it_has_begun_waits_too() -> None:
    threads: list[threading.Thread] = []

    async def election(_: Work) -> None:
        threads.append(threading.current_thread())
        await asyncio.Event().wait()

    async def work() -> None:
        raise AssertionError("nobody starts it")

    running = asyncio.ensure_future(elect(election, work))
    for _ in range(2):
        await asyncio.wait([running], timeout=0)
        running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for thread in threads:
        await asyncio.to_thread(thread.join, LIMIT_S)
        assert not thread.is_alive()


async def test_an_error_of_the_work_passes_through() -> None:
    async def work() -> None:
        raise RuntimeError("oops")

    with pytest.raises(RuntimeError, match="oops"):
        await elect(elector(Counted(Store())).run, work)


@pytest.mark.looptime
async def test_progress_is_what_was_shown_within_the_last_seconds() -> None:
    loop = asyncio.get_running_loop()
    progress = Progress(5, loop.time)
    await asyncio.sleep(4)
    assert progress.is_recent()
    await asyncio.sleep(2)
    assert not progress.is_recent()
    running = asyncio.ensure_future(progress.run())
    await asyncio.sleep(60)
    assert progress.is_recent()
    running.cancel()


@pytest.mark.looptime
@pytest.mark.parametrize("most_s", [0.1, 0.5, 5.0])
async def test_a_loop_that_runs_makes_progress_at_any_time_with_any_bound(most_s: float) -> None:
    loop = asyncio.get_running_loop()
    progress = Progress(most_s, loop.time)
    running = asyncio.ensure_future(progress.run())
    for _ in range(100):
        await asyncio.sleep(most_s / 10)
        assert progress.is_recent()
    running.cancel()
