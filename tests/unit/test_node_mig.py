"""MIG devices of claims, from the allocation to the hardware and back."""

from __future__ import annotations

import asyncio
import datetime
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dradriver.api import names, pins, slices
from dradriver.api.errors import WordError
from dradriver.node.claims import status
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.devices import assemble
from dradriver.node.devices.capabilities import SimulatedCapabilities
from dradriver.node.devices.control import IN_USE, Placed
from dradriver.node.devices.made import Made, MadeLedger
from dradriver.node.devices.share import Sharing
from dradriver.node.devices.simulated import SimulatedGpu
from dradriver.node.edits import DeviceNode, Edits
from dradriver.node.errors import ClaimError, DeviceBusyError, DeviceMissingError, HardwareError
from dradriver.node.mps.files import MpsFolder
from dradriver.topology.machine import Gpu, Machine, MigProfile
from dradriver.topology.profiles import mig
from tests.fakes.node import claim, device, edits, eventually, parameters, result, typed, uuid
from tests.fakes.node import machine as plain
from tests.fakes.parts import PRODUCT, PROFILES
from tests.fakes.preparing import World

Asked = tuple[str, str, str]
BY_ID = {profile.id: profile.name for profile in PROFILES.values()}
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
QUARTER: dict[str, Any] = {"consumedCapacity": {"cores": "25", "memory": "10Gi"}}
COMMON = Edits(cdi=("gpu.topology/gpu=driver",))


class Sliced(World):
    """A world whose GPUs are H100s, but GPU 6 has no MIG, and GPU 7 is an A100 in MIG mode."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.products = dict.fromkeys(range(6), (PRODUCT, "9.0"))
        self.products |= {6: ("NVIDIA L40S", "8.9"), 7: ("NVIDIA A100-SXM4-40GB", "8.0")}
        self.set({7})
        self.gpus = SimulatedGpu(folder / "hardware.json", self.gpu)
        self.static: set[str] = set()  # GPUs on which no instance is made for claims
        self.asked_of: list[str] = []  # GPUs of which it was asked
        with self.gpus.state(uuid(7)) as state:
            state.mig = True
        self.workshop = self.kinds(self.gpus)

    def kinds(self, control: SimulatedGpu) -> Any:
        self.switched = 0

        def switched() -> None:
            self.switched += 1

        return assemble.of(
            edits,
            control,
            SimulatedCapabilities(),
            parent=lambda minor: DeviceNode(f"/dev/nvidia{minor}", "/dev/null"),
            common=lambda: COMMON,
            mps=MpsFolder(self.folder / "mps", boot=self.boot),
            sharing=lambda _: Sharing(),
            made=self.makes,
            switched=switched,
        )

    def makes(self, gpu: str) -> bool:
        self.asked_of.append(gpu)
        return gpu not in self.static

    def set(self, in_mig_mode: set[int]) -> None:
        """Read the machine anew, with these GPUs in MIG mode."""
        self.machine: Machine = msgspec.structs.replace(
            plain(),
            gpus=tuple(
                msgspec.structs.replace(
                    gpu,
                    product=self.products[gpu.index][0],
                    compute_capability=self.products[gpu.index][1],
                    profiles=mig.profiles(self.products[gpu.index][0]),
                    mig=() if gpu.index in in_mig_mode else None,
                )
                for gpu in plain().gpus
            ),
        )

    def gpu(self, identity: str) -> Gpu | None:
        return next((gpu for gpu in self.machine.gpus if gpu.uuid == identity), None)

    async def prepare(self, name: str, *results: Any, config: Any = ()) -> PreparedClaim:
        preparer = self.preparer()
        preparer._budget_s = 0.0
        return await preparer.prepare(*self.put(claim(name, results=list(results), config=config)))

    def placed(self, gpu: int) -> list[tuple[str, int]]:
        return sorted((BY_ID[one.profile], one.start) for one in self.gpus.gpu_instances(uuid(gpu)).values())

    @property
    def made(self) -> dict[str, Made]:
        return {k: entry.value for k, entry in MadeLedger(self.folder / "state" / "made").read().items()}


@pytest.fixture
def world(tmp_path: Path) -> Sliced:
    return Sliced(tmp_path)


def at(gpu: int, profile: str, start: int, request: str = "gpu") -> Any:
    """A result of a published placement."""
    return result(request, slices.part_name(uuid(gpu), PROFILES[profile].id, start))


def some(gpu: int, memory: int, compute: int, share: str, request: str = "gpu") -> Any:
    """A result of slices of a GPU whose instances are made on demand."""
    consumed = {names.CAPACITY_MEMORY_SLICES: str(memory), names.CAPACITY_COMPUTE_SLICES: str(compute)}
    return result(request, device(gpu), shareID=share, consumedCapacity=consumed)


def pin(profile: str, starts: dict[int, int] | None = None, request: str = "gpu") -> Any:
    own = {"starts": {uuid(gpu): start for gpu, start in starts.items()}} if starts else {}
    return parameters(mig={request: {"profile": profile} | own})


async def test_a_placement_is_made_where_its_name_says_and_mig_mode_comes_and_goes_with_it(world: Sliced) -> None:
    done = await world.prepare("c", at(0, "3g.40gb", 4), at(0, "1g.10gb", 0))
    assert world.placed(0) == [("1g.10gb", 0), ("3g.40gb", 4)]
    assert world.gpus.mig_mode(uuid(0))
    entry = world.made["uid-c.0"].done
    assert entry is not None
    assert entry["mig"].startswith("MIG-")
    (first, _) = done.devices
    assert (first.uuid, first.part, first.edits.cdi) == (uuid(0), "mig", COMMON.cdi)
    assert [node.path for node in first.edits.nodes] == [
        "/dev/nvidia0",
        f"/dev/nvidia-caps/nvidia-cap{3 + 9 * entry['instance']}",
        f"/dev/nvidia-caps/nvidia-cap{4 + 9 * entry['instance']}",
    ]
    assert not [word for one in done.devices for word in one.edits.env if word.startswith("CUDA_VISIBLE_DEVICES")]
    await world.preparer().unprepare("uid-c")
    assert (world.placed(0), world.gpus.mig_mode(uuid(0)), world.made) == ([], False, {})


async def test_each_change_of_mig_mode_is_told_and_no_instance_beside_it(world: Sliced) -> None:
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
    mig = [(world.made[f"uid-c.{n}"].done or {})["mig"] for n in (0, 1)]
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
            slices.part_name(uuid(1), PROFILES["2g.20gb"].id, 4),
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
    assert read["node-a", device(0)] == (pins.Slice("3g.40gb", 4, 4, 3),), "a controller reads what the agent wrote"
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
        ([at(0, "3g.40gb", 1)], [], "3g.40gb cannot start at 1; it can at 0, 4"),
        ([result("gpu", slices.part_name(uuid(0), 99, 0))], [], "no MIG profile 99; it has 1g.10gb"),
        ([result("gpu", slices.part_name(uuid(6), 0, 0))], [], "no MIG profile 0; it has none"),
        ([some(0, 3, 3, "s")], [], "no MIG profile of 3 memory and 3 compute slices"),
        ([some(0, 1, 1, "s")], [pin("1g.99gb")], "no MIG profile 1g.99gb"),
        ([some(0, 1, 1, "s")], [pin("7g.80gb")], "7g.80gb takes 8 memory and 7 compute slices; .* allocated 1 and 1"),
        ([some(0, 4, 3, "s")], [pin("4g.40gb", {0: 0})], "allocated 4 and 3"),
        ([at(0, "3g.40gb", 0) | {"adminAccess": True}], [], "admin access is to whole GPUs"),
    ],
)
async def test_what_the_gpu_does_not_have_is_refused_by_name(
    world: Sliced, results: Any, config: Any, said: str
) -> None:
    with pytest.raises(ClaimError, match=said):
        await world.prepare("c", *results, config=config)
    assert (world.made, world.placed(0), world.gpus.mig_mode(uuid(0))) == ({}, [], False)


@pytest.mark.parametrize("mig_of", [{"gpu": {"profile": "--all"}}, {"gpu": {"profile": "1g.5gb", "starts": {"0": 1}}}])
async def test_a_pin_that_nobody_of_ours_writes_is_refused(world: Sliced, mig_of: Any) -> None:
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
    assert (world.made["uid-c.0"].done or {})["mig"] == found
    with pytest.raises(DeviceBusyError, match="still held by claim default/c"):
        await world.prepare("d", at(0, "3g.40gb", 4))
    await world.preparer().unprepare("uid-c")
    assert (world.placed(0), world.gpus.mig_mode(uuid(0)), world.made) == ([("3g.40gb", 4)], True, {})


async def test_one_with_somebody_elses_process_is_not_handed_out(world: Sliced) -> None:
    found = stranger(world, 0, PROFILES["3g.40gb"], 4)
    with world.gpus.state(uuid(0)) as state:
        state.users = {1: found}
    with pytest.raises(DeviceBusyError, match="a process that no claim explains"):
        await world.prepare("c", at(0, "3g.40gb", 4))
    assert (world.placed(0), world.made) == ([("3g.40gb", 4)], {})


async def test_one_in_pieces_is_not_handed_out(world: Sliced) -> None:
    stranger(world, 0, PROFILES["3g.40gb"], 4)
    with world.gpus.state(uuid(0)) as state:
        state.instances[1].devices[1] = "MIG-another"
    with pytest.raises(ClaimError, match="has not one compute instance"):
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
    world.workshop = world.kinds(control)
    with pytest.raises(ClaimError, match=r"cannot be undone: .*Unknown Error"):
        await world.preparer().unprepare("uid-c")
    with pytest.raises(HardwareError, match="Unknown Error"):
        await world.prepare("d", some(1, 1, 1, "s"))
    assert (world.placed(0), list(world.made)) == ([("3g.40gb", 4)], ["uid-c.0"])
    control.silent = False
    await world.preparer().unprepare("uid-c")
    assert (world.placed(0), world.made) == ([], {})


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
    assert caplog.text.count("has an instance that no claim of this node made") == 2  # once of each


async def test_the_controllers_pin_is_never_an_unknown_instance(world: Sliced) -> None:
    stranger(world, 0, PROFILES["3g.40gb"], 4)
    with pytest.raises(DeviceBusyError, match="no claim of this node made instance 1"):
        await world.prepare("c", some(0, 4, 3, "s"), config=[pin("3g.40gb", {0: 4})])


class Failing(SimulatedGpu):
    """Hardware that makes no compute instance the first time."""

    failed = False

    def create_compute_instance(self, gpu: str, instance: int) -> int:
        if not self.failed:
            self.failed = True
            raise HardwareError("nvmlGpuInstanceCreateComputeInstance", 999, "Unknown Error")
        return super().create_compute_instance(gpu, instance)


async def test_a_half_made_device_is_rolled_back_and_made_by_the_next_try(world: Sliced) -> None:
    world.workshop = world.kinds(Failing(world.folder / "hardware.json", world.gpu))
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


async def test_a_device_that_is_in_use_for_a_moment_is_waited_for(world: Sliced) -> None:
    world.workshop = world.kinds(Lingering(world.folder / "hardware.json", world.gpu))
    await world.prepare("c", at(0, "3g.40gb", 4))
    await world.preparer().unprepare("uid-c")
    assert (world.placed(0), world.made) == ([], {})


async def test_after_a_reboot_the_same_claim_is_made_anew(world: Sliced) -> None:
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


async def test_an_instance_that_somebody_destroyed_is_unprepared_all_the_same(world: Sliced) -> None:
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
    assert (world.made["uid-d.0"].done or {})["mig"] == found
    await preparer.unprepare("uid-d")
    assert (world.placed(0), world.made) == ([("3g.40gb", 4)], {})


async def test_after_a_reboot_a_static_instance_is_taken_as_the_administrator_made_it_anew(world: Sliced) -> None:
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
    assert (world.made["uid-c.0"].done or {})["instance"] == 2
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
    ledger = MadeLedger(world.folder / "state" / "made")
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
    assert "no claim of this node made" not in caplog.text


async def test_two_claims_of_one_static_instance_wait_for_each_other(world: Sliced) -> None:
    world.static = {uuid(0)}
    stranger(world, 0, PROFILES["3g.40gb"], 4)
    await world.prepare("c", at(0, "3g.40gb", 4))
    with pytest.raises(DeviceBusyError, match="still held by claim default/c"):
        await world.prepare("d", at(0, "3g.40gb", 4))
