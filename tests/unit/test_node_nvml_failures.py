"""Whatever NVML does not answer: no failure hides another GPU."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from dradriver.errors import DriverError
from dradriver.node.discovery import hardware
from dradriver.node.discovery.nvml import NvmlError
from tests.fakes import nvml
from tests.fakes.hardware import Server, said, without

LOST = 15
CODES = [*range(1, 31), 999]  # every return value of nvml.h


@pytest.fixture
def dgx1(tmp_path: Path) -> Server:
    return Server("dgx1-v100", tmp_path)


PER_GPU = [
    "nvmlDeviceGetHandleByIndex_v2 1",
    "nvmlDeviceGetUUID 1",
    "nvmlDeviceGetMinorNumber 1",
    "nvmlDeviceGetPciInfo_v3 1",
    "nvmlDeviceGetName 1",
    "nvmlDeviceGetCudaComputeCapability 1",
    "nvmlDeviceGetMemoryInfo 1",
    "nvmlDeviceGetPowerManagementLimit 1",
    "nvmlDeviceGetMaxPcieLinkGeneration 1",
    "nvmlDeviceGetMaxPcieLinkWidth 1",
    "nvmlDeviceGetMigMode 1",
    "nvmlDeviceGetGpuFabricInfoV 1",
    "nvmlDeviceGetFieldValues 1",
    "nvmlDeviceGetFieldValues 1 91 0",
    "nvmlDeviceGetNvLinkState 1 0",
    "nvmlDeviceGetNvLinkRemoteDeviceType 1 0",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2 1 0",
]
PAIRS = ["nvmlDeviceGetTopologyCommonAncestor 0 1", "nvmlDeviceGetP2PStatus 2 0 1"]
ABSENT = (2, 3, 13, 25)  # what may say that there is no such thing


def test_every_query_of_a_healthy_machine_is_made_to_fail_here(dgx1: Server) -> None:
    made = {key.split()[0] for key in dgx1.table if " " in key}
    assert made == {key.split()[0] for key in PER_GPU + PAIRS}


@pytest.mark.parametrize("query", PER_GPU)
def test_whatever_fails_on_one_gpu_the_others_are_all_there(query: str, dgx1: Server) -> None:
    for code in CODES:
        dgx1.fail(query, code)
        reading = dgx1.read()
        assert without(reading.machine, 1) == without(dgx1.machine, 1), code
        left_out = len(reading.machine.gpus) < 8
        if left_out or code not in ABSENT:
            assert any("GPU 1" in problem.where for problem in reading.problems), code
        if code == LOST:
            assert left_out


@pytest.mark.parametrize("query", PAIRS)
def test_whatever_fails_on_a_pair_all_gpus_are_there(query: str, dgx1: Server) -> None:
    for code in CODES:
        dgx1.fail(query, code)
        reading = dgx1.read()
        assert reading.machine == dgx1.machine  # /sys knows the path, and the links are up
        quiet = code in (3, 13, 25)
        assert [p.where for p in reading.problems] == ([] if quiet else ["GPU 0 - GPU 1"]), code


def test_a_gpu_that_cannot_say_its_bus_id_can_be_used_alone(dgx1: Server) -> None:
    dgx1.fail("nvmlDeviceGetPciInfo_v3 1", 999)
    machine = dgx1.read().machine
    assert (machine.gpus[1].uuid, machine.gpus[1].pci) == (dgx1.machine.gpus[1].uuid, "")
    assert not any(machine.links[1])


def test_a_bus_id_that_sys_could_not_have_hides_no_other_gpu(dgx1: Server) -> None:
    dgx1.table["nvmlDeviceGetPciInfo_v3 1"] = nvml.UNSEEN_SWITCH
    reading = dgx1.read()
    assert without(reading.machine, 1) == without(dgx1.machine, 1)
    assert said(reading)[0] == "GPU 1: nvmlDeviceGetPciInfo_v3: 'ffffffff:ffff:ff.0' is no bus id"


def test_a_gpu_lost_at_any_moment_takes_no_other_with_it(dgx1: Server) -> None:
    for after in range(100):
        dgx1.table["lost 3"] = str(after)
        reading = dgx1.read()
        assert without(reading.machine, 3) == without(dgx1.machine, 3)
        if not reading.problems:
            assert after > 30
            assert reading.machine == dgx1.machine
            return
        assert all("GPU 3" in problem.where for problem in reading.problems)
    raise AssertionError("one GPU is never asked so much")


def test_a_lost_gpu_is_asked_no_more(dgx1: Server) -> None:
    dgx1.table["lost 3"] = "6"
    reading = dgx1.read()
    assert len([p for p in reading.problems if p.where.startswith("GPU 3")]) == 2  # the query, and what became of it


@pytest.mark.parametrize("code", CODES)
def test_without_a_count_or_a_driver_nothing_can_be_read_and_it_says_why(code: int, dgx1: Server) -> None:
    for query in ("nvmlDeviceGetCount_v2", "nvmlInitWithFlags"):
        before = dict(dgx1.table)
        dgx1.fail(query, code)
        with pytest.raises(NvmlError) as caught:
            dgx1.read()
        assert caught.value.code == code
        dgx1.table = before
    dgx1.fail("nvmlSystemGetDriverVersion", code)
    reading = dgx1.read()
    assert reading.machine == msgspec.structs.replace(dgx1.machine, driver_version="")
    assert len(reading.problems) == (code != 3)


def test_a_machine_whose_gpus_are_all_lost_is_no_machine(dgx1: Server) -> None:
    for index in range(8):
        dgx1.table[f"lost {index}"] = "0"
    with pytest.raises(DriverError, match=r"no GPU on this node can be used: GPU 0: nvmlDeviceGetHandleByIndex"):
        dgx1.read()
    dgx1.table["nvmlDeviceGetCount_v2"] = "0"
    with pytest.raises(DriverError, match="NVML counts none"):
        dgx1.read()


@pytest.mark.parametrize("query", ["nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo_v3"])
def test_two_gpus_of_one_name_are_not_both_handed_out(query: str, dgx1: Server) -> None:
    dgx1.table[f"{query} 5"] = dgx1.table[f"{query} 2"]
    reading = dgx1.read()
    assert [gpu.index for gpu in reading.machine.gpus] == [0, 1, 2, 3, 4, 6, 7]
    assert "GPU 5: GPU: left out; it has uuid, minor number or bus id of GPU 2" in said(reading)


def test_uuids_are_lower_case_and_what_is_none_is_left_out(dgx1: Server) -> None:
    dgx1.table["nvmlDeviceGetUUID 0"] = dgx1.machine.gpus[0].uuid.upper()
    dgx1.table["nvmlDeviceGetUUID 1"] = "GPU-of-mine"
    reading = dgx1.read()
    assert without(reading.machine) == without(dgx1.machine, 1)
    assert said(reading)[0] == "GPU 1: nvmlDeviceGetUUID: 'GPU-of-mine' is no GPU's uuid"


def test_a_name_that_is_no_text_costs_the_name_only(dgx1: Server) -> None:
    dgx1.table["nvmlDeviceGetName 1"] = "?"
    environment = dgx1.environment()
    file = Path(environment[nvml.TABLE])
    file.write_bytes(file.read_bytes().replace(b"Name 1=?", b"Name 1=\xff\xfe"))
    with patch.dict(os.environ, environment):
        reading = hardware.read(driver_root=nvml.compiled(), host_root=dgx1.sys.root)
    assert [gpu.product == "" for gpu in reading.machine.gpus] == [False, True] + [False] * 6
    assert "no UTF-8 text" in said(reading)[0]
