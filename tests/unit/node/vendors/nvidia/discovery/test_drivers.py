"""One story for each driver that is in use, on an HGX H100: what is read, published, tainted and handed out.

What each driver lacks is in tests/fakes/nvml.c, with its source; XID 154 and the field that says which recovery the
driver wants came with 570 (nvml.h).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pynvml
import pytest

from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.slices import resource_slices
from dradriver.node.faults import KINDS, FaultKind
from dradriver.node.mps.mps_files import MpsFolder
from dradriver.node.vendors.nvidia.devices.nvml_control import NvmlControl
from dradriver.topology import profiles
from tests.fakes import nvml
from tests.fakes.hardware import Server, cdi_specification, said
from tests.fakes.instances import in_mig_mode
from tests.fakes.node import a_node, claim, eventually, result
from tests.fakes.server import complete

DRIVERS = ("535.161.08", "550.163.01", "570.172.08", "580.126.09")
TELLS_RECOVERY = ("570.172.08", "580.126.09")
RECOVERY = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
NO_CLUSTER = "0" * 32


@pytest.fixture(params=DRIVERS, ids=lambda version: version.partition(".")[0])
def driver(request: pytest.FixtureRequest) -> str:
    version: str = request.param
    return version


@pytest.fixture
def h100(driver: str, tmp_path: Path) -> Iterator[Server]:
    """Eight GPUs of which the last is in MIG mode, with an instance."""
    machine = in_mig_mode(complete(profiles.load("hgx-h100")), {7: [("3g.40gb", 4)]})
    server = Server(msgspec.structs.replace(machine, driver_version=driver), tmp_path)
    server.table |= {f"nvmlDeviceGetFieldValues {gpu} {RECOVERY} 0": "0" for gpu in range(8)}
    with patch.dict(os.environ, server.environment()):
        yield server


@pytest.mark.slow
def test_each_driver_tells_the_whole_machine(h100: Server) -> None:
    reading = h100.read()
    assert reading.machine == h100.machine
    assert said(reading) == []
    assert not any(reading.faults.values())


@pytest.mark.slow
def test_each_driver_tells_that_a_fabric_is_not_joined_and_only_newer_ones_that_it_is_slow(
    driver: str, h100: Server
) -> None:
    h100.table |= {"nvmlDeviceGetGpuFabricInfoV 1": f"2 0 0 {NO_CLUSTER}", "fabric health 2": "1"}
    faults = h100.read().faults
    found = {gpu.index: [fault.value or fault.said for fault in faults[gpu.uuid]] for gpu in h100.machine.gpus}
    assert found[1] == ["in-progress"]
    assert found[2] == ([] if driver.startswith("535") else ["NVLink fabric: bandwidth is degraded"])


@pytest.mark.slow
def test_what_recovery_the_driver_wants_is_said_by_those_that_know(driver: str, h100: Server) -> None:
    h100.table[f"nvmlDeviceGetFieldValues 3 {RECOVERY} 0"] = "1"
    reading = h100.read()
    gpus = h100.machine.gpus
    tells = driver in TELLS_RECOVERY
    assert [fault.value for fault in reading.faults[gpus[3].uuid]] == (["reset"] if tells else [])
    assert reading.sound == ({gpu.uuid for gpu in gpus if gpu.index != 3} if tells else frozenset())
    assert said(reading) == []


def test_each_driver_tells_its_profiles_and_makes_an_instance(h100: Server, tmp_path: Path) -> None:
    gpu = h100.machine.gpus[7]
    control = NvmlControl(driver_root=nvml.compiled(), mps=MpsFolder(tmp_path / "mps", boot="b"))
    assert control.profiles(gpu.uuid) == gpu.profiles
    (small,) = [profile for profile in gpu.profiles if profile.name == "1g.10gb"]
    h100.table |= {f"nvmlDeviceCreateGpuInstanceWithPlacement 7 {small.id} 0:1": "9"}
    h100.table |= nvml.instance_table("7/gi9", small, 0, {0: 1})
    h100.table["nvmlGpuInstanceCreateComputeInstance 7/gi9 0"] = "0"
    h100.table |= nvml.compute_table("7/gi9/ci0", 0, "7/1", "MIG-00000007-0000-0000-0000-000000000009")
    h100.environment()
    assert control.create_gpu_instance(gpu.uuid, small, 0) == 9
    assert control.create_compute_instance(gpu.uuid, 9) == 0


@pytest.mark.slow
async def test_with_each_driver_an_agent_publishes_hands_out_and_taints(
    driver: str, h100: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An XID is over where the driver says so; with one that does not tell it stays until something shows a reset."""
    monkeypatch.setitem(KINDS, "xid", FaultKind(effect="NoSchedule", words="broken", advice="Look.", leaves_s=0))
    how: dict[str, Any] = {"discovery": "nvml", "driver_root": nvml.compiled(), "host_root": h100.sys.root}
    h100.sys.file("etc/cdi/nvidia.yaml", cdi_specification(h100.machine))
    h100.sys.file("dev/kmsg", f"4,1,1000000,-;NVRM: Xid (PCI:{h100.machine.gpus[5].pci[:-2]}): 48, double bit")

    def taints() -> set[str]:
        """Keys of GPU 5's taints."""
        devices = [device for one in node.slices for device in one["spec"].get("devices", ())]
        own = next(
            device for device in devices if device["name"] == resource_slices.device_name(h100.machine.gpus[5].uuid)
        )
        return {taint["key"].removeprefix("gpu.topology/") for taint in own.get("taints", ())}

    async def bad_row(answer: str, expected: set[str]) -> None:
        h100.table["nvmlDeviceGetRemappedRows 5"] = answer
        h100.environment()
        await eventually(lambda: taints() == expected)

    first, last = (resource_slices.device_name(h100.machine.gpus[position].uuid) for position in (0, 7))
    profile = h100.machine.gpus[7].mig[0].profile_id if h100.machine.gpus[7].mig else None
    async with a_node() as node, node.agent(**how):
        await node.published()
        assert resource_slices.read_machine(msgspec.convert(node.slices, list[ResourceSlice])) == h100.machine
        names = {device["name"] for one in node.slices for device in one["spec"].get("devices", ())}
        assert f"{last}-{profile}-4" in names
        assert last not in names
        asked = node.put_claim(claim("c", results=[result("gpu", first)]))
        (prepared,) = (await node.kubelet.prepare(asked))[asked[2]].devices
        assert f"gpu.topology/gpu={h100.machine.gpus[0].uuid}" in prepared.cdi_device_ids
        if driver not in TELLS_RECOVERY:
            assert taints() == {"xid"}
            await bad_row("0 1 1 0", {"xid", "row-remap-pending"})
            await bad_row("0 1 0 0", {"row-remap-pending"})
        await eventually(lambda: "xid" not in taints())


SAID = (  # where these are missing, something is said of the GPU
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetMemoryInfo",
)


@pytest.mark.slow
def test_what_a_driver_calls_deprecated_is_no_fault_of_its_gpus(h100: Server) -> None:
    """Driver 570 says so of a query that earlier ones answer (``nvidia-smi -q`` of an A100, reset status)."""
    asked = [key for key in h100.table if key.split()[1:2] == ["2"] and not key.startswith(SAID)]
    assert len(asked) > 50
    for key in asked:
        h100.fail(key, pynvml.NVML_ERROR_DEPRECATED)
    reading = h100.read()
    assert said(reading) == []
    assert reading.unsure == frozenset()
    assert not any(reading.faults.values())
