"""Facts about a server from the kernel: NUMA nodes, CPU model, name.

Tests, and agents in a pod, read these facts in a copy of /sys below another root folder than ``/``. A fact that cannot
be read, or that has an unknown form, is left empty. So one file with odd content never hides a whole machine.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from dradriver.topology.cpulist import is_cpu_list
from dradriver.topology.machine import Cpu, NumaNode
from dradriver.topology.natural import natural

CPUINFO: Final = "proc/cpuinfo"  # below a root; a container's is the host's
_MOST_BYTES: Final = 65_536  # of one file; flags of /proc/cpuinfo's first CPU stand in its first 4 KB
_CPUMAP = re.compile(r"[0-9a-f]{1,8}(,[0-9a-f]{8})*")
_NODE = re.compile(r"node([0-9]{1,6})")
_AMAZON = "Amazon EC2"  # of its virtual machines and of its servers, whose product is g5g.metal or the like
_GUEST_VENDORS = ("QEMU", "KubeVirt", "Xen", "VMware", "OpenStack", "Parallels", "innotek")
_GUEST_PRODUCTS = (
    "Virtual Machine",  # Hyper-V, Azure, KVM
    "KVM",
    "HVM domU",  # Xen
    "Standard PC",  # QEMU
    "Google Compute Engine",
    "OpenStack",
    "Alibaba Cloud ECS",
    "VirtualBox",
)
_NUMBER = re.compile(r"-?[0-9]{1,12}")


def text(path: Path) -> str:
    """Return the text of a file of /sys, without blanks at both ends; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace").strip()
    except (OSError, ValueError):  # ValueError: a part of the path came from another file and can be none
        return ""


def number(path: Path) -> int | None:
    """Return the whole number in a file of /sys; None if the file has no number."""
    found = text(path)
    return int(found) if _NUMBER.fullmatch(found) else None


def entries(folder: Path) -> list[str]:
    """Return the names in a folder of /sys in natural order; empty if the folder cannot be read.

    A name that is not printable text is left out. (For a byte that is not UTF-8, ``os.listdir`` returns a surrogate,
    which is not printable.)
    """
    try:
        return sorted(filter(str.isprintable, os.listdir(folder)), key=natural)
    except (OSError, ValueError):
        return []


def numa_nodes(root: Path) -> tuple[NumaNode, ...]:
    """Return all NUMA nodes that /sys has, by id. NUMA nodes without CPUs are included."""
    folder = root / "sys/devices/system/node"
    ids = sorted({int(match[1]) for name in entries(folder) if (match := _NODE.fullmatch(name))})
    nodes = []
    for node in ids:
        cpus = text(folder / f"node{node}/cpulist")
        cpumap = text(folder / f"node{node}/cpumap")
        nodes.append(
            NumaNode(
                id=node,
                cpus=cpus if is_cpu_list(cpus) else "",
                cpumap=cpumap if _CPUMAP.fullmatch(cpumap) else "",
            )
        )
    return tuple(nodes)


def cpu(root: Path, *, proc_root: Path | None = None) -> tuple[Cpu | None, bool | None]:
    """Return the model of the server's first CPU, and whether the server is a virtual machine.

    Both values come from /sys and /proc. Each is None if unknown. An x86 CPU has a flag for virtual machines. For other
    CPUs the vendor and product names of the firmware decide.

    Args:
        root: Folder that contains the host's /sys.
        proc_root: Folder that contains /proc; None for ``root``.
    """
    # The fields of the first CPU in /proc/cpuinfo; x86 has "vendor_id", ARM "CPU implementer", POWER "cpu".
    fields: dict[str, str] = {}
    for line in text((proc_root or root) / CPUINFO).splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.removeprefix(" "))
    if "vendor_id" in fields:
        family, model = (fields.get(key, "").strip() for key in ("cpu family", "model"))
        numbers = {"family": _decimal(family), "model": _decimal(model)}
        vendor = fields["vendor_id"][:32]  # whole: to NCCL the blanks of "  Shanghai  " are part of the name
        return Cpu(arch="x86_64", vendor=vendor, **numbers), "hypervisor" in fields.get("flags", "").split()
    virtual = _virtual(root)
    if "CPU implementer" in fields:
        return Cpu(arch="arm64"), virtual
    if fields.get("cpu", "").startswith("POWER"):
        return Cpu(arch="ppc64"), virtual
    return None, virtual


def _decimal(digits: str) -> int:
    return int(digits) if re.fullmatch(r"[0-9]{1,6}", digits) else 0


def _virtual(root: Path) -> bool | None:
    """Return whether the server is a virtual machine, by its firmware's vendor and product names.

    The result is None if the firmware has neither name.
    """
    vendor, product = (text(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name"))
    if vendor == _AMAZON:
        return ".metal" not in product
    if not vendor and not product:
        return None
    return vendor.startswith(_GUEST_VENDORS) or any(words in product for words in _GUEST_PRODUCTS)


def product_name(root: Path) -> str:
    """Return the server's product name from /sys, as the firmware has it (``DGXH100``); empty if there is none."""
    return text(root / "sys/class/dmi/id/product_name")[:128]
