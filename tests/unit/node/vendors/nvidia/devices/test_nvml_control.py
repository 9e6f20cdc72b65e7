"""Calls that change hardware, through the real binding: their ABI, their order, and what becomes of a refusal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from dradriver.node.container_edits import DeviceNode, Edits
from dradriver.node.devices.control_interface import (
    EXCLUSIVE_PROCESS,
    GPU_IS_LOST,
    IN_USE,
    INSUFFICIENT_RESOURCES,
    NOT_FOUND,
    RESET_REQUIRED,
    TIMEOUT,
    UNINITIALIZED,
)
from dradriver.node.devices.hardware_journal import Made
from dradriver.node.devices.part_records import MigInstance, MigPlace
from dradriver.node.errors import HardwareError
from dradriver.node.mps.mps_files import MpsFolder, Server
from dradriver.node.vendors.nvidia.devices.capabilities import SimulatedCapabilities
from dradriver.node.vendors.nvidia.devices.mig_devices_made import Mig
from dradriver.node.vendors.nvidia.devices.nvml_control import NvmlControl
from dradriver.topology.profiles import simulated_mig_profiles
from tests.fakes import nvml
from tests.fakes.parts import PRODUCT

GPU = "GPU-00000000-0000-4000-8000-000000000000"
MIG = "MIG-00000001-aaaa-5555-8888-000000000002"
H100 = {profile.name: profile for profile in simulated_mig_profiles.profiles(PRODUCT)}


class Driver:
    """A driver with one GPU, an H100 in MIG mode."""

    def __init__(self, folder: Path) -> None:
        nvml.end_sessions()
        self.folder = folder
        self.file = folder / "table"
        self.reason: str | None = None
        self.table = {
            "nvmlDeviceGetCount_v2": "1",
            "nvmlDeviceGetHandleByIndex_v2 0": "",
            "nvmlDeviceGetUUID 0": GPU,
            "nvmlDeviceGetMinorNumber 0": "3",
            "nvmlDeviceGetCudaComputeCapability 0": "9 0",
            "nvmlDeviceGetComputeRunningProcesses_v3 0": "",
            "nvmlDeviceGetComputeMode 0": "0",
            "nvmlDeviceGetMigMode 0": "1 1",
            **nvml.mig_table(0, [*H100.values()]),
        }
        self.mps = MpsFolder(folder / "mps", boot="b")

    @property
    def control(self) -> NvmlControl:
        nvml.write(self.table, self.file)
        return NvmlControl(driver_root=nvml.compiled(), mps=self.mps, released=lambda: self.reason, mps_s=0.0)

    @property
    def calls(self) -> list[str]:
        log = self.file.with_name("table.calls")
        return log.read_text().splitlines() if log.exists() else []

    def instance(self, number: int, profile: str, start: int, compute: dict[int, int]) -> None:
        self.table |= nvml.instance_table(f"0/gi{number}", H100[profile], start, compute)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with patch.dict(os.environ, {nvml.TABLE: str(tmp_path / "table")}):
        yield Driver(tmp_path)
        nvml.end_sessions()


def refused(code: int, said: str | None = None) -> pytest.RaisesExc[HardwareError]:
    return pytest.RaisesExc(HardwareError, match=said, check=lambda error: error.code == code)


def test_profiles_are_those_of_nvmls_enumeration_with_their_placements(driver: Driver) -> None:
    found = {profile.name: profile for profile in driver.control.profiles(GPU)}
    assert found == H100
    assert driver.calls == []


def test_a_profile_without_placements_does_not_count(driver: Driver) -> None:
    del driver.table["nvmlDeviceGetGpuInstancePossiblePlacements_v2 0 0"]
    driver.table["nvmlDeviceGetGpuInstancePossiblePlacements_v2 0 5"] = ""
    assert {profile.name for profile in driver.control.profiles(GPU)} == H100.keys() - {"7g.80gb", "4g.40gb"}


@pytest.mark.parametrize("spans", ["0:4 4:2", "0:0", "60:8"])
def test_placements_that_can_be_none_are_refused(spans: str, driver: Driver) -> None:
    driver.table["nvmlDeviceGetGpuInstancePossiblePlacements_v2 0 9"] = spans
    with refused(999, "profile 9"):
        driver.control.profiles(GPU)


def test_a_device_is_made_from_the_outside_in_at_its_placement(driver: Driver) -> None:
    profile = H100["2g.20gb"]
    driver.table[f"nvmlDeviceCreateGpuInstanceWithPlacement 0 {profile.id} 4:2"] = "5"
    driver.instance(5, "2g.20gb", 4, {0: 1, 1: 2, 7: 1})
    driver.table["nvmlGpuInstanceCreateComputeInstance 0/gi5 1"] = "0"
    driver.table |= nvml.compute_table("0/gi5/ci0", 1, "0/0", MIG.upper())
    control = driver.control
    assert control.create_gpu_instance(GPU, profile, 4) == 5
    assert control.create_compute_instance(GPU, 5) == 0
    assert control.compute_instances(GPU, 5) == {0: MIG}
    assert control.gpu_instances(GPU) == {5: (profile.id, 4)}
    assert control.minor(GPU) == 3
    assert driver.calls == [
        f"nvmlDeviceCreateGpuInstanceWithPlacement 0 {profile.id} 4:2",
        "nvmlGpuInstanceCreateComputeInstance 0/gi5 1",
    ]


def test_an_occupied_placement_and_a_compute_profile_that_is_missing_are_refused(driver: Driver) -> None:
    with refused(INSUFFICIENT_RESOURCES, "nvmlDeviceCreateGpuInstanceWithPlacement"):
        driver.control.create_gpu_instance(GPU, H100["3g.40gb"], 4)
    driver.instance(5, "3g.40gb", 4, {0: 1, 1: 2})
    with refused(NOT_FOUND, "no compute profile of 3 slices"):
        driver.control.create_compute_instance(GPU, 5)


def test_all_slices_of_a_gpu_have_two_profiles_and_the_plain_one_is_taken(driver: Driver) -> None:
    driver.instance(1, "7g.80gb", 0, {4: 7, 8: 7})
    driver.table["nvmlGpuInstanceCreateComputeInstance 0/gi1 4"] = "0"
    driver.table |= nvml.compute_table("0/gi1/ci0", 4, "0/0", MIG)
    assert driver.control.create_compute_instance(GPU, 1) == 0


def test_a_device_is_destroyed_and_one_in_use_is_not(driver: Driver) -> None:
    driver.instance(5, "2g.20gb", 4, {1: 2})
    driver.table |= nvml.compute_table("0/gi5/ci0", 1, "0/0", MIG)
    driver.table["nvmlComputeInstanceDestroy 0/gi5/ci0"] = f"!{IN_USE} then "
    control = driver.control
    with refused(IN_USE, "nvmlComputeInstanceDestroy"):
        control.destroy_compute_instance(GPU, 5, 0)
    control.destroy_compute_instance(GPU, 5, 0)
    control.destroy_gpu_instance(GPU, 5)
    assert driver.calls == [
        *["nvmlComputeInstanceDestroy 0/gi5/ci0"] * 2,
        "nvmlGpuInstanceDestroy 0/gi5",
    ]


def test_a_mig_device_is_undone_from_the_inside_out_and_others_are_left_alone(driver: Driver) -> None:
    driver.instance(5, "2g.20gb", 4, {1: 2})
    driver.table |= nvml.compute_table("0/gi5/ci0", 1, "0/0", MIG)
    driver.instance(6, "1g.10gb", 0, {0: 1})
    driver.table |= nvml.compute_table("0/gi6/ci0", 0, "0/1", MIG.replace("1", "2"))
    kind = Mig(SimulatedCapabilities(), parent=lambda _: DeviceNode("", ""), common=Edits)
    wanted = MigPlace(profile=H100["2g.20gb"].id, name="2g.20gb", start=4)
    done = MigInstance(instance=5, compute=0, mig=MIG, minor=3)
    made = Made(owner="u", number=0, boot="b", kind="mig", device="d", uuid=GPU, wanted=wanted, done=done)
    kind.undo(driver.control, made, [])
    assert driver.calls == ["nvmlComputeInstanceDestroy 0/gi5/ci0", "nvmlGpuInstanceDestroy 0/gi5"]


def test_what_is_not_there_is_not_found(driver: Driver) -> None:
    for call in (
        lambda: driver.control.destroy_gpu_instance(GPU, 9),
        lambda: driver.control.compute_instances(GPU, 9),
        lambda: driver.control.destroy_compute_instance(GPU, 9, 0),
        lambda: driver.control.minor("GPU-none"),
    ):
        with refused(NOT_FOUND):
            call()
    assert driver.calls == []


def test_processes_are_those_of_the_device_that_is_asked_for(driver: Driver) -> None:
    driver.instance(5, "2g.20gb", 4, {1: 2})
    driver.table |= nvml.compute_table("0/gi5/ci0", 1, "0/0", MIG)
    driver.table |= {
        f"nvmlDeviceGetComputeRunningProcesses_v3 {at}": pids for at, pids in (("0", "1 2 3"), ("0/0", "7"))
    }
    assert driver.control.processes(GPU, 5, 0) == 1


def test_mig_mode_is_turned_on_where_it_needs_no_reset(driver: Driver) -> None:
    driver.table |= {"nvmlDeviceGetMigMode 0": "0 0 then 1 1", "nvmlDeviceSetMigMode 0 1": "0"}
    control = driver.control
    for _ in range(2):
        control.set_mig_mode(GPU, True)
        assert driver.calls == ["nvmlDeviceSetMigMode 0 1"]


@pytest.mark.parametrize(
    ("answers", "code", "asked"),
    [
        ({"nvmlDeviceGetCudaComputeCapability 0": "8 0"}, RESET_REQUIRED, False),
        ({"nvmlDeviceGetComputeRunningProcesses_v3 0": "4711"}, IN_USE, False),
        ({"nvmlDeviceSetMigMode 0 1": str(IN_USE)}, IN_USE, True),  # the status, of a call that succeeds
        ({"nvmlDeviceSetMigMode 0 1": "0"}, IN_USE, True),  # and yet the mode is the old one
        ({"nvmlDeviceSetMigMode 0 1": "!4"}, 4, True),
    ],
)
def test_mig_mode_that_does_not_change_now_is_refused(
    answers: dict[str, str], code: int, asked: bool, driver: Driver
) -> None:
    driver.table |= {"nvmlDeviceGetMigMode 0": "0 0"} | answers
    with refused(code):
        driver.control.set_mig_mode(GPU, True)
    assert bool(driver.calls) == asked


@pytest.mark.parametrize("status", ["0", str(IN_USE), "!19"])
def test_mig_mode_that_could_not_be_turned_on_does_not_come_at_a_later_reset(status: str, driver: Driver) -> None:
    driver.table |= {"nvmlDeviceGetMigMode 0": "0 0 then 0 1", "nvmlDeviceSetMigMode 0 1": status}
    driver.table["nvmlDeviceSetMigMode 0 0"] = "0"
    with refused(IN_USE):
        driver.control.set_mig_mode(GPU, True)
    assert driver.calls == ["nvmlDeviceSetMigMode 0 1", "nvmlDeviceSetMigMode 0 0"]


def test_the_first_refusal_is_told_where_the_mode_cannot_be_set_back_either(driver: Driver) -> None:
    driver.table |= {"nvmlDeviceGetMigMode 0": "0 0 then 0 1", "nvmlDeviceSetMigMode 0 1": str(IN_USE)}
    driver.table["nvmlDeviceSetMigMode 0 0"] = "!999"
    with refused(IN_USE):
        driver.control.set_mig_mode(GPU, True)


@pytest.mark.parametrize(("capability", "calls"), [("9 0", ["nvmlDeviceSetMigMode 0 0"]), ("8 0", [])])
def test_a_mode_that_a_killed_agent_left_for_a_reset_is_taken_back_and_an_administrators_is_not(
    driver: Driver, capability: str, calls: list[str]
) -> None:
    driver.table |= {"nvmlDeviceGetMigMode 0": "0 1", "nvmlDeviceSetMigMode 0 0": "0"}
    driver.table["nvmlDeviceGetCudaComputeCapability 0"] = capability
    kind = Mig(SimulatedCapabilities(), parent=lambda _: DeviceNode("", ""), common=Edits)
    wanted = MigPlace.of(H100["2g.20gb"], 4)
    kind.undo(driver.control, Made(owner="u", number=0, boot="b", kind="mig", device="d", uuid=GPU, wanted=wanted), [])
    assert driver.calls == calls


def test_mig_mode_that_could_not_be_turned_off_may_end_at_a_reset(driver: Driver) -> None:
    driver.table |= {"nvmlDeviceGetMigMode 0": "1 1 then 1 0", "nvmlDeviceSetMigMode 0 0": str(IN_USE)}
    with refused(IN_USE):
        driver.control.set_mig_mode(GPU, False)
    assert driver.calls == ["nvmlDeviceSetMigMode 0 0"]


def test_a_product_without_mig_has_it_off_and_no_instances(driver: Driver) -> None:
    driver.table["nvmlDeviceGetMigMode 0"] = "!3"
    assert (driver.control.mig_mode(GPU), driver.control.gpu_instances(GPU)) == (False, {})
    driver.table = {key: value for key, value in driver.table.items() if "Profile" not in key}
    assert driver.control.profiles(GPU) == ()


def test_the_compute_mode_is_read_and_set(driver: Driver) -> None:
    driver.control.set_compute_mode(GPU, EXCLUSIVE_PROCESS)
    assert driver.calls == ["nvmlDeviceSetComputeMode 0 3"]
    assert driver.control.compute_mode(GPU) == 0
    driver.table["nvmlDeviceSetComputeMode 0 0"] = "!4"  # no permission
    with refused(4):
        driver.control.set_compute_mode(GPU, 0)


def test_a_driver_that_is_to_be_replaced_is_not_touched(driver: Driver) -> None:
    driver.reason = "node label x=y"
    with refused(UNINITIALIZED, "the driver is let go: node label x=y"):
        driver.control.gpu_instances(GPU)
    assert not driver.file.with_name("table.sessions").exists()


def test_a_load_of_the_driver_is_known_by_the_folder_of_its_module(driver: Driver, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    said = []
    for folder in folders:
        control = NvmlControl(driver_root=nvml.compiled(), mps=driver.mps, module=folder)
        assert control.driver() == ""
        folder.mkdir()
        assert control.driver() == control.driver() != ""
        said.append(control.driver())
    assert said[0] != said[1]


def test_a_gpu_that_is_lost_and_one_that_is_not_there_are_told(driver: Driver) -> None:
    with refused(NOT_FOUND):
        driver.control.gpu_instances("GPU-another")
    driver.table["nvmlDeviceGetUUID 0"] = f"!{GPU_IS_LOST}"
    with refused(GPU_IS_LOST):
        driver.control.gpu_instances("GPU-another")


def test_without_a_driver_the_hardware_refuses(driver: Driver) -> None:
    driver.table["nvmlInitWithFlags"] = "!9"
    with refused(9):
        driver.control.profiles(GPU)


def test_mps_is_wanted_by_a_file_and_serves_when_the_answer_says_so(driver: Driver) -> None:
    server = Server(memory_mib=1024, thread_percentage=25)
    driver.control.start_mps(GPU, server)
    with refused(TIMEOUT, "is the DaemonSet for MPS on this node"):
        driver.control.check_mps(GPU, server)
    wanted = driver.mps.wanted(GPU)
    assert wanted is not None
    assert (wanted.gpu, wanted.server) == (GPU, server)
    driver.mps.answer(msgspec.structs.replace(wanted, trouble="no such program"))
    with refused(TIMEOUT, "does not serve GPU .*: no such program"):
        driver.control.check_mps(GPU, server)
    driver.mps.answer(msgspec.structs.replace(wanted, server=Server()))  # what was wanted before
    with refused(TIMEOUT, "does not serve"):
        driver.control.check_mps(GPU, server)
    driver.mps.answer(wanted)
    driver.control.start_mps(GPU, server)
    driver.control.check_mps(GPU, server)
    with refused(IN_USE, "served with other limits"):
        driver.control.start_mps(GPU, Server())
    with refused(TIMEOUT, "does not end"):
        driver.control.stop_mps(GPU)
    assert driver.mps.wanted(GPU) is None
    os.utime(driver.mps.of(GPU) / "ready.json", (0, 0))  # which is no end, only nobody's word
    with refused(TIMEOUT, "does not end GPU .*: is the DaemonSet for MPS on this node"):
        driver.control.stop_mps(GPU)
    driver.mps.answer_none(GPU)
    for _ in range(2):
        driver.control.stop_mps(GPU)


def test_the_size_of_dev_shm_changes_while_shares_are_served(driver: Driver) -> None:
    """An MPS process of another release knows of no size: it serves nevertheless."""
    driver.control.start_mps(GPU, Server())
    driver.control.start_mps(GPU, Server(shm_mib=256))
    wanted = driver.mps.wanted(GPU)
    assert wanted is not None
    assert wanted.server == Server(shm_mib=256)
    driver.mps.answer(msgspec.structs.replace(wanted, server=Server()))
    driver.control.check_mps(GPU, Server(shm_mib=256))


def test_what_was_wanted_before_a_reboot_is_not(driver: Driver) -> None:
    driver.mps.want(GPU, Server())
    later = MpsFolder(driver.mps.path, boot="c")
    assert (later.wanted(GPU), later.every()) == (None, {GPU.lower(): None})
