"""Converts a ``Machine`` to a topology file for NCCL 2.18 to 2.30. The file leaves the NVLinks to the driver.

The file has every NUMA node with all facts that NCCL needs of a CPU, and the PCI tree with all facts of /sys. A missing
fact does harm if one rank (a process of the job) can add it and another rank cannot: NCCL would then see one switch as
two, with a 32nd of the bandwidth in the worst case. The file has no ``<gpu>``, so that NCCL asks NVML for the links,
and no ``<net>``: NICs are plain PCI devices. If the machine has a PCI tree and is known not to be virtual, the file has
no NICs, because NCCL finds them in /sys.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dradriver.reason import capitalized
from dradriver.topology import cpulist
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Cpu, Machine, NumaNode, PciDevice
from dradriver.topology.nccl import nccl_bandwidths
from dradriver.topology.nccl.checker import check
from dradriver.topology.nccl.child_limits import MAX_CHILDREN, wanted_nodes, with_switches_above_nics
from dradriver.topology.nccl.device_tree import IDS
from dradriver.topology.nccl.host_paths import with_paths
from dradriver.topology.nccl.invented_switches import BRIDGE, classes, invent, numaid
from dradriver.topology.vendors import NVIDIA

MOST_ELEMENTS = 200  # of 256: NCCL counts again after merging the trees of all ranks, with NICs and GPUs added
MOST_TEXT = 250
_MOST_SHOWN = 120  # letters of a line that is not written
_BUS_ID = len("0000:06:00.0")  # NCCL compares letter by letter, and writes four digits of domain
_ARCHS = {"amd64": "x86_64", "x64": "x86_64", "aarch64": "arm64", "ppc64le": "ppc64"}
_VENDORS = {"intel": "GenuineIntel", "amd": "AuthenticAMD"}
VIRTUAL_PATH = "/var/run/nvidia-topologyd/virtualTopology.xml"  # where NCCL looks without being told


def write(machine: Machine, *, like: Machine | None = None, gpus: Sequence[int] | None = None) -> str:
    """Return the text of an NCCL topology file, written for the machine.

    Args:
        machine: Its bus ids and NUMA nodes are written. A machine from a profile has no PCI tree. For it, switches that
            give the same paths are invented, with bus ids that no server has.
        like: The server that a virtual machine runs on. Its paths between GPUs and their NICs replace the paths of
            ``machine`` (``host_paths.with_paths``; ``host_paths.lost`` says what a file cannot hold).
        gpus: Positions of the GPUs that the file is for, such as the GPUs of a container; None for all. Other GPUs are
            left out, and so are NICs that are nearer to one of the other GPUs.

    Raises:
        TopologyError: The GPUs are not NVIDIA's, the machine lacks a fact that a file needs, or the devices of ``like``
            cannot be matched. Or ``check`` finds an error in the file, or the file is larger than NCCL reads safely.
    """
    if machine.vendor is not NVIDIA:
        raise TopologyError(f"gpus: {machine.vendor.library} finds the machine by itself. Only NCCL needs a file.")
    # What /sys says of each device of this machine. The paths of ``like`` replace the tree, but not these facts.
    device_of_busid = {device.busid: device for device in machine.pci}
    if like is not None:
        machine = with_paths(machine, like=like)
    if gpus is not None:
        machine = _part_for_gpus(machine, gpus)
    if machine.cpu is None:
        raise TopologyError(
            "cpu: the CPUs' model is not known, and NCCL refuses files without it. Name it (--cpu), describe the "
            "machine by a profile or an NCCL dump, or run this command on the node."
        )
    cpu = _known_cpu(machine.cpu)
    for gpu in machine.gpus:
        if len(gpu.pci) != _BUS_ID:
            raise TopologyError(
                f"GPU{gpu.index}: bus id {gpu.pci!r} is invalid in a file. Use a bus id with a domain of four digits."
            )

    # GPUs, NICs and the bridges above them, parents first, as NCCL writes the facts of /sys. If a CPU has more NICs
    # than NCCL 2.18 to 2.20 have room for, switches above the NICs are invented.
    pci_classes = classes(machine)
    devices = with_switches_above_nics(
        [
            _in_nccl_words(_with_sys_facts(device, device_of_busid.get(device.busid)), pci_classes)
            for device in _devices_to_write(machine)
        ]
    )
    listed = {device.busid for device in devices}
    for gpu in machine.gpus:
        if gpu.pci not in listed:
            raise TopologyError(f"pci: the tree lacks GPU{gpu.index} ({gpu.pci})")
    nodes = _nodes_to_write(machine, devices)
    elements = 1 + len(nodes) + len(devices)
    if elements > MOST_ELEMENTS:
        raise TopologyError(
            f"the file would have {elements} elements. NCCL reads 255 after it merges the trees of all ranks, so "
            f"at most {MOST_ELEMENTS} are safe."
        )
    if len(nodes) > MAX_CHILDREN:
        raise TopologyError(
            f"<system>: the server has {len(nodes)} NUMA nodes with CPUs or devices, and NCCL 2.18 to 2.20 have "
            f"room for {MAX_CHILDREN}. Configure fewer NUMA nodes (NPS, SNC)."
        )
    lines = ['<system version="1">']
    for node in nodes:
        # The devices directly below the CPU; ``_children`` writes what is below each, indented by its depth.
        root_positions = [i for i, d in enumerate(devices) if d.parent is None and numaid(d) == node.id]
        lines += _element("cpu", _cpu(node, cpu), _children(devices, root_positions, 2), 1)
    text = "\n".join([*lines, "</system>"]) + "\n"

    # The file is checked like any other, so nothing is written that NCCL would misread.
    error_finding = next((finding for finding in check(text) if finding.error), None)
    if error_finding is not None:
        place = text.splitlines()[error_finding.line - 1].strip()[:_MOST_SHOWN]
        raise TopologyError(f"{place}: {error_finding.problem}. {capitalized(error_finding.cure)}.")
    return text


def without_rate(machine: Machine) -> list[str]:
    """Return the bus ids of devices whose PCIe rate the written file does not contain.

    ``gputopo nccl write`` warns about them: NCCL counts Gen 3 for a device without a rate.
    """
    return [device.busid for device in _devices_to_write(machine) if not nccl_bandwidths.known_speed(device.link_speed)]


def write_file(text: str, path: Path) -> None:
    """Write an NCCL topology file to ``path`` in one atomic step, because NCCL may be reading it.

    Raises:
        TopologyError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fchmod(descriptor, 0o644)
                os.fsync(descriptor)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise TopologyError(f"{path}: cannot be written: {error}") from error


def _part_for_gpus(machine: Machine, gpus: Sequence[int]) -> Machine:
    near = [n for n, row in enumerate(machine.nic_paths) if min(row) == min(row[i] for i in gpus)]
    part = machine.subset(gpus)
    return msgspec.structs.replace(
        part,
        nics=tuple(machine.nics[n] for n in near),
        nic_paths=tuple(part.nic_paths[n] for n in near),
        nic_pairs=None,
    )


def _devices_to_write(machine: Machine) -> tuple[PciDevice, ...]:
    """Return the GPUs, the NICs, and the bridges above them, parents first.

    NICs are left out if the machine has a PCI tree and is known not to be virtual.
    """
    tree = machine.pci or invent(machine)
    leaves = {gpu.pci for gpu in machine.gpus}
    if machine.virtual is not False or not machine.pci:
        leaves |= {nic.pci for nic in machine.nics if len(nic.pci) <= _BUS_ID}  # others NCCL finds, but by no such name
    keep: set[int] = set()
    for i, device in enumerate(tree):
        above: int | None = i if device.busid in leaves else None
        while above is not None and above not in keep:
            keep.add(above)
            above = tree[above].parent
    place = {old: new for new, old in enumerate(sorted(keep))}
    return tuple(
        msgspec.structs.replace(tree[i], parent=None if (up := tree[i].parent) is None else place[up])
        for i in sorted(keep)
    )


def _with_sys_facts(device: PciDevice, known: PciDevice | None) -> PciDevice:
    """Return ``device`` with the facts that /sys has about it, such as its PCIe rate.

    ``device`` lacks these facts if its place in the PCI tree comes from another machine, the host. ``known`` is the
    device as /sys shows it; None if it is not known.
    """
    if known is None:
        return device
    device = msgspec.structs.replace(device, kind=known.kind or device.kind, ids=known.ids)
    if nccl_bandwidths.lane_rate(known.link_speed) is None:
        return device
    return msgspec.structs.replace(device, link_speed=known.link_speed, link_width=known.link_width)


def _in_nccl_words(device: PciDevice, kinds: Mapping[str, str]) -> PciDevice:
    """Return ``device`` with its PCI class, and with its PCIe rate as NCCL spells it.

    ``kinds`` are the known PCI classes by bus id. A rate that NCCL does not know becomes empty; NCCL then assumes Gen
    3.
    """
    kind = device.kind or kinds.get(device.busid, BRIDGE)
    return msgspec.structs.replace(device, kind=kind, link_speed=nccl_bandwidths.known_speed(device.link_speed))


def _known_cpu(cpu: Cpu) -> Cpu:
    """Return ``cpu`` with architecture and vendor as NCCL spells them."""
    arch = _ARCHS.get(cpu.arch.lower(), cpu.arch)
    return msgspec.structs.replace(cpu, arch=arch, vendor=_VENDORS.get(cpu.vendor.lower(), cpu.vendor))


def _nodes_to_write(machine: Machine, devices: Sequence[PciDevice]) -> list[NumaNode]:
    """Return the NUMA nodes to write, also nodes without devices.

    NCCL 2.21 to 2.26 fails if a node is missing. A machine's source can name only the nodes of its GPUs (topo -m), and
    ``devices`` can be on other nodes. So the result has all numbers up to the last one, if this is below 32. A node
    that does not exist does no harm in the file.
    """
    known = {node.id: node for node in wanted_nodes(machine)}
    used = {numaid(device) for device in devices}
    last = max(used | known.keys())
    if last < MAX_CHILDREN:
        used.update(range(last))
    for numa in used:
        known.setdefault(numa, NumaNode(id=numa))
    return [known[numa] for numa in sorted(known)]


def _cpu(node: NumaNode, cpu: Cpu) -> list[tuple[str, str]]:
    mask = node.cpumap or cpulist.to_mask(node.cpus)
    attributes = [("numaid", str(node.id)), ("affinity", mask), ("arch", cpu.arch), ("vendor", cpu.vendor)]
    if cpu.vendor:
        attributes += [("familyid", str(nccl_bandwidths.family_id(cpu.family))), ("modelid", str(cpu.model))]
    return [(name, value) for name, value in attributes if value]


def _children(devices: Sequence[PciDevice], positions: Sequence[int], depth: int) -> list[str]:
    lines: list[str] = []
    for i in sorted(positions, key=lambda n: devices[n].busid):  # the order in which NCCL keeps them
        below = [n for n, device in enumerate(devices) if device.parent == i]
        lines += _element("pci", _pci(devices[i]), _children(devices, below, depth + 1), depth)
    return lines


def _pci(device: PciDevice) -> list[tuple[str, str]]:
    ids = zip(IDS, (f"0x{part}" for part in device.ids.split(":") if part), strict=False)
    return [
        ("busid", device.busid),
        ("class", device.kind),
        *ids,
        ("link_speed", device.link_speed),
        ("link_width", str(device.link_width)),
    ]


def _element(name: str, attributes: Sequence[tuple[str, str]], children: Sequence[str], depth: int) -> list[str]:
    for key, value in attributes:
        if len(value) > MOST_TEXT or not value.isprintable() or '"' in value:
            raise TopologyError(
                f"{key}: {value[:40]!r}, {len(value)} characters. NCCL reads at most {MOST_TEXT} "
                "printable characters without quotes."
            )
    start = f"{'  ' * depth}<{name} " + " ".join(f'{key}="{value}"' for key, value in attributes)
    return [f"{start}>", *children, f"{'  ' * depth}</{name}>"] if children else [f"{start}/>"]
