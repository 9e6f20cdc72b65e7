"""GPU time over leaders that live for seconds, whose clocks are wrong, and whose ConfigMaps somebody deletes."""

from __future__ import annotations

import asyncio
import email.utils
import logging
from collections.abc import Callable
from typing import Any, cast

import pytest

from dradriver.api.claims import usage_config_maps
from dradriver.controller.writing.usage_store import FIRST_PERIOD_S, LAST_WRITE_S, LOOK_S, PERIOD_S, UsageStore
from dradriver.kube.client import ApiError, Client
from dradriver.kube.resources import CONFIG_MAPS
from dradriver.kube.server_clock import ServerClock
from tests.unit.controller.test_usage_store import HOUR, OURS, START, Cluster, cluster

HOUR_NAME = usage_config_maps.name_of(None)
USER = ("default", "")


class Leading(Cluster):
    """A cluster whose leaders keep GPU time while the loop's time goes by, each by the clock that it has."""

    leader_clock: Callable[[], float] | None = None

    def time_s(self) -> float:
        """Return the true time, that of the API server."""
        return START + asyncio.get_running_loop().time()

    def controller_time_s(self) -> float:
        """Return the time by the leader's clock."""
        return (self.leader_clock or self.time_s)()

    def restart(self) -> None:
        super().restart()
        self.usage = UsageStore(
            cast("Client", self.client), self.worker.picture, self.worker.tenants,
            namespace=OURS, clock=self.controller_time_s,
        )  # fmt: skip

    async def lead(self, seconds: float) -> None:
        """Let a new leader lead for so long, and stop."""
        self.restart()
        await self.settle()
        task = asyncio.create_task(self.usage.run())
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def gpu_seconds(self) -> float:
        """Return all that is kept."""
        return sum(seconds for rows in self.kept().values() for seconds in rows.values())


async def leading() -> Leading:
    made = Leading()
    made.node("a")
    await made.settle()
    return made


async def holding(made: Leading, name: str) -> None:
    """Have a pod get four GPUs now."""
    made.clock.now = made.time_s()
    await made.run(name)


async def test_leaders_that_live_for_seconds_keep_what_has_ended_meanwhile() -> None:
    made = await leading()
    for number in range(6):
        await holding(made, f"p{number}")
        await made.lead(20)
        await made.stop(f"p{number}")
    assert made.gpu_seconds() == pytest.approx(6 * 20 * 4, abs=6)


async def test_a_leader_that_is_killed_loses_no_more_than_half_of_its_life() -> None:
    made = await leading()
    await holding(made, "p")
    made.restart()
    await made.settle()
    task = asyncio.create_task(made.usage.run())
    await asyncio.sleep(FIRST_PERIOD_S * 3 + 1)
    assert made.gpu_seconds() == pytest.approx(4 * FIRST_PERIOD_S * 3, abs=1)
    writes = len(made.client.writes)
    await asyncio.sleep(3600 - FIRST_PERIOD_S * 3 - 10)
    assert len(made.client.writes) - writes <= 3600 / PERIOD_S + 3, "and writes no more than once a minute for long"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_server_that_does_not_answer_the_last_write_holds_up_no_end() -> None:
    made = await leading()
    await holding(made, "p")
    made.restart()
    await made.settle()
    task = asyncio.create_task(made.usage.run())
    await asyncio.sleep(1)

    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(1000)

    made.client.get = made.client.update = never  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()
    begun = loop.time()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert loop.time() - begun <= LAST_WRITE_S + 0.1
    assert task.cancelled()


@pytest.mark.parametrize("ahead_s", [-2 * HOUR, 2 * HOUR])
async def test_the_time_of_a_leader_whose_clock_is_wrong_is_not_booked(ahead_s: float) -> None:
    made = await leading()
    loop = asyncio.get_running_loop()
    await holding(made, "p")
    begun = loop.time()
    await made.lead(100)

    # This leader's machine is put right while it leads.
    wrong_until = loop.time() + 90
    made.leader_clock = clock = ServerClock(
        lambda: (email.utils.formatdate(made.time_s(), usegmt=True), loop.time()),
        own=lambda: made.time_s() + (ahead_s if loop.time() < wrong_until else 0.0),
        monotonic=loop.time,
    )
    clock.set()
    await made.lead(200)

    # A leader whose machine's clock was right.
    made.leader_clock = None
    await made.lead(100)
    assert made.gpu_seconds() == pytest.approx(4 * (loop.time() - begun), abs=4 * 3)


@pytest.mark.parametrize("at_the_write", [False, True])
async def test_a_configmap_that_is_deleted_is_there_again_after_the_next_write(
    at_the_write: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made = await cluster()
    await made.run("p")
    made.clock.now += 60
    await made.usage.write()
    made.clock.now += 60
    if at_the_write:
        made.client.refuse["update"] = [ApiError(404, "NotFound", "it has just been deleted")]
    made.remove(CONFIG_MAPS, HOUR_NAME, OURS)
    if at_the_write:
        get = made.client.get

        async def still_there(*args: Any, **kwargs: Any) -> Any:
            made.client.get = get  # type: ignore[method-assign]
            return {"metadata": {}}

        made.client.get = still_there  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        await made.usage.write()
    assert made.kept() == {400_000: {USER: 480.0}}
    assert caplog.text.count("was deleted. The controller writes it again") == (0 if at_the_write else 1)


@pytest.mark.parametrize("hours", [0, 1])
async def test_a_deleted_configmap_is_there_again_although_the_leader_is_killed_before_its_next_write(
    hours: int,
) -> None:
    made, loop = await leading(), asyncio.get_running_loop()
    await holding(made, "p")
    begun = loop.time()
    made.restart()
    await made.settle()
    leader = asyncio.create_task(made.usage.run())
    await asyncio.sleep(hours * HOUR + 300)
    for stored in made.all(CONFIG_MAPS):
        made.remove(CONFIG_MAPS, stored["metadata"]["name"], OURS)
    await asyncio.sleep(2 * LOOK_S)
    kept, held = made.gpu_seconds(), 4 * (loop.time() - begun)
    leader.cancel()
    await asyncio.gather(leader, return_exceptions=True)
    assert kept == pytest.approx(held, abs=4 * 2 * LOOK_S)


async def test_configmaps_that_are_deleted_are_there_again_although_nothing_has_grown() -> None:
    made = await cluster()
    await made.run("p")
    made.clock.now += HOUR + 60
    await made.usage.write()
    await made.stop("p")
    await made.usage.write()
    kept, had = made.kept(), [stored["metadata"]["name"] for stored in made.all(CONFIG_MAPS)]
    assert len(had) == 2
    for name in had:
        made.remove(CONFIG_MAPS, name, OURS)
    made.clock.now += 60
    await made.usage.write()
    assert made.kept() == kept
    assert [stored["metadata"]["name"] for stored in made.all(CONFIG_MAPS)] == had
