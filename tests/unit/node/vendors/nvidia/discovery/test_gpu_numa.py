"""A GPU's NUMA node: by /sys, and by NVML where the firmware gave /sys none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.hardware import Server, said


@pytest.fixture
def server(tmp_path: Path) -> Server:
    """An HGX H100 whose /sys says -1 of GPU 1 and GPU 5, as some firmware has it."""
    server = Server("hgx-h100", tmp_path)
    for index in (1, 5):
        (server.sys.device(server.machine.gpus[index].pci) / "numa_node").write_text("-1\n")
    return server


def numas(server: Server) -> list[int | None]:
    return [gpu.numa for gpu in server.read().machine.gpus]


def test_where_sys_says_minus_one_it_is_nvmls(server: Server) -> None:
    server.table["nvmlDeviceGetMemoryAffinity 1"] = "0x1"
    server.table["nvmlDeviceGetMemoryAffinity 5"] = "0x2"
    server.table["nvmlDeviceGetMemoryAffinity 0"] = "0x2"  # /sys goes before it
    assert numas(server) == [gpu.numa for gpu in server.machine.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    found = server.read().machine
    assert found.nic_paths == server.machine.nic_paths  # NODE and SYS are told apart again


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        None,  # not supported
        "0x0",
        "0x3",  # either may be
        "0x10",  # a node that the machine does not have
        "!2",
    ],
)
def test_where_nvml_names_no_single_node_with_cpus_it_stays_unknown(answer: str | None, server: Server) -> None:
    if answer is not None:
        server.table |= {f"nvmlDeviceGetMemoryAffinity {index}": answer for index in (1, 5)}
    assert numas(server) == [0, None, 0, 0, 1, None, 1, 1]
    assert said(server.read()) == []


def test_a_node_without_cpus_does_not_count(server: Server) -> None:
    """On Grace the memory of a GPU is a NUMA node of its own."""
    server.sys.file("sys/devices/system/node/node2/cpulist", "")
    server.table["nvmlDeviceGetMemoryAffinity 1"] = "0x5"
    server.table["nvmlDeviceGetMemoryAffinity 5"] = "0x4"
    assert numas(server) == [0, 0, 0, 0, 1, None, 1, 1]


def test_an_answer_that_fails_is_told_and_takes_no_gpu_away(server: Server) -> None:
    server.fail("nvmlDeviceGetMemoryAffinity 1", 999)
    reading = server.read()
    assert [gpu.numa for gpu in reading.machine.gpus] == [0, None, 0, 0, 1, None, 1, 1]
    assert not reading.unsure
    assert [text for text in said(reading) if "nvmlDeviceGetMemoryAffinity" in text]
