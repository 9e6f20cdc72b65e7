"""What a claim's status says of its devices is what they are, whatever kept an agent from writing it."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.kube.errors import ApiError, ConfigError
from dradriver.node.claims import status
from dradriver.node.claims.prepare import Preparer
from dradriver.node.claims.reconcile import Reconciler
from dradriver.node.claims.status import Statuses
from tests.fakes.crashes import Inline
from tests.fakes.node import NODE, claim, typed
from tests.fakes.slicing import Sliced, at, some

pytestmark = pytest.mark.looptime

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
ASKED = [some(0, 4, 3, "s")]


class Agent:
    """What of an agent writes statuses, and the API server's answer."""

    def __init__(self, world: Sliced) -> None:
        self.world = world
        self.preparer: Preparer = world.preparer()
        self.statuses = Statuses(self.apply)
        self.away = self.drops = False
        self.written: list[Any] = []
        self.reconciler = Reconciler(self.preparer, world.get_claim, node=NODE, processes=world.running)
        self.preparer.made_ready.add(self.statuses.put)
        self.reconciler.used.add(self.statuses.check)

    async def apply(self, namespace: str, name: str, body: Any) -> None:
        if self.away:
            raise ApiError(503)
        self.written.append([one["data"]["placement"] for one in body["status"]["devices"]])
        if not self.drops:
            put(self.world, name, body["status"]["devices"])

    async def passes(self, count: int) -> None:
        task = asyncio.create_task(self.statuses.run())
        for _ in range(count):
            await self.reconciler.once()
            await asyncio.sleep(60)
        task.cancel()


def put(world: Sliced, name: str, devices: Any) -> None:
    """Have a claim's status say something of its devices."""
    obj = claim(name, results=ASKED)
    obj["status"]["devices"] = devices
    world.put(obj)


@pytest.fixture
def world(tmp_path: Path) -> Sliced:
    world = Sliced(tmp_path)
    world.device_manager._thread = Inline("inline")  # looptime waits for no thread
    return world


async def test_of_a_claim_that_another_agent_prepared_it_is_written_once(world: Sliced) -> None:
    await world.prepare("c", *ASKED)
    agent = Agent(world)
    await agent.preparer.prepare("default", "c", "uid-c")  # answered from its entry
    await agent.passes(3)
    assert agent.written == [[4]]


async def test_one_that_says_where_a_part_was_before_a_reboot_is_written_again(world: Sliced) -> None:
    first = await world.prepare("c", *ASKED)
    world.gpus.reboot()
    world.boot = "boot-2"
    await world.preparer().recover()
    await world.prepare("d", at(0, "3g.40gb", 4))
    put(world, "c", status.body(typed(claim("c", results=ASKED)), first, now=NOW)["status"]["devices"])
    await world.preparer().prepare("default", "c", "uid-c")
    del world.claims["d"]
    agent = Agent(world)
    await agent.passes(3)
    assert agent.written == [[0]]


async def test_one_that_the_server_did_not_take_is_written_when_it_does(world: Sliced) -> None:
    agent = Agent(world)
    agent.away = True
    await agent.preparer.prepare(*world.put(claim("c", results=ASKED)))
    await agent.passes(3)
    agent.away = False
    await agent.passes(2)
    assert agent.written == [[4]]


async def test_a_server_that_drops_it_is_asked_once(world: Sliced) -> None:
    agent = Agent(world)
    agent.drops = True
    await agent.preparer.prepare(*world.put(claim("c", results=ASKED)))
    await agent.passes(3)
    assert agent.written == [[4]]


@pytest.mark.parametrize("data", ["7", '"x"', "[]", "{}", '{"uuid": []}'])
async def test_anybodys_data_in_its_place_is_written_over(world: Sliced, data: str) -> None:
    done = await world.prepare("c", *ASKED)
    entry = status.body(typed(claim("c", results=ASKED)), done, now=NOW)["status"]["devices"][0]
    put(world, "c", [entry | {"data": json.loads(data)}])
    agent = Agent(world)
    await agent.passes(2)
    assert agent.written == [[4]]


SINCE = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


class IdleAgent(Agent):
    """One that knows since when the claim's devices have done nothing."""

    def __init__(self, world: Sliced) -> None:
        super().__init__(world)
        self.since: datetime.datetime | None = None
        self.asked = ""
        self.statuses._idle_since = lambda _: self.since

    async def apply(self, namespace: str, name: str, body: Any) -> None:
        assert namespace == "default"
        self.written.append([one["data"].get("idleSince") for one in body["status"]["devices"]])
        obj = claim(name, results=ASKED)
        obj["status"]["devices"] = body["status"]["devices"]
        obj["metadata"]["annotations"] = {names.IDLE_END: self.asked} if self.asked else {}
        self.world.put(obj)


async def test_that_they_are_idle_is_written_when_it_begins_and_when_it_ends(world: Sliced) -> None:
    await world.prepare("c", *ASKED)
    agent = IdleAgent(world)
    await agent.passes(2)
    agent.since = SINCE
    await agent.passes(5)
    agent.since = SINCE + datetime.timedelta(hours=1)
    await agent.passes(3)
    agent.since = None
    await agent.passes(5)
    said = "2026-01-02T03:04:05Z", "2026-01-02T04:04:05Z"
    assert agent.written == [[None], [said[0]], [said[1]], [None]]


async def test_while_it_is_asked_it_is_said_again_in_each_pass(world: Sliced) -> None:
    await world.prepare("c", *ASKED)
    agent = IdleAgent(world)
    agent.since, agent.asked = SINCE, "2026-01-02T04:00:00Z"
    await agent.passes(4)
    assert len(agent.written) == 4
    agent.since = None
    await agent.passes(4)
    assert len(agent.written) == 5, "there is nothing to say any more"
    agent.since, agent.asked = SINCE, "soon"
    await agent.passes(4)
    assert len(agent.written) == 6, "that is no time, so nobody asks"


async def test_what_a_predecessor_said_of_idleness_is_taken_back(world: Sliced) -> None:
    await world.prepare("c", *ASKED)
    agent = IdleAgent(world)
    agent.since = SINCE
    await agent.passes(1)
    successor = IdleAgent(world)
    await successor.passes(3)
    assert successor.written == [[None]]


async def test_since_when_it_is_ready_stays_when_something_else_is_said(world: Sliced) -> None:
    prepared = await world.prepare("c", *ASKED)
    obj = claim("c", results=ASKED)
    obj["status"]["devices"] = status.body(typed(obj), prepared, now=NOW)["status"]["devices"]
    later = NOW + datetime.timedelta(hours=1)
    told = status.body(typed(obj), prepared, now=later, idle_since=NOW)["status"]["devices"]
    (one,) = told
    assert one["conditions"][0]["lastTransitionTime"] == "2026-01-02T03:04:05Z"
    assert (one["data"]["idleSince"], one["data"]["idleSeen"]) == ("2026-01-02T03:04:05Z", "2026-01-02T04:04:05Z")


class Unequal:
    """An API server that takes the statuses of some claims only."""

    def __init__(self, bad: Callable[[], Awaitable[None]]) -> None:
        self._bad = bad
        self.taken: list[str] = []

    async def apply(self, namespace: str, name: str, _body: object) -> None:
        if name.startswith("bad"):
            await self._bad()
        self.taken.append(f"{namespace}/{name}")


async def _refuse() -> None:
    raise ApiError(500)


async def _hang() -> None:
    await asyncio.Event().wait()


async def _token_gone() -> None:
    raise ConfigError("/token cannot be read")


@pytest.mark.parametrize("bad", [_refuse, _hang, _token_gone])
async def test_claims_whose_writes_fail_hold_up_no_other(world: Sliced, bad: Callable[[], Awaitable[None]]) -> None:
    prepared = await world.prepare("c", *ASKED)
    server = Unequal(bad)
    statuses = Statuses(server.apply)
    writing = asyncio.create_task(statuses.run())
    for name in (*(f"bad-{number}" for number in range(200)), "good", "good-2"):
        obj = claim(name, results=ASKED)
        statuses.put(typed(obj), msgspec.structs.replace(prepared, uid=f"uid-{name}", name=name))
    await asyncio.sleep(1)
    assert server.taken == ["default/good", "default/good-2"]
    statuses.put(typed(claim("good", results=ASKED)), msgspec.structs.replace(prepared, uid="uid-good", name="good"))
    await asyncio.sleep(1)
    assert server.taken == ["default/good", "default/good-2", "default/good"]
    assert not writing.done()
    writing.cancel()


async def test_of_one_claim_the_newest_is_written_and_never_two_at_once(world: Sliced) -> None:
    prepared = await world.prepare("c", *ASKED)
    obj = typed(claim("c", results=ASKED))
    idle: list[datetime.datetime | None] = [None]
    answer = asyncio.Event()
    written: list[Any] = []

    async def apply(_namespace: str, _name: str, body: Any) -> None:
        written.append(body["status"]["devices"][0]["data"].get("idleSince"))
        await answer.wait()

    statuses = Statuses(apply, lambda _: idle[0])
    writing = asyncio.create_task(statuses.run())
    for hour in range(3):
        idle[0] = SINCE + datetime.timedelta(hours=hour)
        statuses.put(obj, prepared)
        await asyncio.sleep(1)
    assert written == ["2026-01-02T03:04:05Z"], "the first has no answer yet"
    answer.set()
    await asyncio.sleep(1)
    assert written == ["2026-01-02T03:04:05Z", "2026-01-02T05:04:05Z"]
    writing.cancel()


async def test_the_status_of_a_claim_that_was_given_back_is_not_tried_again(world: Sliced) -> None:
    prepared = await world.prepare("c", *ASKED)
    asked: list[str] = []

    async def apply(_namespace: str, name: str, _body: object) -> None:
        asked.append(name)
        raise ApiError(503)

    statuses = Statuses(apply)
    writing = asyncio.create_task(statuses.run())
    statuses.put(typed(claim("c", results=ASKED)), prepared)
    await asyncio.sleep(1)
    statuses.forget(prepared.uid)
    await asyncio.sleep(600)
    assert asked == ["c"]
    writing.cancel()
