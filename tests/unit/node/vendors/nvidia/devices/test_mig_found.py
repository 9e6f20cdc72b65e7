"""MIG instances that the agent did not make: an administrator's, somebody's, and those of damaged entries."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dradriver.api.slices import resource_slices
from dradriver.node.devices.control_interface import Placed
from dradriver.node.devices.hardware_journal import HardwareJournal, Made
from dradriver.node.devices.part_records import MigPlace
from dradriver.node.errors import ClaimError, DeviceBusyError, HardwareError
from dradriver.node.vendors.nvidia.devices.simulated_control import SimulatedGpu
from dradriver.topology.machine import MigProfile
from dradriver.topology.profiles import simulated_mig_profiles
from tests.fakes.node import claim, eventually, result, uuid
from tests.fakes.parts import PROFILES
from tests.fakes.reconciling import reconciler
from tests.fakes.slicing import Sliced, at, pin, some

HALF = PROFILES["3g.40gb"]


@pytest.fixture
def world(tmp_path: Path) -> Sliced:
    return Sliced(tmp_path)


def stranger(world: Sliced, gpu: int, profile: MigProfile, start: int) -> str:
    """An instance that an administrator made."""
    with world.gpus.state(uuid(gpu)) as state:
        state.mig = True
    number = world.gpus.create_gpu_instance(uuid(gpu), profile, start)
    compute = world.gpus.create_compute_instance(uuid(gpu), number)
    return world.gpus.compute_instances(uuid(gpu), number)[compute]


async def test_an_instance_that_is_there_already_is_used_as_it_is_and_stays(world: Sliced) -> None:
    found = stranger(world, 0, PROFILES["3g.40gb"], 4)
    await world.prepare("c", at(0, "3g.40gb", 4))
    assert world.instance("uid-c.0").mig == found
    with pytest.raises(DeviceBusyError, match="still held by claim default/c"):
        await world.prepare("d", at(0, "3g.40gb", 4))
    await world.preparer().unprepare("uid-c")
    assert (world.placed(0), world.gpus.mig_mode(uuid(0)), world.made) == ([("3g.40gb", 4)], True, {})


async def test_one_with_another_programs_process_is_not_handed_out(world: Sliced) -> None:
    found = stranger(world, 0, PROFILES["3g.40gb"], 4)
    with world.gpus.state(uuid(0)) as state:
        state.users = {1: found}
    with pytest.raises(DeviceBusyError, match="a process that belongs to no claim"):
        await world.prepare("c", at(0, "3g.40gb", 4))
    assert (world.placed(0), world.made) == ([("3g.40gb", 4)], {})


async def test_one_in_pieces_is_not_handed_out(world: Sliced) -> None:
    stranger(world, 0, PROFILES["3g.40gb"], 4)
    with world.gpus.state(uuid(0)) as state:
        state.instances[1].devices[1] = "MIG-another"
    with pytest.raises(ClaimError, match="does not have exactly one compute instance"):
        await world.prepare("c", at(0, "3g.40gb", 4))
    assert (world.placed(0), world.made) == ([("3g.40gb", 4)], {})


class Silent(SimulatedGpu):
    """Hardware that does not tell its instances, for a reason that is not MIG mode."""

    silent = True

    def gpu_instances(self, gpu: str) -> dict[int, Placed]:
        if self.silent:
            raise HardwareError("nvmlDeviceGetGpuInstances", 999, "Unknown Error")
        return super().gpu_instances(gpu)


async def test_a_gpu_that_does_not_tell_its_instances_is_not_taken_for_one_without(world: Sliced) -> None:
    await world.prepare("c", at(0, "3g.40gb", 4))
    control = Silent(world.folder / "hardware.json", world.gpu)
    world.device_manager = world.kinds(control)
    await world.preparer().unprepare("uid-c")
    with pytest.raises(HardwareError, match="Unknown Error"):
        await world.prepare("d", some(1, 1, 1, "s"))
    assert (world.placed(0), list(world.made)) == ([("3g.40gb", 4)], ["uid-c.0"])
    control.silent = False
    await world.preparer().clean()
    assert (world.placed(0), world.made) == ([], {})


async def test_an_unknown_instance_that_has_all_media_engines_is_in_the_way_of_others_and_named(world: Sliced) -> None:
    """It takes no memory slice of theirs: NVML would refuse them, and they would be tried again for ever."""
    world.products[0] = ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0")
    world.set({7})
    profiles = {profile.name: profile for profile in simulated_mig_profiles.profiles(world.products[0][0])}
    stranger(world, 0, profiles["1g.24gb+me.all"], 3)
    plain, without = (resource_slices.part_name(uuid(0), profiles[name].id, 0) for name in ("1g.24gb", "1g.24gb-me"))
    with pytest.raises(DeviceBusyError, match=r"no claim of this node made instance 1 \(1g.24gb\+me.all at 3\)"):
        await world.prepare("c", result("gpu", plain))
    await world.prepare("d", result("gpu", without))
    assert sorted(placed.start for placed in world.gpus.gpu_instances(uuid(0)).values()) == [0, 3]


@pytest.mark.parametrize("how", [at(0, "2g.20gb", 4), some(0, 4, 4, "s")])
async def test_an_unknown_instance_that_is_in_the_way_is_named_and_left_alone(
    world: Sliced, how: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stranger(world, 0, PROFILES["3g.40gb"], 4)
    stranger(world, 0, PROFILES["1g.10gb"], 3)
    for _ in range(2):
        with pytest.raises(DeviceBusyError, match=r"no claim of this node made instance 1 \(3g.40gb at 4\)"):
            await world.prepare("c", how)
    assert world.placed(0) == [("1g.10gb", 3), ("3g.40gb", 4)]
    assert caplog.text.count("has a MIG instance that no claim of this node created") == 2  # once of each


async def test_the_controllers_pin_is_never_an_unknown_instance(world: Sliced) -> None:
    stranger(world, 0, PROFILES["3g.40gb"], 4)
    with pytest.raises(DeviceBusyError, match="no claim of this node made instance 1"):
        await world.prepare("c", some(0, 4, 3, "s"), config=[pin("3g.40gb", {0: 4})])


class Raced(SimulatedGpu):
    """Hardware on which somebody makes the same instance a moment before the agent does."""

    raced = False

    def create_gpu_instance(self, gpu: str, profile: MigProfile, start: int) -> int:
        if not self.raced:
            self.raced = True
            number = super().create_gpu_instance(gpu, PROFILES["3g.40gb"], start)
            if self.whole:
                self.create_compute_instance(gpu, number)
        return super().create_gpu_instance(gpu, profile, start)

    def __init__(self, path: Path, gpus: Any, *, whole: bool) -> None:
        super().__init__(path, gpus)
        self.whole = whole


@pytest.mark.parametrize("whole", [True, False])
async def test_an_instance_that_a_user_made_just_before_stays(world: Sliced, whole: bool) -> None:
    world.device_manager = world.kinds(Raced(world.folder / "hardware.json", world.gpu, whole=whole))
    with pytest.raises(HardwareError, match="Insufficient Resources"):
        await world.prepare("c", at(0, "3g.40gb", 4))
    assert (world.placed(0), world.gpus.mig_mode(uuid(0)), world.made) == ([("3g.40gb", 4)], True, {})


class Silenced(SimulatedGpu):
    """Hardware whose agent is killed in a call: what it does is done, and nobody is told."""

    killed = ""

    def create_gpu_instance(self, gpu: str, profile: MigProfile, start: int) -> int:
        number = super().create_gpu_instance(gpu, profile, start)
        return self._told("create_gpu_instance", number)

    def create_compute_instance(self, gpu: str, instance: int) -> int:
        compute = super().create_compute_instance(gpu, instance)
        return self._told("create_compute_instance", compute)

    def _told(self, call: str, number: int) -> int:
        if call == self.killed:
            raise KeyboardInterrupt
        return number


@pytest.mark.parametrize("killed", ["create_gpu_instance", "create_compute_instance"])
async def test_what_an_agent_was_killed_at_is_undone_and_what_a_user_made_in_its_place_is_not(
    world: Sliced, killed: str
) -> None:
    for strange in (False, True):
        control = Silenced(world.folder / "hardware.json", world.gpu)
        kind = world.kinds(control)._made["mig"]
        control.killed = killed
        intent = Made(
            owner="uid-c", number=0, boot=world.boot, kind="mig", device="d", uuid=uuid(0), wanted=MigPlace.of(HALF, 4)
        )
        ledger = HardwareJournal(world.folder / "state" / "made")
        ledger.write(intent)
        with contextlib.suppress(KeyboardInterrupt):
            for noted in kind.make(control, intent):
                ledger.write(noted)
        if strange:  # it went meanwhile, and somebody makes such a one
            with world.gpus.state(uuid(0)) as state:
                state.instances.clear()
            stranger(world, 0, PROFILES["1g.10gb"], 0)
            stranger(world, 0, HALF, 4)
        await world.preparer().clean()
        assert world.placed(0) == ([("1g.10gb", 0), ("3g.40gb", 4)] if strange else [])
        assert world.made == {}


async def test_an_instance_that_a_user_destroyed_is_unprepared_all_the_same(world: Sliced) -> None:
    await world.prepare("c", at(0, "3g.40gb", 4))
    with world.gpus.state(uuid(0)) as state:
        state.instances, state.mig = {}, False
    await world.preparer().unprepare("uid-c")
    assert (world.made, world.checkpoint) == ({}, [])


async def test_a_static_instance_that_is_gone_is_waited_for_and_never_made(world: Sliced) -> None:
    world.static = {uuid(0)}
    with pytest.raises(ClaimError, match=rf"3g.40gb at 4 is gone.*nvidia-smi mig -i {uuid(0)} -cgi 9:4 -C"):
        await world.prepare("c", at(0, "3g.40gb", 4))
    assert (world.placed(0), world.gpus.mig_mode(uuid(0)), world.made) == ([], False, {})

    preparer, known = world.preparer(), len(world.asked_of)
    waiting = asyncio.create_task(preparer.prepare(*world.put(claim("d", results=[at(0, "3g.40gb", 4)]))))
    await eventually(lambda: len(world.asked_of) > known)
    found = stranger(world, 0, PROFILES["3g.40gb"], 4)
    preparer.poke()
    await waiting
    assert world.instance("uid-d.0").mig == found
    await preparer.unprepare("uid-d")
    assert (world.placed(0), world.made) == ([("3g.40gb", 4)], {})


def read(world: Sliced) -> None:
    world.machine = msgspec.structs.replace(world.machine, gpus=tuple(map(world.gpus.seen, world.machine.gpus)))


@pytest.mark.parametrize(("static", "found"), [(True, True), (False, True), (False, False)])
async def test_instances_that_are_made_again_in_another_order_open_by_their_new_numbers(
    world: Sliced, static: bool, found: bool
) -> None:
    asked = {"a": at(0, "3g.40gb", 0), "b": at(0, "3g.40gb", 4)}
    if found:
        for start in (0, 4):
            stranger(world, 0, HALF, start)
    if static:
        world.static = {uuid(0)}
    before = {name: (await world.prepare(name, result)).devices[0].edits.nodes for name, result in asked.items()}
    read(world)
    one = reconciler(world)
    with world.gpus.state(uuid(0)) as state:
        state.instances.clear()
    read(world)
    if found and static:
        await one.once()
        assert world.specs == {}  # a container would open whatever has its instance's number by then
    for start in (4, 0):
        stranger(world, 0, HALF, start)
    read(world)
    await one.once()
    after = {name: (await world.prepare(name, result)).devices[0].edits.nodes for name, result in asked.items()}
    assert after == {"a": before["b"], "b": before["a"]}
    assert [world.instance(f"uid-{name}.0").instance for name in "ab"] == [2, 1]
    for name in asked:
        await world.preparer().unprepare(f"uid-{name}")
    assert (world.placed(0), world.made) == ([("3g.40gb", 0), ("3g.40gb", 4)], {})


async def test_after_a_reboot_a_static_instance_is_taken_as_the_administrator_made_it_again(world: Sliced) -> None:
    world.static = {uuid(0)}
    stranger(world, 0, PROFILES["3g.40gb"], 4)
    await world.prepare("c", at(0, "3g.40gb", 4))
    world.gpus.reboot()
    world.boot = "boot-2"
    await world.preparer().recover()
    with pytest.raises(ClaimError, match="is gone"):
        await world.prepare("c", at(0, "3g.40gb", 4))
    assert (world.placed(0), world.made) == ([], {})
    stranger(world, 0, PROFILES["1g.10gb"], 0)
    stranger(world, 0, PROFILES["3g.40gb"], 4)
    await world.prepare("c", at(0, "3g.40gb", 4))
    assert world.instance("uid-c.0").instance == 2
    await world.preparer().unprepare("uid-c")
    assert world.placed(0) == [("1g.10gb", 0), ("3g.40gb", 4)]


@pytest.mark.parametrize("done", [True, False])
async def test_what_a_killed_agent_had_of_a_static_instance_is_forgotten_and_nothing_destroyed(
    world: Sliced, done: bool
) -> None:
    world.static = {uuid(0)}
    stranger(world, 0, PROFILES["3g.40gb"], 4)
    await world.prepare("c", at(0, "3g.40gb", 4))
    (made,) = world.made.values()
    ledger = HardwareJournal(world.folder / "state" / "made")
    await world.preparer().unprepare("uid-c")
    ledger.write(made if done else msgspec.structs.replace(made, done=None))
    await world.preparer().clean()
    assert (world.placed(0), world.gpus.mig_mode(uuid(0)), world.made) == ([("3g.40gb", 4)], True, {})


def damage(world: Sliced, key: str) -> None:
    (world.folder / "state" / "made" / f"{key}.json").write_text("damaged")


async def test_of_damaged_entries_an_instance_that_was_made_goes_and_an_administrators_stays(world: Sliced) -> None:
    stranger(world, 0, PROFILES["3g.40gb"], 4)
    await world.prepare("c", at(0, "3g.40gb", 4), at(0, "1g.10gb", 0), some(1, 1, 1, "s"))
    for key in world.made:
        damage(world, key)
    await world.preparer().unprepare("uid-c")
    assert (world.placed(0), world.placed(1), world.made) == ([("3g.40gb", 4)], [], {})


async def test_an_instance_whose_entry_is_damaged_is_known(world: Sliced, caplog: pytest.LogCaptureFixture) -> None:
    await world.prepare("c", some(0, 1, 1, "s"))
    damage(world, "uid-c.0")
    await world.prepare("d", some(0, 1, 1, "t"))
    assert len(world.placed(0)) == 2
    assert "no claim of this node created" not in caplog.text


async def test_two_claims_of_one_static_instance_wait_for_each_other(world: Sliced) -> None:
    world.static = {uuid(0)}
    stranger(world, 0, PROFILES["3g.40gb"], 4)
    await world.prepare("c", at(0, "3g.40gb", 4))
    with pytest.raises(DeviceBusyError, match="still held by claim default/c"):
        await world.prepare("d", at(0, "3g.40gb", 4))
