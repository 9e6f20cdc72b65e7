"""Virtual machines, Grace, unified memory and WSL: what can be known is published, what cannot is said."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.errors import DriverError
from dradriver.node.container_edits import DeviceNode, Edits
from dradriver.node.devices.hardware_journal import Made
from dradriver.node.devices.part_records import MigInstance
from dradriver.node.errors import SetupError
from dradriver.node.mps.mps_files import MpsFolder
from dradriver.node.vendors.nvidia.devices.capabilities import SimulatedCapabilities
from dradriver.node.vendors.nvidia.devices.mig_devices_made import Mig
from dradriver.node.vendors.nvidia.devices.mig_packing import MigRequest
from dradriver.node.vendors.nvidia.devices.nvml_control import NvmlControl
from dradriver.node.vendors.nvidia.discovery.nvidia_gpus import READINGS, Hardware
from dradriver.topology import machine_codec
from dradriver.topology.machine import Machine, PathType
from tests.fakes import guests, nvml
from tests.fakes.hardware import Server, cdi_specification, said
from tests.fakes.node import a_node, claim, result


def devices(machine: Machine, modes: Mapping[str, Mode] | None = None) -> list[dict[str, Any]]:
    built = resource_slices.build(machine, node="n", node_uid="u", modes=modes or {})
    return [device for piece in built for device in piece["spec"].get("devices", ())]


HANDED_OUT: dict[str, Callable[[Path], Server]] = {
    "vgpu": guests.vgpu,
    "passed through": guests.passed_through,
    "azure": guests.each_on_its_own_root,
    "grace": lambda folder: guests.grace(folder, memory_nodes=32),
    "unified": guests.unified,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HANDED_OUT)
async def test_an_agent_publishes_such_a_machine_and_hands_out_its_gpus(name: str, tmp_path: Path) -> None:
    server = HANDED_OUT[name](tmp_path)
    how: dict[str, Any] = {"discovery": "nvml", "driver_root": nvml.compiled(), "host_root": server.sys.root}
    server.sys.file("etc/cdi/nvidia.yaml", cdi_specification(server.machine))
    with patch.dict(os.environ, server.environment()):
        async with a_node() as node, node.agent(**how):
            await node.published()
            published = msgspec.convert(node.slices, list[ResourceSlice])
            assert resource_slices.read_machine(published) == server.read().machine
            every = [device for one in node.slices for device in one["spec"].get("devices", ())]
            assert len(every) == len(server.machine.gpus)
            assert not [device for device in every if device.get("taints")]
            asked = node.put_claim(claim("c", results=[result("gpu", every[0]["name"])]))
            (prepared,) = (await node.kubelet.prepare(asked))[asked[2]].devices
            assert prepared.cdi_device_ids


def test_a_vgpu_guest_tells_its_gpus_and_nothing_of_what_is_below_them(tmp_path: Path) -> None:
    server = guests.vgpu(tmp_path)
    reading = server.read()
    assert said(reading) == []
    assert reading.unsure == reading.sound == frozenset()
    assert reading.machine.gpus == server.machine.gpus
    assert reading.machine.virtual
    assert not any(map(any, reading.machine.links))
    (first, _) = devices(reading.machine)
    assert "nvlinkDomain" not in first["attributes"]
    assert first["capacity"]["memory"] == {"value": "20480Mi"}


def test_of_a_mig_backed_guest_the_instance_is_handed_out_as_it_is(tmp_path: Path) -> None:
    server = guests.mig_backed(tmp_path)
    reading = server.read()
    assert said(reading) == []
    assert reading.machine.gpus == server.machine.gpus
    (device,) = devices(reading.machine)
    assert device["name"] == resource_slices.part_name(server.machine.gpus[0].uuid, guests.MIG_BACKED.id, 0)
    assert device["attributes"]["profile"] == {"string": "2g.20gb"}


def test_the_instance_of_a_mig_backed_guest_is_given_to_a_claim_and_left_as_it_was(tmp_path: Path) -> None:
    """Also where the driver does not tell a guest what computes on it."""
    server = guests.mig_backed(tmp_path)
    (gpu,) = server.machine.gpus
    kind = Mig(SimulatedCapabilities(), parent=lambda _: DeviceNode("", ""), common=Edits)
    control = NvmlControl(driver_root=nvml.compiled(), mps=MpsFolder(tmp_path / "mps", boot="b"))
    asked = MigRequest(profile=guests.MIG_BACKED.id, start=0)
    intent = Made(owner="u", number=0, boot="b", kind="mig", device="d", uuid=gpu.uuid, wanted=asked)
    with patch.dict(os.environ, server.environment()):
        (wanted,) = kind.settle(control, [intent], [])
        made = msgspec.structs.replace(intent, wanted=wanted)
        assert gpu.mig is not None
        (done,) = kind.make(control, made)
        assert done.done == MigInstance(instance=0, compute=0, mig=gpu.mig[0].uuid, minor=gpu.minor)
        kind.undo(control, made, [])
    assert not server.file.with_name(f"{server.file.name}.calls").exists()


def test_a_virtual_machine_without_a_pci_tree_still_has_its_switches(tmp_path: Path) -> None:
    part = guests.passed_through(tmp_path, gpus=[0, 1, 2, 3]).read()
    assert [gpu.switch_links for gpu in part.machine.gpus] == [18] * 4
    assert not any(part.faults.values())  # a part of a server misses none of its links
    assert {path for row in part.machine.paths for path in row} == {PathType.SELF, PathType.PHB}
    assert all(gpu.numa is None for gpu in part.machine.gpus)


def test_where_nvml_finds_no_topology_the_path_is_that_of_sys(tmp_path: Path) -> None:
    """``nvmlDeviceGetTopologyCommonAncestor`` may answer "unknown error" there (nvml.h)."""
    reading = guests.each_on_its_own_root(tmp_path).read()
    assert [gpu.numa for gpu in reading.machine.gpus] == [0] * 4 + [1] * 4
    assert reading.machine.paths[0][1] == PathType.NODE
    assert reading.machine.paths[0][7] == PathType.SYS
    assert len({gpu.pcie_root for gpu in reading.machine.gpus}) == 8
    assert not reading.unsure
    assert not any(reading.faults.values())


@pytest.mark.parametrize("memory_nodes", [0, 32])
def test_on_grace_the_gpus_memory_may_be_numa_nodes_without_cpus(memory_nodes: int, tmp_path: Path) -> None:
    machine = guests.grace(tmp_path, memory_nodes=memory_nodes).read().machine
    assert [gpu.numa for gpu in machine.gpus] == [0, 0, 1, 1]
    assert [gpu.c2c_gbps for gpu in machine.gpus] == [223.56] * 4
    assert [node.id for node in machine.numa if node.cpus] == [0, 1]
    assert len(machine.numa) == 2 + memory_nodes
    assert machine_codec.decode(machine_codec.encode(machine)) == machine
    assert len(machine_codec.encode(machine)) < 16 * 1024


def test_a_gpu_that_does_not_tell_its_memory_is_handed_out_whole_and_says_none(tmp_path: Path) -> None:
    server = guests.unified(tmp_path)
    reading = server.read()
    assert said(reading) == [
        "GPU 0: nvmlDeviceGetMemoryInfo: it tells no memory of its own, as on GPUs that use the CPU's memory. "
        "The GPU is not shared, and no pod gets it that requests memory"
    ]
    assert not reading.unsure
    (gpu,) = reading.machine.gpus
    for mode in (Mode(), Mode(shared="time-slicing", memory_overcommit=2.0), Mode(shared="mps", equal_shares=4)):
        (device,) = devices(reading.machine, {gpu.uuid: mode})
        assert device["name"] == resource_slices.device_name(gpu.uuid)
        assert device.keys() == {"name", "attributes"}


def test_wsl_is_left_out_and_said(tmp_path: Path) -> None:
    server = guests.wsl(tmp_path)
    with pytest.raises(DriverError, match="no /dev/nvidiaN, as under WSL, which is not supported"):
        server.read()
    found = Hardware(driver_root=nvml.compiled(), host_root=server.sys.root)
    with patch.dict(os.environ, server.environment()):
        for _ in range(READINGS - 1):
            with pytest.raises(SetupError):
                found.read()
        assert found.read().gpus == ()
    found.close()
