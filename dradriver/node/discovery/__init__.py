"""Reading the machine: one way to ask, and what is read alike for all vendors' GPUs.

machine_watch       reads the machine again and again, and tells of changes
simulated_machine   a profile's machine in place of a real one
simulated_failures  what is broken on a simulated machine
gpu_slots           which slot each GPU is in, which is its number
sysfs               NUMA nodes, CPU and name of the server, from /sys and /proc
pci                 the PCI tree of /sys
nic_discovery       network cards in one reading of /sys
nic_functions       virtual and scalable functions of network cards
kept_nics           network cards of earlier readings, which pods may have now
driver_load         whether a driver was loaded anew since it was read
link_faults         links that a GPU should have and has not
debounce            holds back changes that do not last
empty_machine       a machine none of whose GPUs is handed out
problem             what could not be read, as lines of the log
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from dradriver.node.container_edits import Edits
from dradriver.node.faults import Faults
from dradriver.node.gpu_work import GpuWork
from dradriver.topology.machine import Gpu, Machine


class Discovery(Protocol):
    """A way to read this node's machine."""

    def edits(self, gpu: Gpu) -> Edits:
        """Return the container edits that make a GPU of this machine usable."""

    def processes(self, gpus: Collection[str]) -> dict[str, tuple[int, ...]]:
        """Return the pids that compute on each present GPU, given by uuid.

        Raises:
            DriverError: It cannot be known.
        """

    def work(self, gpus: Mapping[str, int]) -> dict[str, GpuWork]:
        """Return what each of the GPUs did, given by uuid with the moment since when, in microseconds since the epoch.

        Raises:
            DriverError: It cannot be known of any.
        """

    @property
    def slow(self) -> bool:
        """Return whether reading the machine takes long or can hang, so that it is done outside the event loop."""

    @property
    def faults(self) -> Faults:
        """Return what was wrong with each GPU that the last reading found, those that cannot be handed out included."""

    @property
    def sound(self) -> frozenset[str]:
        """Return the uuids of GPUs of which the driver said at the last reading that nothing needs to be done."""

    @property
    def read_s(self) -> float:
        """Return when the last reading began, in seconds of the monotonic clock, whatever hangs or fails since."""

    @property
    def reset(self) -> frozenset[str]:
        """Return the uuids of GPUs that the last reading shows to have been reset since the one before."""

    def read(self) -> Machine:
        """Return the machine as it is now by a new reading; a GPU that does not answer is left out.

        Raises:
            RestartError: This process cannot read it any more, another can.
            DriverError: The machine cannot be read now: what was read before stands.
        """

    def close(self) -> None:
        """Release whatever is held between readings of the machine."""
