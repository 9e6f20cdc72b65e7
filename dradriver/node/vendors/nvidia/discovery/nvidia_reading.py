"""One reading of a machine with NVIDIA GPUs: joins what NVML and /sys report into one ``Machine``.

A GPU has peer access to another GPU if it can read and write the other GPU's memory directly. The fabric is the network
of NVSwitches between GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from dradriver.node.discovery import link_faults, nic_discovery, sysfs
from dradriver.node.discovery.kept_nics import KeptNics
from dradriver.node.discovery.link_faults import Linked
from dradriver.node.discovery.pci import PciTree, Seat
from dradriver.node.discovery.problem import Problem
from dradriver.node.errors import SetupError
from dradriver.node.faults import Fault, Faults
from dradriver.node.vendors.nvidia.discovery import binding, condition, nvlink_matrix
from dradriver.node.vendors.nvidia.discovery.failed_queries import NEWER, Answers, NvmlQuery
from dradriver.node.vendors.nvidia.discovery.gpu_facts import GpuFacts, Gpus, read_gpus
from dradriver.node.vendors.nvidia.discovery.nvml_interface import INVALID_ARGUMENT, Nvml, NvmlError
from dradriver.topology import peer_access
from dradriver.topology.check import check
from dradriver.topology.machine import Gpu, Machine, NumaNode, PathType
from dradriver.topology.nccl import nccl_bandwidths
from dradriver.topology.pcie_paths import Place, pcie_path

_DRIVER: Final = "driver"  # key of the answers that concern the driver, not a GPU
_TRIES = 3  # readings at most, if GPUs are lost while they are read
_GENERATIONS = ("2.5 GT/s PCIe", "5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe")


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, and what is uncertain or wrong about it.

    Attributes:
        machine: The machine with all GPUs that answer.
        problems: Facts that could not be read or contradict others, and the values that are used instead.
        unsure: Uuids of GPUs for which a query failed. An earlier answer is used, or a default.
        lost: Number of GPUs that are lost or need a reset.
        silent: Number of GPUs that did not identify themselves. The next reading may find them.
        faults: The faults of GPUs, by uuid.
        sound: Uuids of GPUs of which the driver says that they need no recovery action.
        rows: By uuid: whether a memory row waits for a reset to be remapped. GPUs that do not report this are missing.
    """

    machine: Machine
    problems: tuple[Problem, ...]
    unsure: frozenset[str] = frozenset()
    lost: int = 0
    silent: int = 0
    faults: Faults = MappingProxyType({})
    sound: frozenset[str] = frozenset()
    rows: Mapping[str, bool] = MappingProxyType({})


def read(
    *,
    driver_root: Path | None = None,
    host_root: Path = Path("/"),
    proc_root: Path | None = None,
    kept: KeptNics | None = None,
) -> Reading:
    """Open NVML, read this machine with NVIDIA's GPUs once, close NVML, and return the reading.

    Args:
        driver_root: Root of the file system with the driver; None asks the dynamic linker.
        host_root: Folder that contains the host's /sys.
        proc_root: Folder that contains the host's /proc; None for ``host_root``.
        kept: The NICs that the node's agent has seen before; None if there is no such record.

    Raises:
        DriverError: There is no NVIDIA driver, or no GPU that answers.
    """
    with binding.opened(driver_root=driver_root) as nvml:
        reading = discover(nvml, root=host_root, proc_root=proc_root, kept=kept)
    if not reading.machine.gpus:
        reason = "; ".join(map(str, reading.problems)) or "NVML counts none"
        raise SetupError(f"no GPU on this node can be used: {reason}")
    return reading


def discover(
    nvml: Nvml,
    *,
    root: Path,
    proc_root: Path | None = None,
    answers: Answers | None = None,
    kept: KeptNics | None = None,
) -> Reading:
    """Return a reading of the machine with NVIDIA's GPUs, from an open NVML and the host's /sys and /proc.

    Args:
        nvml: The open library.
        root: Folder that contains the host's /sys.
        proc_root: Folder that contains the host's /proc; None for ``root``.
        answers: Answers of earlier readings, used if a query fails. This function adds the answers of this reading.
        kept: NICs of earlier readings, which stay in the machine while pods use them. This function adds the NICs of
            this reading.

    Raises:
        NvmlError: NVML does not even say how many GPUs there are.
        OSError: /sys cannot be read.
    """
    answers = Answers() if answers is None else answers
    answers.begin(nvml)
    # A GPU may be lost while the machine is read: then read again, without it. The last reading counts in any case.
    for _ in range(_TRIES):
        problems: list[Problem] = []
        # The GPUs' own facts first, then what joins them.
        gpus = read_gpus(nvml, problems, answers)
        reading = _describe(nvml, gpus, problems, answers, kept, root=root, proc_root=proc_root)
        if all(_still_responds(nvml, gpu) for gpu in gpus.found):
            break
    return reading


def empty(root: Path) -> Machine:
    """Return this machine without NVIDIA's GPUs."""
    return Machine(name=sysfs.product_name(root), gpus=(), links=(), paths=())


def _still_responds(nvml: Nvml, gpu: GpuFacts) -> bool:
    """Return whether a GPU still responds under the same uuid.

    If not, the caller gives up this reading, and the machine is read again.
    """
    try:
        return nvml.uuid(gpu.handle) == gpu.uuid
    except NvmlError:
        return False


def _is_in_mig_mode(nvml: Nvml, gpu: GpuFacts) -> bool:
    """Return whether a GPU is in MIG mode now; False if unknown.

    A claim may have turned the mode on after the GPU was read.
    """
    try:
        return gpu.mig is not None or nvml.mig_mode(gpu.handle)[0]
    except NvmlError:
        return False


def _describe(
    nvml: Nvml,
    read: Gpus,
    problems: list[Problem],
    answers: Answers,
    kept: KeptNics | None,
    *,
    root: Path,
    proc_root: Path | None,
) -> Reading:
    """Return the reading of the machine: GPU facts with links, paths, NICs and faults.

    Args:
        nvml: The open library.
        read: The GPUs that answered, and how many did not.
        problems: This function adds facts that could not be read.
        answers: Answers of earlier readings, used if a query fails.
        kept: The network cards of earlier readings; None if there is no record.
        root: Folder that contains the host's /sys.
        proc_root: Folder that contains the host's /proc; None for ``root``.
    """
    gpus = read.found
    if not gpus:
        return Reading(machine=empty(root), problems=tuple(problems), lost=read.lost, silent=read.silent)

    # 1. Where GPUs and NICs are, and how they are linked.
    driver_query = NvmlQuery("machine", problems, answers, who=_DRIVER)
    tree = PciTree(root)
    # ``tree.seat`` returns where /sys has a device in the PCI tree: root complex, switches and NUMA node. Paths follow.
    for gpu in gpus:
        if gpu.pci and tree.seat(gpu.pci) is None:
            text = f"{root / 'sys'} does not have {gpu.pci}, so its NUMA node and NIC paths are not known"
            problems.append(Problem(f"GPU {gpu.index}", "/sys", text))
    nics = nic_discovery.read_nics(root, tree, problems, kept)
    switched = nvlink_matrix.switch_links(gpus, pci_class=tree.pci_class)
    # Links of each pair, and the pairs of GPUs that refuse peer access although links join them.
    matrix, refused = nvlink_matrix.link_matrix(nvml, gpus, switched, problems, answers)
    nodes = sysfs.numa_nodes(root)
    pci_places = [tree.seat(gpu.pci) for gpu in gpus]
    numas = [
        _numa(nvml, gpu, pci_place, nodes, problems, answers) for gpu, pci_place in zip(gpus, pci_places, strict=True)
    ]
    places = tuple(
        Place(numa=numa) if pci_place is None else msgspec.structs.replace(pci_place, numa=numa).place
        for pci_place, numa in zip(pci_places, numas, strict=True)
    )

    # Adds a problem if the GPUs are in several multi-node NVLink fabrics, or some in none.
    _note_fabrics(gpus, problems)
    cpu, virtual = sysfs.cpu(root, proc_root=proc_root)

    # 2. The machine.
    machine = Machine(
        name=sysfs.product_name(root),
        gpus=tuple(_gpu(gpu, tree, numa, count) for gpu, numa, count in zip(gpus, numas, switched, strict=True)),
        links=matrix,
        paths=_paths(nvml, gpus, places, problems, answers),
        nics=tuple(card.nic for card in nics),
        nic_paths=nic_discovery.nic_paths(nics, places, tree),
        numa=nodes,
        link_gbps=_link_gbps(gpus),
        socket_gbps=nccl_bandwidths.socket_gbps(cpu),
        cuda_version=driver_query.ask_once(nvml.cuda_version, default="", quiet=NEWER, needed=False),
        driver_version=driver_query.ask_once(nvml.driver_version, default=""),
        cpu=cpu,
        pci=tree.listed([gpu.pci for gpu in gpus] + [card.nic.pci for card in nics]),
        virtual=virtual,
    )

    # 3. What is wrong with it.
    problems += [
        Problem(
            f"GPU {gpu.index}",
            "persistence mode",
            "off: the GPU loses its state whenever no process uses it. Turn it on: nvidia-smi -pm 1",
        )
        for gpu in gpus
        if not gpu.persistent
    ]
    conditions = {
        gpu.uuid: condition.read(nvml, gpu.handle, gpu.fabric, NvmlQuery(f"GPU {gpu.index} condition", problems))
        for gpu in gpus
    }
    # A missing link is a fault only if no GPU is missing that could be at its other end.
    all_present = not (read.lost or read.silent or virtual or tree.gpus() - {gpu.pci for gpu in gpus})
    faults_of_links = _link_faults(nvml, machine, gpus, conditions, switched, refused, all_present=all_present)
    # A GPU of which a query failed: an earlier answer stands in for it.
    unsure = frozenset(gpu.uuid for gpu in gpus if gpu.unsure)
    unreadable = Fault("unreadable", "", "NVML does not answer some queries about the GPU")
    return Reading(
        machine=check(machine),
        problems=tuple(problems),
        unsure=unsure,
        faults={
            uuid: (*state.faults, *faults_of_links.get(uuid, ()), *([unreadable] if uuid in unsure else []))
            for uuid, state in conditions.items()
        },
        sound=frozenset(uuid for uuid, state in conditions.items() if state.sound),
        rows={uuid: state.row for uuid, state in conditions.items() if state.row is not None},
        lost=read.lost,
        silent=read.silent,
    )


def _link_faults(
    nvml: Nvml,
    machine: Machine,
    gpus: Sequence[GpuFacts],
    conditions: Mapping[str, condition.Condition],
    switched: Sequence[int],
    refused: Collection[tuple[int, int]],
    *,
    all_present: bool,
) -> dict[str, tuple[Fault, ...]]:
    """Return the faults of NVLinks by GPU uuid.

    A fault is a link that is down, or a pair of GPUs without peer access that nothing else explains.

    Args:
        nvml: The open library.
        machine: The machine that the GPUs are in.
        gpus: The facts of its GPUs, in the machine's order.
        conditions: The condition of each GPU, by uuid.
        switched: Number of links to NVSwitches of each GPU, in the same order.
        refused: Pairs of GPUs without peer access, as positions in ``gpus``.
        all_present: Whether no GPU of the server is known to be missing.
    """
    # 1. GPUs with fewer links than others of their product. A GPU in MIG mode has no peers.
    linked = [
        Linked(gpu.uuid, gpu.product, len(gpu.links), bool(count))
        for gpu, count in zip(gpus, switched, strict=True)
        if gpu.mig is None
    ]
    faults = link_faults.lost(linked, whole=all_present)

    # 2. Pairs without peer access. The missing peer access of these GPUs is explained: they have a fault already, or
    # are in MIG mode.
    explained = {
        i
        for i in {i for pair in refused for i in pair}  # positions of GPUs
        if gpus[i].uuid in faults
        or any(fault.kind == "fabric" for fault in conditions[gpus[i].uuid].faults)
        or _is_in_mig_mode(nvml, gpus[i])
    }
    faulty_pairs = peer_access.faulty(
        [(i, j) for i, j in refused if i not in explained and j not in explained],
        switched=[i for i, count in enumerate(switched) if count and i not in explained],
    )

    # Few GPUs that explain all pairs that are left have the fault.
    return faults | link_faults.refused(machine, peer_access.fewest(faulty_pairs))


def _numa(
    nvml: Nvml,
    gpu: GpuFacts,
    seat: Seat | None,
    nodes: Sequence[NumaNode],
    problems: list[Problem],
    answers: Answers,
) -> int | None:
    """Return a GPU's NUMA node from /sys, else from NVML; None if neither names exactly one node.

    /sys does not name a node if the firmware does not report it.
    """
    if seat is not None and seat.numa is not None:
        return seat.numa
    query = NvmlQuery(f"GPU {gpu.index}", problems, answers, who=gpu.uuid)
    none: tuple[int, ...] = ()
    nearest = query.ask_once(nvml.numa_nodes, gpu.handle, default=none, quiet=NEWER | {INVALID_ARGUMENT}, needed=False)
    # NVML also names nodes that hold memory only.
    with_cpus = {node.id for node in nodes if node.cpus or node.cpumap} & set(nearest)
    return with_cpus.pop() if len(with_cpus) == 1 else None


def _gpu(gpu: GpuFacts, tree: PciTree, numa: int | None, switch_links: int) -> Gpu:
    seat = tree.seat(gpu.pci)
    return Gpu(
        index=gpu.index,
        uuid=gpu.uuid,
        minor=gpu.minor,
        pci=gpu.pci,
        pcie_root=None if seat is None else seat.root,
        numa=numa,
        product=gpu.product,
        architecture=nccl_bandwidths.architecture(gpu.sm),
        compute_capability="" if gpu.capability is None else "{}.{}".format(*gpu.capability),
        memory_mib=gpu.memory_mib,
        power_watts=gpu.power_watts,
        pcie_gbps=_pcie_gbps(gpu, tree),
        switch_links=switch_links,
        c2c_gbps=gpu.c2c_gbps,
        fabric=gpu.fabric.clique,
        mig=gpu.mig,
        profiles=gpu.profiles,
    )


def _pcie_gbps(gpu: GpuFacts, tree: PciTree) -> float:
    known = tree.gbps(gpu.pci) if gpu.pci else None
    if known is not None:
        return known
    generation, lanes = gpu.pcie or (0, 0)
    return nccl_bandwidths.pci_gbps(_GENERATIONS[generation - 1] if 0 < generation <= len(_GENERATIONS) else "", lanes)


def _paths(
    nvml: Nvml, gpus: tuple[GpuFacts, ...], places: tuple[Place, ...], problems: list[Problem], answers: Answers
) -> tuple[tuple[PathType, ...], ...]:
    """Return a matrix of the PCIe path types between each two GPUs.

    A path type comes from NVML, or from /sys if NVML does not answer.
    """
    matrix = [[PathType.SELF] * len(gpus) for _ in gpus]
    for i, a in enumerate(gpus):
        for j, b in enumerate(gpus[:i]):
            query = nvlink_matrix.of_two(b, a, problems, answers)
            path = query.ask_once(nvml.ancestor, b.handle, a.handle, default=None, quiet=NEWER)
            matrix[i][j] = matrix[j][i] = pcie_path(places[i], places[j]) if path is None else path
    return tuple(tuple(row) for row in matrix)


def _link_gbps(gpus: tuple[GpuFacts, ...]) -> float:
    """Return the bandwidth of one NVLink in GB/s, as NCCL counts it; 0 if no link is up.

    If the GPUs have different types of NVLink, this is the slowest type.
    """
    linked = [gpu for gpu in gpus if gpu.links]
    known = [nccl_bandwidths.link_gbps(gpu.sm) for gpu in linked if gpu.sm]
    rates = [nvlink_matrix.link_gbps_by_rate(gpu.link_mbps) for gpu in linked if gpu.link_mbps]
    return min(known or rates or [nccl_bandwidths.link_gbps(0)]) if linked else 0.0


def _note_fabrics(gpus: tuple[GpuFacts, ...], problems: list[Problem]) -> None:
    joined = sorted({gpu.fabric.clique for gpu in gpus if gpu.fabric.clique})
    if len(joined) > 1:
        problems.append(Problem("machine", "NVLink fabric", f"its GPUs belong to several: {', '.join(joined)}"))
    problems += [
        Problem(f"GPU {gpu.index}", "NVLink fabric", f"not joined, others are in {joined[0]}")
        for gpu in gpus
        if joined and not gpu.fabric.clique
    ]
