"""MIG devices of claims, from the allocation to the hardware and back."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dradriver.api.base.errors import WordError
from dradriver.api.claims import pins
from dradriver.api.slices import resource_slices
from dradriver.node.claims import status
from dradriver.node.claims.reconcile import Reconciler
from dradriver.node.container_edits import Edits
from dradriver.node.devices.control_interface import IN_USE
from dradriver.node.errors import ClaimError, DeviceBusyError, DeviceMissingError, HardwareError, NotYetError
from dradriver.node.vendors.nvidia.devices.simulated_control import SimulatedGpu
from tests.fakes.node import NODE, claim, device, edits, parameters, result, typed, uuid
from tests.fakes.node import machine as plain
from tests.fakes.parts import PROFILES
from tests.fakes.slicing import COMMON, QUARTER, Sliced, at, pin, some

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


@pytest.fixture
def world(tmp_path: Path) -> Sliced:
    return Sliced(tmp_path)


async def test_a_placement_is_made_where_its_name_says_and_mig_mode_comes_and_goes_with_it(world: Sliced) -> None:
    done = await world.prepare("c", at(0, "3g.40gb", 4), at(0, "1g.10gb", 0))
    assert world.placed(0) == [("1g.10gb", 0), ("3g.40gb", 4)]
    assert world.gpus.mig_mode(uuid(0))
    entry = world.instance("uid-c.0")
    assert entry.mig.startswith("MIG-")
    (first, _) = done.devices
    assert (first.uuid, first.part, first.edits.cdi) == (uuid(0), "mig", COMMON.cdi)
    assert [node.path for node in first.edits.nodes] == [
        "/dev/nvidia0",
        f"/dev/nvidia-caps/nvidia-cap{3 + 9 * entry.instance}",
        f"/dev/nvidia-caps/nvidia-cap{4 + 9 * entry.instance}",
    ]
    assert not [word for one in done.devices for word in one.edits.env if word.startswith("CUDA_VISIBLE_DEVICES")]
    await world.preparer().unprepare("uid-c")
    assert (world.placed(0), world.gpus.mig_mode(uuid(0)), world.made) == ([], False, {})


async def test_each_change_of_mig_mode_is_told_and_no_instance_with_it(world: Sliced) -> None:
    told = []
    for name in ("a", "b"):
        await world.prepare(name, at(0, "1g.10gb", 6 if name == "a" else 5))
        told.append(world.switched)
    await world.prepare("c", at(7, "1g.10gb", 5))  # whose mode was on
    for name in ("a", "b", "c"):
        await world.preparer().unprepare(f"uid-{name}")
        told.append(world.switched)
    assert told == [1, 1, 1, 2, 2]


async def test_what_was_made_is_in_the_status_and_in_the_containers_metadata(world: Sliced) -> None:
    """Of a claim without a pin nothing else in the API says which instance it got: a controller reads it here."""
    asked = [some(0, 4, 3, "s1", "a"), at(1, "2g.20gb", 4, "b"), result("c", device(2), shareID="s3", **QUARTER)]
    done = await world.prepare("c", *asked)
    entries = status.body(typed(claim("c", results=asked)), done, now=NOW)["status"]["devices"]
    mig = [world.instance(f"uid-c.{n}").mig for n in (0, 1)]
    every = [*mig, uuid(2)]
    assert [(one["device"], one.get("shareID"), one["data"]) for one in entries] == [
        (
            device(0),
            "s1",
            {
                "uuid": mig[0],
                "parentUUID": uuid(0),
                "request": "a",
                "type": "mig",
                "profile": "3g.40gb",
                "placement": 4,
                "uuids": every,
            },
        ),
        (
            resource_slices.part_name(uuid(1), PROFILES["2g.20gb"].id, 4),
            None,
            {
                "uuid": mig[1],
                "parentUUID": uuid(1),
                "request": "b",
                "type": "mig",
                "profile": "2g.20gb",
                "placement": 4,
                "uuids": every,
            },
        ),
        (
            device(2),
            "s3",
            {
                "uuid": uuid(2),
                "parentUUID": uuid(2),
                "request": "c",
                "type": "share",
                "cores": 25,
                "memory": "10240Mi",
                "uuids": every,
            },
        ),
    ]
    seen = claim("c", results=asked)
    seen["status"]["devices"] = entries
    read = pins.allocated(msgspec.json.decode(msgspec.json.encode(seen), type=pins.Claim))
    assert read["node-a", device(0)] == (pins.MigSlice("3g.40gb", 4, 4, 3),), "a controller reads what the agent wrote"
    told = {}
    for path in (world.folder / "state/files/uid-c").glob("*-metadata.json"):
        (request,) = json.loads(path.read_text())["requests"]
        (one,) = request["devices"]
        told[request["name"]] = (one["name"], one["attributes"])
    assert [told[name][0] for name in "abc"] == [one["device"] for one in entries]
    for name, entry in zip("abc", entries, strict=True):
        found = {key: next(iter(value.values())) for key, value in told[name][1].items()}
        said = {key: value for key, value in entry["data"].items() if key not in ("request", "uuids")}
        assert {key: found[key] for key in said} == said
        assert found["index"] == int(name == "b") + 2 * (name == "c")
        assert not [key for key in found if key.startswith("nvlink")]


async def test_mig_mode_stays_until_the_last_instance_is_gone_and_for_ever_where_only_a_reset_ends_it(
    world: Sliced,
) -> None:
    await world.prepare("a", at(0, "1g.10gb", 6))
    await world.prepare("b", at(0, "1g.10gb", 5))
    await world.prepare("c", at(7, "1g.10gb", 5))
    await world.preparer().unprepare("uid-a")
    assert world.gpus.mig_mode(uuid(0))
    await world.preparer().unprepare("uid-b")
    await world.preparer().unprepare("uid-c")
    assert (world.gpus.mig_mode(uuid(0)), world.gpus.mig_mode(uuid(7))) == (False, True)


async def test_mig_mode_that_could_not_be_turned_off_is_tried_again_and_told(
    world: Sliced, caplog: pytest.LogCaptureFixture
) -> None:
    await world.prepare("c", at(0, "3g.40gb", 4))
    with world.gpus.state(uuid(0)) as state:
        state.users[4711] = uuid(0)  # monitoring
    await world.preparer().unprepare("uid-c")
    assert (world.placed(0), world.made, world.gpus.mig_mode(uuid(0))) == ([], {}, True)
    world.set({0, 1, 7})  # as it is read next; GPU 1 is handed out by the instances that somebody makes
    world.static.add(uuid(1))
    with world.gpus.state(uuid(1)) as state:
        state.mig = True
    told: list[Mapping[str, str]] = []
    one = Reconciler(world.preparer(), world.get_claim, node=NODE, processes=world.running)
    one.stuck.add(told.append)
    await one.once()
    assert [list(found) for found in told] == [[uuid(0)]]
    assert "nvmlDeviceSetMigMode" in told[0][uuid(0)]
    with pytest.raises(DeviceMissingError, match="cannot be used whole now, because it is in MIG mode"):
        await world.prepare("w", result("gpu", device(0)))
    with world.gpus.state(uuid(0)) as state:
        state.users.clear()
    await one.once()
    assert (told[1], world.switched) == ({}, 2)
    assert "To make instances by hand, write mig: static" in caplog.text
    assert [world.gpus.mig_mode(uuid(gpu)) for gpu in (0, 1, 7)] == [False, True, True]


async def test_a_driver_that_hangs_at_one_gpu_leaves_all_others_told(
    world: Sliced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dradriver.node.devices.device_manager.PATIENCE_S", 0.05)
    world.gpus = Modal(world.folder / "hardware.json", world.gpu)
    world.device_manager = world.kinds(world.gpus)
    for gpu in (0, 1):
        with world.gpus.state(uuid(gpu)) as state:
            state.mig = True
    world.set({0, 1, 7})
    (world.folder / "hangs").write_text("nvmlDeviceSetMigMode")
    assert list(await world.preparer().rest()) == [uuid(0), uuid(1)]
    (world.folder / "hangs").unlink()


class Modal(SimulatedGpu):
    """Hardware whose driver can hang at a change of MIG mode."""

    def set_mig_mode(self, gpu: str, on: bool) -> None:
        self._answer("nvmlDeviceSetMigMode")
        super().set_mig_mode(gpu, on)


async def test_what_containers_need_in_addition_to_the_instance_is_waited_for_with_the_present_hardware(
    world: Sliced, monkeypatch: pytest.MonkeyPatch
) -> None:
    def common() -> Edits:
        raise NotYetError("the base specification has no driver yet")

    monkeypatch.setattr(world.device_manager._made["mig"], "_common", common)
    with pytest.raises(NotYetError, match="base specification"):
        await world.prepare("c", at(0, "3g.40gb", 4))
    assert (world.switched, world.made) == (0, {})


async def test_mig_mode_is_left_alone_while_anything_of_the_gpu_is_anybodys(world: Sliced) -> None:
    await world.prepare("c", at(0, "3g.40gb", 4))
    found = dict(world.gpus.gpu_instances(uuid(0)))
    world.set({0, 7})  # read before the instance was there
    with world.gpus.state(uuid(2)) as state:
        state.mig = True
    world.gpus.create_gpu_instance(uuid(2), PROFILES["1g.10gb"], 6)  # somebody's
    world.set({0, 2, 7})
    assert await world.preparer().rest() == {}
    assert (world.gpus.gpu_instances(uuid(0)), world.gpus.mig_mode(uuid(2))) == (found, True)


async def test_slices_without_a_placement_go_where_they_leave_the_most(world: Sliced) -> None:
    await world.prepare("a", some(0, 1, 1, "s1"))
    await world.prepare("b", some(0, 4, 4, "s2"))
    await world.prepare("c", some(0, 2, 2, "s3"))
    assert world.placed(0) == [("1g.10gb", 6), ("2g.20gb", 4), ("4g.40gb", 0)]


async def test_several_of_one_claim_are_placed_together(world: Sliced) -> None:
    """One after the other the 2g would take slice 4, where 3g has to be beside two of them."""
    await world.prepare("c", some(0, 2, 2, "a", "x"), some(0, 4, 3, "b", "y"), some(0, 2, 2, "c", "z"))
    assert world.placed(0) == [("2g.20gb", 0), ("2g.20gb", 2), ("3g.40gb", 4)]


async def test_the_controllers_pin_is_kept_and_a_profile_without_a_start_is_placed(world: Sliced) -> None:
    await world.prepare("a", some(0, 2, 1, "s1"), config=[pin("1g.20gb", {0: 2})])
    await world.prepare("b", some(0, 1, 1, "s2"), config=[pin("1g.10gb+me")])
    assert world.placed(0) == [("1g.10gb+me", 1), ("1g.20gb", 2)]  # 3g fits at 4


@pytest.mark.parametrize(
    ("results", "config", "said"),
    [
        ([at(0, "3g.40gb", 1)], [], "3g.40gb cannot start at 1. It can start at 0, 4"),
        ([result("gpu", resource_slices.part_name(uuid(0), 99, 0))], [], "no MIG profile 99. Its profiles: 1g.10gb"),
        ([result("gpu", resource_slices.part_name(uuid(6), 0, 0))], [], "no MIG profile 0. Its profiles: none"),
        ([some(0, 3, 3, "s")], [], "no MIG profile of 3 memory and 3 compute slices"),
        ([some(0, 1, 1, "s")], [pin("1g.99gb")], "no MIG profile 1g.99gb"),
        ([some(0, 1, 1, "s")], [pin("7g.80gb")], "7g.80gb takes 8 memory and 7 compute slices, .* allocated 1 and 1"),
        ([some(0, 4, 3, "s")], [pin("4g.40gb", {0: 0})], "allocated 4 and 3"),
        ([at(0, "3g.40gb", 0) | {"adminAccess": True}], [], "a request with adminAccess gets whole GPUs"),
    ],
)
async def test_what_the_gpu_does_not_have_is_refused_by_name(
    world: Sliced, results: Any, config: Any, said: str
) -> None:
    with pytest.raises(ClaimError, match=said):
        await world.prepare("c", *results, config=config)
    assert (world.made, world.placed(0), world.gpus.mig_mode(uuid(0))) == ({}, [], False)


@pytest.mark.parametrize("mig_of", [{"gpu": {"profile": "--all"}}, {"gpu": {"profile": "1g.5gb", "starts": {"0": 1}}}])
async def test_a_pin_that_no_part_of_ours_writes_is_refused(world: Sliced, mig_of: Any) -> None:
    with pytest.raises(WordError, match="opaque parameters: mig"):
        await world.prepare("c", some(0, 1, 1, "s"), config=[parameters(mig=mig_of)])


async def test_what_overlaps_waits_and_a_whole_gpu_and_its_parts_exclude_each_other(world: Sliced) -> None:
    await world.prepare("a", at(0, "3g.40gb", 0))
    with pytest.raises(DeviceBusyError, match="other claims' instances are in the way"):
        await world.prepare("b", at(0, "2g.20gb", 2))
    with pytest.raises(DeviceBusyError, match=r"no room for 7g\.80gb"):
        await world.prepare("b", some(0, 8, 7, "s"), config=[pin("7g.80gb")])
    with pytest.raises(DeviceBusyError, match="still held by claim default/a"):
        await world.prepare("whole", result("gpu", device(0)))
    await world.prepare("other", result("gpu", device(1)))
    with pytest.raises(DeviceBusyError, match="still held by claim default/other"):
        await world.prepare("b", at(1, "2g.20gb", 2))
    assert (world.placed(0), world.placed(1), sorted(world.made)) == ([("3g.40gb", 0)], [], ["uid-a.0"])


async def test_all_slices_are_a_whole_gpu_where_it_can_be_one(world: Sliced) -> None:
    done = await world.prepare("whole", some(0, 8, 7, "s"))
    assert (done.devices[0].part, done.devices[0].edits.nodes, world.made) == ("", edits(plain().gpus[0]).nodes, {})
    await world.prepare("seven", some(7, 8, 7, "s"))  # NVLink is off on it anyway
    assert len(world.gpus.gpu_instances(uuid(7))) == 1
    world.set({1, 7})
    with pytest.raises(DeviceMissingError):  # until its last instance is gone
        await world.prepare("later", some(1, 8, 7, "s"))


async def test_a_mode_that_only_a_reset_changes_is_said(world: Sliced) -> None:
    with world.gpus.state(uuid(7)) as state:
        state.mig = False
    with pytest.raises(HardwareError, match="requires reset"):
        await world.prepare("c", at(7, "1g.10gb", 0))
    assert world.made == {}


class Failing(SimulatedGpu):
    """Hardware that makes no compute instance the first time."""

    failed = False

    def create_compute_instance(self, gpu: str, instance: int) -> int:
        if not self.failed:
            self.failed = True
            raise HardwareError("nvmlGpuInstanceCreateComputeInstance", 999, "Unknown Error")
        return super().create_compute_instance(gpu, instance)


async def test_a_half_made_device_is_rolled_back_and_made_by_the_next_try(world: Sliced) -> None:
    world.device_manager = world.kinds(Failing(world.folder / "hardware.json", world.gpu))
    with pytest.raises(HardwareError, match="Unknown Error"):
        await world.prepare("c", at(0, "3g.40gb", 4))
    assert (world.placed(0), world.gpus.mig_mode(uuid(0)), world.made) == ([], False, {})
    await world.prepare("c", at(0, "3g.40gb", 4))
    assert world.placed(0) == [("3g.40gb", 4)]


class Lingering(SimulatedGpu):
    """Hardware on which a process that was killed is still there the first two times."""

    left = 2

    def destroy_compute_instance(self, gpu: str, instance: int, compute: int) -> None:
        if self.left:
            self.left -= 1
            raise HardwareError("nvmlComputeInstanceDestroy", IN_USE, "In use by another client")
        super().destroy_compute_instance(gpu, instance, compute)


@pytest.mark.slow
async def test_a_device_that_is_in_use_for_a_moment_is_waited_for(world: Sliced) -> None:
    world.device_manager = world.kinds(Lingering(world.folder / "hardware.json", world.gpu))
    await world.prepare("c", at(0, "3g.40gb", 4))
    await world.preparer().unprepare("uid-c")
    assert (world.placed(0), world.made) == ([], {})


async def test_after_a_reboot_the_same_claim_is_made_again(world: Sliced) -> None:
    await world.prepare("c", some(0, 1, 1, "s"))
    before = world.made["uid-c.0"]
    world.gpus.reboot()
    world.boot = "boot-2"
    await world.preparer().recover()
    assert world.made == {}
    await world.prepare("c", some(0, 1, 1, "s"))
    again = world.made["uid-c.0"]
    assert (again.boot, again.done) == ("boot-2", before.done)
    assert world.placed(0) == [("1g.10gb", 6)]
