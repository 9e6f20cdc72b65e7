"""This node's own GPUs of AMD, read at an interval.

While a reading fails, the last reading stays valid.

The CDI specification (``amd_specification``) is a file of the agent that tells the container runtime each GPU's device
nodes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from dradriver.node.container_edits import Edits, cdi_id
from dradriver.node.discovery import driver_load, sysfs
from dradriver.node.discovery.debounce import Debounce
from dradriver.node.discovery.driver_load import DriverLoad
from dradriver.node.discovery.kept_nics import KeptNics
from dradriver.node.discovery.problem import Problem, log_changes
from dradriver.node.errors import SetupError
from dradriver.node.faults import Fault, Faults
from dradriver.node.gpu_work import UNKNOWN, GpuWork
from dradriver.node.vendors.amd import amd_processes, amd_reading
from dradriver.node.vendors.amd.amd_error_counters import Ras
from dradriver.node.vendors.amd.amd_reading import Reading
from dradriver.node.vendors.amd.amd_specification import AmdSpecification
from dradriver.node.vendors.amd.kfd import KfdNode
from dradriver.topology.machine import Gpu, Machine

logger = logging.getLogger(__name__)

_DRIVER: Final = "amdgpu"  # its module
READINGS: Final = 3  # in a row that are no good before they count
_AWAY: Final = Fault("driver", "", "amdgpu does not offer the GPU for work now")
_UNREADABLE: Final = Fault("unreadable", "", "some files of the driver about the GPU cannot be read")


class AmdGpus:
    """Reads this node's own GPUs of AMD, for the node agent.

    Without the driver the machine has no GPU, as with NVIDIA, because the driver may be installed later or be replaced.
    GPUs of earlier readings that are still on the PCI bus are not lost. They get a fault that says that the driver is
    missing.

    Attributes:
        refused: Why containers can get none of the present GPUs; None if they can get some, or if there is no GPU.
    """

    faults: Faults = MappingProxyType({})
    sound: frozenset[str] = frozenset()  # this driver does not say it
    read_s = 0.0
    reset: frozenset[str] = frozenset()  # the kernel's log tells
    slow = True  # files of /sys wait for a GPU that hangs

    def __init__(
        self,
        *,
        root: Path = Path("/"),
        proc_root: Path | None = None,
        base: AmdSpecification | None,
        nics: KeptNics | None = None,
    ) -> None:
        """Store the arguments; read nothing yet.

        Args:
            root: Folder that contains the host's /sys.
            proc_root: Folder that contains the host's /proc; None for ``root``, or for this process's own /proc if
                ``root`` has none.
            base: Writes the CDI specification of the GPUs. A GPU that it cannot bring into containers is left out. If
                None, no GPU is left out.
            nics: The network cards of earlier readings.
        """
        self._root = root
        self._proc_root = proc_root
        self._base = base
        self._nics = KeptNics() if nics is None else nics
        self._debounce = Debounce()  # holds back a change of the machine until several readings show it
        self._ras = Ras()
        self._nodes: Mapping[str, KfdNode] = {}
        self._seen: dict[str, str] = {}  # by uuid: the bus ids of all GPUs that any reading found
        self._links: Mapping[tuple[str, str], int] = {}  # by pair of uuids: their links, by the last reading
        self._silent = 0  # readings in a row in which nodes of the driver did not answer
        self._told: tuple[Problem, ...] = ()
        self.refused: str | None = None
        self._load: DriverLoad | None = None  # the load of the kernel module in which the last reading was made

    def edits(self, gpu: Gpu) -> Edits:
        """Return the CDI id of an AMD GPU, which adds its device nodes to containers."""
        return Edits(cdi=(cdi_id(gpu.uuid),))

    def read(self) -> Machine:
        """Read the machine with AMD's GPUs and return it; log new problems.

        Raises:
            SetupError: The machine cannot be read now. Its GPUs may be healthy.
        """
        if self.is_stale():
            self.withdraw()

        # 1. Read. The driver's load is noted before, so that ``is_stale`` sees whether it was loaded again meanwhile.
        began_s = time.monotonic()
        load = self._load_now()
        has_proc = os.path.exists(self._root / sysfs.CPUINFO)
        proc_root = self._proc_root or (self._root if has_proc else Path("/"))
        try:
            reading = amd_reading.discover(self._root, proc_root=proc_root, earlier=self._links, kept=self._nics)
        except OSError as error:
            raise SetupError(f"the host's {self._root / 'sys'} cannot be looked at: {error}") from error

        # 2. ``silent`` counts nodes of the driver that gave no properties. They may do so next time. After ``READINGS``
        #    such readings, those that answered are enough.
        self._silent = self._silent + 1 if reading.silent else 0
        if 0 < self._silent < READINGS:
            self._tell(reading.problems)
            raise SetupError(f"{reading.silent} of the driver's nodes did not say what they are")
        self.refused = reading.refused
        self._nodes, self.read_s = reading.nodes, began_s

        # 3. The links. The next reading uses them for GPUs whose links it cannot read.
        uuids = [gpu.uuid for gpu in reading.machine.gpus]
        rows = zip(uuids, reading.machine.links, strict=True)
        self._links = {(a, b): count for a, row in rows for b, count in zip(uuids, row, strict=True)}

        # 4. The faults. ``nodes`` has, by uuid, the GPUs that the driver (KFD) knows. If a GPU that was seen before is
        #    on the bus and unknown to the driver, that is its fault. If another GPU has its bus id now, it is gone.
        pci_of = {uuid: node.pci for uuid, node in reading.nodes.items()}
        pcis_in_use = set(pci_of.values())
        self._seen = {uuid: pci for uuid, pci in self._seen.items() if pci not in pcis_in_use} | pci_of
        on_bus = [uuid for uuid, pci in self._seen.items() if self._device(pci).exists()]
        unknown_to_driver = [uuid for uuid in on_bus if uuid not in reading.nodes]
        self.faults = dict.fromkeys(unknown_to_driver, (_AWAY,)) | {
            uuid: self._faults(reading, uuid) for uuid in reading.nodes
        }

        # 5. The GPUs that can be handed out.
        machine, left_out = self._usable(reading)
        self._load = load
        if self.is_stale():
            self.withdraw()
            raise SetupError("the driver was loaded again while its GPUs were read")
        self._tell((*reading.problems, *left_out))

        # ``Debounce`` holds a change back until several readings show it, unless the GPUs themselves have changed.
        # Without any GPU there is nothing to hold back.
        return self._debounce.machine(machine) if machine.gpus else machine

    def is_stale(self) -> bool:
        """Return whether amdgpu was loaded again since the last reading of AMD's GPUs."""
        return self._load is not None and not self._load.outlives(self._load_now())

    def withdraw(self) -> None:
        """Remove the CDI specification, whose numbers of device nodes are outdated.

        Otherwise containers could start with the old numbers. The next reading makes the file again. The caller must
        not call this while a reading runs, because both write the file.
        """
        if self._base is not None:
            self._base.keep({})

    def _load_now(self) -> DriverLoad:
        return driver_load.read(self._root, _DRIVER)

    def _faults(self, read: Reading, uuid: str) -> tuple[Fault, ...]:
        counted = self._ras.read(uuid, self._device(read.nodes[uuid].pci))
        return (*counted, *([_UNREADABLE] if uuid in read.unsure else []))

    def _usable(self, read: Reading) -> tuple[Machine, list[Problem]]:
        """Return the machine without GPUs that containers cannot get, and a problem for each.

        These are the GPUs that the CDI specification of AMD's GPUs cannot contain.
        """
        wrong = self._base.keep(read.drm) if self._base is not None else {}
        gpus = read.machine.gpus
        told = [Problem(f"GPU {gpu.pci}", "CDI", f"left out: {wrong[gpu.uuid]}") for gpu in gpus if gpu.uuid in wrong]
        return read.machine.subset([i for i, gpu in enumerate(gpus) if gpu.uuid not in wrong]), told

    def _device(self, pci: str) -> Path:
        return self._root / "sys/bus/pci/devices" / pci

    def processes(self, gpus: Collection[str]) -> dict[str, tuple[int, ...]]:
        """Return the ids of processes that have memory or a queue on each of AMD's GPUs."""
        nodes = self._nodes
        return amd_processes.find(self._root, {uuid: nodes[uuid].gpu_id for uuid in gpus if uuid in nodes})

    def work(self, gpus: Mapping[str, int]) -> dict[str, GpuWork]:
        """Return how much each of AMD's GPUs works at present, and the processes on it.

        The driver does not tell which of the processes does the work.
        """
        nodes, found = self._nodes, {}
        pids = self.processes(gpus)
        for uuid in gpus:
            percent = sysfs.number(self._device(nodes[uuid].pci) / "gpu_busy_percent") if uuid in nodes else None
            idle = percent == 0
            found[uuid] = UNKNOWN if percent is None else GpuWork(percent, frozenset(() if idle else pids[uuid]))
        return found

    def close(self) -> None:
        """Do nothing, because nothing is open between readings of AMD's GPUs."""

    def _tell(self, problems: tuple[Problem, ...]) -> None:
        log_changes(logger, self._told, problems)
        self._told = problems
