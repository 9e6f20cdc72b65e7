from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dradriver.kube.errors import ApiError, Unreachable
from dradriver.node.claims.reconcile import Reconciler
from tests.fakes.node import NODE, claim, device, result
from tests.fakes.preparing import World

pytestmark = pytest.mark.looptime


@pytest.fixture
async def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    await world.preparer().prepare(*world.put(claim("c", [0, 1])))
    return world


def reconciler(world: World) -> Reconciler:
    return Reconciler(world.preparer(), world.get_claim, node=NODE)


async def passes(one: Reconciler, count: int) -> None:
    for _ in range(count):
        await one.once()


UNUSED: dict[str, dict[str, Any] | None] = {
    "gone": None,
    "another of its name": claim("c", [0, 1], uid="new"),
    "finished": claim("c", [0, 1], used=False),
    "allocated to other GPUs": claim("c", [2, 3]),
    "allocated to fewer": claim("c", [0]),
    "allocated on another node": claim("c", results=[result("gpu", device(i), pool="node-b") for i in (0, 1)]),
}


@pytest.mark.parametrize("why", UNUSED)
async def test_what_nobody_uses_is_given_back_in_the_second_pass(world: World, why: str) -> None:
    world.claims.clear()
    if (obj := UNUSED[why]) is not None:
        world.put(obj)
    one = reconciler(world)
    await one.once()
    assert (len(world.specs), world.checkpoint) == (1, ["uid-c.json"])
    await one.once()
    assert (world.specs, world.checkpoint) == ({}, [])


async def test_what_is_used_stays(world: World) -> None:
    await passes(reconciler(world), 5)
    assert (len(world.specs), world.checkpoint) == (1, ["uid-c.json"])


async def test_trouble_with_the_api_server_gives_nothing_back(world: World) -> None:
    one = reconciler(world)
    for error in (Unreachable("x"), ApiError(403, "Forbidden"), ApiError(500), Unreachable("y")):
        world.trouble = [error]
        await one.once()
    assert world.checkpoint == ["uid-c.json"]


async def test_two_passes_in_a_row_are_needed(world: World) -> None:
    one = reconciler(world)
    kept = dict(world.claims)
    for _ in range(3):
        world.claims.clear()
        await one.once()
        world.claims.update(kept)
        await one.once()
    assert world.checkpoint == ["uid-c.json"]


async def test_a_claim_that_is_prepared_again_in_between_is_not_taken_away(world: World) -> None:
    one = reconciler(world)
    asked = world.put(claim("c", [0, 1], used=False))
    await one.once()
    await world.preparer().prepare(*asked)
    await one.once()
    assert world.checkpoint == ["uid-c.json"]
    await one.once()
    assert world.checkpoint == []


async def test_a_prepare_during_the_pass_wins(world: World) -> None:
    asked = world.put(claim("c", [0, 1], used=False))
    preparer = world.preparer()
    second = False

    async def get_claim(namespace: str, name: str) -> Any:
        found = await world.get_claim(namespace, name)
        if second:
            await preparer.prepare(*asked)
        return found

    one = Reconciler(preparer, get_claim, node=NODE)
    await one.once()
    second = True
    await one.once()
    assert world.checkpoint == ["uid-c.json"]


async def test_what_is_given_back_lets_a_waiting_claim_in(world: World) -> None:
    preparer = world.preparer()
    one = Reconciler(preparer, world.get_claim, node=NODE)
    world.claims.clear()
    waiting = asyncio.create_task(preparer.prepare(*world.put(claim("new", [1]))))
    await asyncio.sleep(2)
    await passes(one, 2)
    assert (await waiting).uid == "uid-new"


async def test_it_looks_at_start_and_every_minute(world: World) -> None:
    world.claims.clear()
    task = asyncio.create_task(reconciler(world).run())
    await asyncio.sleep(59)
    assert world.checkpoint == ["uid-c.json"]
    await asyncio.sleep(2)
    assert world.checkpoint == []
    task.cancel()


async def test_a_checkpoint_that_cannot_be_read_is_said_and_tried_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    path = world.folder / "state" / "claims" / "uid-c.json"
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"version":1', b'"version":3'))
    world.claims.clear()
    task = asyncio.create_task(reconciler(world).run())
    await asyncio.sleep(61)
    assert "version 3" in caplog.text
    path.write_bytes(text)
    await asyncio.sleep(121)
    assert world.checkpoint == []
    task.cancel()
