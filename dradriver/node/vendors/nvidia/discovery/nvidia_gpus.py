"""This node's own GPUs of NVIDIA, read at an interval.

While a reading fails, the last reading stays valid.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from dradriver.node.container_edits import GPU_KIND, Edits, cdi_id
from dradriver.node.discovery import driver_load, sysfs
from dradriver.node.discovery.debounce import Debounce
from dradriver.node.discovery.driver_load import DriverLoad
from dradriver.node.discovery.kept_nics import KeptNics
from dradriver.node.discovery.problem import Problem, log_changes
from dradriver.node.errors import RestartError, SetupError
from dradriver.node.faults import Fault, Faults
from dradriver.node.gpu_work import GpuWork
from dradriver.node.vendors.nvidia.discovery import (
    binding,
    device_nodes,
    library,
    nvidia_processes,
    nvidia_reading,
    nvidia_work,
)
from dradriver.node.vendors.nvidia.discovery.base_specification import BaseSpecification
from dradriver.node.vendors.nvidia.discovery.failed_queries import Answers
from dradriver.node.vendors.nvidia.discovery.nvml_interface import (
    DRIVER_MISMATCH,
    DRIVER_NOT_LOADED,
    LIBRARY_NOT_FOUND,
    Nvml,
    NvmlError,
)
from dradriver.node.vendors.nvidia.discovery.nvml_session import Session
from dradriver.topology.machine import Gpu, Machine

logger = logging.getLogger(__name__)

READINGS: Final = 3  # in a row that are no good before they count
_NO_DRIVER: Final = frozenset({LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, DRIVER_MISMATCH})
_DRIVER: Final = "nvidia"  # its module


class Hardware:
    """Reads this node's own NVIDIA GPUs, for the node agent.

    If the node has no usable driver, the machine has no GPU. This is so if there is no library, no module, or a module
    of another version than the library. It is normal, because an operator may install the driver late or replace it.
    All other failures tell nothing about the GPUs, so the last reading stays valid.
    """

    faults: Faults = MappingProxyType({})
    sound: frozenset[str] = frozenset()
    read_s = 0.0
    reset: frozenset[str] = frozenset()
    slow = True  # NVML wakes sleeping GPUs, and can hang on a broken one

    def __init__(
        self,
        *,
        driver_root: Path | None = None,
        host_root: Path = Path("/"),
        base: BaseSpecification | None = None,
        released: Callable[[], str | None] = lambda: None,
        nics: KeptNics | None = None,
    ) -> None:
        """Store the arguments; read nothing yet.

        Args:
            driver_root: Root of the file system with the driver; None asks the dynamic linker.
            host_root: Folder that contains the host's /sys and /dev. If it also contains /proc/cpuinfo, its /proc is
                used, else this process's own.
            base: Writes the base specification, the CDI file for whole GPUs. A GPU that this file lacks is left out of
                the machine. If None, no GPU is left out.
            released: Returns the reason why all processes must close the driver now; None if they may keep it open.
            nics: The network cards of earlier readings, maybe those of an earlier agent.
        """
        self._nics = KeptNics() if nics is None else nics
        self._base = base
        self._driver_root = driver_root
        self._host_root = host_root
        self._released = released
        # The open NVML library. The driver cannot be replaced while a process has it open, hence ``released``.
        self._session = Session(driver_root=driver_root, host_root=host_root)
        self._answers = Answers()  # NVML's last good answers: a question that fails once changes nothing
        self._debounce = Debounce()  # holds back a change of the machine until several readings show it
        self._incomplete = 0  # readings in a row in which a GPU did not say who it is, or that found no GPU at all
        self._logged: tuple[Problem, ...] = ()  # problems of the last reading, which are not logged again
        self._worked = False  # whether NVML could be used once in this process
        self._seen: set[str] = set()  # uuids of all GPUs that any reading found
        self._gone: set[str] = set()  # uuids of seen GPUs that are missing now: lost, or in need of a reset
        self._row_waits: dict[str, bool] = {}  # by uuid: whether a bad memory row waits for a reset to be remapped
        self._load: DriverLoad | None = None  # the load of the kernel module in which the last reading was made

    def edits(self, gpu: Gpu) -> Edits:
        """Return the CDI id of a whole GPU, which adds device nodes and libraries.

        The id belongs to the base specification, the agent's CDI file for whole GPUs.
        """
        return Edits(cdi=(cdi_id(gpu.uuid),))

    def read(self) -> Machine:
        """Read the machine with NVIDIA's GPUs and return it; log new problems.

        Raises:
            RestartError: The driver was replaced, and this process has loaded the library of the old driver.
            DriverError: The machine cannot be read now; its GPUs may be healthy.
        """
        self.reset = frozenset()
        if self.is_stale():
            self.withdraw()
        if self._host_root != Path("/"):
            device_nodes.add_nodes(root / "dev" for root in (self._driver_root, self._host_root) if root is not None)
        # An open library is that of the old driver, and NVML refuses it.
        if library.replaced(driver_root=self._driver_root):
            self.close()
            raise RestartError("the driver's library was replaced, start again with the new one")
        if (reason := self._released()) is not None:
            return self._without_driver(reason)
        try:
            return self._read(self._session.nvml())
        except NvmlError as error:
            self.close()
            if error.code == DRIVER_MISMATCH and self._worked:
                raise RestartError(f"the driver was replaced, start again with its new library: {error}") from error
            if error.code in _NO_DRIVER:
                return self._none(str(error))
            raise
        except OSError as error:
            raise SetupError(f"the host's {self._host_root / 'sys'} cannot be looked at: {error}") from error

    def is_stale(self) -> bool:
        """Return whether NVIDIA's driver was loaded again since the last reading of its GPUs."""
        return self._load is not None and not self._load.outlives(self._load_now())

    def withdraw(self) -> None:
        """Remove the base specification (the CDI file for whole GPUs), whose numbers of device nodes are outdated.

        Otherwise containers could start with the old numbers. The next reading makes the file again. The caller must
        not call this while a reading runs, because the reading then takes the missing file for one that it cannot make.
        """
        if self._base is None:
            return
        try:
            self._base.withdraw()
        except OSError as error:
            logger.error(
                "The CDI file cannot be removed after the GPU driver was loaded again, so "
                "containers may get another GPU than the allocated one: %s",
                error,
            )

    def _load_now(self) -> DriverLoad:
        return driver_load.read(self._host_root, _DRIVER)

    def close(self) -> None:
        """Close the session with NVIDIA's driver; the next reading opens another."""
        self._session.end()

    def _read(self, nvml: Nvml) -> Machine:
        """Return the machine as NVML describes it now; update the faults."""
        # 1. Read. The driver's load is noted before, so that ``is_stale`` sees whether it was loaded again meanwhile.
        self._worked = True
        load = self._load_now()
        began_s = time.monotonic()
        proc_root = self._host_root if os.path.exists(self._host_root / sysfs.CPUINFO) else Path("/")
        reading = nvidia_reading.discover(
            nvml, root=self._host_root, proc_root=proc_root, answers=self._answers, kept=self._nics
        )
        self._session.lost(reading.lost)

        # 2. A GPU that did not say who it is may do so next time. After some readings what did answer counts.
        gpus = reading.machine.gpus
        self._incomplete = self._incomplete + 1 if reading.silent or not (gpus or reading.lost) else 0
        if 0 < self._incomplete < READINGS:
            self._tell(reading.problems)
            raise SetupError(f"{reading.silent or 'all'} GPUs did not say who they are")

        # 3. The faults, and the GPUs that were reset: what was known of those is asked again.
        self._answers.forget({gpu.uuid for gpu in gpus})
        self.faults, self.sound, self.read_s = reading.faults, reading.sound, began_s
        self.reset = self._were_reset(reading)
        self._answers.unsettle(self.reset)

        # 4. The GPUs that the CDI specification names, and so a container can have.
        machine, unnamed = self._usable(reading.machine)
        self._load = load
        if self.is_stale():
            self.withdraw()
            raise SetupError("the driver was loaded again while its GPUs were read")
        self._tell((*reading.problems, *unnamed))
        return self._debounce.machine(machine)

    def _were_reset(self, read: nvidia_reading.Reading) -> frozenset[str]:
        """Return the uuids of the GPUs that were reset since the last reading.

        A GPU was reset if a bad memory row does not wait for a reset any more, or if the GPU was missing and is present
        again.
        """
        there = {gpu.uuid for gpu in read.machine.gpus}
        remapped = {uuid for uuid, waits in read.rows.items() if self._row_waits.get(uuid) and not waits}
        back = self._gone & there
        self._row_waits |= read.rows
        self._seen |= there
        self._gone -= there
        if not read.silent:  # else nobody knows which of them is lost
            self._gone |= self._seen - there
        return frozenset(remapped | back)

    def _without_driver(self, reason: str) -> Machine:
        """Close a driver that will be replaced; if it is unloaded, return a machine without GPUs.

        This method does not call the driver. ``reason`` says why the driver must be closed.

        Raises:
            SetupError: The driver is still loaded; the last reading stays valid.
        """
        self.close()
        if self._load_now().module:
            raise SetupError(f"the driver is let go: {reason}")
        return self._none(f"the driver is not loaded: {reason}")

    def _none(self, said: str) -> Machine:
        if self.is_stale():
            self.withdraw()
            self._load = self._load_now()
        # Those that were there are not lost.
        self.faults = dict.fromkeys(self._seen, (Fault("driver", "", f"the GPU has no driver: {said}"),))
        self.sound = frozenset()
        self._tell((Problem("machine", "no GPUs", said),))
        return nvidia_reading.empty(self._host_root)

    def processes(self, gpus: Collection[str]) -> dict[str, tuple[int, ...]]:
        """Return the ids of processes that compute on each of NVIDIA's GPUs.

        Raises:
            NvmlError: The driver, or a present GPU, does not answer.
            SetupError: The driver must stay closed, and a query would open it again.
        """
        self._refuse_released()
        with binding.opened(driver_root=self._driver_root) as nvml:
            return nvidia_processes.find(nvml, gpus)

    def work(self, gpus: Mapping[str, int]) -> dict[str, GpuWork]:
        """Return how much each of NVIDIA's GPUs worked since the agent last asked.

        Args:
            gpus: By uuid of each GPU, the time up to which the agent knows its work, in microseconds since the epoch.

        Raises:
            NvmlError: There is no driver.
            SetupError: The driver must stay closed, and a query would open it again.
        """
        self._refuse_released()
        with binding.opened(driver_root=self._driver_root) as nvml:
            return nvidia_work.find(nvml, gpus)

    def _refuse_released(self) -> None:
        if (reason := self._released()) is not None:
            raise SetupError(f"the driver is let go: {reason}")

    def _usable(self, machine: Machine) -> tuple[Machine, list[Problem]]:
        """Return the machine without GPUs that containers cannot get, and a problem for each.

        These are whole GPUs that the agent's CDI file lacks. GPUs in MIG mode stay.
        """
        wrong = self._base.keep(machine) if self._base is not None else {}
        told = [
            Problem(f"GPU {gpu.index}", GPU_KIND, f"left out: {wrong[gpu.uuid]}")
            for gpu in machine.gpus
            if gpu.uuid in wrong
        ]
        return machine.subset([i for i, gpu in enumerate(machine.gpus) if gpu.uuid not in wrong]), told

    def _tell(self, problems: tuple[Problem, ...]) -> None:
        log_changes(logger, self._logged, problems)
        self._logged = problems
