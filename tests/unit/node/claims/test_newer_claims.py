"""Claims that a newer agent prepared: rebuilt from the API and the CDI spec, and given back like any other."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from dradriver.kube.errors import Unreachable
from dradriver.node.claims.claim_reader import GET_S
from dradriver.node.claims.reconcile import Reconciler
from dradriver.node.devices.device_manager import DeviceManager
from dradriver.node.devices.whole_gpus import Whole
from dradriver.node.discovery.simulated_machine import without
from dradriver.node.errors import DeviceBusyError
from dradriver.node.vendors.nvidia.discovery.nvidia_gpus import Hardware
from tests.fakes.node import NODE, claim, device, machine, parameters, result, uuid
from tests.fakes.preparing import World
from tests.fakes.reconciling import UNUSED, passes, reconciler

pytestmark = pytest.mark.looptime


@pytest.fixture
async def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    await world.preparer().prepare(*world.put(claim("c", [0, 1])))
    return world


def newer(world: World, *, written_s: float = -60) -> None:
    """The claim's file as an agent of a later version left it, so long ago."""
    path = world.folder / "state" / "claims" / "uid-c.json"
    path.write_bytes(path.read_bytes().replace(b'"version":3', b'"version":4'))
    os.utime(path, (time.time() + written_s,) * 2)


async def test_what_a_newer_agent_prepared_is_rebuilt_from_the_api_and_the_spec(world: World) -> None:
    before = (await world.preparer().prepared())["uid-c"].value
    specs = world.specs
    await world.preparer().prepare(*world.put(claim("other", [5])))
    newer(world)
    preparer = world.preparer()  # after a rollback
    await preparer.recover()
    await preparer.unprepare("uid-other")
    assert world.specs == specs
    one = Reconciler(preparer, world.get_claim, node=NODE, processes=world.running)
    world.trouble = [Unreachable("not yet")]
    await one.once()
    assert "uid-c" not in await preparer.prepared()
    await one.once()
    assert (await preparer.prepared())["uid-c"].value == before
    assert world.specs == specs
    with pytest.raises(DeviceBusyError):
        await preparer.prepare(*world.put(claim("new", [1])))
    await preparer.unprepare("uid-c")
    assert (world.specs, world.checkpoint) == ({}, [])


async def test_a_clock_that_was_put_back_since_keeps_no_newer_claim_from_being_rebuilt(world: World) -> None:
    newer(world, written_s=3600)
    preparer = world.preparer()
    await Reconciler(preparer, world.get_claim, node=NODE, processes=world.running).once()
    assert list(await preparer.prepared()) == ["uid-c"]


async def test_a_looker_on_holds_no_gpu_that_processes_are_on(world: World) -> None:
    await world.preparer().prepare(*world.put(claim("a", results=[result("gpu", device(4), adminAccess=True)])))
    world.processes = {uuid(0): [7], uuid(4): [8]}
    held: list[list[str]] = []
    one = Reconciler(
        world.preparer(),
        world.get_claim,
        node=NODE,
        processes=world.running,
        gpus=lambda: [gpu.uuid for gpu in world.machine.gpus],
    )
    one.held.add(lambda gpus: held.append(sorted(gpus)))
    await passes(one, 2)
    assert held == [[], [uuid(4)]]


async def test_what_is_given_back_while_it_is_rebuilt_is_gone(world: World) -> None:
    newer(world)

    async def meanwhile(namespace: str, name: str) -> Any:
        await world.preparer().unprepare("uid-c")
        return await world.get_claim(namespace, name)

    preparer = world.preparer(meanwhile)
    await preparer.rebuild()
    assert (await preparer.prepared(), world.specs, world.checkpoint) == ({}, {}, [])


async def test_a_slow_server_is_waited_for(world: World) -> None:
    newer(world)

    async def slow(namespace: str, name: str) -> Any:
        await asyncio.sleep(GET_S - 1)
        return await world.get_claim(namespace, name)

    preparer = world.preparer(slow)
    await preparer.rebuild()
    assert list(await preparer.prepared()) == ["uid-c"]


async def test_on_real_hardware_nvidias_ids_are_rebuilt_too(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.device_manager = DeviceManager([Whole(Hardware(host_root=tmp_path).edits)])
    before = await world.preparer().prepare(*world.put(claim("c", [0, 1])))
    newer(world)
    await passes(reconciler(world), 1)
    assert (await world.preparer().prepared())["uid-c"].value == before


async def test_a_newer_claim_whose_configuration_has_words_of_later_keeps_its_gpu(world: World) -> None:
    before = (await world.preparer().prepared())["uid-c"].value
    asked = claim("c", [0, 1])
    asked["status"]["allocation"]["devices"]["config"] = [parameters(mig={"gpu": {"laterWord": 1}})]
    world.put(asked)
    newer(world)
    await passes(reconciler(world), 1)
    assert (await world.preparer().prepared())["uid-c"].value == before


async def test_a_newer_claim_whose_gpu_is_lost_now_keeps_its_gpu(world: World) -> None:
    before = (await world.preparer().prepared())["uid-c"].value
    newer(world)
    world.machine = without(machine(), {"0"})
    await passes(reconciler(world), 1)
    assert (await world.preparer().prepared())["uid-c"].value == before


@pytest.mark.parametrize("why", ["gone", "another of its name"])
async def test_what_a_newer_agent_prepared_for_an_unknown_claim_is_given_back_in_the_second_pass(
    world: World, why: str
) -> None:
    newer(world)
    world.claims.clear()
    if (obj := UNUSED[why]) is not None:
        world.put(obj)
    one = reconciler(world)
    await one.once()
    world.trouble = [Unreachable("x")]
    await one.once()  # nobody says so
    await one.once()
    assert (len(world.specs), world.checkpoint) == (1, ["uid-c.json.newer-4"])
    await one.once()
    assert (world.specs, world.checkpoint) == ({}, [])


async def test_what_a_newer_agent_prepared_and_this_one_cannot_copy_stays_until_it_is_given_back(world: World) -> None:
    newer(world)
    world.put(UNUSED["allocated on another node"] or {})
    await passes(reconciler(world), 3)
    assert (len(world.specs), world.checkpoint) == (1, ["uid-c.json.newer-4"])
    await world.preparer().unprepare("uid-c")
    assert (world.specs, world.checkpoint) == ({}, [])


async def test_a_newer_spec_that_says_more_than_this_agent_can_keep_stays_as_it_is(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = (world.folder / "cdi").iterdir()
    path.write_bytes(path.read_bytes().replace(b'"env"', b'"hooks":[],"env"', 1))
    text = path.read_bytes()
    newer(world)
    await world.preparer().recover()
    await passes(reconciler(world), 2)
    assert path.read_bytes() == text
    assert "cannot rebuild its checkpoint entry. The pod goes on" in caplog.text
    assert await world.preparer().prepared() == {}


@pytest.mark.parametrize(
    "entry",
    [
        b'"all":"new"',
        b'"entry":{"uid":"uid-c","namespace":"../x","name":"c"}',
        b'"entry":{"uid":"uid-c","namespace":"default","name":""}',
        b'"entry":{"uid":"uid-other","namespace":"default","name":"c"}',
    ],
)
async def test_a_newer_file_that_does_not_say_whose_it_is_stays_away(world: World, entry: bytes) -> None:
    path = world.folder / "state" / "claims" / "uid-c.json"
    path.write_bytes(b'{"version":4,%b}' % entry)
    os.utime(path, (time.time() - 60,) * 2)
    await passes(reconciler(world), 2)
    assert (await world.preparer().prepared(), len(world.specs)) == ({}, 1)


async def test_a_newer_agents_claim_is_its_own_while_it_takes_over(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    preparer = world.preparer()
    one = Reconciler(preparer, world.get_claim, node=NODE, processes=world.running)
    newer(world, written_s=1)  # after this agent started: by the one that replaces it
    await passes(one, 3)
    await preparer.recover()
    assert (len(world.specs), world.checkpoint) == (1, ["uid-c.json"])
    assert caplog.text.count("just written by a newer version of the node agent (format 4). It stays unchanged") == 1
    await preparer.unprepare("uid-c")
    assert (world.specs, world.checkpoint) == ({}, [])
