"""One reading of the real machine: what NVML and /sys say, made one ``Machine``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from dradriver.node.discovery import link_faults as health_links
from dradriver.node.discovery import nic_discovery, sysfs
from dradriver.node.discovery.kept_nics import KeptNics
from dradriver.node.discovery.link_faults import Linked
from dradriver.node.discovery.pci import PciTree, Seat
from dradriver.node.discovery.problem import Problem
from dradriver.node.errors import SetupError
from dradriver.node.faults import Fault, Faults
from dradriver.node.vendors.nvidia.discovery import binding, condition, nvlink_matrix
from dradriver.node.vendors.nvidia.discovery.gpu_facts import GpuFacts, Gpus, read_gpus
from dradriver.node.vendors.nvidia.discovery.nvml import INVALID_ARGUMENT, Nvml, NvmlError
from dradriver.node.vendors.nvidia.discovery.nvml_query import NEWER, Answers, NvmlQuery
from dradriver.topology import peer_access
from dradriver.topology.check import check
from dradriver.topology.machine import Gpu, Machine, NumaNode, PathType
from dradriver.topology.nccl import nccl_bandwidths
from dradriver.topology.paths import Place, pcie_path

_DRIVER: Final = "driver"  # who is asked for its version
_TRIES = 3  # GPUs that get lost while they are asked, one after the other
_GENERATIONS = ("2.5 GT/s PCIe", "5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe")


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A machine and what is not certain of it.

    Attributes:
        machine: All GPUs that answer.
        problems: What could not be read or contradicts itself, and what was made of it.
        unsure: Uuids of GPUs of which a question failed, so that an earlier answer stands, or none.
        lost: How many GPUs are lost, or of no use before a reset.
        silent: How many did not say who they are; asked again they may.
        faults: What is wrong with GPUs, by uuid.
        sound: Uuids of GPUs of which the driver says that nothing needs to be done.
        rows: Whether a bad row of a GPU's memory waits for a reset, by uuid; without those that do not tell.
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
    """Return a reading of this machine with NVIDIA's GPUs.

    Args:
        driver_root: Root of the file system that holds the driver; None asks the dynamic linker.
        host_root: Where the host's /sys is.
        proc_root: Where /proc is; None for ``host_root``.
        kept: The network cards that the node's agent saw; None where nobody did.

    Raises:
        DriverError: There is no NVIDIA driver, or no GPU that answers.
    """
    with binding.opened(driver_root=driver_root) as nvml:
        reading = discover(nvml, root=host_root, proc_root=proc_root, kept=kept)
    if not reading.machine.gpus:
        told = "; ".join(map(str, reading.problems)) or "NVML counts none"
        raise SetupError(f"no GPU on this node can be used: {told}")
    return reading


def discover(
    nvml: Nvml,
    *,
    root: Path,
    proc_root: Path | None = None,
    answers: Answers | None = None,
    kept: KeptNics | None = None,
) -> Reading:
    """Return the machine that an open NVML, /sys below ``root`` and /proc below ``proc_root`` describe.

    Args:
        nvml: The open library.
        root: Where the host's /sys is.
        proc_root: Where /proc is; None for ``root``.
        answers: Those of earlier readings, which stand where a question fails; gets those of this one.
        kept: The network cards of earlier readings, which stand while pods have them; gets those of this one.

    Raises:
        NvmlError: NVML does not even say how many GPUs there are.
        OSError: /sys cannot be looked at.
    """
    answers = Answers() if answers is None else answers
    answers.begin(nvml)
    for _ in range(_TRIES):
        problems: list[Problem] = []
        gpus = read_gpus(nvml, problems, answers)
        reading = _describe(nvml, gpus, problems, answers, kept, root=root, proc_root=proc_root)
        if all(_answers(nvml, gpu) for gpu in gpus.found):
            break
    return reading


def empty(root: Path) -> Machine:
    """Return this machine without NVIDIA's GPUs."""
    return Machine(name=sysfs.product_name(root), gpus=(), links=(), paths=())


def _answers(nvml: Nvml, gpu: GpuFacts) -> bool:
    """Return whether a GPU still answers after all that was asked; else the machine is not as it was described."""
    try:
        return nvml.uuid(gpu.handle) == gpu.uuid
    except NvmlError:
        return False


def _is_in_mig_mode(nvml: Nvml, gpu: GpuFacts) -> bool:
    """Return whether a GPU is in MIG mode, or is by now: a claim may have changed that since it was asked."""
    try:
        return gpu.mig is not None or nvml.mig_mode(gpu.handle)[0]
    except NvmlError:
        return False


def _describe(
    nvml: Nvml,
    every: Gpus,
    problems: list[Problem],
    answers: Answers,
    kept: KeptNics | None,
    *,
    root: Path,
    proc_root: Path | None,
) -> Reading:
    gpus = every.found
    if not gpus:
        return Reading(machine=empty(root), problems=tuple(problems), lost=every.lost, silent=every.silent)
    asked = NvmlQuery("machine", problems, answers, who=_DRIVER)
    tree = PciTree(root)
    for gpu in gpus:
        if gpu.pci and tree.seat(gpu.pci) is None:
            said = f"{root / 'sys'} does not know {gpu.pci}; NUMA node and NIC paths stay unknown"
            problems.append(Problem(f"GPU {gpu.index}", "/sys", said))
    cards = nic_discovery.read_nics(root, tree, problems, kept)
    switched = nvlink_matrix.switch_links(gpus, pci_class=tree.pci_class)
    matrix, refused = nvlink_matrix.link_matrix(nvml, gpus, switched, problems, answers)
    nodes = sysfs.numa_nodes(root)
    seats = [tree.seat(gpu.pci) for gpu in gpus]
    numas = [_numa(nvml, gpu, seat, nodes, problems, answers) for gpu, seat in zip(gpus, seats, strict=True)]
    places = tuple(
        Place(numa=numa) if seat is None else msgspec.structs.replace(seat, numa=numa).place
        for seat, numa in zip(seats, numas, strict=True)
    )
    _note_fabrics(gpus, problems)
    cpu, virtual = sysfs.cpu(root, proc_root=proc_root)
    machine = Machine(
        name=sysfs.product_name(root),
        gpus=tuple(_gpu(gpu, tree, numa, count) for gpu, numa, count in zip(gpus, numas, switched, strict=True)),
        links=matrix,
        paths=_paths(nvml, gpus, places, problems, answers),
        nics=tuple(card.nic for card in cards),
        nic_paths=nic_discovery.nic_paths(cards, places, tree),
        numa=nodes,
        link_gbps=_link_gbps(gpus),
        socket_gbps=nccl_bandwidths.socket_gbps(cpu),
        cuda_version=asked.ask_once(nvml.cuda_version, default="", quiet=NEWER, needed=False),
        driver_version=asked.ask_once(nvml.driver_version, default=""),
        cpu=cpu,
        pci=tree.listed([gpu.pci for gpu in gpus] + [card.nic.pci for card in cards]),
        virtual=virtual,
    )
    problems += [
        Problem(f"GPU {gpu.index}", "persistence mode", "off: whenever nobody uses it, it sleeps and forgets; see docs")
        for gpu in gpus
        if not gpu.persistent
    ]
    conditions = {
        gpu.uuid: condition.read(nvml, gpu.handle, gpu.fabric, NvmlQuery(f"GPU {gpu.index} condition", problems))
        for gpu in gpus
    }
    linked = [
        Linked(gpu.uuid, gpu.product, len(gpu.links), bool(count))
        for gpu, count in zip(gpus, switched, strict=True)
        if gpu.mig is None
    ]
    whole = not (every.lost or every.silent or virtual or tree.gpus() - {gpu.pci for gpu in gpus})
    short = health_links.lost(linked, whole=whole)
    # These are kept off already, or have no peer access for another reason.
    apart = {
        i
        for i in {i for pair in refused for i in pair}
        if gpus[i].uuid in short
        or any(fault.kind == "fabric" for fault in conditions[gpus[i].uuid].faults)
        or _is_in_mig_mode(nvml, gpus[i])
    }
    pairs = peer_access.faulty(
        [(i, j) for i, j in refused if i not in apart and j not in apart],
        switched=[i for i, count in enumerate(switched) if count and i not in apart],
    )
    short |= health_links.refused(machine, peer_access.fewest(pairs))
    unsure = frozenset(gpu.uuid for gpu in gpus if gpu.unsure)
    failing = Fault("unreadable", "", "NVML does not answer all questions about it")
    return Reading(
        machine=check(machine),
        problems=tuple(problems),
        unsure=unsure,
        faults={
            uuid: (*state.faults, *short.get(uuid, ()), *([failing] if uuid in unsure else []))
            for uuid, state in conditions.items()
        },
        sound=frozenset(uuid for uuid, state in conditions.items() if state.sound),
        rows={uuid: state.row for uuid, state in conditions.items() if state.row is not None},
        lost=every.lost,
        silent=every.silent,
    )


def _numa(
    nvml: Nvml,
    gpu: GpuFacts,
    seat: Seat | None,
    nodes: Sequence[NumaNode],
    problems: list[Problem],
    answers: Answers,
) -> int | None:
    """Return a GPU's NUMA node by /sys, and by NVML if the firmware gave /sys none (-1); None if neither names one."""
    if seat is not None and seat.numa is not None:
        return seat.numa
    asked = NvmlQuery(f"GPU {gpu.index}", problems, answers, who=gpu.uuid)
    none: tuple[int, ...] = ()
    nearest = asked.ask_once(nvml.numa_nodes, gpu.handle, default=none, quiet=NEWER | {INVALID_ARGUMENT}, needed=False)
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
    """Return NVML's paths, and where it has none, those that /sys implies."""
    matrix = [[PathType.SELF] * len(gpus) for _ in gpus]
    for i, a in enumerate(gpus):
        for j, b in enumerate(gpus[:i]):
            asked = nvlink_matrix.of_two(b, a, problems, answers)
            path = asked.ask_once(nvml.ancestor, b.handle, a.handle, default=None, quiet=NEWER)
            matrix[i][j] = matrix[j][i] = pcie_path(places[i], places[j]) if path is None else path
    return tuple(tuple(row) for row in matrix)


def _link_gbps(gpus: tuple[GpuFacts, ...]) -> float:
    """Return the bandwidth of one link of the slowest kind here; 0 where no link is up."""
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
