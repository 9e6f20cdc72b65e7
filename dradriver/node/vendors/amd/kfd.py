"""What amdgpu's compute part says of a machine: ``/sys/class/kfd/kfd/topology/nodes``, one folder a CPU or GPU.

Files hold lines ``key value``, decimal (kernel, drivers/gpu/drm/amd/amdkfd/kfd_topology.c). Node numbers may have gaps,
and CPUs may stand between GPUs. What the reader may not see, a GPU that its cgroup has no access to, has empty files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from dradriver.node.discovery import sysfs

NODES: Final = "sys/class/kfd/kfd/topology/nodes"
_LINE: Final = re.compile(r"([a-z_]{1,64}) ([0-9]{1,20})")
_NUMBER: Final = re.compile(r"[0-9]{1,6}")
_XGMI: Final = 11
_PCIE: Final = 2
# Every GPU of a hive has a link of type xGMI to every other; these weights alone are direct ones (RCCL,
# rocm_smi_wrap.cc, rocm_smi_getLinkInfo): 15 is one hop, 13 and 41 are those of partitions.
_DIRECT: Final = frozenset({13, 15, 41})
_MOST_LINKS: Final = 16  # of one pair; the most that is known are 4, between the dies of an MI250
_MOST_NODES: Final = 1024
_GPU_MEMORY: Final = (1, 2)  # kinds of heaps: public and private memory of the GPU
MOST_BYTES: Final = 1 << 50  # far above any part's memory
# The greatest that each can be, by its width in the kernel; of a render node by the width of a minor (kdev_t.h).
_MOST: Final = {
    "unique_id": (1 << 64) - 1,
    "location_id": (1 << 32) - 1,
    "domain": (1 << 32) - 1,
    "device_id": (1 << 16) - 1,
    "vendor_id": (1 << 16) - 1,
    "gfx_target_version": (1 << 32) - 1,
    "drm_render_minor": (1 << 20) - 1,
    "local_mem_size": MOST_BYTES,
}


class KfdNode(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, or a partition of one.

    Attributes:
        number: N of ``nodes/N``.
        gpu_id: What processes' files name it by; 0 where it is not told.
        unique_id: Of the package, the same for all partitions of a GPU; 0 where the part has none, or does not tell it
            to a guest.
        pci: Bus id, as /sys has it, of the PCI function; in a partition the function is the partition's number.
        device: PCI device id in hex: ``740f``.
        vendor: PCI vendor id in hex: ``1002``; empty where it is not told.
        gfx: ``gfx90a``; empty where it is not told.
        render: N of ``/dev/dri/renderDN``; None where it is not told.
        memory_mib: Its memory; 0 where it is not told.
        hive: Of the GPUs that xGMI joins; 0 for none.
        links: Number of direct xGMI links by the other node's number; None where the links cannot be read.
        cpus: Weight of the way to each CPU, by that node's number.
        odd: Names of numbers that none can be; they count as not told.
    """

    number: int
    gpu_id: int
    unique_id: int
    pci: str
    device: str
    gfx: str
    render: int | None
    memory_mib: int
    hive: int
    links: Mapping[int, int] | None
    cpus: Mapping[int, int]
    vendor: str = ""
    odd: tuple[str, ...] = ()

    @property
    def uuid(self) -> str:
        """Return the AMD GPU's identity by KFD, as ROCm prints it: ``GPU-`` and sixteen hex digits."""
        return f"GPU-{self.unique_id:016x}"


class Kfd(msgspec.Struct, frozen=True):
    """What there is.

    Attributes:
        gpus: By number.
        cpus: Numbers of the CPUs' nodes, ascending: the kernel lists NUMA nodes in their order.
        silent: Numbers of nodes that could not be read.
    """

    gpus: tuple[KfdNode, ...]
    cpus: tuple[int, ...]
    silent: tuple[int, ...]


def read(root: Path) -> Kfd | None:
    """Return what KFD, amdgpu's compute part, says below ``root``; None if there is no such driver.

    Args:
        root: Where the host's /sys is.
    """
    folder = root / NODES
    if not folder.is_dir():
        return None
    numbers = sorted(int(name) for name in sysfs.entries(folder) if _NUMBER.fullmatch(name))[:_MOST_NODES]
    gpus: list[KfdNode] = []
    cpus: list[int] = []
    silent: list[int] = []
    # KFD lists CPUs and GPUs alike as nodes: a GPU has SIMD units. Without properties it is not known what a node is.
    for number in numbers:
        properties = _properties(folder / str(number) / "properties")
        if not properties:
            silent.append(number)
        elif properties.get("simd_count", 0):
            gpus.append(_gpu(folder / str(number), number, properties))
        elif properties.get("cpu_cores_count", 1):
            cpus.append(number)
    return Kfd(tuple(gpus), tuple(cpus), tuple(silent))


def _gpu(folder: Path, number: int, properties: Mapping[str, int]) -> KfdNode:
    """Return the GPU that a folder of the driver (KFD) describes.

    A number that is impossible counts as unknown, and its name is in ``odd``.
    """
    impossible = [key for key, most in _MOST.items() if properties.get(key, 0) > most]
    valid = {key: value for key, value in properties.items() if key not in impossible}

    # A PCI address: 8 bits of bus, 5 of device, 3 of function. Memory of the GPU is in banks.
    location = valid.get("location_id", 0) & 0xFFFF
    render = valid.get("drm_render_minor", 0)
    banks = [_properties(folder / "mem_banks" / name / "properties") for name in sysfs.entries(folder / "mem_banks")]
    memory = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _GPU_MEMORY)
    if memory > MOST_BYTES:
        impossible.append("size_in_bytes")
        memory = 0
    links, cpus = _links(folder / "io_links")
    return KfdNode(
        number=number,
        gpu_id=sysfs.number(folder / "gpu_id") or 0,
        unique_id=valid.get("unique_id", 0),
        pci=f"{valid.get('domain', 0):04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}",
        device=f"{valid.get('device_id', 0):04x}",
        gfx=_gfx(valid.get("gfx_target_version", 0)),
        render=render or None,
        memory_mib=(memory or valid.get("local_mem_size", 0)) >> 20,
        hive=valid.get("hive_id", 0),
        links=links,
        cpus=cpus,
        vendor=f"{vendor:04x}" if (vendor := valid.get("vendor_id", 0)) else "",
        odd=tuple(impossible),
    )


def _links(folder: Path) -> tuple[dict[int, int] | None, dict[int, int]]:
    """Return the direct links by node, None where they cannot be read, and the weights of the ways to CPUs."""
    direct: dict[int, int] = {}
    cpus: dict[int, int] = {}
    names = sysfs.entries(folder)
    for name in names:
        said = _properties(folder / name / "properties")
        if "node_to" not in said:
            return None, cpus
        to, weight = said["node_to"], said.get("weight", 0)
        if said.get("type") == _XGMI and weight in _DIRECT:
            direct[to] = _count(said.get("min_bandwidth", 0), said.get("max_bandwidth", 0))
        elif said.get("type") == _PCIE:
            cpus[to] = weight
    return (direct if names else None), cpus


def _count(least: int, most: int) -> int:
    """Return how many links a pair has: max is that of all, min that of one (kfd_crat.c); partitions say 0 for both."""
    return max(1, min(round(most / least), _MOST_LINKS)) if least else 1


def _gfx(version: int) -> str:
    """Return ``gfx90a`` for 90010: major times ten thousand, minor times a hundred, stepping."""
    return f"gfx{version // 10_000}{version // 100 % 100:x}{version % 100:x}" if version else ""


def _properties(path: Path) -> dict[str, int]:
    lines = (_LINE.fullmatch(line.strip()) for line in sysfs.text(path).splitlines())
    return {match[1]: int(match[2]) for match in lines if match is not None}
