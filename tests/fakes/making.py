"""A node whose GPUs' halves are made for claims, by hardware that a test can hold up."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from dradriver.node.claims.prepare import Preparer
from dradriver.node.devices.device_manager import DeviceManager
from dradriver.node.devices.hardware_journal import HardwareJournal, Made
from dradriver.node.devices.whole_gpus import Whole
from dradriver.node.vendors.nvidia.devices.simulated_control import SimulatedGpu
from dradriver.topology.machine import MigProfile
from tests.fakes.node import claim, edits, result, uuid
from tests.fakes.parts import Halves, half
from tests.fakes.preparing import World

Asked = tuple[str, str, str]


class Gpus(SimulatedGpu):
    """Simulated GPUs that a test can hold up."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.go_on = threading.Event()
        self.go_on.set()
        self.working = threading.Event()

    def create_gpu_instance(self, gpu: str, profile: MigProfile, start: int) -> int:
        self.working.set()
        self.go_on.wait(timeout=30)
        return super().create_gpu_instance(gpu, profile, start)


class Sliced(World):
    """A world whose GPUs 0 to 3 are in MIG mode."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gpus = Gpus(folder / "hardware.json")
        for i in range(4):
            with self.gpus.state(uuid(i)) as state:
                state.mig = True
        self.device_manager = DeviceManager([Whole(edits), Halves()], self.gpus, in_use_s=0)

    def another(self) -> Preparer:
        """An instance whose process is another: it has a thread of its own for the hardware."""
        self.device_manager = DeviceManager([Whole(edits), Halves()], self.gpus, in_use_s=0)
        return self.preparer()

    def opened(self, name: str) -> int:
        """How many hold one of the state folder's locks, or wait for it."""
        there = (Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
        return sum(path.is_symlink() and Path(os.readlink(path)).name == name for path in there)

    def halves(self, name: str, *parts: tuple[int, int]) -> Asked:
        results = [result("gpu", half(uuid(gpu), start)) for gpu, start in parts]
        return self.put(claim(name, results=results))

    @property
    def made(self) -> dict[str, Made]:
        ledger = HardwareJournal(self.folder / "state" / "made")
        return {key: entry.value for key, entry in ledger.read().items()}

    @property
    def instances(self) -> dict[int, list[int]]:
        """Starts of the instances by GPU."""
        found = {i: sorted(start for _, start in self.gpus.gpu_instances(uuid(i)).values()) for i in range(4)}
        return {gpu: starts for gpu, starts in found.items() if starts}

    def nothing(self) -> bool:
        return (self.made, self.instances, self.specs, self.checkpoint) == ({}, {}, {}, [])


def env(prepared: Any) -> list[str]:
    return [word for device in prepared.devices for word in device.edits.env if word.startswith("MIG=")]


def patient(world: Sliced) -> Preparer:
    """A preparer that tries once."""
    preparer = world.preparer()
    preparer._budget_s = 0.0
    return preparer


async def left_by_a_kill(world: Sliced, *, boot: str, done: bool) -> None:
    """A part that was intended, made, and not answered."""
    halves = Halves()
    intent = Made(owner="uid-c", number=0, boot=boot, kind="half", device=half(uuid(0), 4), uuid=uuid(0), wanted={})
    (made,) = halves.make(world.gpus, intent)
    HardwareJournal(world.folder / "state" / "made").write(made if done else intent)
