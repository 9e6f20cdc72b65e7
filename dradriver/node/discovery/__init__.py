"""Reading the machine: one way to ask, one module for each way to find out.

watch      reads again and again, and tells of changes
hardware   the real machine, from what NVML and /sys say
simulated  a profile's machine in place of a real one
questions  asking what may fail
nvml       what may be asked of NVML, with types
binding    its answers, by nvidia-ml-py
library    which library that is, and whether it was replaced
devices    the driver's device nodes in the agent's own /dev
gpus       what NVML says of each GPU
mig        what it says of MIG
links      links between GPUs, from what each says of its own
sysfs      NUMA nodes, CPU and name, from /sys and /proc
pci        the PCI tree of /sys
nics       network cards
processes  how many processes are on a GPU
toolkit    which GPUs NVIDIA's CDI specification names
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from dradriver.node.edits import Edits
from dradriver.topology.machine import Gpu, Machine


class Discovery(Protocol):
    """A way to read this node's machine."""

    def edits(self, gpu: Gpu) -> Edits:
        """Return what a container needs to use a GPU of this machine."""

    def processes(self, gpus: Collection[str]) -> dict[str, int]:
        """Return the number of processes on each of the GPUs, given by uuid, that is there.

        Raises:
            DriverError: It cannot be known.
        """

    @property
    def slow(self) -> bool:
        """Whether reading takes long or can hang, so that it is done beside the event loop."""

    def read(self) -> Machine:
        """Return the machine as it is now; a GPU that does not answer is left out.

        Raises:
            RestartError: This process cannot read it any more, another can.
            DriverError: The machine cannot be read.
        """
