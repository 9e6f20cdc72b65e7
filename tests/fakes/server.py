"""Machines of which everything is known, made from profiles, that leave some things open."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from dradriver.topology import cpulist
from dradriver.topology.amd.amd_products import PARTS, PCI_VENDOR
from dradriver.topology.check import check
from dradriver.topology.machine import Cpu, Gpu, Machine, Nic, PathType, PciDevice
from tests.fakes.nvml import link_words

_CPUS = {
    6.0: Cpu(arch="x86_64", vendor="GenuineIntel", family=6, model=79),
    10.0: Cpu(arch="x86_64", vendor="GenuineIntel", family=6, model=85),
    16.0: Cpu(arch="x86_64", vendor="AuthenticAMD", family=25, model=1),
    22.0: Cpu(arch="x86_64", vendor="GenuineIntel", family=6, model=143),
    40.0: Cpu(arch="x86_64", vendor="GenuineIntel", family=6, model=207),
}
_KINDS = {"infiniband": "0x020700", "roce": "0x020000", "efa": "0x020000", "ethernet": "0x020000"}
_VENDORS = {"efa": "1d0f"}
_GPUS = {  # by product: AMD's newer parts are accelerators to PCI, older ones displays without a console
    part.product: ("0x038000" if part.pcie_gbps < 48 else "0x120000", f"{PCI_VENDOR}:{device}:{PCI_VENDOR}:0b0c")
    for device, part in PARTS.items()
}


def complete(machine: Machine) -> Machine:
    """The machine with what it leaves open filled in, so that hardware can say it: CPU model, PCI tree, bus ids."""
    roots = [*{gpu.pcie_root: None for gpu in machine.gpus}]
    gpus = []
    for i, gpu in enumerate(machine.gpus):
        form = re.fullmatch(r"pci[0-9a-f]{4}:[0-9a-f]{2}", gpu.pcie_root or "")
        number = i if gpu.pcie_root is None else roots.index(gpu.pcie_root)
        root = gpu.pcie_root if form else f"pci00ee:{number:02x}"
        gpus.append(msgspec.structs.replace(gpu, pcie_root=root, pci=gpu.pci or f"00ee:{i:02x}:00.0"))
    nics = []
    for n, nic in enumerate(machine.nics):
        pci = "" if nic.members else nic.pci or f"00ef:{n:02x}:00.0"
        nics.append(msgspec.structs.replace(nic, pci=pci, kind=nic.kind or "infiniband", gbps=nic.gbps or 25.0))
    count = 1 + max((_last(node.cpus) for node in machine.numa), default=0)
    numa = tuple(msgspec.structs.replace(n, cpumap=cpulist.to_mask(n.cpus, count=count)) for n in machine.numa)
    whole = msgspec.structs.replace(
        machine, gpus=tuple(gpus), nics=tuple(nics), numa=numa, cpu=machine.cpu or _CPUS[machine.socket_gbps]
    )
    return check(msgspec.structs.replace(whole, pci=tree(whole)))


def tree(machine: Machine) -> tuple[PciDevice, ...]:
    """A PCI tree in which the machine's paths are true: devices that are PIX share a bridge, PXB one above theirs."""
    devices: list[Gpu | Nic] = [*machine.gpus, *machine.nics]
    count = len(machine.gpus)

    def path(a: int, b: int) -> PathType:
        a, b = min(a, b), max(a, b)
        if b < count:
            return machine.paths[a][b]
        return machine.nic_paths[b - count][a] if a < count else PathType.SYS

    below: dict[str | None, list[PciDevice]] = {}

    def bridge(above: str | None, numa: int | None) -> str:
        number = sum(map(len, below.values()))
        busid = f"00ff:{number >> 5:02x}:{number & 31:02x}.0"
        ids = "1000:c030:1000:0001"
        below.setdefault(above, []).append(PciDevice(busid, None, numa, "0x060400", ids, "32.0 GT/s PCIe", 16))
        return busid

    for outer in groups(range(len(devices)), lambda a, b: path(a, b) <= PathType.PXB):
        inner = groups(outer, lambda a, b: path(a, b) <= PathType.PIX)
        numa = devices[outer[0]].numa
        top = bridge(None, numa) if len(inner) > 1 else None
        for members in inner:
            above = bridge(top, numa) if len(outer) > 1 else None
            for device in (devices[i] for i in members):
                if device.pci:
                    below.setdefault(above, []).append(_listed(device, flat=bool(machine.virtual) and above is None))
    return arranged(below)


def arranged(below: dict[str | None, list[PciDevice]]) -> tuple[PciDevice, ...]:
    """The devices below each bridge as one list: parents first, by bus id on each level."""
    found: list[PciDevice] = []

    def add(above: str | None, parent: int | None) -> None:
        for device in sorted(below.get(above, ()), key=lambda one: one.busid):
            found.append(PciDevice(device.busid, parent, *msgspec.structs.astuple(device)[2:]))
            add(device.busid, len(found) - 1)

    add(None, None)
    return tuple(found)


def _listed(device: Gpu | Nic, *, flat: bool) -> PciDevice:
    """The device; one directly below the root complex has no port, whose width is 0 then."""
    if isinstance(device, Gpu):
        kind, ids = _GPUS.get(device.product, ("0x030200", "10de:2330:10de:16c1"))
        speed, width = link_words(device.pcie_gbps)
    else:
        vendor = _VENDORS.get(device.kind, "15b3")
        kind, ids = _KINDS[device.kind], f"{vendor}:1021:{vendor}:0041"
        speed, width = "16.0 GT/s PCIe", 16
    return PciDevice(device.pci, None, device.numa, kind, ids, speed, 0 if flat else width)


def groups(members: range | list[int], near: Callable[[int, int], bool]) -> list[list[int]]:
    """The members in groups: those that a chain of near ones joins, each group and all groups by first member."""
    left, found = list(members), []
    while left:
        group, todo = [], [left.pop(0)]
        while todo:
            one = todo.pop()
            group.append(one)
            close = [other for other in left if near(one, other)]
            left = [other for other in left if other not in close]
            todo += close
        found.append(sorted(group))
    return found


def _last(cpus: str) -> int:
    """Return the highest CPU number in a list, -1 for an empty one."""
    return max((int(part.rpartition("-")[2]) for part in cpus.split(",") if part), default=-1)
