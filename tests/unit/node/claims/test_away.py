"""Claims whose GPU is away: nothing opens its nodes, which another GPU may have; when it is back they are ready."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dradriver.node.discovery.simulated_machine import without
from dradriver.topology.machine import Machine
from tests.fakes.node import claim, uuid
from tests.fakes.preparing import World
from tests.fakes.slicing import Sliced, at


def with_minor(found: Machine, gpu: int, minor: int) -> Machine:
    """Return the machine with another minor number of a GPU."""
    gpus = (msgspec.structs.replace(one, minor=minor) if one.uuid == uuid(gpu) else one for one in found.gpus)
    return msgspec.structs.replace(found, gpus=tuple(gpus))


def opened(world: World) -> dict[str, set[str]]:
    """Return which device nodes of GPUs each spec opens, by claim."""
    return {
        name.removeprefix("gpu.topology-claim_uid-").removesuffix(".json"): {
            node["path"]
            for device in spec["devices"]
            for node in device["containerEdits"].get("deviceNodes", ())
            if "caps" not in node["path"]
        }
        for name, spec in world.specs.items()
    }


async def test_a_claim_of_mig_opens_nothing_of_a_gpu_that_took_its_gpus_minor(tmp_path: Path) -> None:
    world = Sliced(tmp_path)
    await world.prepare("c", at(0, "3g.40gb", 4))
    assert opened(world) == {"c": {"/dev/nvidia0"}}
    world.machine = with_minor(without(world.machine, {"0"}), 1, 0)
    await world.preparer().recover()
    assert opened(world) == {}
    await world.prepare("d", at(1, "3g.40gb", 4))
    assert opened(world) == {"d": {"/dev/nvidia0"}}


async def test_it_opens_nothing_even_before_anybody_looked_for_gpus_that_are_away(tmp_path: Path) -> None:
    world = Sliced(tmp_path)
    await world.prepare("c", at(0, "3g.40gb", 4))
    world.machine = with_minor(without(world.machine, {"0"}), 1, 0)
    await world.prepare("d", at(1, "3g.40gb", 4))
    assert opened(world) == {"d": {"/dev/nvidia0"}}


async def test_an_agent_that_has_not_read_the_machine_writes_no_spec_that_may_open_anothers_nodes(
    tmp_path: Path,
) -> None:
    world = Sliced(tmp_path)
    await world.prepare("c", at(0, "3g.40gb", 4))
    whole, world.machine = world.machine, without(world.machine, {"0"})
    await world.preparer().recover()
    unread = world.preparer()
    world.machine = None  # type: ignore[assignment]  # as before the first reading
    await unread.recover()
    assert opened(world) == {}
    world.machine = whole
    await unread.recover()
    assert opened(world) == {}  # the reading shows no instance there
    world.machine = msgspec.structs.replace(whole, gpus=tuple(map(world.gpus.seen, whole.gpus)))
    await unread.recover()
    assert opened(world) == {"c": {"/dev/nvidia0"}}


async def test_a_gpu_that_comes_back_with_other_nodes_is_made_ready_again(tmp_path: Path) -> None:
    world = Sliced(tmp_path)
    prepared = await world.prepare("c", at(0, "3g.40gb", 4))
    world.machine = with_minor(world.machine, 0, 9)
    preparer = world.preparer()
    await preparer.recover()
    assert opened(world) == {}
    assert await preparer.again(prepared)
    assert opened(world) == {"c": {"/dev/nvidia9"}}


@pytest.mark.parametrize("minor", [2, 9])
async def test_a_claim_of_whole_gpus_has_its_spec_again_when_its_gpu_is_back(tmp_path: Path, minor: int) -> None:
    world = World(tmp_path)
    preparer = world.preparer()
    prepared = await preparer.prepare(*world.put(claim("c", [2, 3])))
    whole, world.machine = world.machine, without(world.machine, {"2"})
    await preparer.recover()
    assert opened(world) == {}
    assert not await preparer.again(prepared)
    assert await preparer.prepare("default", "c", "uid-c") == prepared  # its pod may run on with what is left
    assert opened(world) == {}
    world.machine = with_minor(whole, 2, minor)
    await preparer.recover()
    await preparer.again(prepared)
    assert opened(world) == {"c": {f"/dev/nvidia{minor}", "/dev/nvidia3"}}
