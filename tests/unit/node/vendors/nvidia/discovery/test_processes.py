"""Which processes are on a GPU, from NVML's own answers and from a simulated node's file."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from dradriver.node.discovery.simulated_machine import Simulated
from dradriver.node.errors import SetupError
from dradriver.node.vendors.nvidia.discovery.nvidia_gpus import Hardware
from dradriver.node.vendors.nvidia.discovery.nvml_interface import NvmlError
from tests.fakes import nvml
from tests.fakes.hardware import Server
from tests.fakes.node import NODE, uuid

QUERY = "nvmlDeviceGetComputeRunningProcesses_v3"


def found(server: Server, *indices: int) -> list[tuple[int, ...] | None]:
    uuids = [server.machine.gpus[i].uuid for i in indices]
    with patch.dict(os.environ, server.environment()):
        pids = Hardware(driver_root=nvml.compiled(), host_root=server.sys.root).processes(uuids)
    return [pids.get(one) for one in uuids]


def test_nvml_names_the_processes_of_the_gpus_that_are_asked_for(tmp_path: Path) -> None:
    server = Server("dgx1-v100", tmp_path)
    for gpu, pids in ((0, "4711"), (1, ""), (2, " ".join(map(str, range(100, 140)))), (3, "9")):
        server.table[f"{QUERY} {gpu}"] = pids
    assert found(server, 2, 0, 1) == [tuple(range(100, 140)), (4711,), ()]


def test_a_gpu_that_is_lost_is_not_in_use_and_the_others_are_asked(tmp_path: Path) -> None:
    server = Server("dgx1-v100", tmp_path)
    server.table["lost 0"] = "1"
    server.table[f"{QUERY} 1"] = "7"
    assert found(server, 0, 1) == [None, (7,)]


def test_a_gpu_that_does_not_answer_is_not_taken_for_unused(tmp_path: Path) -> None:
    server = Server("dgx1-v100", tmp_path)
    server.fail(f"{QUERY} 1", 999)
    assert found(server, 0) == [None]
    with pytest.raises(NvmlError, match="999"):
        found(server, 0, 1)


@pytest.mark.parametrize("query", ["nvmlDeviceGetHandleByIndex_v2 1", "nvmlDeviceGetUUID 1", f"{QUERY} 1"])
def test_what_fails_on_another_gpu_hides_no_process(query: str, tmp_path: Path) -> None:
    server = Server("dgx1-v100", tmp_path)
    server.table[f"{QUERY} 0"] = "4711"
    server.table[f"{QUERY} 2"] = ""
    server.fail(query, 999)
    assert found(server, 0, 2) == [(4711,), ()]
    with pytest.raises(NvmlError, match="999"):
        found(server, 0, 1)


def test_a_simulated_process_is_a_line_in_a_file(tmp_path: Path) -> None:
    simulated = Simulated("dgx1-v100", node=NODE, folder=tmp_path)
    assert simulated.processes([uuid(0)]) == {uuid(0): ()}
    (tmp_path / "processes").write_text(f"{uuid(0)} 8\n{uuid(0)} 7\n{uuid(2)} 9\n")
    assert simulated.processes([uuid(0), uuid(1)]) == {uuid(0): (7, 8), uuid(1): ()}
    for damaged in (b"\xff", f"{uuid(0)}\n".encode(), f"{uuid(0)} x\n".encode()):
        (tmp_path / "processes").write_bytes(damaged)
        with pytest.raises(SetupError, match="processes"):
            simulated.processes([uuid(0)])
