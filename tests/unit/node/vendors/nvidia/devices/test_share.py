"""Shares of GPUs, from the allocation to the hardware and back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.api.slices.slice_features import SliceFeatures
from dradriver.kube.errors import ApiError
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.container_edits import DeviceNode, Edits, Mount
from dradriver.node.devices.control_interface import DEFAULT, EXCLUSIVE_PROCESS, TIMEOUT
from dradriver.node.devices.hardware_journal import HardwareJournal, Made
from dradriver.node.devices.part_records import MpsServed
from dradriver.node.errors import ClaimError, DeviceBusyError, DeviceMissingError, HardwareError, OccupiedError
from dradriver.node.lock import take
from dradriver.node.mps.mps_files import MpsFolder, Server
from dradriver.node.vendors.nvidia.devices import nvidia_hardware
from dradriver.node.vendors.nvidia.devices.capabilities import SimulatedCapabilities
from dradriver.node.vendors.nvidia.devices.mps_and_time_slicing import Sharing
from dradriver.node.vendors.nvidia.devices.simulated_control import SimulatedGpu, State
from tests.fakes.node import NODE, claim, device, edits, machine, result, uuid
from tests.fakes.preparing import World
from tests.fakes.reconciling import passes, reconciler

PROHIBITED = 2  # NVML_COMPUTEMODE_PROHIBITED

FRIENDS, EQUAL, OWN = 1, 2, 3  # by time-slicing, by MPS in four equal shares, by MPS with limits of each share's own
SHARING = {
    uuid(EQUAL): Sharing(by="mps", equal=4),
    uuid(OWN): Sharing(by="mps"),
    uuid(4): Sharing(by="mps"),
}


class Gpus(SimulatedGpu):
    """Simulated GPUs whose daemons may have trouble."""

    mps_trouble = ""

    def check_mps(self, gpu: str, server: Server) -> None:
        if self.mps_trouble:
            raise HardwareError("nvidia-cuda-mps-control", TIMEOUT, f"MPS does not serve GPU {gpu}: {self.mps_trouble}")


class Shared(World):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gpus = Gpus(folder / "hardware.json")
        self.sharing = dict(SHARING)
        self.device_manager = nvidia_hardware.of(
            edits,
            nvidia_hardware.Host(
                self.gpus,
                SimulatedCapabilities(),
                parent=lambda minor: DeviceNode(f"/dev/nvidia{minor}", "/dev/null"),
                common=Edits,
            ),
            mps=MpsFolder(folder / "mps", boot=self.boot),
            sharing=lambda gpu: self.sharing.get(gpu.uuid, Sharing()),
        )

    async def prepare(self, name: str, *results: Any, namespace: str = "default") -> PreparedClaim:
        preparer = self.preparer()
        preparer._budget_s = 0.0
        return await preparer.prepare(*self.put(claim(name, results=list(results), namespace=namespace)))

    def state(self, gpu: int) -> State:
        with self.gpus.state(uuid(gpu)) as state:
            return state

    def damage(self, key: str) -> None:
        (self.folder / "state" / "made" / f"{key}.json").write_text("damaged")

    @property
    def made(self) -> dict[str, Made]:
        return {k: entry.value for k, entry in HardwareJournal(self.folder / "state" / "made").read().items()}


@pytest.fixture
def world(tmp_path: Path) -> Shared:
    return Shared(tmp_path)


def share(gpu: int, cores: str | None, memory: str | None, share_id: str, request: str = "gpu") -> Any:
    consumed = {names.CAPACITY_CORES: cores, names.CAPACITY_MEMORY: memory}
    consumed = {key: value for key, value in consumed.items() if value is not None}
    return result(request, device(gpu), shareID=share_id, consumedCapacity=consumed)


async def test_a_time_sliced_share_is_the_gpu_and_nothing_is_made(world: Shared) -> None:
    for n in range(3):
        done = await world.prepare(f"c{n}", share(FRIENDS, "25", "4Gi", f"s{n}"))
        (one,) = done.devices
        assert (one.part, one.made, one.edits.nodes) == ("share", "", edits(machine().gpus[FRIENDS]).nodes)
        assert not [word for word in one.edits.env if "MPS" in word]
    assert (world.made, world.state(FRIENDS)) == ({}, State())


async def test_a_claim_of_all_of_a_gpu_that_can_be_shared_is_a_whole_gpu(world: Shared) -> None:
    everything = f"{machine().gpus[OWN].memory_mib}Mi"
    done = await world.prepare("whole", share(OWN, "100", everything, "w"))
    assert (done.devices[0].part, world.made, world.state(OWN).server) == ("", {}, None)
    with pytest.raises(DeviceBusyError, match="still held by claim default/whole"):
        await world.prepare("part", share(OWN, "25", "4Gi", "s"))
    await world.prepare("friend", share(FRIENDS, "25", "4Gi", "s"))
    with pytest.raises(DeviceBusyError, match="still held by claim default/friend"):
        await world.prepare("plain", result("gpu", device(FRIENDS)))


@pytest.mark.parametrize(("cores", "memory"), [("25", None), (None, "4Gi"), ("100", "4Gi")])
async def test_less_than_all_of_one_capacity_is_a_share(world: Shared, cores: str | None, memory: str | None) -> None:
    done = await world.prepare("c", share(FRIENDS, cores, memory, "s"))
    assert done.devices[0].part == "share"


async def test_mps_starts_with_the_first_share_and_ends_after_the_last(world: Shared) -> None:
    await world.prepare("a", share(OWN, "25", "4Gi", "a"))
    assert (world.state(OWN).server, world.state(OWN).mode) == (Server(), EXCLUSIVE_PROCESS)
    await world.prepare("b", share(OWN, "50", "6Gi", "b"))
    await world.preparer().unprepare("uid-a")
    assert (world.state(OWN).server, world.state(OWN).mode) == (Server(), EXCLUSIVE_PROCESS)
    await world.preparer().unprepare("uid-b")
    assert (world.state(OWN), world.made, world.checkpoint) == (State(), {}, [])


async def test_a_share_waits_for_its_daemon_and_no_other_waits_for_the_share(world: Shared) -> None:
    """As long as it is not served no pod has it; it stays prepared, since it is the daemon's turn."""
    preparer, told = world.preparer(), list[str]()
    preparer._budget_s = 0.0
    preparer.made_ready.add(lambda _, prepared: told.append(prepared.name))
    world.gpus.mps_trouble = "no such program"
    waiting = world.put(claim("a", results=[share(OWN, "25", "4Gi", "a")]))
    for _ in range(2):
        with pytest.raises(HardwareError, match="no such program"):
            await preparer.prepare(*waiting)
        assert (list(world.made), world.checkpoint, world.state(OWN).server) == (["uid-a.0"], ["uid-a.json"], Server())
        os.close(await take(world.folder / "state" / "hardware.lock"))  # others may change hardware
    assert told == []
    after = world.preparer()
    after._budget_s = 0.0
    world.trouble = [ApiError(503, "ServiceUnavailable", "later")]
    with pytest.raises(HardwareError, match="no such program"):
        await after.prepare(*waiting)
    world.gpus.mps_trouble = ""
    for _ in range(2):
        await preparer.prepare(*waiting)
    assert told == ["a"]
    await preparer.unprepare("uid-a")
    assert (world.state(OWN), world.made, world.checkpoint) == (State(), {}, [])


async def test_a_mode_that_a_reset_undid_is_set_while_there_are_shares(world: Shared) -> None:
    await world.prepare("a", share(OWN, "25", "4Gi", "a"))
    world.gpus.set_compute_mode(uuid(OWN), DEFAULT)
    await passes(reconciler(world), 1)
    assert world.state(OWN) == State(mode=EXCLUSIVE_PROCESS, server=Server())
    world.gpus.set_compute_mode(uuid(OWN), PROHIBITED)  # which no reset does
    await passes(reconciler(world), 1)
    assert world.state(OWN).mode == PROHIBITED
    await world.preparer().unprepare("uid-a")
    assert world.state(OWN) == State()


async def test_a_share_that_is_prepared_is_not_made_again(world: Shared) -> None:
    done = await world.prepare("a", share(OWN, "25", "4Gi", "s1"))
    assert world.made["uid-a.0"].done == MpsServed()
    with world.gpus.state(uuid(OWN)) as state:
        state.server = Server(thread_percentage=1)  # another would be refused
    assert await world.prepare("a", share(OWN, "25", "4Gi", "s1")) == done


@pytest.mark.parametrize("gpu", [FRIENDS, EQUAL, OWN])
async def test_a_gpu_of_one_namespace_at_a_time_is_the_first_ones_until_its_last_share_is_gone(
    world: Shared, gpu: int
) -> None:
    world.exclusive = {uuid(gpu)}
    for number in range(2):
        await world.prepare(f"a{number}", share(gpu, "25", "4Gi", f"a{number}"), namespace="first")
    for _ in range(2):
        with pytest.raises(DeviceBusyError, match=r"now to first \(claim a\d\)\. Wait until that claim is released"):
            await world.prepare("b", share(gpu, "25", "4Gi", "b"), namespace="second")
        assert [made for made in world.made if made.startswith("uid-b")] == [], "nothing is made"
    await world.prepare("elsewhere", share(4, "25", "4Gi", "e"), namespace="second")
    await world.preparer().unprepare("uid-a0")
    with pytest.raises(DeviceBusyError):
        await world.prepare("b", share(gpu, "25", "4Gi", "b"), namespace="second")
    await world.preparer().unprepare("uid-a1")
    await world.prepare("b", share(gpu, "25", "4Gi", "b"), namespace="second")
    with pytest.raises(DeviceBusyError, match="now to second"):
        await world.prepare("a0", share(gpu, "25", "4Gi", "a0"), namespace="first")


@pytest.mark.parametrize("gpu", [FRIENDS, OWN])
async def test_who_shared_a_gpu_before_it_was_one_namespaces_at_a_time_has_it_after_a_reboot(
    world: Shared, gpu: int
) -> None:
    results = {"first": share(gpu, "25", "4Gi", "a"), "second": share(gpu, "25", "4Gi", "b")}
    for namespace, own in results.items():
        await world.prepare(namespace, own, namespace=namespace)
    world.exclusive = {uuid(gpu)}
    world.gpus.reboot()
    world.boot = "boot-2"
    for namespace, own in results.items():
        await world.prepare(namespace, own, namespace=namespace)
    with pytest.raises(DeviceBusyError, match="belong to one namespace at a time"):
        await world.prepare("more", share(gpu, "25", "4Gi", "c"), namespace="second")


async def test_who_looks_on_has_no_part_of_a_gpu_of_one_namespace(world: Shared) -> None:
    world.exclusive = {uuid(FRIENDS)}
    watching = share(FRIENDS, "25", "4Gi", "w") | {"adminAccess": True}
    await world.prepare("watching", watching, namespace="monitoring")
    await world.prepare("a", share(FRIENDS, "25", "4Gi", "a"), namespace="first")
    await world.prepare("watching-too", watching, namespace="monitoring")


@pytest.mark.parametrize("mps", [True, False])
async def test_a_gpu_in_mig_mode_has_no_shares(world: Shared, mps: bool) -> None:
    gpu = OWN if mps else FRIENDS
    gpus = tuple(msgspec.structs.replace(one, mig=()) for one in machine().gpus)
    world.machine = msgspec.structs.replace(machine(), gpus=gpus)
    for wanted in (share(gpu, "25", "4Gi", "s"), result("gpu", f"{device(gpu)}-share-0")):
        with pytest.raises(DeviceMissingError):
            await world.prepare("a", wanted)
    assert (world.made, world.checkpoint) == ({}, [])


async def test_a_share_finds_its_daemon_and_has_its_limits_as_variables(world: Shared) -> None:
    (one,) = (await world.prepare("a", share(OWN, "25", "4Gi", "a"))).devices
    folder = world.folder / "mps" / uuid(OWN).lower()
    assert [mount for mount in one.edits.mounts if mount.writable] == [
        Mount(str(folder / "pipe"), "/tmp/nvidia-mps", writable=True),
        Mount(str(folder / "shm"), "/dev/shm", writable=True),
    ]
    assert [word for word in one.edits.env if "MPS" in word] == [
        "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25",
    ]
    (spec,) = world.specs.values()
    options = {one["containerPath"]: one["options"] for one in spec["devices"][0]["containerEdits"]["mounts"]}
    assert options.pop("/tmp/nvidia-mps") == options.pop("/dev/shm") == ["rw", "nosuid", "nodev", "bind"]
    assert all("ro" in others for others in options.values())


async def test_equal_shares_have_the_daemons_limits_which_no_program_can_unset(world: Shared) -> None:
    (one,) = (await world.prepare("a", share(EQUAL, "25", "4Gi", "a"))).devices
    assert [word for word in one.edits.env if "MPS" in word] == ["CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps"]
    limits = Server(memory_mib=machine().gpus[EQUAL].memory_mib // 4, thread_percentage=25)
    assert world.state(EQUAL).server == limits
    world.sharing[uuid(EQUAL)] = Sharing(by="mps", equal=2)  # counts once the last share of before is gone
    with pytest.raises(HardwareError, match="In use"):
        await world.prepare("b", share(EQUAL, "50", "8Gi", "b"))
    assert (world.state(EQUAL).server, sorted(world.made)) == (limits, ["uid-a.0"])
    await world.preparer().unprepare("uid-a")
    await world.prepare("b", share(EQUAL, "50", "8Gi", "b"))


@pytest.mark.parametrize(("gpu", "shares"), [(OWN, resource_slices.EQUAL_SHARES), (EQUAL, 5)])
async def test_shares_that_are_devices_are_equal_and_so_are_their_limits(world: Shared, gpu: int, shares: int) -> None:
    world.sharing[uuid(gpu)] = Sharing(by="mps", equal=0 if shares == resource_slices.EQUAL_SHARES else shares)
    for number in range(2):
        done = await world.prepare(f"c{number}", result("gpu", f"{device(gpu)}-share-{number}"))
        (one,) = done.devices
        assert [word for word in one.edits.env if "MPS" in word] == ["CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps"]
        memory = machine().gpus[gpu].memory_mib // shares
        assert one.told == {"type": "share", "cores": 100 // shares, "memory": f"{memory}Mi"}
    assert world.state(gpu).server == Server(memory_mib=memory, thread_percentage=100 // shares)


@pytest.mark.parametrize("gpu", [EQUAL, OWN])
async def test_the_size_of_dev_shm_is_the_newest_shares(world: Shared, gpu: int) -> None:
    sizes = []
    for name, shm_mib in (("a", None), ("b", 512)):
        world.sharing[uuid(gpu)] = msgspec.structs.replace(world.sharing[uuid(gpu)], shm_mib=shm_mib)
        await world.prepare(name, share(gpu, "25", "4Gi", name))
        server = world.state(gpu).server
        sizes.append(server and server.shm_mib)
    assert sizes == [None, 512]
    before = world.made
    await world.prepare("a", share(gpu, "25", "4Gi", "a"))  # the kubelet asks again
    assert world.made == before


async def test_shares_of_a_gpu_that_is_shared_otherwise_now_wait_for_those_of_before(world: Shared) -> None:
    await world.prepare("a", share(OWN, "25", "4Gi", "a"))
    world.sharing[uuid(OWN)] = Sharing()
    with pytest.raises(DeviceBusyError, match="still held by claim default/a"):
        await world.prepare("b", share(OWN, "25", "4Gi", "b"))
    await world.preparer().unprepare("uid-a")
    assert world.state(OWN) == State()


async def test_a_gpu_that_an_administrator_closed_is_left_so(world: Shared) -> None:
    world.gpus.set_compute_mode(uuid(OWN), PROHIBITED)
    with pytest.raises(HardwareError, match="nvidia-smi -c DEFAULT"):
        await world.prepare("a", share(OWN, "25", "4Gi", "a"))
    assert (world.state(OWN).mode, world.made) == (PROHIBITED, {})


async def test_a_mode_that_was_set_before_is_set_again_after_the_last_share(world: Shared) -> None:
    world.gpus.set_compute_mode(uuid(OWN), EXCLUSIVE_PROCESS)
    for name in ("a", "b"):
        await world.prepare(name, share(OWN, "25", "4Gi", name))
    for name in ("a", "b"):
        await world.preparer().unprepare(f"uid-{name}")
    assert (world.state(OWN), world.made) == (State(mode=EXCLUSIVE_PROCESS), {})


async def test_shares_of_an_agent_that_did_not_note_the_mode_had_the_default(world: Shared) -> None:
    for name in ("a", "b"):
        await world.prepare(name, share(OWN, "25", "4Gi", name))
        ledger = HardwareJournal(world.folder / "state" / "made")
        one = world.made["uid-a.0"]
        ledger.write(msgspec.structs.replace(one, wanted=msgspec.structs.replace(one.wanted, mode=None)))
    for name in ("a", "b"):
        await world.preparer().unprepare(f"uid-{name}")
    assert world.state(OWN) == State()


async def test_the_first_share_waits_for_processes_that_no_claim_explains(world: Shared) -> None:
    world.processes = {uuid(OWN): [4711]}
    with pytest.raises(OccupiedError, match="4711"):
        await world.prepare("a", share(OWN, "25", "4Gi", "a"), share(OWN, "25", "4Gi", "b", "other"))
    assert (world.state(OWN), world.made) == (State(), {})
    world.processes = {}
    await world.prepare("a", share(OWN, "25", "4Gi", "a"))
    world.processes = {uuid(OWN): [4711]}
    await world.prepare("b", share(OWN, "25", "4Gi", "b"))


async def test_the_server_of_shares_that_a_killed_agent_left_is_no_process_of_others(world: Shared) -> None:
    await world.prepare("a", share(OWN, "25", "4Gi", "a"))
    (world.folder / "state" / "claims" / "uid-a.json").unlink()
    world.processes = {uuid(OWN): [4711]}
    await world.prepare("a", share(OWN, "25", "4Gi", "a"))
    assert world.checkpoint == ["uid-a.json"]


async def test_two_shares_in_one_claim_are_two(world: Shared) -> None:
    await world.prepare("c", share(OWN, "25", "4Gi", "a", "x"), share(OWN, "25", "4Gi", "b", "y"))
    assert sorted(world.made) == ["uid-c.0", "uid-c.1"]
    await world.preparer().unprepare("uid-c")
    assert (world.state(OWN), world.made) == (State(), {})


async def test_a_container_cannot_reach_two_daemons(world: Shared) -> None:
    with pytest.raises(ClaimError, match=r"request gpu.*two of its devices mount different files at /tmp/nvidia-mps"):
        await world.prepare("c", share(OWN, "25", "4Gi", "a"), share(4, "25", "4Gi", "b"))
    assert (world.state(OWN), world.state(4), world.made, world.checkpoint) == (State(), State(), {}, [])


async def test_the_daemon_ends_after_a_share_whose_entry_is_damaged(world: Shared) -> None:
    await world.prepare("a", share(OWN, "25", "4Gi", "a"))
    world.damage("uid-a.0")
    await world.preparer().unprepare("uid-a")
    assert (world.state(OWN), world.made, world.checkpoint) == (State(), {}, [])


async def test_and_serves_as_long_as_there_is_such_a_share(world: Shared) -> None:
    for name in ("a", "b"):
        await world.prepare(name, share(OWN, "25", "4Gi", name))
    world.damage("uid-a.0")
    await world.preparer().unprepare("uid-b")
    assert (world.state(OWN).server, world.state(OWN).mode) == (Server(), EXCLUSIVE_PROCESS)
    await world.preparer().unprepare("uid-a")
    assert world.state(OWN) == State()


async def test_after_a_reboot_the_daemon_is_started_for_the_same_claim(world: Shared) -> None:
    await world.prepare("a", share(OWN, "25", "4Gi", "a"))
    world.gpus.reboot()
    world.boot = "boot-2"
    await world.preparer().recover()
    assert (world.made, world.state(OWN).mode) == ({}, DEFAULT)
    await world.prepare("a", share(OWN, "25", "4Gi", "a"))
    assert (world.state(OWN).server, world.state(OWN).mode) == (Server(), EXCLUSIVE_PROCESS)


@pytest.mark.parametrize("gpu", [FRIENDS, OWN])
async def test_equal_parts_of_a_gpu_which_older_servers_have_are_shares_of_it(tmp_path: Path, gpu: int) -> None:
    world = Shared(tmp_path)
    modes = {uuid(gpu): Mode(shared="time-slicing")}
    built = resource_slices.build(machine(), node=NODE, node_uid="u", modes=modes, features=SliceFeatures(shares=False))
    found = [one for one in built[0]["spec"]["devices"] if one["attributes"].get("parentUUID") == {"string": uuid(gpu)}]
    assert len(found) == resource_slices.EQUAL_SHARES
    for number, one in enumerate(found[:2]):
        prepared = await world.prepare(f"c{number}", result("gpu", one["name"]))
        (device_,) = prepared.devices
        assert device_.uuid == uuid(gpu)
        assert device_.part == ("share" if gpu == FRIENDS else "mps")
        told = dict(device_.told)
        assert (told["cores"], told["memory"]) == (
            int(one["capacity"]["cores"]["value"]),
            one["capacity"]["memory"]["value"],
        )
