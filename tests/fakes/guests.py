"""Machines that are no server of one's own: what NVML and /sys do not tell in virtual machines, on Grace, under WSL.

Each is a ``Server`` of which something was taken away. Sources: nvml.h (which functions may say "not supported", and of
what); NVIDIA's own captures of ``nvidia-smi -q -x`` in NVIDIA/k8s-test-infra, folder tests/e2e/go/assertions/nvidiasmi/
testdata/hardware (whole GPUs passed through to virtual machines of several clouds, GB200, GB300); and the issues named
below. None was seen by running the agent there.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from dradriver.topology import profiles
from dradriver.topology.machine import MigDevice, MigProfile
from tests.fakes import nvml
from tests.fakes.hardware import Server
from tests.fakes.server import complete

# What of a physical GPU a guest with a part of it is not told: links and fabric, MIG, ECC and rows, what the driver
# wants done, power, PCIe (TensorRT-LLM issue 1861 on GRID vGPUs: links and PCIe; nvidia_gpu_exporter issue 384: rows).
_PHYSICAL = (
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetGpuInstance",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMaxPcieLink",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetNvLink",
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetPowerManagement",
    "nvmlDeviceGetTopologyCommonAncestor",
)
_NOR_IF_MIG_BACKED = tuple(one for one in _PHYSICAL if "Instance" not in one and "Mig" not in one)
# All that a MIG-backed guest has, numbered from 0.
MIG_BACKED = MigProfile(id=0, name="2g.20gb", compute=2, memory_mib=20096, most=1, starts=(0,), size=8)


def vgpu(folder: Path, *, gpus: int = 2) -> Server:
    """A guest with time-sliced vGPUs of 20 GB of an H100."""
    whole = complete(profiles.load("h100-x8-flat-vm").subset(range(gpus)))
    machine = msgspec.structs.replace(
        whole,
        gpus=tuple(
            msgspec.structs.replace(
                gpu,
                product="NVIDIA H100-20C",
                memory_mib=20480,
                power_watts=0,
                pcie_gbps=12.0,  # what NCCL counts where it is not known
                switch_links=0,
                profiles=(),
            )
            for gpu in whole.gpus
        ),
        links=tuple((0,) * gpus for _ in range(gpus)),
        link_gbps=0.0,
    )
    server = Server(machine, folder)
    _untold(server, _PHYSICAL)
    for gpu in machine.gpus:  # a virtual function's link
        device = server.sys.device(gpu.pci)
        (device / "max_link_speed").write_text("Unknown\n")
        (device / "max_link_width").write_text("0\n")
    return server


def mig_backed(folder: Path) -> Server:
    """A guest with a vGPU that is a MIG instance: MIG mode is on, and nothing of it can be changed from there."""
    server = vgpu(folder, gpus=1)
    device = MigDevice(0, "MIG-00000000-0000-0000-0000-000000000001", 0, 0, MIG_BACKED.name, 20096, 0, 0)
    gpu = msgspec.structs.replace(server.machine.gpus[0], mig=(device,), profiles=(MIG_BACKED,))
    server.machine = msgspec.structs.replace(server.machine, gpus=(gpu,))
    server.table = nvml.table(server.machine)
    _untold(server, _NOR_IF_MIG_BACKED)
    server.table |= nvml.instance_table("0/gi0", MIG_BACKED, 0, {1: 2})
    server.table |= nvml.compute_table("0/gi0/ci0", 1, "0/0", device.uuid)
    for refused in ("nvmlDeviceSetMigMode 0 0", "nvmlGpuInstanceDestroy 0/gi0"):
        server.fail(refused, 4)  # NVML_ERROR_NO_PERMISSION
    return server


def passed_through(folder: Path, *, gpus: Collection[int] = range(8)) -> Server:
    """A virtual machine with whole GPUs of an HGX H100 and no PCI tree: NVSwitches are the hypervisor's."""
    machine = profiles.load("h100-x8-flat-vm").subset(sorted(gpus))
    return Server(complete(machine), folder)


def each_on_its_own_root(folder: Path) -> Server:
    """The same where each GPU has a PCI domain below VMBus (Azure): it has a NUMA node, and no bridge above it."""
    server = passed_through(folder)
    devices = server.sys.root / "sys/bus/pci/devices"
    for number, gpu in enumerate(server.machine.gpus):
        root = f"sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/4750500{number}-0001-0000-3130-444531454238"
        place = server.sys.root / root / f"pci{number + 1:04x}:00" / gpu.pci
        place.parent.mkdir(parents=True)
        server.sys.device(gpu.pci).rename(place)
        (place / "numa_node").write_text(f"{number // 4}\n")
        (devices / gpu.pci).unlink()
        (devices / gpu.pci).symlink_to(place)
        for other in range(8):
            if other != number:
                server.table[f"nvmlDeviceGetTopologyCommonAncestor {gpu.index} {other}"] = "!999"
    return server


def grace(folder: Path, *, memory_nodes: int) -> Server:
    """A tray of a GB200 rack with so many NUMA nodes that are the GPUs' memory; none in CDMM mode."""
    server = Server("gb200-nvl72-tray", folder)
    for node in range(2, 2 + memory_nodes):
        server.sys.file(f"sys/devices/system/node/node{node}/cpulist", "")
        server.sys.file(f"sys/devices/system/node/node{node}/cpumap", "00000000,00000000")
    return server


def unified(folder: Path) -> Server:
    """A DGX Spark: GPU and CPU share their memory, and NVML tells none (dra-driver-nvidia-gpu issue 1073)."""
    whole = profiles.load("gb200-nvl72-tray").subset([0])
    gpu = msgspec.structs.replace(whole.gpus[0], product="NVIDIA GB10", memory_mib=0, profiles=(), fabric="")
    server = Server(complete(msgspec.structs.replace(whole, gpus=(gpu,))), folder)
    _untold(server, ("nvmlDeviceGetMemoryInfo",))
    return server


def wsl(folder: Path) -> Server:
    """Windows' subsystem for Linux: GPUs without device nodes of their own (dra-driver-nvidia-gpu issue 1201)."""
    server = passed_through(folder, gpus=[0])
    _untold(server, ("nvmlDeviceGetMinorNumber", *_PHYSICAL))
    return server


def _untold(server: Server, functions: tuple[str, ...]) -> None:
    server.table = {key: answer for key, answer in server.table.items() if not key.startswith(functions)}
