from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from dradriver.errors import DriverError
from dradriver.kube.errors import ApiError, Unreachable
from dradriver.node.claims.claim_reader import GET_S
from dradriver.node.claims.reconcile import AGAIN_S, Reconciler
from dradriver.node.errors import DeviceBusyError, SetupError
from dradriver.node.vendors.nvidia.discovery.nvml_interface import NvmlError
from tests.fakes.node import NODE, claim, device, result, uuid
from tests.fakes.preparing import World
from tests.fakes.reconciling import UNUSED, passes, reconciler

pytestmark = pytest.mark.looptime


@pytest.fixture
async def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    await world.preparer().prepare(*world.put(claim("c", [0, 1])))
    return world


async def test_a_spec_that_a_user_removed_is_written_again(world: World) -> None:
    before = world.specs
    for path in (world.folder / "cdi").iterdir():
        path.unlink()
    await reconciler(world).once()
    assert world.specs == before


async def test_a_pass_that_a_disk_keeps_from_its_work_is_made_again_soon(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    before, cdi = world.specs, world.folder / "cdi"
    shutil.rmtree(cdi)
    cdi.touch()  # no folder can be made there
    async with asyncio.TaskGroup() as group:
        running = group.create_task(reconciler(world).run())
        await asyncio.sleep(3 * AGAIN_S)
        cdi.unlink()
        await asyncio.sleep(AGAIN_S)
        running.cancel()
    assert world.specs == before
    assert caplog.text.count(f"'{cdi}") == 1


@pytest.mark.parametrize("why", UNUSED)
async def test_what_is_unused_is_given_back_in_the_second_pass(world: World, why: str) -> None:
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


async def test_claims_whose_answers_do_not_come_hold_up_no_other(world: World) -> None:
    preparer = world.preparer()
    for gpu in range(2, 8):
        await preparer.prepare(*world.put(claim(f"silent-{gpu}", [gpu])))
    world.claims.pop("c")

    async def get_claim(namespace: str, name: str) -> Any:
        if name.startswith("silent"):
            await asyncio.Event().wait()
        return await world.get_claim(namespace, name)

    one = Reconciler(preparer, get_claim, node=NODE, processes=world.running)
    began = asyncio.get_running_loop().time()
    await passes(one, 2)
    assert asyncio.get_running_loop().time() - began <= 2 * GET_S + 1
    assert "uid-c.json" not in world.checkpoint
    assert len(world.checkpoint) == 6


async def test_a_claim_that_cannot_be_given_back_keeps_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.preparer().prepare(*world.put(claim("d", [2])))
    world.claims.clear()
    unlink = os.unlink

    def immutable(path: Any) -> None:
        if "uid-c" in str(path):
            raise OSError(1, "Operation not permitted")
        unlink(path)

    monkeypatch.setattr(os, "unlink", immutable)
    await passes(reconciler(world), 2)
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

    one = Reconciler(preparer, get_claim, node=NODE, processes=world.running)
    await one.once()
    second = True
    await one.once()
    assert world.checkpoint == ["uid-c.json"]


async def test_what_is_given_back_lets_a_waiting_claim_in(world: World) -> None:
    preparer = world.preparer()
    one = Reconciler(preparer, world.get_claim, node=NODE, processes=world.running)
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


async def test_a_gpu_with_a_process_on_it_is_given_to_no_pod(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.claims.clear()  # deleted by force, and its process hangs in the driver
    world.processes = {uuid(1): [4711]}
    held: list[list[str]] = []
    one = reconciler(world, held=lambda gpus: held.append(sorted(gpus)))
    await passes(one, 5)
    assert (len(world.specs), world.checkpoint) == (1, ["uid-c.json"])
    assert held == [[], *([[uuid(1)]] * 4)]
    assert caplog.text.count("processes still use it: 4711. End them, or restart the node") == 1
    with pytest.raises(DeviceBusyError):
        await world.preparer().prepare(*world.put(claim("new", [1])))
    world.processes = {}
    await passes(one, 1)
    assert (world.specs, world.checkpoint, held[-1]) == ({}, [], [])


@pytest.mark.parametrize("error", [NvmlError("nvmlInit", 999, "Unknown Error"), SetupError("x")])
async def test_a_driver_that_does_not_say_whether_a_gpu_is_in_use_keeps_it(world: World, error: DriverError) -> None:
    world.claims.clear()
    world.processes = error
    held: list[list[str]] = []
    await passes(reconciler(world, held=lambda gpus: held.append(sorted(gpus))), 3)
    assert (world.checkpoint, held[-1]) == (["uid-c.json"], sorted([uuid(0), uuid(1)]))


async def test_a_looker_on_leaves_without_a_question(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.preparer().prepare(*world.put(claim("a", results=[result("gpu", device(0), adminAccess=True)])))
    world.claims.clear()
    world.processes = {uuid(0): [7]}
    await passes(reconciler(world), 2)
    assert world.checkpoint == []


async def test_a_claim_that_looked_unused_is_compared_with_the_api_before_it_is_answered(world: World) -> None:
    preparer = world.preparer()
    asked = world.put(claim("c", [0, 1]))
    one = Reconciler(preparer, world.get_claim, node=NODE, processes=world.running)
    await preparer.prepare(*asked)
    world.put(claim("c", [4], used=False))
    await one.once()
    world.put(claim("c", [4]))
    assert [d.uuid for d in (await preparer.prepare(*asked)).devices] == [uuid(4)]


async def test_parts_are_given_back_although_others_use_their_gpu(world: World) -> None:
    """Whose process is on a shared GPU nobody can say; one on a MIG device keeps it from being destroyed."""
    share = {"shareID": "s", "consumedCapacity": {"cores": "25", "memory": "4Gi"}}
    preparer = world.preparer()
    await preparer.prepare(*world.put(claim("part", results=[result("gpu", device(5), **share)])))
    world.processes = {uuid(5): [7]}
    del world.claims["part"]
    await passes(reconciler(world), 2)
    assert "uid-part" not in await preparer.prepared()
