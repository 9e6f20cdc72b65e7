"""The description of a machine by amdgpu's compute part (KFD): ``/sys/class/kfd/kfd/topology/nodes``.

Each CPU or GPU has one folder. Files have lines ``key value``, decimal (kernel,
drivers/gpu/drm/amd/amdkfd/kfd_topology.c). Node numbers may have gaps, and CPUs may be between GPUs. If the reader's
cgroup has no access to a GPU, the files of that GPU are empty.
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
    """One GPU, or a partition of a GPU, as amdgpu's compute part (KFD) lists it.

    Attributes:
        number: N of ``nodes/N``.
        gpu_id: The GPU's number in the files of processes; 0 if unknown.
        unique_id: Id of the GPU, the same for all its partitions; 0 if the GPU has none, or hides it from a virtual
            machine.
        pci: Bus id of the PCI function, as in /sys; in a partition the function is the partition's number.
        device: PCI device id in hex: ``740f``.
        vendor: PCI vendor id in hex: ``1002``; empty if unknown.
        gfx: Architecture: ``gfx90a``; empty if unknown.
        render: N of ``/dev/dri/renderDN``; None if unknown.
        memory_mib: Memory in MiB; 0 if unknown.
        hive: Id of the group of GPUs that are connected by xGMI; 0 for none.
        links: Number of direct xGMI links by the other node's number; None if the links cannot be read.
        cpus: Weight of the path to each CPU, by the number of the CPU's node.
        odd: Names of properties with impossible values; these values count as unknown.
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
        """Return the uuid of an AMD GPU, as ROCm prints it: ``GPU-`` and sixteen hex digits."""
        return f"GPU-{self.unique_id:016x}"


class Kfd(msgspec.Struct, frozen=True):
    """The GPUs and CPUs of a machine by KFD.

    Attributes:
        gpus: The GPUs, by number.
        cpus: Numbers of the CPUs' nodes, ascending. The kernel lists them in the order of the NUMA nodes.
        silent: Numbers of nodes that could not be read.
    """

    gpus: tuple[KfdNode, ...]
    cpus: tuple[int, ...]
    silent: tuple[int, ...]


def read(root: Path) -> Kfd | None:
    """Return the description of the machine by KFD, amdgpu's compute part; None if the driver is not loaded.

    Args:
        root: Folder that contains the host's /sys.
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

    An impossible number counts as unknown, and ``odd`` has its name.
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
    """Return a GPU's direct links to each other GPU, and its distance to each CPU.

    Both are by the node's number in KFD. The first has the numbers of links; it is None if the links cannot be read.
    The distance is the weight of the path.
    """
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
    """Return the number of links between two GPUs, from two bandwidths of the driver.

    ``most`` is the bandwidth of all links together, ``least`` the bandwidth of one link (kfd_crat.c). For partitions
    both are 0; then the result is 1.
    """
    return max(1, min(round(most / least), _MOST_LINKS)) if least else 1


def _gfx(version: int) -> str:
    """Return the name of an architecture from the driver's number: ``gfx90a`` for 90010.

    The number is 10000 x major + 100 x minor + stepping. The name has minor and stepping in hex.
    """
    return f"gfx{version // 10_000}{version // 100 % 100:x}{version % 100:x}" if version else ""


def _properties(path: Path) -> dict[str, int]:
    lines = (_LINE.fullmatch(line.strip()) for line in sysfs.text(path).splitlines())
    return {match[1]: int(match[2]) for match in lines if match is not None}
