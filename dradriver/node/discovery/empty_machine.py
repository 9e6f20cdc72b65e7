"""A machine none of whose GPUs is handed out, without looking at them."""

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
    """Finds no GPU."""

    faults: Faults = MappingProxyType({})
    sound: frozenset[str] = frozenset()
    read_s = 0.0
    reset: frozenset[str] = frozenset()
    slow = False

    def __init__(self, root: Path) -> None:
        """Find nothing below ``root`` but the server's name."""
        self._machine = Machine(name=sysfs.product_name(root), gpus=(), links=(), paths=())

    def edits(self, gpu: Gpu) -> Edits:  # noqa: ARG002  # the signature
        """Return no edits: no GPU of this machine is handed out."""
        return Edits()

    def processes(self, gpus: Collection[str]) -> dict[str, tuple[int, ...]]:  # noqa: ARG002  # the signature
        """Return no processes: no GPU of this machine is handed out."""
        return {}

    def work(self, gpus: Mapping[str, int]) -> dict[str, GpuWork]:  # noqa: ARG002  # the signature
        """Return no work of GPUs: no GPU of this machine is handed out."""
        return {}

    def read(self) -> Machine:
        """Return this node's machine without any GPUs."""
        return self._machine

    def close(self) -> None:
        """Close a machine of which no GPU is handed out: nothing is open."""
