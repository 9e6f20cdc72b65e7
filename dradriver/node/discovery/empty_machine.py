"""A machine from which no container gets a GPU.

The agent uses it if the node's GPUs must not be published. This code does not look at the GPUs that the server may
have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from dradriver.node.container_edits import Edits
from dradriver.node.discovery import sysfs
from dradriver.node.faults import Faults
from dradriver.node.gpu_work import GpuWork
from dradriver.topology.machine import Gpu, Machine


class Nothing:
    """A discovery that finds no GPU."""

    faults: Faults = MappingProxyType({})
    sound: frozenset[str] = frozenset()
    read_s = 0.0
    reset: frozenset[str] = frozenset()
    slow = False

    def __init__(self, root: Path) -> None:
        """Read the server's name from /sys below ``root``, and nothing else."""
        self._machine = Machine(name=sysfs.product_name(root), gpus=(), links=(), paths=())

    def edits(self, gpu: Gpu) -> Edits:  # noqa: ARG002  # the signature
        """Return no edits: no container gets a GPU of this machine."""
        return Edits()

    def processes(self, gpus: Collection[str]) -> dict[str, tuple[int, ...]]:  # noqa: ARG002  # the signature
        """Return no processes: no container gets a GPU of this machine."""
        return {}

    def work(self, gpus: Mapping[str, int]) -> dict[str, GpuWork]:  # noqa: ARG002  # the signature
        """Return no work of GPUs: no container gets a GPU of this machine."""
        return {}

    def read(self) -> Machine:
        """Return this node's machine without any GPUs."""
        return self._machine

    def close(self) -> None:
        """Do nothing, because this discovery keeps nothing open."""
