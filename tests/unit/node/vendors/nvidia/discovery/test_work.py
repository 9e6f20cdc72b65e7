"""Whether GPUs work, from NVML's own answers and from a simulated node's file: what is not known is never nothing."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from dradriver.node.discovery.simulated_machine import Simulated
from dradriver.node.errors import SetupError
from dradriver.node.gpu_work import UNKNOWN, GpuWork
from dradriver.node.vendors.nvidia.discovery.nvidia_gpus import Hardware
from dradriver.node.vendors.nvidia.discovery.nvml_interface import NvmlError
from dradriver.topology import profiles
from dradriver.topology.machine import MigDevice
from tests.fakes import nvml
from tests.fakes.hardware import Server
from tests.fakes.node import NODE, uuid
from tests.fakes.server import complete

RATES = "nvmlDeviceGetUtilizationRates"
SAMPLES = "nvmlDeviceGetProcessUtilization"
PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"
SINCE = 1_000


def work(server: Server, index: int = 0, since: int = SINCE) -> GpuWork:
    gpu = server.machine.gpus[index].uuid
    with patch.dict(os.environ, server.environment()):
        hardware = Hardware(driver_root=nvml.compiled(), host_root=server.sys.root)
        return hardware.work({gpu: since})[gpu]


@pytest.fixture
def server(tmp_path: Path) -> Server:
    server = Server("dgx-h100", tmp_path)
    server.table[f"{RATES} 0"] = "0 0"
    server.table[f"{SAMPLES} 0"] = ""
    return server


def test_a_gpu_without_samples_and_without_load_does_nothing(server: Server) -> None:
    assert work(server) == GpuWork(0, frozenset())
    assert work(server).works is False


def test_processes_that_did_something_since_then_are_named(server: Server) -> None:
    every = ("7:900:50:0:0:0", "8:1001:0:3:0:0", "9:1002:0:0:0:0", "10:1003:0:0:0:1")
    server.table[f"{SAMPLES} 0"] = " ".join(every)
    assert work(server) == GpuWork(0, frozenset({8, 10}), until_us=1003), "7 is of before, 9 did nothing"
    assert work(server).works is True
    assert work(server, since=1003).works is False


def test_load_without_a_process_is_work(server: Server) -> None:
    server.table[f"{RATES} 0"] = "3 0"
    assert work(server).works is True


@pytest.mark.parametrize("query", [RATES, SAMPLES])
@pytest.mark.parametrize("answer", ["!3", "!999", "!15"])
def test_half_an_answer_is_not_no_work(server: Server, query: str, answer: str) -> None:
    server.table[f"{query} 0"] = answer
    assert work(server).works is None


def test_more_than_all_of_a_gpu_is_no_answer(server: Server) -> None:
    server.table[f"{SAMPLES} 0"] = "7:2000:4294967295:0:0:0"
    assert work(server).pids is None
    server.table[f"{RATES} 0"] = "101 0"
    assert work(server) == UNKNOWN


def test_a_gpu_that_is_gone_or_lost_is_unknown_and_the_others_are_asked(server: Server) -> None:
    server.table["lost 1"] = "0"
    gpus = [server.machine.gpus[0].uuid, server.machine.gpus[1].uuid, "GPU-nobody"]
    with patch.dict(os.environ, server.environment()):
        found = Hardware(driver_root=nvml.compiled(), host_root=server.sys.root).work(dict.fromkeys(gpus, 0))
    assert [found[gpu].works for gpu in gpus] == [False, None, None]


def test_in_mig_mode_the_instances_with_processes_are_known_and_no_more(tmp_path: Path) -> None:
    machine = complete(profiles.load("dgx-h100"))
    instances = tuple(MigDevice(n, f"MIG-{n:08x}-0000-0000-0000-000000000000", 3 + n, 0, "1g.10gb") for n in range(2))
    first = msgspec.structs.replace(machine.gpus[0], mig=instances)
    server = Server(msgspec.structs.replace(machine, gpus=(first, *machine.gpus[1:])), tmp_path)
    server.table |= {f"{RATES} 0": "0 0", f"{SAMPLES} 0": "", f"{PROCESSES} 0": "4711@4 4712@4"}
    assert work(server) == GpuWork(instances=frozenset({4}))
    assert work(server).works is None, "what the one with processes does is not known"
    server.table[f"{PROCESSES} 0"] = ""
    assert work(server).works is False
    server.fail(f"{PROCESSES} 0", 4)
    assert work(server).works is None


def test_without_a_driver_nothing_is_said(server: Server) -> None:
    server.table["nvmlInitWithFlags"] = "!9"
    with pytest.raises(NvmlError):
        work(server)


def test_a_driver_that_is_let_go_is_not_asked(server: Server) -> None:
    with patch.dict(os.environ, server.environment()), pytest.raises(SetupError, match="to be replaced"):
        Hardware(driver_root=nvml.compiled(), released=lambda: "to be replaced").work({"GPU-0": 0})
    assert not server.file.with_name("nvml.sessions").exists()


def test_a_simulated_gpu_works_as_a_file_says_and_else_it_is_unknown(tmp_path: Path) -> None:
    simulated = Simulated("dgx1-v100", node=NODE, folder=tmp_path)
    assert simulated.work({uuid(0): 0}) == {}
    (tmp_path / "work").write_text(f"{uuid(0)} 0\n{uuid(1)} 50\n")
    (tmp_path / "processes").write_text(f"{uuid(0)} 7\n{uuid(1)} 8\n")
    found = simulated.work({uuid(0): 0, uuid(1): 0, uuid(2): 0})
    assert found == {uuid(0): GpuWork(0, frozenset()), uuid(1): GpuWork(50, frozenset({8}))}
    for damaged in (b"\xff", f"{uuid(0)}\n".encode(), f"{uuid(0)} x\n".encode()):
        (tmp_path / "work").write_bytes(damaged)
        with pytest.raises(SetupError, match="work"):
            simulated.work({uuid(0): 0})
