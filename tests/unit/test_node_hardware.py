"""Reading the real machine: what a library that answers from a profile makes of it, and a node without a driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from dradriver.errors import DriverError
from dradriver.node.discovery import hardware
from dradriver.node.discovery.nvml import GPU_IS_LOST, NOT_SUPPORTED, REMOTE_GPU, REMOTE_SWITCH, Handle, NvmlError
from dradriver.topology import profiles
from dradriver.topology.machine import Gpu, Machine, PathType

SWITCH = "0000:c8:00.0"


class ProfileNvml:
    """Answers as NVML would on a profile's machine; the GPUs in ``lost`` have fallen off the bus."""

    def __init__(self, machine: Machine, lost: frozenset[int] = frozenset()) -> None:
        self.machine = machine
        self.lost = lost

    def __getattr__(self, name: str) -> object:
        def unknown(*_: object) -> None:
            raise NvmlError(name, NOT_SUPPORTED, "Not Supported")

        return unknown

    def _of(self, gpu: Handle) -> Gpu:
        assert isinstance(gpu, int)
        if gpu in self.lost:
            raise NvmlError("query", GPU_IS_LOST, "GPU is lost")
        return self.machine.gpus[gpu]

    def _ends(self, gpu: Handle) -> list[tuple[int, str]]:
        mine = self._of(gpu)
        peers = zip(self.machine.gpus, self.machine.links[mine.index], strict=True)
        direct = [] if mine.switch_links else [(REMOTE_GPU, g.pci) for g, n in peers for _ in range(n)]
        return direct + [(REMOTE_SWITCH, SWITCH)] * mine.switch_links

    def count(self) -> int:
        return len(self.machine.gpus)

    def gpu(self, index: int) -> Handle:
        self._of(Handle(index))
        return Handle(index)

    def uuid(self, gpu: Handle) -> str:
        return self._of(gpu).uuid

    def minor(self, gpu: Handle) -> int:
        return self._of(gpu).minor

    def bus_id(self, gpu: Handle) -> str:
        return self._of(gpu).pci

    def product(self, gpu: Handle) -> str:
        return self._of(gpu).product

    def compute_capability(self, gpu: Handle) -> tuple[int, int]:
        major, minor = self._of(gpu).compute_capability.split(".")
        return int(major), int(minor)

    def memory_mib(self, gpu: Handle) -> int:
        return self._of(gpu).memory_mib

    def link_count(self, gpu: Handle) -> int:
        return len(self._ends(gpu))

    def link_active(self, gpu: Handle, link: int) -> bool:
        return link < len(self._ends(gpu))

    def link_remote_type(self, gpu: Handle, link: int) -> int:
        return self._ends(gpu)[link][0]

    def link_remote(self, gpu: Handle, link: int) -> str:
        return self._ends(gpu)[link][1]

    def ancestor(self, a: Handle, b: Handle) -> PathType:
        return self.machine.paths[self._of(a).index][self._of(b).index]


def found(machine: Machine, root: Path, lost: frozenset[int] = frozenset()) -> hardware.Reading:
    return hardware.discover(ProfileNvml(machine, lost), root=root)  # type: ignore[arg-type]


@pytest.mark.parametrize("profile", ["dgx1-v100", "dgx-h100"])
def test_gpus_links_and_paths_are_the_profiles(profile: str, tmp_path: Path) -> None:
    machine = profiles.load(profile)
    got = found(machine, tmp_path).machine

    assert got.links == machine.links
    assert got.paths == machine.paths
    assert got.link_gbps == machine.link_gbps
    for ours, theirs in zip(got.gpus, machine.gpus, strict=True):
        for field in ("uuid", "minor", "pci", "product", "architecture", "memory_mib", "switch_links"):
            assert getattr(ours, field) == getattr(theirs, field), field


def test_a_lost_gpu_hides_no_other(tmp_path: Path) -> None:
    machine = profiles.load("dgx1-v100")
    reading = found(machine, tmp_path, lost=frozenset({2}))

    assert {gpu.uuid for gpu in reading.machine.gpus} == {gpu.uuid for gpu in machine.gpus if gpu.index != 2}
    assert any("lost" in str(problem) for problem in reading.problems)


def test_a_node_without_a_driver_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(DriverError):
        hardware.read(driver_root=tmp_path, host_root=tmp_path)
