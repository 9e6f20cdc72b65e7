"""One reading of a machine with AMD's GPUs, from /sys alone, without ROCm's libraries and programs.

KFD is the compute part of the driver amdgpu. It lists each GPU, and each CPU, as a KFD node. A GPU can be divided into
partitions, which KFD lists as separate GPUs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from dradriver.node.discovery import nic_discovery, sysfs
from dradriver.node.discovery.kept_nics import KeptNics
from dradriver.node.discovery.pci import PciTree
from dradriver.node.discovery.problem import Problem
from dradriver.node.errors import SetupError
from dradriver.node.vendors.amd import amd_device_nodes, kfd
from dradriver.node.vendors.amd.amd_device_nodes import Drm
from dradriver.node.vendors.amd.kfd import Kfd, KfdNode
from dradriver.topology.amd.amd_products import PARTS, PCI_VENDOR, link_gbps, maker
from dradriver.topology.check import check
from dradriver.topology.machine import Gpu, Machine, PathType
from dradriver.topology.nccl import nccl_bandwidths
from dradriver.topology.pcie_paths import Place, pcie_path
from dradriver.topology.vendors import AMD

_VERSION: Final = "sys/module/amdgpu/version"  # of drivers that do not come with the kernel
_TEXT: Final = re.compile(r"[ -~]{1,64}")
_UNKNOWN_PCIE_GBPS: Final = 12.0  # assumed if neither /sys nor the product table says it
_WHOLE: Final = ("SPX", "")  # partition modes of a whole GPU; products without partitions have no file
_PLACE: Final = frozenset({"domain", "location_id"})
_CUT: Final = ("DPX", "TPX", "QPX", "CPX")  # partition modes of a divided GPU


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, and what is uncertain or wrong about it.

    Attributes:
        machine: The machine with all GPUs that containers can get; without GPUs if ``refused`` is set.
        refused: Why containers can get none of the machine's GPUs; None if they can get some, or if the machine has
            none.
        nodes: The driver's description of each GPU, by uuid.
        drm: The device nodes of each GPU, by uuid.
        problems: Facts that could not be read or contradict others, and the values that are used instead.
        silent: Number of KFD nodes that could not be read. The next reading may be able to read them.
        unsure: Uuids of GPUs whose links could not be read.
    """

    machine: Machine
    refused: str | None = None
    nodes: Mapping[str, KfdNode] = MappingProxyType({})
    drm: Mapping[str, Drm] = MappingProxyType({})
    problems: tuple[Problem, ...] = ()
    silent: int = 0
    unsure: frozenset[str] = frozenset()


def read(root: Path, *, proc_root: Path | None = None, kept: KeptNics | None = None) -> Reading:
    """Return one reading of a machine with AMD's GPUs.

    Args:
        root: Folder that contains the host's /sys.
        proc_root: Folder that contains the host's /proc; None for ``root``.
        kept: The network cards that the node's agent saw; None if there is no record.

    Raises:
        SetupError: There is no amdgpu driver, or no GPU that can be used.
    """
    reading = discover(root, proc_root=proc_root, kept=kept)
    if not reading.machine.gpus:
        reason = reading.refused or "; ".join(map(str, reading.problems)) or f"{root / kfd.NODES} has none"
        raise SetupError(f"no GPU of AMD on this node can be used: {reason}")
    return reading


def discover(
    root: Path,
    *,
    proc_root: Path | None = None,
    earlier: Mapping[tuple[str, str], int] = MappingProxyType({}),
    kept: KeptNics | None = None,
) -> Reading:
    """Return a reading of the machine and its AMD GPUs from /sys.

    Without the driver the machine has no GPUs.

    Args:
        root: Folder that contains the host's /sys.
        proc_root: Folder that contains the host's /proc; None for ``root``.
        earlier: Number of links of each pair (uuids) in earlier readings, used if neither GPU's links can be read.
        kept: NICs of earlier readings, which stay in the machine while pods use them. This function adds the NICs of
            this reading.
    """
    # 1. What the driver (KFD) describes.
    # KFD lists CPUs and GPUs as nodes. ``silent`` are the numbers of nodes whose properties cannot be read.
    topology = kfd.read(root)
    empty = Machine(name=sysfs.product_name(root), gpus=(), links=(), paths=())
    if topology is None:
        return Reading(machine=empty, problems=(Problem("machine", "amdgpu", f"no {root / kfd.NODES}: no driver"),))
    problems = [
        Problem(f"KFD node {number}", "properties", "they cannot be read, so it is not known whether it is a GPU")
        for number in topology.silent
    ]
    silent = len(topology.silent)

    # 2. Leave out GPUs of other makers. If no other GPU is left, the reasons refuse the machine.
    tree = PciTree(root)
    amd_gpus = []
    for gpu in topology.gpus:
        vendor = _other_vendor(gpu, tree)
        if vendor:
            reason = f"it is made by {vendor}, not by AMD. It is left out, because the driver does not know such GPUs"
            problems.append(Problem(f"GPU {gpu.pci}", "vendor_id", reason))
        else:
            amd_gpus.append(gpu)
    if topology.gpus and not amd_gpus:
        return Reading(machine=empty, refused="; ".join(map(str, problems)), problems=tuple(problems), silent=silent)
    topology = msgspec.structs.replace(topology, gpus=tuple(amd_gpus))

    # 3. Partitions are not handed out. One divided GPU refuses the machine.
    refused = _partitioned(root, topology, problems)
    if refused is not None:
        return Reading(machine=empty, refused=refused, problems=tuple(problems), silent=silent)

    # 4. Leave out GPUs that no container could use.
    # ``minors``: the numbers of each GPU's device nodes. ``_usable`` adds a problem for each GPU that it leaves out.
    minors = {gpu.uuid: amd_device_nodes.read(root, gpu.pci, gpu.render) for gpu in topology.gpus}
    gpus = _usable(topology.gpus, minors, problems)
    if not gpus:
        refused = "; ".join(map(str, problems)) if topology.gpus else None
        return Reading(machine=empty, refused=refused, problems=tuple(problems), silent=silent)

    return Reading(
        machine=check(_machine(root, topology, gpus, minors, problems, proc_root, earlier, kept)),
        nodes={gpu.uuid: gpu for gpu in gpus},
        drm={gpu.uuid: minors[gpu.uuid] for gpu in gpus},
        problems=tuple(problems),
        silent=silent,
        unsure=frozenset(gpu.uuid for gpu in gpus if gpu.links is None),
    )


def _other_vendor(gpu: KfdNode, tree: PciTree) -> str:
    """Return the vendor of a GPU that KFD lists; empty if the vendor is AMD or unknown.

    Forks of amdgpu show GPUs of other vendors in the same way. The vendor is taken from KFD, or from /sys if KFD names
    AMD or none.
    """
    vendors = (gpu.vendor, tree.vendor(gpu.pci).removeprefix("0x"))
    return next((maker(vendor) for vendor in vendors if vendor not in ("", PCI_VENDOR)), "")


def _partitioned(root: Path, topology: Kfd, problems: list[Problem]) -> str | None:
    """Return why all GPUs are refused: one GPU is partitioned; None if no GPU is.

    This DRA driver does not allocate partitions of AMD's GPUs. A GPU is partitioned if amdgpu's compute partition mode
    says so, or if several KFD devices have one unique_id. The partitions of a GPU are functions of one PCI device,
    numbered from 0.
    """
    shared = Counter(gpu.unique_id for gpu in topology.gpus if gpu.unique_id)
    for gpu in topology.gpus:
        device = root / "sys/bus/pci/devices" / f"{gpu.pci[:-1]}0"
        said = sysfs.text(device / "current_compute_partition")
        if said in _CUT or shared[gpu.unique_id] > 1:
            how = f"{said} mode" if said in _CUT else f"{shared[gpu.unique_id]} devices with one unique_id"
            return (
                f"GPU {gpu.pci[:-2]} is partitioned ({how}), and the driver does not allocate partitions of AMD's "
                "GPUs. Set SPX: amd-smi set --compute-partition SPX"
            )
        if said not in _WHOLE:  # the driver says UNKNOWN of a GPU that it cannot ask
            text = f"it says {said[:16]!r}, which is no known mode. The GPU counts as whole"
            problems.append(Problem(f"GPU {gpu.pci}", "current_compute_partition", text))
    return None


def _usable(nodes: Sequence[KfdNode], minors: Mapping[str, Drm], problems: list[Problem]) -> list[KfdNode]:
    """Return the GPUs that a container can use.

    For each other GPU, add a problem that says why it cannot.

    Args:
        nodes: The GPUs that KFD lists.
        minors: The numbers of each GPU's device nodes, by uuid.
        problems: This function adds the problems.
    """
    gpus: list[KfdNode] = []
    places: dict[str, int] = {}
    renders: dict[int, str] = {}
    for node in nodes:
        who, render = f"GPU {node.pci}", minors[node.uuid].render
        problems += [Problem(who, key, "the number is not possible, so it counts as unknown") for key in node.odd]
        if not _PLACE.isdisjoint(node.odd):
            problems.append(Problem(who, "location_id", "its PCI address is not known, so the GPU is left out"))
        elif not node.unique_id:
            said = (
                "it is 0, as for GPUs before MI100 and some GPUs of virtual machines. The GPU "
                "is left out, because nothing else identifies it"
            )
            problems.append(Problem(who, "unique_id", said))
        elif node.pci in places:
            problems.append(
                Problem(who, "location_id", f"KFD node {places[node.pci]} has the same. The GPU is left out")
            )
        elif render is None:
            problems.append(
                Problem(who, "drm", "it has no /dev/dri/renderDN. The GPU is left out, because no container can use it")
            )
        elif render in renders:
            problems.append(
                Problem(who, "drm", f"renderD{render} is GPU {renders[render]}'s, too. The GPU is left out")
            )
        else:
            places[node.pci], renders[render] = node.number, node.pci
            gpus.append(node)
    return gpus


def _machine(
    root: Path,
    topology: Kfd,
    gpus: Sequence[KfdNode],
    minors: Mapping[str, Drm],
    problems: list[Problem],
    proc_root: Path | None,
    earlier: Mapping[tuple[str, str], int],
    kept: KeptNics | None,
) -> Machine:
    """Return the machine with these GPUs: their places, links and paths, and its NICs.

    Args:
        root: Folder that contains the host's /sys.
        topology: The driver's description of the machine, used for the CPUs.
        gpus: The GPUs that containers can get.
        minors: The device nodes of each GPU, by uuid.
        problems: This function adds facts that could not be read.
        proc_root: Folder that contains the host's /proc; None for ``root``.
        earlier: By pair of uuids, the number of links in earlier readings.
        kept: The network cards of earlier readings; None if there is no record.
    """
    # Where /sys has each GPU in the PCI tree: root complex and switches. PCIe paths follow from that.
    tree = PciTree(root)
    nodes = sysfs.numa_nodes(root)
    with_cpus = [node.id for node in nodes if node.cpus]
    numas = [_numa(gpu, tree, topology.cpus, with_cpus) for gpu in gpus]
    pci_places = [tree.seat(gpu.pci) for gpu in gpus]
    places = tuple(
        Place(numa=numa) if pci_place is None else pci_place.place
        for pci_place, numa in zip(pci_places, numas, strict=True)
    )
    nics = nic_discovery.read_nics(root, tree, problems, kept)
    links = _links(gpus, problems, earlier)

    # A ring is as fast as its slowest link. ``gfx`` names the architecture (gfx942).
    link_gbps_of_slowest = min((link_gbps(gpu.gfx) for gpu in gpus), default=0.0)
    has_links = any(map(any, links))
    cpu, virtual = sysfs.cpu(root, proc_root=proc_root)
    version = sysfs.text(root / _VERSION)
    return Machine(
        name=sysfs.product_name(root),
        gpus=tuple(
            _gpu(root, index, gpu, tree, numa, minors[gpu.uuid])
            for index, (gpu, numa) in enumerate(zip(gpus, numas, strict=True))
        ),
        links=links,
        paths=tuple(
            tuple(PathType.SELF if i == j else pcie_path(a, b) for j, b in enumerate(places))
            for i, a in enumerate(places)
        ),
        nics=tuple(card.nic for card in nics),
        nic_paths=nic_discovery.nic_paths(nics, places, tree),
        numa=nodes,
        link_gbps=link_gbps_of_slowest if has_links else 0.0,
        socket_gbps=nccl_bandwidths.socket_gbps(cpu),
        driver_version=version if _TEXT.fullmatch(version) else "",
        cpu=cpu,
        pci=tree.listed([gpu.pci for gpu in gpus] + [card.nic.pci for card in nics]),
        virtual=virtual,
    )


def _gpu(root: Path, index: int, gpu: KfdNode, tree: PciTree, numa: int | None, minors: Drm) -> Gpu:
    """Return the ``Gpu`` for one GPU that the driver (KFD) lists.

    If the driver does not tell a fact, the built-in product table provides it. ``index`` is the GPU's number, ``numa``
    its NUMA node, ``minors`` its device nodes. ``tree`` is the PCI tree of /sys below ``root``.
    """
    device = root / "sys/bus/pci/devices" / gpu.pci
    # The table entry of the PCI device id, and the place in the PCI tree; either may be missing.
    product_entry, pci_place = PARTS.get(gpu.device), tree.seat(gpu.pci)
    board = sysfs.text(device / "product_name")
    if not _TEXT.fullmatch(board):
        board = ""
    product = product_entry.product if product_entry else board or f"AMD GPU {PCI_VENDOR}:{gpu.device}"

    # Memory: of KFD, else of amdgpu, else of the product. An absurd number counts as unknown.
    vram = sysfs.text(device / "mem_info_vram_total")
    vram_bytes = int(vram) if re.fullmatch(r"[0-9]{1,18}", vram) else 0
    memory_mib = gpu.memory_mib or (vram_bytes >> 20 if vram_bytes <= kfd.MOST_BYTES else 0)
    if not memory_mib and product_entry:
        memory_mib = product_entry.memory_mib

    pcie_gbps = tree.gbps(gpu.pci)
    if pcie_gbps is None:
        pcie_gbps = product_entry.pcie_gbps if product_entry else _UNKNOWN_PCIE_GBPS
    return Gpu(
        index=index,
        uuid=gpu.uuid,
        minor=minors.render or 0,
        pci=gpu.pci,
        pcie_root=None if pci_place is None else pci_place.root,
        numa=numa,
        product=product,
        board="" if board == product else board,
        architecture=gpu.gfx,
        memory_mib=memory_mib,
        pcie_gbps=pcie_gbps,
        vendor=AMD.word,
    )


def _numa(gpu: KfdNode, tree: PciTree, cpus: Sequence[int], with_cpus: Sequence[int]) -> int | None:
    """Return a GPU's NUMA node from /sys; if /sys does not know it, the node of the nearest linked CPU.

    Args:
        gpu: The GPU.
        tree: The PCI tree of /sys.
        cpus: KFD's numbers of the CPUs, ascending.
        with_cpus: The NUMA nodes that have CPUs, in the order of ``cpus``; empty if unknown.
    """
    seat = tree.seat(gpu.pci)
    if seat is not None and seat.numa is not None:
        return seat.numa
    near = min((node for node in gpu.cpus if node in cpus), key=lambda node: (gpu.cpus[node], node), default=None)
    if near is None:
        return None
    position = cpus.index(near)
    if not with_cpus:
        return position
    return with_cpus[position] if position < len(with_cpus) else None


def _links(
    gpus: Sequence[KfdNode], problems: list[Problem], earlier: Mapping[tuple[str, str], int]
) -> tuple[tuple[int, ...], ...]:
    """Return the matrix with the number of direct links between each two of AMD's GPUs.

    The driver lists the links of each GPU. If the two GPUs of a pair give different numbers, the smaller number counts.
    If only one GPU's links can be read, its number counts. If neither can be read, the number of an earlier reading
    (``earlier``, by the two uuids) counts.
    """
    matrix = [[0] * len(gpus) for _ in gpus]
    for i, a in enumerate(gpus):
        for j, b in enumerate(gpus[:i]):
            said = [side.links.get(other.number, 0) for side, other in ((a, b), (b, a)) if side.links is not None]
            if len(set(said)) > 1:
                text = f"{said[0]} from one side, {said[1]} from the other. The smaller value counts"
                problems.append(Problem(f"GPU {b.pci} - GPU {a.pci}", AMD.link, text))
            matrix[i][j] = matrix[j][i] = min(said, default=earlier.get((b.uuid, a.uuid), 0))
    said_nothing = "they cannot be read. The links that the other GPUs report count"
    problems += [Problem(f"GPU {gpu.pci}", "io_links", said_nothing) for gpu in gpus if gpu.links is None]
    return tuple(map(tuple, matrix))
