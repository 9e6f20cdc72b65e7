"""A server to be discovered: a /sys below a folder and an NVML that answers from a table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest.mock import patch

import msgspec

from dradriver.node.vendors.nvidia.discovery import nvidia_reading
from dradriver.node.vendors.nvidia.discovery.nvidia_reading import Reading
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
        file: Where the table is written.
    """

    def __init__(self, machine: Machine | str, folder: Path) -> None:
        nvml.end_sessions()
        self.machine = complete(profiles.load(machine)) if isinstance(machine, str) else machine
        self.table = nvml.table(self.machine)
        self.sys = Sys(folder / "root", self.machine)
        self.sys.file("dev/null", "")  # what stands behind a specification's nodes
        self.file = folder / "nvml"

    def environment(self) -> dict[str, str]:
        """Write the table and return the variable that names it."""
        return {nvml.TABLE: str(nvml.write(self.table, self.file))}

    def read(self) -> Reading:
        """Discover it through the binding, in this process."""
        with patch.dict(os.environ, self.environment()):
            return nvidia_reading.read(driver_root=nvml.compiled(), host_root=self.sys.root)

    def fail(self, query: str, code: int) -> None:
        """Have one query fail: ``nvmlDeviceGetUUID 3``."""
        self.table[query] = f"!{code}"


def without(machine: Machine, *indices: int) -> Machine:
    """The machine as it is when these GPUs do not answer: the others keep their numbers. It has no PCI tree."""
    left = [i for i, gpu in enumerate(machine.gpus) if gpu.index not in indices]
    return msgspec.structs.replace(machine.subset(left), pci=())


def said(reading: Reading) -> list[str]:
    return [str(problem) for problem in reading.problems]


def cdi_specification(whole: Machine) -> str:
    """The container toolkit's specification, with nothing behind the device nodes."""

    def device(minor: int, name: str) -> dict[str, object]:
        return {
            "name": name,
            "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{minor}", "hostPath": "/dev/null"}]},
        }

    devices = [device(gpu.minor, gpu.uuid) for gpu in whole.gpus]
    edits = {"deviceNodes": [{"path": "/dev/nvidiactl", "hostPath": "/dev/null"}]}
    return json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices, "containerEdits": edits})
