"""A server to be discovered: a /sys below a folder and an NVML that answers from a table."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import msgspec

from dradriver.node.discovery import hardware
from dradriver.node.discovery.hardware import Reading
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests.fakes import nvml
from tests.fakes.server import complete
from tests.fakes.sysfs import Sys


class Server:
    """One server.

    Attributes:
        machine: What discovery should find while nothing was changed.
        table: What NVML answers; change it before a reading.
        sys: Its /sys; change it before a reading.
    """

    def __init__(self, machine: Machine | str, folder: Path) -> None:
        self.machine = complete(profiles.load(machine)) if isinstance(machine, str) else machine
        self.table = nvml.table(self.machine)
        self.sys = Sys(folder / "root", self.machine)
        self._file = folder / "nvml"

    def environment(self) -> dict[str, str]:
        """Write the table and return the variable that names it."""
        return {nvml.TABLE: str(nvml.write(self.table, self._file))}

    def read(self, *, whole: bool = False) -> Reading:
        """Discover it through the binding, in this process."""
        with patch.dict(os.environ, self.environment()):
            return hardware.read(driver_root=nvml.compiled(), host_root=self.sys.root, whole=whole)

    def fail(self, query: str, code: int) -> None:
        """Have one query fail: ``nvmlDeviceGetUUID 3``."""
        self.table[query] = f"!{code}"


def without(machine: Machine, *indices: int) -> Machine:
    """The machine as it is when these GPUs do not answer: the others keep their numbers. It has no PCI tree."""
    left = [i for i, gpu in enumerate(machine.gpus) if gpu.index not in indices]
    return msgspec.structs.replace(
        machine,
        gpus=tuple(machine.gpus[i] for i in left),
        links=tuple(tuple(machine.links[i][j] for j in left) for i in left),
        paths=tuple(tuple(machine.paths[i][j] for j in left) for i in left),
        nic_paths=tuple(tuple(row[j] for j in left) for row in machine.nic_paths),
        pci=(),
    )


def said(reading: Reading) -> list[str]:
    return [str(problem) for problem in reading.problems]
