"""The real machine: what NVML and /sys say, made one ``Machine``."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from pathlib import Path

import msgspec

from dradriver.errors import DriverError
from dradriver.node.discovery import binding, devices, library, links, nics, processes, sysfs, toolkit
from dradriver.node.discovery.gpus import GpuFacts, read_gpus
from dradriver.node.discovery.nvml import DRIVER_MISMATCH, Nvml, NvmlError
from dradriver.node.discovery.pci import PciTree
from dradriver.node.discovery.questions import NEWER, Problem, Questions
from dradriver.node.edits import Edits
from dradriver.node.errors import RestartError, SetupError
from dradriver.topology.check import check
from dradriver.topology.machine import Gpu, Machine, PathType
from dradriver.topology.nccl import facts
from dradriver.topology.paths import Place, pcie_path

logger = logging.getLogger(__name__)

_TOOLKIT = "run nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml on the node"
_TRIES = 3  # GPUs that get lost while they are asked, one after the other
_GENERATIONS = ("2.5 GT/s PCIe", "5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe")


class Reading(msgspec.Struct, frozen=True):
    """A machine and what is not certain of it.

    Attributes:
        machine: All GPUs that answer.
        problems: What could not be read or contradicts itself, and what was made of it.
    """

    machine: Machine
    problems: tuple[Problem, ...]


class Hardware:
    """This node's own GPUs, for the node agent.

    Without a driver that answers there is no GPU: drivers come late (an operator installs them), are replaced, and
    nothing can be handed out meanwhile. Nor is a GPU there that no container can be given.
    """

    slow = True  # NVML wakes sleeping GPUs, and can hang on a broken one

    def __init__(
        self, *, driver_root: Path | None = None, host_root: Path = Path("/"), cdi: tuple[Path, ...] | None = None
    ) -> None:
        """Keep what is needed; nothing is read yet.

        Args:
            driver_root: Root of the file system that holds the driver; None asks the dynamic linker.
            host_root: Where the host's /sys and /dev are; so is /proc/cpuinfo if it is there, else this process's own.
            cdi: Where CDI specifications are: a GPU that none of NVIDIA's names is left out. None leaves none out.
        """
        self._cdi = cdi
        self._driver_root = driver_root
        self._host_root = host_root
        self._told: tuple[Problem, ...] = ()
        self._worked = False

    def edits(self, gpu: Gpu) -> Edits:
        """Return the id of the GPU in NVIDIA's own specification, which brings its device nodes and the libraries."""
        return Edits(cdi=(toolkit.cdi_id(gpu.uuid),))

    def read(self) -> Machine:
        """Return the machine as it is now; each problem is logged when it appears.

        Raises:
            RestartError: The driver was replaced, and this process holds the library of the old one.
        """
        if self._host_root != Path("/"):
            devices.add_nodes(root / "dev" for root in (self._driver_root, self._host_root) if root is not None)
        proc_root = self._host_root if os.path.exists(self._host_root / sysfs.CPUINFO) else Path("/")
        try:
            reading = read(driver_root=self._driver_root, host_root=self._host_root, proc_root=proc_root)
        except (DriverError, OSError) as error:
            if isinstance(error, NvmlError) and error.code == DRIVER_MISMATCH and self._replaced():
                raise RestartError(f"the driver was replaced, start again with its new library: {error}") from error
            self._tell((Problem("machine", "no GPUs", str(error)),))
            return Machine(name=sysfs.product_name(self._host_root), gpus=(), links=(), paths=())
        self._worked = True
        machine, unnamed = self._usable(reading.machine)
        self._tell((*reading.problems, *unnamed))
        return machine

    def processes(self, gpus: Collection[str]) -> dict[str, int]:
        """Return the number of processes on each of the GPUs that is there.

        Raises:
            NvmlError: The driver, or a GPU that is there, does not say.
        """
        with binding.opened(driver_root=self._driver_root) as nvml:
            return processes.count(nvml, gpus)

    def _usable(self, machine: Machine) -> tuple[Machine, list[Problem]]:
        if self._cdi is None:
            return machine, []
        named = toolkit.named(self._cdi)
        told = f"no specification in {', '.join(map(str, self._cdi))} names it; left out, {_TOOLKIT}"
        unnamed = [Problem(f"GPU {gpu.index}", toolkit.KIND, told) for gpu in machine.gpus if gpu.uuid not in named]
        return machine.subset([i for i, gpu in enumerate(machine.gpus) if gpu.uuid in named]), unnamed

    def _replaced(self) -> bool:
        """Return whether another process would do better: this one's library worked once, or is not the installed one.

        While a host's upgrade is half done its new library finds the old driver; no start helps before it is done.
        """
        return self._worked or library.replaced(driver_root=self._driver_root)

    def _tell(self, problems: tuple[Problem, ...]) -> None:
        for problem in problems:
            if problem not in self._told:
                logger.warning("%s", problem)
        for problem in self._told:
            if problem not in problems:
                logger.info("no more: %s", problem)
        self._told = problems


def read(*, driver_root: Path | None = None, host_root: Path = Path("/"), proc_root: Path | None = None) -> Reading:
    """Return this machine.

    Args:
        driver_root: Root of the file system that holds the driver; None asks the dynamic linker.
        host_root: Where the host's /sys is.
        proc_root: Where /proc is; None for ``host_root``.

    Raises:
        DriverError: There is no NVIDIA driver, or no GPU that answers.
    """
    with binding.opened(driver_root=driver_root) as nvml:
        return discover(nvml, root=host_root, proc_root=proc_root)


def discover(nvml: Nvml, *, root: Path, proc_root: Path | None = None) -> Reading:
    """Return the machine that an open NVML, /sys below ``root`` and /proc below ``proc_root`` (or ``root``) describe.

    Raises:
        DriverError: No GPU answers.
    """
    for _ in range(_TRIES):
        problems: list[Problem] = []
        gpus = read_gpus(nvml, problems)
        if not gpus:
            told = "; ".join(map(str, problems)) or "NVML counts none"
            raise SetupError(f"no GPU on this node can be used: {told}")
        reading = _describe(nvml, gpus, problems, root=root, proc_root=proc_root)
        if all(_answers(nvml, gpu) for gpu in gpus):
            break
    return reading


def _answers(nvml: Nvml, gpu: GpuFacts) -> bool:
    """Return whether a GPU still answers, after all that was asked: else the machine is none any more."""
    try:
        return nvml.uuid(gpu.handle) == gpu.uuid
    except NvmlError:
        return False


def _describe(
    nvml: Nvml, gpus: tuple[GpuFacts, ...], problems: list[Problem], *, root: Path, proc_root: Path | None
) -> Reading:
    asked = Questions("machine", problems)
    tree = PciTree(root)
    for gpu in gpus:
        if gpu.pci and tree.seat(gpu.pci) is None:
            said = f"{root / 'sys'} does not know {gpu.pci}; NUMA node and NIC paths stay unknown"
            problems.append(Problem(f"GPU {gpu.index}", "/sys", said))
    found = nics.read_nics(root, tree, problems)
    switched = links.switch_links(gpus, pci_class=tree.pci_class)
    matrix = links.link_matrix(nvml, gpus, switched, problems)
    places = tuple(seat.place if (seat := tree.seat(gpu.pci)) else Place() for gpu in gpus)
    _note_fabrics(gpus, problems)
    cpu, virtual = sysfs.cpu(root, proc_root=proc_root)
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
        cpu=cpu,
        pci=tree.listed([gpu.pci for gpu in gpus] + [one.nic.pci for one in found]),
        virtual=virtual,
    )
    return Reading(check(machine), tuple(problems))


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
        fabric=gpu.fabric,
        mig=gpu.mig,
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


def _note_fabrics(gpus: tuple[GpuFacts, ...], problems: list[Problem]) -> None:
    joined = sorted({gpu.fabric for gpu in gpus if gpu.fabric})
    if len(joined) > 1:
        problems.append(Problem("machine", "NVLink fabric", f"its GPUs belong to several: {', '.join(joined)}"))
    problems += [
        Problem(f"GPU {gpu.index}", "NVLink fabric", f"not joined, others are in {joined[0]}")
        for gpu in gpus
        if joined and not gpu.fabric
    ]
