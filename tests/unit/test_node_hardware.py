"""The node agent on hardware: GPUs that come and go, drivers that come late, what a claim is given."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from dradriver.api import slices
from dradriver.api.objects import ResourceSlice
from dradriver.node.discovery import nics, sysfs
from dradriver.node.discovery.hardware import Hardware
from dradriver.node.errors import RestartError
from tests.fakes import nvml
from tests.fakes.hardware import Server, cdi_specification, without
from tests.fakes.node import a_node, claim, eventually, result

LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, DRIVER_MISMATCH = 12, 9, 18


@pytest.fixture
def dgx1(tmp_path: Path) -> Iterator[Server]:
    """A DGX-1 whose library answers as its table says while the test runs."""
    server = Server("dgx1-v100", tmp_path)
    with patch.dict(os.environ, server.environment()):
        yield server


def hardware(server: Server) -> Hardware:
    return Hardware(driver_root=nvml.compiled(), host_root=server.sys.root)


def test_the_agent_logs_a_problem_once_and_its_end(dgx1: Server, caplog: pytest.LogCaptureFixture) -> None:
    found = hardware(dgx1)
    caplog.set_level(logging.INFO)
    dgx1.table["lost 3"] = "0"
    dgx1.environment()
    machines = [found.read() for _ in range(3)]
    assert [without(machine) for machine in machines] == [without(dgx1.machine, 3)] * 3
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "GPU 3: nvmlDeviceGetHandleByIndex: GPU is lost (15)" in caplog.text
    del dgx1.table["lost 3"]
    dgx1.environment()
    assert found.read() == dgx1.machine
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO", "INFO"]


@pytest.mark.parametrize("code", [LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, DRIVER_MISMATCH])
def test_until_a_driver_answers_there_are_no_gpus(code: int, dgx1: Server, caplog: pytest.LogCaptureFixture) -> None:
    found = hardware(dgx1)
    dgx1.fail("nvmlInitWithFlags", code)
    dgx1.environment()
    assert [found.read().gpus for _ in range(2)] == [(), ()]
    assert len(caplog.records) == 1
    assert "machine: no GPUs: nvmlInit: " in caplog.text
    del dgx1.table["nvmlInitWithFlags"]
    dgx1.environment()
    assert found.read() == dgx1.machine


def test_a_node_whose_gpus_are_all_lost_has_none(dgx1: Server) -> None:
    dgx1.table |= {f"lost {index}": "0" for index in range(8)}
    dgx1.environment()
    assert hardware(dgx1).read().gpus == ()


def test_a_driver_that_is_replaced_needs_a_process_with_its_own_library(dgx1: Server) -> None:
    found = hardware(dgx1)
    assert found.read() == dgx1.machine
    dgx1.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    dgx1.environment()
    assert found.read().gpus == ()
    dgx1.fail("nvmlInitWithFlags", DRIVER_MISMATCH)
    dgx1.environment()
    with pytest.raises(RestartError, match="the driver was replaced, start again with its new library"):
        found.read()


def test_a_machine_that_cannot_be_looked_at_has_no_gpus(
    dgx1: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/sys/bus/pci/devices")

    monkeypatch.setattr(nics, "read_nics", refuse)
    assert hardware(dgx1).read().gpus == ()
    assert "machine: no GPUs: [Errno 13] Permission denied: '/sys/bus/pci/devices'" in caplog.text


def test_the_cpu_is_the_agents_own_where_the_hosts_proc_is_not_mounted(dgx1: Server) -> None:
    """A container's /proc/cpuinfo is the host's, so that only the host's /sys must be there."""
    (dgx1.sys.root / "proc/cpuinfo").unlink()
    assert hardware(dgx1).read().cpu == sysfs.cpu(dgx1.sys.root, proc_root=Path("/"))[0]
    assert dgx1.read().machine.cpu is None  # a reading that names its root has that root's alone


async def test_an_agent_publishes_what_it_reads_and_hands_it_out_with_nvidias_own_specification(dgx1: Server) -> None:
    device = slices.device_name(dgx1.machine.gpus[2].uuid)
    how: dict[str, Any] = {"discovery": "nvml", "driver_root": nvml.compiled(), "host_root": dgx1.sys.root}
    file = dgx1.sys.file("etc/cdi/nvidia.yaml", cdi_specification(dgx1.machine))
    async with a_node() as node, node.agent(**how):
        await node.published()
        assert slices.read_machine(msgspec.convert(node.slices, list[ResourceSlice])) == dgx1.machine
        asked = node.put_claim(claim("c", results=[result("gpu", device)]))
        (prepared,) = (await node.kubelet.prepare(asked))[asked[2]].devices
        (spec,) = node.specs.values()
        (ours,) = spec["devices"]
        assert list(prepared.cdi_device_ids) == [
            f"nvidia.com/gpu={dgx1.machine.gpus[2].uuid}",
            f"gpu.topology/claim={ours['name']}",
        ]
        assert ours["containerEdits"].keys() == {"env", "mounts"}
        assert ours["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
        dgx1.table["lost 2"] = "0"
        dgx1.environment()
        await eventually(lambda: len(node.slices[0]["spec"]["devices"]) == 7)
        file.unlink()
        await eventually(lambda: node.slices == [])


def test_a_gpu_that_no_specification_names_is_left_out(dgx1: Server, caplog: pytest.LogCaptureFixture) -> None:
    folder = dgx1.sys.root / "etc/cdi"
    found = Hardware(driver_root=nvml.compiled(), host_root=dgx1.sys.root, cdi=(folder,))
    assert found.read().gpus == ()
    dgx1.sys.file("etc/cdi/nvidia.json", cdi_specification(dgx1.machine.subset([0, 1, 2, 3, 5, 6, 7])))
    assert without(found.read()) == without(dgx1.machine, 4)
    assert caplog.text.count("run nvidia-ctk cdi generate") == 8
