"""Simulated hardware refuses what a GPU refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from dradriver.node.devices.control_interface import (
    DEFAULT,
    EXCLUSIVE_PROCESS,
    IN_USE,
    INSUFFICIENT_RESOURCES,
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_SUPPORTED,
    RESET_REQUIRED,
)
from dradriver.node.errors import HardwareError
from dradriver.node.mps.mps_files import MpsFolder, Server
from dradriver.node.vendors.nvidia.devices.simulated_control import SimulatedGpu
from dradriver.topology import profiles
from dradriver.topology.machine import Gpu
from dradriver.topology.profiles.simulated_mig_profiles import profiles as of_product
from tests.fakes.instances import in_mig_mode
from tests.fakes.parts import PRODUCT

GPU = "GPU-a"
H100 = {profile.name: profile for profile in of_product(PRODUCT)}


def simulated(path: Path, product: str, *, mig: bool = True) -> SimulatedGpu:
    capability = "9.0" if product == PRODUCT else "8.0"
    known = Gpu(
        index=0,
        uuid=GPU,
        minor=7,
        pci="",
        product=product,
        compute_capability=capability,
        profiles=of_product(product),
    )
    gpu = SimulatedGpu(path / "hardware.json", lambda uuid: known if uuid == GPU else None)
    with gpu.state(GPU) as state:
        state.mig = mig
    return gpu


@pytest.fixture
def sliced(tmp_path: Path) -> SimulatedGpu:
    return simulated(tmp_path, PRODUCT)


def refused(code: int) -> pytest.RaisesExc[HardwareError]:
    return pytest.RaisesExc(HardwareError, check=lambda error: error.code == code)


def test_instances_are_made_where_there_is_room_and_another_object_sees_them(
    sliced: SimulatedGpu, tmp_path: Path
) -> None:
    first = sliced.create_gpu_instance(GPU, H100["3g.40gb"], 4)
    second = sliced.create_gpu_instance(GPU, H100["1g.10gb"], 0)
    assert SimulatedGpu(tmp_path / "hardware.json").gpu_instances(GPU) == {first: (9, 4), second: (19, 0)}


@pytest.mark.parametrize(
    ("profile", "start", "code"),
    [
        ("1g.10gb", 4, INSUFFICIENT_RESOURCES),  # 3g at 4 takes the memory slices 4 to 7
        ("1g.20gb", 6, INSUFFICIENT_RESOURCES),
        ("1g.20gb", 2, None),
        ("4g.40gb", 0, None),
        ("7g.80gb", 0, INSUFFICIENT_RESOURCES),
        ("2g.20gb", 1, INVALID_ARGUMENT),
        ("1g.20gb", 1, INVALID_ARGUMENT),
    ],
)
def test_a_placement_that_is_taken_or_none_is_refused(
    sliced: SimulatedGpu, profile: str, start: int, code: int | None
) -> None:
    sliced.create_gpu_instance(GPU, H100["3g.40gb"], 4)
    if code is None:
        sliced.create_gpu_instance(GPU, H100[profile], start)
        return
    before = sliced.gpu_instances(GPU)
    with refused(code):
        sliced.create_gpu_instance(GPU, H100[profile], start)
    assert sliced.gpu_instances(GPU) == before


def test_a_profile_of_another_product_does_not_count(sliced: SimulatedGpu) -> None:
    with refused(INVALID_ARGUMENT):
        sliced.create_gpu_instance(GPU, of_product("NVIDIA A30")[1], 0)


def test_a_gpu_has_seven_compute_slices_though_it_has_eight_of_memory(sliced: SimulatedGpu) -> None:
    sliced.create_gpu_instance(GPU, H100["4g.40gb"], 0)
    sliced.create_gpu_instance(GPU, H100["2g.20gb"], 4)
    sliced.create_gpu_instance(GPU, H100["1g.10gb"], 6)
    with refused(INVALID_ARGUMENT):
        sliced.create_gpu_instance(GPU, H100["1g.10gb"], 7)
    with refused(INSUFFICIENT_RESOURCES):
        sliced.create_gpu_instance(GPU, H100["1g.20gb"], 6)


def test_only_one_instance_has_the_media_engines(sliced: SimulatedGpu) -> None:
    sliced.create_gpu_instance(GPU, H100["1g.10gb+me"], 0)
    with refused(INSUFFICIENT_RESOURCES):
        sliced.create_gpu_instance(GPU, H100["1g.10gb+me"], 1)
    sliced.create_gpu_instance(GPU, H100["1g.10gb"], 1)


def test_an_a30_has_four_slices(tmp_path: Path) -> None:
    gpu = simulated(tmp_path, "NVIDIA A30")
    a30 = {profile.name: profile for profile in gpu.profiles(GPU)}
    assert [*a30] == ["1g.6gb", "1g.6gb+me", "2g.12gb", "2g.12gb+me", "4g.24gb"]
    for start in (3, 2, 1):
        gpu.create_gpu_instance(GPU, a30["1g.6gb"], start)
    with refused(INSUFFICIENT_RESOURCES):
        gpu.create_gpu_instance(GPU, a30["2g.12gb"], 0)
    gpu.create_gpu_instance(GPU, a30["1g.6gb+me"], 0)


def test_media_engines_run_out_before_slices_do(tmp_path: Path) -> None:
    rtx = simulated(tmp_path, "NVIDIA RTX PRO 6000 Blackwell Server Edition")
    profiles = {profile.name: profile for profile in rtx.profiles(GPU)}
    rtx.create_gpu_instance(GPU, profiles["1g.24gb+me.all"], 3)
    for name in ("1g.24gb", "1g.24gb+me", "1g.24gb+gfx", "2g.48gb", "2g.48gb+me.all"):
        with refused(INSUFFICIENT_RESOURCES):
            rtx.create_gpu_instance(GPU, profiles[name], 0)
    rtx.create_gpu_instance(GPU, profiles["2g.48gb-me"], 0)
    rtx.create_gpu_instance(GPU, profiles["1g.24gb-me"], 2)


def test_an_a30_has_the_media_extension_once(tmp_path: Path) -> None:
    gpu = simulated(tmp_path, "NVIDIA A30")
    a30 = {profile.name: profile for profile in gpu.profiles(GPU)}
    gpu.create_gpu_instance(GPU, a30["1g.6gb+me"], 0)
    with refused(INSUFFICIENT_RESOURCES):
        gpu.create_gpu_instance(GPU, a30["2g.12gb+me"], 2)
    gpu.create_gpu_instance(GPU, a30["2g.12gb"], 2)


def test_mig_off_has_no_instances_and_mig_on_no_compute_mode(sliced: SimulatedGpu) -> None:
    with refused(NOT_SUPPORTED):
        sliced.create_gpu_instance("GPU-b", H100["1g.10gb"], 0)
    with refused(NOT_SUPPORTED):
        sliced.set_compute_mode(GPU, EXCLUSIVE_PROCESS)
    with refused(NOT_SUPPORTED):
        sliced.start_mps(GPU, Server())


@pytest.mark.parametrize(
    ("product", "code"),
    [(PRODUCT, None), ("NVIDIA A100-SXM4-40GB", RESET_REQUIRED), ("NVIDIA L40S", NOT_SUPPORTED)],
)
def test_mig_mode_changes_at_once_from_hopper_on(product: str, code: int | None, tmp_path: Path) -> None:
    gpu = simulated(tmp_path, product, mig=False)
    if code is not None:
        with refused(code):
            gpu.set_mig_mode(GPU, True)
        return
    gpu.set_mig_mode(GPU, True)
    number = gpu.create_gpu_instance(GPU, H100["1g.10gb"], 0)
    gpu.set_mig_mode(GPU, True)
    with refused(IN_USE):
        gpu.set_mig_mode(GPU, False)
    gpu.destroy_gpu_instance(GPU, number)
    gpu.set_mig_mode(GPU, False)
    with gpu.state(GPU) as state:
        state.users = {4711: GPU}
    with refused(IN_USE):
        gpu.set_mig_mode(GPU, True)


def test_instances_go_from_the_inside_out_and_not_under_a_process(sliced: SimulatedGpu) -> None:
    number = sliced.create_gpu_instance(GPU, H100["2g.20gb"], 2)
    compute = sliced.create_compute_instance(GPU, number)
    (device,) = sliced.compute_instances(GPU, number).values()
    with refused(INSUFFICIENT_RESOURCES):
        sliced.create_compute_instance(GPU, number)
    with refused(IN_USE):
        sliced.destroy_gpu_instance(GPU, number)
    with sliced.state(GPU) as state:
        state.users = {4711: device}
    assert sliced.processes(GPU, number, compute) == 1
    with refused(IN_USE):
        sliced.destroy_compute_instance(GPU, number, compute)
    with sliced.state(GPU) as state:
        state.users = {}
    sliced.destroy_compute_instance(GPU, number, compute)
    with refused(NOT_FOUND):
        sliced.destroy_compute_instance(GPU, number, compute)
    sliced.destroy_gpu_instance(GPU, number)
    with refused(NOT_FOUND):
        sliced.destroy_gpu_instance(GPU, number)
    again = sliced.create_gpu_instance(GPU, H100["2g.20gb"], 2)
    sliced.create_compute_instance(GPU, again)
    assert sliced.compute_instances(GPU, again) == {0: device}


def test_one_server_serves_a_gpus_shares(sliced: SimulatedGpu) -> None:
    half = Server(memory_mib=40960, thread_percentage=50)
    sliced.set_compute_mode("GPU-b", EXCLUSIVE_PROCESS)
    for _ in range(2):
        sliced.start_mps("GPU-b", half)
    with refused(IN_USE):
        sliced.start_mps("GPU-b", Server())
    for _ in range(2):
        sliced.stop_mps("GPU-b")
    sliced.start_mps("GPU-b", Server())
    assert sliced.compute_mode("GPU-b") == EXCLUSIVE_PROCESS


def test_a_served_gpu_has_the_folders_that_containers_mount(tmp_path: Path) -> None:
    folder = MpsFolder(tmp_path / "mps", boot="b")
    gpu = SimulatedGpu(tmp_path / "hardware.json", mps=folder)
    gpu.start_mps(GPU, Server())
    assert sorted(path.name for path in folder.of(GPU).iterdir()) == ["pipe", "shm"]
    for _ in range(2):
        gpu.stop_mps(GPU)
    assert list(folder.of(GPU).iterdir()) == []


@pytest.mark.parametrize(("product", "mode"), [(PRODUCT, False), ("NVIDIA A100-SXM4-40GB", True)])
def test_a_reboot_leaves_mig_mode_alone_before_hopper(product: str, mode: bool, tmp_path: Path) -> None:
    gpu = simulated(tmp_path, product)
    gpu.create_compute_instance(GPU, gpu.create_gpu_instance(GPU, gpu.profiles(GPU)[0], 0))
    gpu.set_compute_mode("GPU-b", EXCLUSIVE_PROCESS)
    gpu.start_mps("GPU-b", Server())
    gpu.reboot()
    assert (gpu.gpu_instances(GPU), gpu.mig_mode(GPU)) == ({}, mode)
    with gpu.state("GPU-b") as state:
        assert (state.mode, state.server) == (DEFAULT, None)


def test_another_boot_is_a_reboot_and_the_same_is_not(tmp_path: Path) -> None:
    first = SimulatedGpu(tmp_path / "hardware.json", boot="one")
    first.set_mig_mode(GPU, True)
    first.create_gpu_instance(GPU, H100["1g.10gb"], 0)
    assert len(SimulatedGpu(tmp_path / "hardware.json", boot="one").gpu_instances(GPU)) == 1
    later = SimulatedGpu(tmp_path / "hardware.json", boot="two")
    assert (later.gpu_instances(GPU), later.mig_mode(GPU)) == ({}, False)
    later.set_compute_mode(GPU, EXCLUSIVE_PROCESS)
    assert SimulatedGpu(tmp_path / "hardware.json", boot="two").compute_mode(GPU) == EXCLUSIVE_PROCESS


def test_a_damaged_file_is_said(sliced: SimulatedGpu, tmp_path: Path) -> None:
    (tmp_path / "hardware.json").write_text("{")
    with pytest.raises(HardwareError, match="Remove this file"):
        sliced.gpu_instances(GPU)


def test_instances_of_the_machines_description_are_there_from_each_boot_on(tmp_path: Path) -> None:
    described = in_mig_mode(profiles.load("hgx-h100"), {0: [("3g.40gb", 0), ("1g.10gb", 6)]}).gpus[0]
    for boot in ("one", "two"):
        gpu = SimulatedGpu(tmp_path / "hardware.json", lambda _: described, boot=boot)
        assert (gpu.mig_mode(GPU), gpu.gpu_instances(GPU)) == (True, {1: (9, 0), 2: (19, 6)})
        assert gpu.processes(GPU, 2, 0) == 0
        gpu.destroy_compute_instance(GPU, 2, 0)
        gpu.destroy_gpu_instance(GPU, 2)
        assert gpu.gpu_instances(GPU) == {1: (9, 0)}


def test_a_gpu_is_seen_as_it_was_changed(tmp_path: Path) -> None:
    described = profiles.load("hgx-h100").gpus[0]
    gpu = SimulatedGpu(tmp_path / "hardware.json", lambda _: described)
    assert gpu.seen(described) == described
    gpu.set_mig_mode(described.uuid, True)
    assert gpu.seen(described).mig == ()
    instance = gpu.create_gpu_instance(described.uuid, H100["3g.40gb"], 4)
    assert gpu.seen(described).mig == ()
    gpu.create_compute_instance(described.uuid, instance)
    (device,) = gpu.seen(described).mig or ()
    assert (device.profile, device.profile_id, device.start) == ("3g.40gb", 9, 4)
    assert gpu.compute_instances(described.uuid, instance) == {device.compute_instance: device.uuid}
    assert SimulatedGpu(tmp_path / "hardware.json", boot="later").seen(described) == described


def test_a_call_that_hangs_is_answered_when_it_does_no_more(
    sliced: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, looked = tmp_path / "hangs", []
    hangs.write_text("nvmlGpuInstanceCreateComputeInstance\n")
    instance = sliced.create_gpu_instance(GPU, H100["1g.10gb"], 0)

    def look(_: float) -> None:
        looked.append(sliced.compute_instances(GPU, instance))
        if len(looked) == 3:
            hangs.unlink()

    monkeypatch.setattr("dradriver.node.vendors.nvidia.devices.simulated_control.time.sleep", look)
    assert sliced.create_compute_instance(GPU, instance) in sliced.compute_instances(GPU, instance)
    assert looked == [{}, {}, {}]
