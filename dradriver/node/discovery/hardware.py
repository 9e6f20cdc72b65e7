"""The real machine: what NVML and /sys say, made one ``Machine``."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from dradriver.node.discovery import binding, links, nics, sysfs
from dradriver.node.discovery.gpus import GpuFacts, read_gpus
from dradriver.node.discovery.nvml import DRIVER_MISMATCH, Nvml, NvmlError
from dradriver.node.discovery.pci import PciTree
from dradriver.node.discovery.questions import NEWER, Problem, Questions
from dradriver.node.errors import RestartError, SetupError
from dradriver.topology.check import check
from dradriver.topology.machine import Gpu, Machine, PathType
from dradriver.topology.nccl import facts
from dradriver.topology.paths import Place, pcie_path

logger = logging.getLogger(__name__)

_GENERATIONS = ("2.5 GT/s PCIe", "5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe")


class Reading(msgspec.Struct, frozen=True):
    """A machine and what is not certain of it.

    Attributes:
        machine: All GPUs that answer.
        gpus: What NVML says of each of them, MIG devices included.
        problems: What could not be read or contradicts itself, and what was made of it.
    """

    machine: Machine
    gpus: tuple[GpuFacts, ...]
    problems: tuple[Problem, ...]


class Hardware:
    """This node's own GPUs, for the node agent.

    A GPU in MIG mode is left out: no container can use it as a whole. Without a driver that answers there is no GPU:
    drivers come late (an operator installs them), are replaced, and nothing can be handed out meanwhile.
    """

    host_path = None
    slow = True  # NVML wakes sleeping GPUs, and can hang on a broken one

    def __init__(self, *, driver_root: Path | None = None, host_root: Path = Path("/")) -> None:
        """Read with the driver below ``driver_root`` (None: the linker knows), /sys and /proc below ``host_root``."""
        self._driver_root = driver_root
        self._host_root = host_root
        self._told: tuple[Problem, ...] = ()
        self._worked = False

    def read(self) -> Machine:
        """Return the machine as it is now; each problem is logged when it appears.

        Raises:
            RestartError: The driver was replaced, and this process holds the library of the old one.
        """
        try:
            reading = read(driver_root=self._driver_root, host_root=self._host_root, whole=True)
        except (NvmlError, SetupError) as error:
            if self._worked and isinstance(error, NvmlError) and error.code == DRIVER_MISMATCH:
                raise RestartError(f"the driver was replaced, start again with its new library: {error}") from error
            self._tell((Problem("machine", "no GPUs", str(error)),))
            return Machine(name=sysfs.product_name(self._host_root), gpus=(), links=(), paths=())
        self._worked = True
        self._tell(reading.problems)
        return reading.machine

    def _tell(self, problems: tuple[Problem, ...]) -> None:
        for problem in problems:
            if problem not in self._told:
                logger.warning("%s", problem)
        for problem in self._told:
            if problem not in problems:
                logger.info("no more: %s", problem)
        self._told = problems


def read(*, driver_root: Path | None = None, host_root: Path = Path("/"), whole: bool = False) -> Reading:
    """Return this machine.

    Args:
        driver_root: Root of the file system that holds the driver; None asks the dynamic linker.
        host_root: Where the host's /sys and /proc are.
        whole: Leave out GPUs in MIG mode.

    Raises:
        DriverError: There is no NVIDIA driver, or no GPU that answers.
    """
    with binding.opened(driver_root=driver_root) as nvml:
        return discover(nvml, root=host_root, whole=whole)


def discover(nvml: Nvml, *, root: Path, whole: bool = False) -> Reading:
    """Return the machine that an open NVML and a /sys describe; the arguments are those of ``read``."""
    problems: list[Problem] = []
    asked = Questions("machine", problems)
    gpus = read_gpus(nvml, problems)
    if whole:
        said = "on; left out, it cannot be used as a whole"
        problems += [Problem(f"GPU {gpu.index}", "MIG mode", said) for gpu in gpus if gpu.mig is not None]
        gpus = tuple(gpu for gpu in gpus if gpu.mig is None)
    if not gpus:
        told = "; ".join(map(str, problems)) or "NVML counts none"
        raise SetupError(f"no GPU on this node can be used: {told}")
    tree = PciTree(root)
    for gpu in gpus:
        if gpu.pci and tree.seat(gpu.pci) is None:
            said = f"{root / 'sys'} does not know {gpu.pci}; NUMA node and NIC paths stay unknown"
            problems.append(Problem(f"GPU {gpu.index}", "/sys", said))
    found = nics.read_nics(root, tree, problems)
    switched = links.switch_links(gpus, pci_class=tree.pci_class)
    matrix = links.link_matrix(nvml, gpus, switched, problems)
    places = tuple(seat.place if (seat := tree.seat(gpu.pci)) else Place() for gpu in gpus)
    cpu, virtual = sysfs.cpu(root)
    machine = Machine(
        name=sysfs.product_name(root),
        gpus=tuple(_gpu(gpu, tree, count) for gpu, count in zip(gpus, switched, strict=True)),
        links=matrix,
        paths=_paths(nvml, gpus, places, problems),
        nics=tuple(one.nic for one in found),
        nic_paths=nics.nic_paths(found, places, tree),
        numa=sysfs.numa_nodes(root),
        link_gbps=_link_gbps(gpus),
        socket_gbps=facts.socket_gbps(cpu),
        driver_version=asked.ask(nvml.driver_version, default=""),
        fabric=_fabric(gpus, problems),
        cpu=cpu,
        pci=tree.listed([gpu.pci for gpu in gpus] + [one.nic.pci for one in found]),
        virtual=virtual,
    )
    return Reading(check(machine), gpus, tuple(problems))


def _gpu(gpu: GpuFacts, tree: PciTree, switch_links: int) -> Gpu:
    seat = tree.seat(gpu.pci)
    return Gpu(
        index=gpu.index,
        uuid=gpu.uuid,
        minor=gpu.minor,
        pci=gpu.pci,
        pcie_root=None if seat is None else seat.root,
        numa=None if seat is None else seat.numa,
        product=gpu.product,
        architecture=facts.architecture(gpu.sm),
        compute_capability="" if gpu.capability is None else "{}.{}".format(*gpu.capability),
        memory_mib=gpu.memory_mib,
        power_watts=gpu.power_watts,
        pcie_gbps=_pcie_gbps(gpu, tree),
        switch_links=switch_links,
        c2c_gbps=gpu.c2c_gbps,
    )


def _pcie_gbps(gpu: GpuFacts, tree: PciTree) -> float:
    known = tree.gbps(gpu.pci) if gpu.pci else None
    if known is not None:
        return known
    generation, lanes = gpu.pcie or (0, 0)
    return facts.pci_gbps(_GENERATIONS[generation - 1] if 0 < generation <= len(_GENERATIONS) else "", lanes)


def _paths(
    nvml: Nvml, gpus: tuple[GpuFacts, ...], places: tuple[Place, ...], problems: list[Problem]
) -> tuple[tuple[PathType, ...], ...]:
    """Return NVML's paths, and where it has none, those that /sys implies."""
    matrix = [[PathType.SELF] * len(gpus) for _ in gpus]
    for i, a in enumerate(gpus):
        for j, b in enumerate(gpus[:i]):
            asked = Questions(f"GPU {b.index} - GPU {a.index}", problems)
            path = asked.ask(nvml.ancestor, b.handle, a.handle, default=None, quiet=NEWER)
            matrix[i][j] = matrix[j][i] = pcie_path(places[i], places[j]) if path is None else path
    return tuple(tuple(row) for row in matrix)


def _link_gbps(gpus: tuple[GpuFacts, ...]) -> float:
    """Return the bandwidth of one link of the slowest kind here; 0 where no link is up."""
    linked = [gpu for gpu in gpus if gpu.links]
    known = [facts.link_gbps(gpu.sm) for gpu in linked if gpu.sm]
    rates = [links.link_gbps_by_rate(gpu.link_mbps) for gpu in linked if gpu.link_mbps]
    return min(known or rates or [facts.link_gbps(0)]) if linked else 0.0


def _fabric(gpus: tuple[GpuFacts, ...], problems: list[Problem]) -> str:
    found = sorted({gpu.fabric for gpu in gpus if gpu.fabric})
    if len(found) > 1:
        problems.append(
            Problem("machine", "NVLink fabric", f"GPUs belong to {', '.join(found)}; none of them is taken")
        )
    return found[0] if len(found) == 1 else ""
