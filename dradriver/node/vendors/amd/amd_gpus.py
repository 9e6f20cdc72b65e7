"""This node's own GPUs of AMD, read again and again: what one reading says, and what stands when it fails."""

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
_AWAY: Final = Fault("driver", "", "amdgpu does not have it now as a GPU that can be handed out")
_UNREADABLE: Final = Fault("unreadable", "", "not all of the driver's files about it can be read")


class AmdGpus:
    """This node's own GPUs of AMD, for the node agent.

    Without the driver there is no GPU, as with NVIDIA's: it is replaced, and comes late. Those that were there before
    are on the bus still, and have that as a fault: they are not lost.

    Attributes:
        refused: Why none of the GPUs that are there is handed out; None where some are, or none is there.
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
        """Read nothing yet.

        Args:
            root: Where the host's /sys is.
            proc_root: Where the host's /proc is; None for this process's own where ``root`` has none.
            base: Brings GPUs into containers: one that it cannot is left out. None leaves none out.
            nics: The network cards that an agent before this one saw.
        """
        self._root = root
        self._proc_root = proc_root
        self._base = base
        self._nics = KeptNics() if nics is None else nics
        self._steady = Debounce()
        self._ras = Ras()
        self._nodes: Mapping[str, KfdNode] = {}
        self._seen: dict[str, str] = {}  # bus ids of all GPUs that ever were, by uuid
        self._links: Mapping[tuple[str, str], int] = {}  # of pairs, by uuid, as they were last told
        self._silent = 0  # readings in a row in which nodes of the driver did not answer
        self._told: tuple[Problem, ...] = ()
        self.refused: str | None = None
        self._load: DriverLoad | None = None  # of which the last reading is

    def edits(self, gpu: Gpu) -> Edits:
        """Return the CDI id of an AMD GPU in the specification of this node's GPUs, which brings its device nodes."""
        return Edits(cdi=(cdi_id(gpu.uuid),))

    def read(self) -> Machine:
        """Return the machine with AMD's GPUs as it is now; each problem is logged when it appears.

        Raises:
            SetupError: It cannot be read now, which says nothing of its GPUs.
        """
        # 1. Read. The driver's load is noted before, so that ``is_stale`` sees whether it was loaded anew meanwhile.
        began_s = time.monotonic()
        load = self._load_now()
        has_proc = os.path.exists(self._root / sysfs.CPUINFO)
        proc_root = self._proc_root or (self._root if has_proc else Path("/"))
        try:
            read = amd_reading.discover(self._root, proc_root=proc_root, earlier=self._links, kept=self._nics)
        except OSError as error:
            raise SetupError(f"the host's {self._root / 'sys'} cannot be looked at: {error}") from error

        # 2. A node that does not answer may do so next time. After some readings what did answer counts.
        self._silent = self._silent + 1 if read.silent else 0
        if 0 < self._silent < READINGS:
            self._tell(read.problems)
            raise SetupError(f"{read.silent} of the driver's nodes did not say what they are")
        self.refused = read.refused
        self._nodes, self.read_s = read.nodes, began_s

        # 3. The links. The next reading uses them for GPUs whose links it cannot read.
        uuids = [gpu.uuid for gpu in read.machine.gpus]
        rows = zip(uuids, read.machine.links, strict=True)
        self._links = {(a, b): count for a, row in rows for b, count in zip(uuids, row, strict=True)}

        # 4. The faults. A GPU that was seen before and is still on the bus has the fault that the driver lacks it. If
        #    another GPU is at its bus id now, it is gone.
        # ``nodes`` is by uuid: what the driver (KFD) says of each GPU that it has.
        pci_of = {uuid: node.pci for uuid, node in read.nodes.items()}
        taken = set(pci_of.values())
        self._seen = {uuid: pci for uuid, pci in self._seen.items() if pci not in taken} | pci_of
        away = [uuid for uuid, pci in self._seen.items() if uuid not in read.nodes and self._device(pci).exists()]
        self.faults = dict.fromkeys(away, (_AWAY,)) | {uuid: self._faults(read, uuid) for uuid in read.nodes}

        # 5. The GPUs that can be handed out.
        machine, left_out = self._usable(read)
        self._load = load
        if self.is_stale():
            raise SetupError("the driver was loaded anew while its GPUs were read")
        self._tell((*read.problems, *left_out))

        # Some changes count only when several readings show them.
        return self._steady.machine(machine) if machine.gpus else machine

    def is_stale(self) -> bool:
        """Return whether the last reading of AMD's GPUs is stale: amdgpu was loaded again since.

        Then no container starts by the numbers that its GPUs had: the file that brings them is removed.
        """
        if self._load is None or self._load.outlives(self._load_now()):
            return False
        if self._base is not None:
            self._base.keep({})
        return True

    def _load_now(self) -> DriverLoad:
        return driver_load.read(self._root, _DRIVER)

    def _faults(self, read: Reading, uuid: str) -> tuple[Fault, ...]:
        counted = self._ras.read(uuid, self._device(read.nodes[uuid].pci))
        return (*counted, *([_UNREADABLE] if uuid in read.unsure else []))

    def _usable(self, read: Reading) -> tuple[Machine, list[Problem]]:
        """Return the machine without the GPUs that no container can be given."""
        wrong = self._base.keep(read.drm) if self._base is not None else {}
        gpus = read.machine.gpus
        told = [Problem(f"GPU {gpu.pci}", "CDI", f"left out: {wrong[gpu.uuid]}") for gpu in gpus if gpu.uuid in wrong]
        return read.machine.subset([i for i, gpu in enumerate(gpus) if gpu.uuid not in wrong]), told

    def _device(self, pci: str) -> Path:
        return self._root / "sys/bus/pci/devices" / pci

    def processes(self, gpus: Collection[str]) -> dict[str, tuple[int, ...]]:
        """Return the pids that have memory or a queue on each of AMD's GPUs."""
        nodes = self._nodes
        return amd_processes.find(self._root, {uuid: nodes[uuid].gpu_id for uuid in gpus if uuid in nodes})

    def work(self, gpus: Mapping[str, int]) -> dict[str, GpuWork]:
        """Return what each of AMD's GPUs does now; the driver does not tell which process does it."""
        nodes, found = self._nodes, {}
        pids = self.processes(gpus)
        for uuid in gpus:
            percent = sysfs.number(self._device(nodes[uuid].pci) / "gpu_busy_percent") if uuid in nodes else None
            idle = percent == 0
            found[uuid] = UNKNOWN if percent is None else GpuWork(percent, frozenset(() if idle else pids[uuid]))
        return found

    def close(self) -> None:
        """Close the reading of AMD's GPUs: nothing is open between readings."""

    def _tell(self, problems: tuple[Problem, ...]) -> None:
        log_changes(logger, self._told, problems)
        self._told = problems
