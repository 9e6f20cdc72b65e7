"""Reading the machine: the interface of all readings, and the code that all vendors' GPUs share.

machine_watch       reads the machine at an interval, and reports changes
simulated_machine   a profile's machine in place of a real one
simulated_failures  the failures of a simulated machine
gpu_slots           which slot of the server each GPU is in; the slot gives the GPU its number
sysfs               NUMA nodes, CPU and name of the server, from /sys and /proc
pci                 the PCI tree of /sys
nic_discovery       network cards in one reading of /sys
nic_functions       virtual and scalable functions of network cards
kept_nics           network cards of earlier readings, which pods may have now
driver_load         whether a driver was loaded again since the last reading
link_faults         links that a GPU should have and does not have
debounce            holds back changes that do not last
empty_machine       a machine without any GPU to hand out
problem             facts that could not be read, for the log
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from dradriver.node.container_edits import Edits
from dradriver.node.faults import Faults
from dradriver.node.gpu_work import GpuWork
from dradriver.topology.machine import Gpu, Machine


class Discovery(Protocol):
    """The interface of all code that reads this node's machine."""

    def edits(self, gpu: Gpu) -> Edits:
        """Return the container edits that give a GPU of this machine to a container."""

    def processes(self, gpus: Collection[str]) -> dict[str, tuple[int, ...]]:
        """Return the ids of processes that compute on each of these GPUs that is present, by uuid.

        Raises:
            DriverError: The processes cannot be read.
        """

    def work(self, gpus: Mapping[str, int]) -> dict[str, GpuWork]:
        """Return how much each GPU worked since the agent last asked, by uuid.

        Args:
            gpus: By uuid of each GPU, the time up to which the agent knows its work, in microseconds since the epoch.

        Raises:
            DriverError: The work of no GPU can be read.
        """

    @property
    def slow(self) -> bool:
        """Return whether reading the machine takes long or can hang.

        If so, the caller must read outside the event loop.
        """

    @property
    def faults(self) -> Faults:
        """Return the faults of each GPU at the last reading.

        GPUs that cannot be given to containers are included. The faults are by the GPU's uuid.
        """

    @property
    def sound(self) -> frozenset[str]:
        """Return the uuids of the GPUs that need no recovery action, according to the driver.

        The answer is from the last reading. A recovery action is, for example, a reset.
        """

    @property
    def read_s(self) -> float:
        """Return when the last successful reading started, in seconds of the monotonic clock."""

    @property
    def reset(self) -> frozenset[str]:
        """Return the uuids of GPUs that were reset between the last two readings."""

    def read(self) -> Machine:
        """Read the machine and return it; a GPU that does not answer is left out.

        Raises:
            RestartError: This process cannot read the machine any more, but a new process can.
            DriverError: The machine cannot be read now; the result of the last reading stays valid.
        """

    def close(self) -> None:
        """Release everything that is kept open between readings of the machine."""
