"""Whatever NVML does not answer: no failure hides another GPU."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dradriver.errors import DriverError
from dradriver.node.vendors.nvidia.discovery.nvml_interface import NvmlError
from dradriver.topology.machine import Machine, MigDevice
from tests.fakes import nvml
from tests.fakes.hardware import Server, said, without

LOST = 15
RESET_REQUIRED = 16
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
    "nvmlDeviceGetPowerManagementDefaultLimit 1",
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
ABSENT = (2, 3, 13, 25, 26)  # what may say that there is no such thing, or that it is told no more


def test_every_query_of_a_healthy_machine_is_made_to_fail_here(dgx1: Server) -> None:
    made = {key.split()[0] for key in dgx1.table if " " in key}
    assert made == {key.split()[0] for key in PER_GPU + PAIRS}


@pytest.mark.slow
@pytest.mark.parametrize("query", PER_GPU)
def test_after_any_failure_on_one_gpu_the_others_are_all_there(query: str, dgx1: Server) -> None:
    for code in CODES:
        dgx1.fail(query, code)
        reading = dgx1.read()
        assert without(reading.machine, 1) == without(dgx1.machine, 1), code
        left_out = len(reading.machine.gpus) < 8
        if left_out or code not in ABSENT:
            assert any("GPU 1" in problem.where for problem in reading.problems), code
        if code in (LOST, RESET_REQUIRED):
            assert left_out


@pytest.mark.slow
@pytest.mark.parametrize("query", PAIRS)
def test_after_any_failure_on_a_pair_all_gpus_are_there(query: str, dgx1: Server) -> None:
    for code in CODES:
        dgx1.fail(query, code)
        reading = dgx1.read()
        assert reading.machine == dgx1.machine  # /sys knows the path, and the links are up
        quiet = code in (3, 13, 25, 26)
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


@pytest.mark.slow
def test_a_gpu_lost_at_any_moment_takes_no_other_with_it(dgx1: Server) -> None:
    for after in range(100):
        dgx1.table["lost 3"] = str(after)
        reading = dgx1.read()
        assert without(reading.machine, 3) == without(dgx1.machine, 3)
        assert bool(reading.problems) is (len(reading.machine.gpus) == 7)
        if not reading.problems:
            assert after > 30
            assert reading.machine == dgx1.machine
            return
        assert all("GPU 3" in problem.where for problem in reading.problems)
    raise AssertionError("one GPU is never asked so much")


@pytest.mark.parametrize("code", [RESET_REQUIRED, 999])
def test_a_gpu_that_knows_its_name_and_nothing_else_is_left_out(code: int, dgx1: Server) -> None:
    names = ("HandleByIndex_v2", "UUID", "MinorNumber", "PciInfo_v3", "Name")
    for key in dgx1.table:
        function, _, arguments = key.partition(" ")
        if arguments.split(" ")[0] == "3" and not function.endswith(names):
            dgx1.fail(key, code)
    reading = dgx1.read()
    assert without(reading.machine) == without(dgx1.machine, 3)
    assert "GPU 3: GPU: the GPU is left out, because it cannot be allocated in this state" in said(reading)


def test_a_lost_gpu_is_asked_no_more(dgx1: Server) -> None:
    dgx1.table["lost 3"] = "6"
    reading = dgx1.read()
    assert len([p for p in reading.problems if p.where.startswith("GPU 3")]) == 2  # the query, and what became of it


@pytest.mark.slow
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
    assert len(reading.problems) == (code not in (3, 26))


def test_a_machine_whose_gpus_are_all_lost_is_no_machine(dgx1: Server) -> None:
    for index in range(8):
        dgx1.table[f"lost {index}"] = "0"
    with pytest.raises(DriverError, match=r"no GPU on this node can be used: GPU 0: nvmlDeviceGetHandleByIndex"):
        dgx1.read()
    dgx1.table["nvmlDeviceGetCount_v2"] = "0"
    with pytest.raises(DriverError, match="NVML counts none"):
        dgx1.read()


@pytest.mark.parametrize("query", ["nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber"])
def test_two_gpus_of_one_name_are_not_both_handed_out(query: str, dgx1: Server) -> None:
    dgx1.table[f"{query} 5"] = dgx1.table[f"{query} 2"]
    reading = dgx1.read()
    assert [gpu.index for gpu in reading.machine.gpus] == [0, 1, 2, 3, 4, 6, 7]
    assert "GPU 5: GPU: the GPU is left out, because it has the UUID or minor number of GPU 2" in said(reading)


@pytest.mark.parametrize(("wrong", "right"), [(5, 2), (2, 5)])
def test_two_gpus_at_one_bus_id_are_both_there_and_neither_has_a_place(wrong: int, right: int, dgx1: Server) -> None:
    dgx1.table[f"nvmlDeviceGetPciInfo_v3 {wrong}"] = dgx1.table[f"nvmlDeviceGetPciInfo_v3 {right}"]
    reading = dgx1.read()
    assert without(reading.machine, 2, 5) == without(dgx1.machine, 2, 5)
    assert [gpu.uuid for gpu in reading.machine.gpus] == [gpu.uuid for gpu in dgx1.machine.gpus]
    assert [(gpu.pci, gpu.numa) for gpu in reading.machine.gpus if gpu.index in (2, 5)] == [("", None)] * 2
    shared = dgx1.machine.gpus[right].pci
    assert said(reading)[:2] == [
        f"GPU {index}: nvmlDeviceGetPciInfo_v3: '{shared}' is reported by more than one GPU, so it counts for none of "
        "them"
        for index in (2, 5)
    ]


def test_uuids_are_lower_case_and_what_is_no_uuid_is_left_out(dgx1: Server) -> None:
    dgx1.table["nvmlDeviceGetUUID 0"] = dgx1.machine.gpus[0].uuid.upper()
    dgx1.table["nvmlDeviceGetUUID 1"] = "GPU-of-mine"
    reading = dgx1.read()
    assert without(reading.machine) == without(dgx1.machine, 1)
    assert said(reading)[0] == "GPU 1: nvmlDeviceGetUUID: 'GPU-of-mine' is no GPU's uuid"


def test_a_name_that_is_no_text_costs_the_name_only(dgx1: Server) -> None:
    dgx1.table["nvmlDeviceGetName 1"] = "\udcff\udcfe"
    reading = dgx1.read()
    assert [gpu.product == "" for gpu in reading.machine.gpus] == [False, True] + [False] * 6
    assert "no UTF-8 text" in said(reading)[0]


WHOLE = 2**64 - 1
NUMBERS = ("4294967295", str(WHOLE), "-1", "100000", "4294967295 4294967295", "-1 77", "42 2 4294967295 zz")
TEXTS = ("Tesla\x07 \x1b[31mV100", "\udced\udca0\udc80", "x" * 99, "\u202eevil", "")
MIG = (
    MigDevice(0, "MIG-00000000-aaaa-5555-8888-000000000002", 1, 0, "3g.40gb", 40448),
    MigDevice(2, "MIG-00000002-aaaa-5555-8888-000000000002", 3, 0, "1g.10gb", 9984),
)


def in_mig_mode(machine: Machine) -> Machine:
    gpus = [msgspec.structs.replace(gpu, mig=MIG) if gpu.index == 1 else gpu for gpu in machine.gpus]
    return msgspec.structs.replace(machine, gpus=tuple(gpus))


@pytest.mark.slow
@pytest.mark.parametrize("answer", NUMBERS + TEXTS)
@pytest.mark.parametrize("name", ["dgx1-v100", "gb200-nvl72-tray"])  # links to GPUs, to switches and to a CPU
def test_with_any_nonsense_of_one_gpu_the_others_are_all_there(name: str, answer: str, tmp_path: Path) -> None:
    whole = Server(name, tmp_path / "whole").machine
    server = Server(in_mig_mode(whole), tmp_path)
    queries = [
        key for key in server.table if key.split()[1:2] in (["1"], ["1/0"]) and " " not in key.partition(" 1 ")[2]
    ]
    queries += [key for key in server.table if key.startswith("nvmlDeviceGetFieldValues 1 ") and key.endswith(" 0")]
    queries = [key for key in queries if not key.split()[-1].isdigit() or int(key.split()[-1]) < 2]
    assert len(queries) > 20
    for query in queries:
        before = server.table[query]
        server.table[query] = answer
        reading = server.read()
        assert without(reading.machine, 1) == without(server.machine, 1), query
        server.table[query] = before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "answer", "value"),
    [
        ("nvmlDeviceGetMemoryInfo 1", str(WHOLE), str(WHOLE)),
        ("nvmlDeviceGetPowerManagementDefaultLimit 1", "4294967295", "4294967295"),
        ("nvmlDeviceGetMinorNumber 1", "4294967295", "4294967295"),
        ("nvmlDeviceGetCudaComputeCapability 1", "-1 0", "-1"),
        ("nvmlDeviceGetCudaComputeCapability 1", "9 100", "100"),
        ("nvmlDeviceGetMaxPcieLinkGeneration 1", "4294967295", "4294967295"),
        ("nvmlDeviceGetMaxPcieLinkWidth 1", "4294967295", "4294967295"),
        ("nvmlDeviceGetFieldValues 1 165 0", "4294967295", "4294967295"),
        ("nvmlDeviceGetNvLinkRemoteDeviceType 1 0", "4294967295", "4294967295"),
        ("nvmlDeviceGetFieldValues 1 91 0", "4294967295", "4294967295"),
        ("nvmlDeviceGetFieldValues 1 170 0", "4294967295", "4294967295"),
        ("nvmlDeviceGetFieldValues 1 172 1", "4294967295", "4294967295"),
        ("nvmlDeviceGetMigMode 1", "7 1", "7"),
        ("nvmlDeviceGetMaxMigDeviceCount 1", "4294967295", "4294967295"),
        ("nvmlDeviceGetGpuInstanceId 1/0", "4294967295", "4294967295"),
        ("nvmlDeviceGetComputeInstanceId 1/0", "4294967295", "4294967295"),
        ("nvmlDeviceGetMemoryInfo 1/0", str(WHOLE), str(WHOLE)),
        ("nvmlDeviceGetName 1", "a\tb", "'a\\tb'"),
        ("nvmlDeviceGetName 1/0", "a\x1b MIG b", "'a\\x1b MIG b'"),
    ],
)
def test_nonsense_is_told_of_with_the_query_and_the_value(query: str, answer: str, value: str, tmp_path: Path) -> None:
    server = Server(in_mig_mode(Server("gb200-nvl72-tray", tmp_path / "whole").machine), tmp_path)
    server.table[query] = answer
    told = [problem for problem in server.read().problems if query.split()[0].removesuffix("_v2") in problem.what]
    assert [problem.where.startswith("GPU 1") for problem in told] == [True]
    assert told[0].said.startswith(f"{value} is no")


def test_memory_that_cannot_be_costs_the_memory_only(dgx1: Server) -> None:
    dgx1.table["nvmlDeviceGetMemoryInfo 0"] = str(WHOLE)
    machine = dgx1.read().machine
    first = msgspec.structs.replace(dgx1.machine.gpus[0], memory_mib=0)
    assert machine.gpus == (first, *dgx1.machine.gpus[1:])


def test_a_number_of_gpus_that_cannot_be_is_no_machine_and_no_endless_loop(dgx1: Server) -> None:
    dgx1.table["nvmlDeviceGetCount_v2"] = "4294967295"
    with pytest.raises(NvmlError, match="nvmlDeviceGetCount: 4294967295 is no"):
        dgx1.read()


def test_an_answer_about_peer_access_that_cannot_be_costs_no_link(dgx1: Server) -> None:
    dgx1.table["nvmlDeviceGetP2PStatus 2 0 1"] = "4294967295"
    reading = dgx1.read()
    assert reading.machine == dgx1.machine
    assert [problem.where for problem in reading.problems] == ["GPU 0 - GPU 1"]
