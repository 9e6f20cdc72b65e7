"""Parts of GPUs that are lost, whose driver hangs, refuses, or was loaded anew: claims go, and nothing stays behind."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dradriver.node.devices.control_interface import DEFAULT, GPU_IS_LOST, NOT_FOUND, RESET_REQUIRED, TIMEOUT
from dradriver.node.devices.hardware_journal import HardwareJournal, Made
from dradriver.node.devices.part_records import MigInstance, MigPlace, MpsServed, MpsShare
from dradriver.node.errors import DeviceBusyError, HardwareError, InUseError, NotYetError
from dradriver.node.lock import take
from dradriver.node.mps.mps_files import Server
from dradriver.node.vendors.nvidia.devices.simulated_control import SimulatedGpu
from tests.fakes.failing import FailingGpus
from tests.fakes.node import uuid
from tests.fakes.parts import PROFILES
from tests.fakes.reconciling import reconciler
from tests.fakes.slicing import Sliced, at, some

HALF = at(0, "3g.40gb", 4)


class Failing(Sliced):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gpus = self.failing = FailingGpus(folder / "hardware.json", self.gpu)
        self.device_manager = self.kinds(self.gpus)
        (folder / "driver").write_text("1")


def stranger(world: Failing, gpu: int, *, number: int | None = None) -> None:
    """Somebody makes an instance where ours was, which gets another number."""
    if not world.gpus.mig_mode(uuid(gpu)):
        world.gpus.set_mig_mode(uuid(gpu), True)
    made = world.gpus.create_gpu_instance(uuid(gpu), PROFILES["3g.40gb"], 4)
    world.gpus.create_compute_instance(uuid(gpu), made)
    if number is not None:
        with world.gpus.state(uuid(gpu)) as state:
            state.instances[number] = state.instances.pop(made)


@pytest.fixture
def world(tmp_path: Path) -> Failing:
    return Failing(tmp_path)


def specs(world: Failing) -> list[str]:
    return list(world.specs)


@pytest.mark.parametrize("code", [GPU_IS_LOST, NOT_FOUND])
async def test_a_claim_on_a_lost_gpu_is_given_back_and_nothing_of_it_is_noted(world: Failing, code: int) -> None:
    await world.prepare("c", HALF, at(1, "3g.40gb", 4))
    world.failing.lose(uuid(0))
    world.failing.failing[uuid(0)] = ("", code, "gone")
    await world.preparer().unprepare("uid-c")
    assert (world.checkpoint, world.specs, world.made, world.placed(1)) == ([], {}, {}, [])


@pytest.mark.parametrize(
    "refusal",
    [
        ("gpu_instances", 999, "Unknown Error"),
        ("destroy_compute_instance", RESET_REQUIRED, "GPU requires reset"),
    ],
)
async def test_what_a_driver_refuses_to_undo_keeps_no_claim_and_is_undone_later(
    world: Failing, refusal: tuple[str, int, str]
) -> None:
    await world.prepare("c", HALF, at(1, "3g.40gb", 4))
    world.failing.failing[uuid(0)] = refusal
    await world.preparer().unprepare("uid-c")
    assert (world.checkpoint, world.specs, list(world.made), world.placed(1)) == ([], {}, ["uid-c.0"], [])
    with pytest.raises(DeviceBusyError, match="an unfinished hardware change"):
        await world.prepare("d", HALF)
    world.failing.failing.clear()
    assert await world.preparer().clean() == {}
    assert (world.placed(0), world.made, world.gpus.mig_mode(uuid(0))) == ([], {}, False)


async def test_a_gpu_with_what_cannot_be_undone_is_kept_from_new_pods_until_it_is(
    world: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    await world.prepare("c", HALF)
    world.failing.failing[uuid(0)] = ("gpu_instances", 999, "Unknown Error")
    await world.preparer().unprepare("uid-c")
    told: list[Mapping[str, str]] = []
    one = reconciler(world, held=told.append)
    for _ in range(3):
        await one.once()
    world.failing.failing.clear()
    await one.once()
    assert [list(held) for held in told] == [[uuid(0)]] * 3 + [[]]
    assert "cannot be undone" in told[0][uuid(0)]
    assert "Unknown Error" in told[0][uuid(0)]
    assert caplog.text.count("cannot be undone now") == 1  # not every minute


async def test_a_claim_is_given_back_while_the_driver_hangs_and_the_hardware_later(
    world: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.prepare("c", HALF, at(0, "3g.40gb", 0), at(1, "3g.40gb", 0))
    await world.prepare("d", at(2, "3g.40gb", 0))
    monkeypatch.setattr("dradriver.node.devices.device_manager.PATIENCE_S", 0.05)
    monkeypatch.setattr("dradriver.node.claims.claim_hardware._PATIENCE_S", 0.05)
    hangs = world.folder / "hangs"
    hangs.write_text("nvmlComputeInstanceDestroy")
    await world.preparer().unprepare("uid-c")
    assert sorted(world.made) == ["uid-c.0", "uid-c.1", "uid-c.2", "uid-d.0"]
    await world.preparer().unprepare("uid-d")  # another process is at the hardware still
    assert (world.checkpoint, world.specs) == ([], {})
    hangs.unlink()
    monkeypatch.undo()
    assert await world.preparer().clean() == {}
    assert (world.made, [world.placed(gpu) for gpu in range(3)]) == ({}, [[], [], []])


async def test_a_process_on_one_part_keeps_the_claim_and_no_other_part_of_it(world: Failing) -> None:
    await world.prepare("c", HALF, at(1, "3g.40gb", 4), at(2, "3g.40gb", 4))
    world.device_manager._in_use_s = 0.0
    with world.gpus.state(uuid(1)) as state:
        state.users = {4711: world.instance("uid-c.1").mig}
    with pytest.raises(InUseError, match=r"cannot be undone: .*In use by another client"):
        await world.preparer().unprepare("uid-c")
    assert (world.checkpoint, list(world.made)) == (["uid-c.json"], ["uid-c.1"])


async def test_shares_of_a_lost_gpu_are_given_back_and_their_daemon_ends(world: Failing) -> None:
    mps = _mps(world, 0)
    world.gpus.set_compute_mode(uuid(0), 3)
    world.gpus.start_mps(uuid(0), Server())
    world.failing.lose(uuid(0))
    await world.device_manager.undo(mps, [mps])
    with world.gpus.state(uuid(0)) as state:
        assert state.server is None


async def test_a_daemon_that_does_not_end_keeps_no_claim(world: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: str) -> None:
        raise HardwareError("nvidia-cuda-mps-control", TIMEOUT, "MPS does not end")

    monkeypatch.setattr(world.gpus, "stop_mps", stop)
    with pytest.raises(NotYetError, match=r"cannot be undone: .*MPS does not end") as raised:
        await world.device_manager.undo(_mps(world, 0), [])
    assert not isinstance(raised.value, InUseError)


def _mps(world: Failing, gpu: int) -> Made:
    return Made(
        owner="uid-m",
        number=0,
        boot=world.boot,
        kind="mps",
        device="d",
        uuid=uuid(gpu),
        wanted=MpsShare(mode=DEFAULT),
        done=MpsServed(),
    )


async def test_after_the_driver_was_loaded_again_no_container_starts_with_anothers_instance(world: Failing) -> None:
    asked = some(0, 4, 4, "s")
    before = await world.prepare("c", asked)
    world.gpus.reload()
    await world.preparer().recover()
    assert (specs(world), world.checkpoint) == ([], ["uid-c.json"])
    one = reconciler(world)
    await one.once()  # the kubelet asks for nothing: it starts containers again by what it was answered
    assert (specs(world), world.placed(0)) == (["gpu.topology-claim_uid-c.json"], [("4g.40gb", 0)])
    assert world.made["uid-c.0"].driver == world.gpus.driver() != ""
    assert [d.device for d in (await world.prepare("c", asked)).devices] == [d.device for d in before.devices]
    await world.preparer().unprepare("uid-c")
    assert (world.placed(0), world.made) == ([], {})


async def test_what_a_reset_of_the_gpu_took_is_made_again_too(world: Failing, caplog: pytest.LogCaptureFixture) -> None:
    await world.prepare("c", some(0, 4, 4, "s"), at(1, "3g.40gb", 4))
    one = reconciler(world)
    read(world)
    await one.once()
    assert "were made again" not in caplog.text
    with world.gpus.state(uuid(0)) as state:
        state.mig, state.instances = False, {}
    await one.once()  # as it was read before: nobody looks
    assert world.placed(0) == []
    read(world)
    await one.once()
    assert (world.placed(0), world.placed(1)) == ([("4g.40gb", 0)], [("3g.40gb", 4)])
    assert caplog.text.count("were made again") == 1
    await world.preparer().unprepare("uid-c")
    assert (world.placed(0), world.made) == ([], {})


async def test_what_is_being_given_back_is_not_made_again(world: Failing) -> None:
    await world.prepare("c", HALF)
    world.gpus.reload()
    preparer = world.preparer()
    (entry,) = (await preparer.prepared()).values()
    held = await take(world.folder / "state" / "calls.lock", of="uid-c")
    assert not await preparer.again(entry.value)  # a call for it is under way
    os.close(held)
    await preparer.unprepare("uid-c")
    assert not await preparer.again(entry.value)
    assert (world.placed(0), world.made, world.checkpoint) == ([], {}, [])


async def test_what_was_being_made_again_when_an_agent_was_killed_is(world: Failing) -> None:
    await world.prepare("c", HALF)
    world.gpus.reload()
    HardwareJournal(world.folder / "state" / "made").remove("uid-c.0")
    await reconciler(world).once()
    assert (world.placed(0), len(specs(world))) == ([("3g.40gb", 4)], 1)


async def test_after_a_reboot_the_kubelet_asks_for_what_it_wants(world: Failing) -> None:
    await world.prepare("c", HALF)
    world.gpus.reboot()
    world.boot = "boot-2"
    await reconciler(world).once()
    assert (world.placed(0), specs(world), world.checkpoint) == ([], [], ["uid-c.json"])


async def test_a_reading_from_before_an_instance_was_made_removes_no_instance(world: Failing) -> None:
    before = world.machine
    await world.prepare("c", HALF)
    made = world.made
    world.machine = before
    await reconciler(world).once()
    assert (world.made, world.placed(0), len(specs(world))) == (made, [("3g.40gb", 4)], 1)


async def test_instances_that_a_user_made_are_not_made_again(world: Failing) -> None:
    stranger(world, 0)
    read(world)
    await world.prepare("c", HALF)
    with world.gpus.state(uuid(0)) as state:
        state.instances = {}
    read(world)
    await reconciler(world).once()
    assert (world.placed(0), world.checkpoint, specs(world)) == ([], ["uid-c.json"], [])


def read(world: Failing) -> None:
    """Read the machine as it is."""
    world.machine = msgspec.structs.replace(world.machine, gpus=tuple(map(world.gpus.seen, world.machine.gpus)))


async def test_what_is_given_back_after_it_is_of_no_pod(world: Failing) -> None:
    await world.prepare("c", HALF)
    world.gpus.reload()
    stranger(world, 0)
    await world.preparer().unprepare("uid-c")
    assert (world.placed(0), world.made, world.checkpoint) == ([("3g.40gb", 4)], {}, [])


async def test_nor_does_a_damaged_entry_say_otherwise(world: Failing) -> None:
    await world.prepare("c", HALF)
    world.gpus.reload()
    (world.folder / "state" / "made" / "uid-c.0.json").write_text("damaged")
    await world.preparer().recover()
    assert specs(world) == []


async def test_entries_of_agents_that_did_not_note_the_load_are_whole(world: Failing) -> None:
    await world.prepare("c", HALF)
    folder = world.folder / "state" / "made"
    HardwareJournal(folder).write(msgspec.structs.replace(world.made["uid-c.0"], driver=""))
    world.gpus.reload()
    await world.preparer().recover()
    assert len(specs(world)) == 1


async def test_an_instance_of_another_program_in_the_place_of_ours_is_left_alone(world: Failing) -> None:
    await world.prepare("c", HALF)
    with world.gpus.state(uuid(0)) as state:
        state.instances.clear()  # nvidia-smi mig -dci; -dgi
    stranger(world, 0, number=9)
    await world.preparer().unprepare("uid-c")
    assert (world.placed(0), world.made, world.checkpoint) == ([("3g.40gb", 4)], {}, [])


async def test_so_is_one_of_the_same_number_and_another_uuid(world: Failing) -> None:
    await world.prepare("c", HALF)
    with world.gpus.state(uuid(0)) as state:
        (only,) = state.instances.values()
        only.devices = {0: "MIG-another"}
    await world.preparer().unprepare("uid-c")
    assert (world.placed(0), world.made) == ([("3g.40gb", 4)], {})


async def test_ours_goes_also_once_its_compute_instance_has_gone(world: Failing) -> None:
    await world.prepare("c", HALF)
    world.failing.failing[uuid(0)] = ("destroy_gpu_instance", 999, "Unknown Error")
    await world.preparer().unprepare("uid-c")
    world.failing.failing.clear()
    stranger_elsewhere = world.gpus.create_gpu_instance(uuid(0), PROFILES["1g.10gb"], 0)
    await world.preparer().clean()
    assert list(world.gpus.gpu_instances(uuid(0))) == [stranger_elsewhere]


class Racing(SimulatedGpu):
    """Hardware on which somebody else destroys the compute instance a moment before."""

    def destroy_compute_instance(self, gpu: str, instance: int, compute: int) -> None:
        super().destroy_compute_instance(gpu, instance, compute)
        raise HardwareError("nvmlGpuInstanceGetComputeInstanceById", NOT_FOUND, "Not Found")


async def test_a_compute_instance_that_a_user_destroys_meanwhile_does_not_save_its_gpu_instance(
    world: Failing,
) -> None:
    await world.prepare("c", HALF)
    world.device_manager = world.kinds(Racing(world.folder / "hardware.json", world.gpu))
    await world.preparer().unprepare("uid-c")
    assert (world.placed(0), world.made) == ([], {})


async def test_what_is_made_half_is_undone_by_what_is_known_of_it(world: Failing) -> None:
    world.failing.failing[uuid(1)] = ("create_compute_instance", 999, "Unknown Error")
    with pytest.raises(Exception, match="Unknown Error"):
        await world.prepare("c", HALF, at(1, "3g.40gb", 4))
    assert (world.placed(0), world.placed(1), world.made) == ([], [], {})


def test_entries_are_read_by_agents_that_know_less_and_more() -> None:
    class Older(msgspec.Struct):
        owner: str
        boot: str
        done: dict[str, Any] | None = None

    made = _made()
    assert msgspec.json.decode(msgspec.json.encode(made.to_undo()), type=Older).done is None
    old = {"owner": "u", "number": 0, "boot": "b", "kind": "mig", "device": "d", "uuid": "g", "wanted": {}}
    read = msgspec.convert(old, Made)
    assert (read.noted, read.in_load("x"), read.to_undo()) == (None, True, read)
    assert (made.to_undo().noted, made.to_undo().to_undo()) == (made.done, made.to_undo())


def _made() -> Made:
    done = MigInstance(instance=1, compute=0, mig="MIG-1", minor=0)
    wanted = MigPlace(profile=9, name="3g.40gb", start=4)
    return Made(owner="u", number=0, boot="b", driver="7", kind="mig", device="d", uuid="g", wanted=wanted, done=done)
