"""Simulated hardware refuses what a GPU refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from dradriver.node.devices.control import IN_USE, INSUFFICIENT_RESOURCES, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED
from dradriver.node.devices.simulated import SimulatedGpu
from dradriver.node.errors import HardwareError

GPU = "GPU-a"


@pytest.fixture
def sliced(tmp_path: Path) -> SimulatedGpu:
    gpu = SimulatedGpu(tmp_path / "hardware.json")
    with gpu.state(GPU) as state:
        state.mig = True
    return gpu


def refused(code: int) -> pytest.RaisesExc[HardwareError]:
    return pytest.RaisesExc(HardwareError, check=lambda error: error.code == code)


def test_instances_are_made_where_there_is_room_and_another_object_sees_them(
    sliced: SimulatedGpu, tmp_path: Path
) -> None:
    first = sliced.create_gpu_instance(GPU, "3g.40gb", 4)
    second = sliced.create_gpu_instance(GPU, "1g.10gb", 0)
    assert SimulatedGpu(tmp_path / "hardware.json").gpu_instances(GPU) == {
        first: ("3g.40gb", 4),
        second: ("1g.10gb", 0),
    }


@pytest.mark.parametrize(
    ("profile", "start", "code"),
    [
        ("1g.10gb", 4, INSUFFICIENT_RESOURCES),  # 3g at 4 takes the memory slices 4 to 7
        ("4g.40gb", 0, None),
        ("7g.80gb", 0, INSUFFICIENT_RESOURCES),
        ("2g.20gb", 1, INVALID_ARGUMENT),
        ("9g.90gb", 0, INVALID_ARGUMENT),
    ],
)
def test_a_placement_that_is_taken_or_none_is_refused(
    sliced: SimulatedGpu, profile: str, start: int, code: int | None
) -> None:
    sliced.create_gpu_instance(GPU, "3g.40gb", 4)
    if code is None:
        sliced.create_gpu_instance(GPU, profile, start)
        return
    before = sliced.gpu_instances(GPU)
    with refused(code):
        sliced.create_gpu_instance(GPU, profile, start)
    assert sliced.gpu_instances(GPU) == before


def test_a_gpu_has_seven_compute_slices_though_it_has_eight_of_memory(sliced: SimulatedGpu) -> None:
    sliced.create_gpu_instance(GPU, "4g.40gb", 0)
    sliced.create_gpu_instance(GPU, "2g.20gb", 4)
    sliced.create_gpu_instance(GPU, "1g.10gb", 6)
    with refused(INVALID_ARGUMENT):
        sliced.create_gpu_instance(GPU, "1g.10gb", 7)


def test_mig_off_has_no_instances_and_mig_on_no_compute_mode(sliced: SimulatedGpu) -> None:
    with refused(NOT_SUPPORTED):
        sliced.create_gpu_instance("GPU-b", "1g.10gb", 0)
    with refused(NOT_SUPPORTED):
        sliced.set_exclusive(GPU, True)


def test_instances_go_from_the_inside_out_and_not_under_a_process(sliced: SimulatedGpu) -> None:
    number = sliced.create_gpu_instance(GPU, "2g.20gb", 2)
    device = sliced.create_compute_instance(GPU, number)
    with refused(INSUFFICIENT_RESOURCES):
        sliced.create_compute_instance(GPU, number)
    with refused(IN_USE):
        sliced.destroy_gpu_instance(GPU, number)
    with sliced.state(GPU) as state:
        state.users = {4711: device}
    with refused(IN_USE):
        sliced.destroy_compute_instance(GPU, number)
    with sliced.state(GPU) as state:
        state.users = {}
    sliced.destroy_compute_instance(GPU, number)
    with refused(NOT_FOUND):
        sliced.destroy_compute_instance(GPU, number)
    sliced.destroy_gpu_instance(GPU, number)
    with refused(NOT_FOUND):
        sliced.destroy_gpu_instance(GPU, number)
    assert sliced.create_compute_instance(GPU, sliced.create_gpu_instance(GPU, "2g.20gb", 2)) == device


def test_one_server_serves_a_gpus_shares(sliced: SimulatedGpu) -> None:
    sliced.set_exclusive("GPU-b", True)
    for _ in range(2):
        sliced.start_mps("GPU-b", "/run/a")
    with refused(IN_USE):
        sliced.start_mps("GPU-b", "/run/b")
    sliced.stop_mps("GPU-b")
    sliced.stop_mps("GPU-b")
    sliced.start_mps("GPU-b", "/run/b")


def test_a_reboot_leaves_mig_mode_alone(sliced: SimulatedGpu) -> None:
    sliced.create_compute_instance(GPU, sliced.create_gpu_instance(GPU, "1g.10gb", 0))
    sliced.set_exclusive("GPU-b", True)
    sliced.reboot()
    assert sliced.gpu_instances(GPU) == {}
    sliced.create_gpu_instance(GPU, "7g.80gb", 0)
    with sliced.state("GPU-b") as state:
        assert (state.exclusive, state.mig) == (False, False)


def test_a_damaged_file_is_said(sliced: SimulatedGpu, tmp_path: Path) -> None:
    (tmp_path / "hardware.json").write_text("{")
    with pytest.raises(HardwareError, match="remove this file"):
        sliced.gpu_instances(GPU)
