"""What AMD's driver has in /sys of a machine: KFD's topology, and the devices' folders below PCI."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from dradriver.topology.amd.amd_products import PARTS
from dradriver.topology.machine import Gpu, Machine
from tests.fakes.sysfs import Sys

KFD: Final = "sys/class/kfd/kfd"
NODES: Final = f"{KFD}/topology/nodes"
FIRST_RENDER: Final = 128
_FIRST_ID: Final = 0x00AB_0000_0000_0001
_ONE_LINK: Final = 50_000  # MB/s of one xGMI link, as the kernel says it
BOARDS: Final = {  # what the driver has been seen to call a board, by its GPUs' product
    "AMD Instinct MI250X/MI250": "AMD INSTINCT MI250 (MCM) OAM AC MBA",
    "AMD Instinct MI300X": "AMD Instinct MI300X OAM",
}


class AmdServer:
    """A server with AMD's GPUs, to be read below ``root``; change its files before a reading.

    KFD's numbers have gaps, and CPUs come first; cards are numbered otherwise than render nodes, from 1: card0 is a
    management controller's.
    """

    def __init__(self, root: Path, machine: Machine) -> None:
        """Write the machine; it has a PCI tree (``tests.fakes.server.complete``)."""
        self.root = root
        self.machine = machine
        self.sys = Sys(root, machine)
        cpus = [node.id for node in machine.numa if node.cpus] or [node.id for node in machine.numa]
        self.numbers = {gpu.index: len(cpus) + 2 * gpu.index + 1 for gpu in machine.gpus}
        for number in range(len(cpus)):
            self.properties(number, cpu_cores_count=32, simd_count=0, device_id=0)
        for i, gpu in enumerate(machine.gpus):
            self._gpu(i, gpu, cpus)

    def file(self, path: str, text: str) -> Path:
        """Write one file."""
        return self.sys.file(path, text)

    def node(self, gpu: int) -> Path:
        """KFD's folder of a GPU."""
        return self.root / NODES / str(self.numbers[gpu])

    def device(self, gpu: int) -> Path:
        """The PCI device of a GPU."""
        return self.sys.device(self.machine.gpus[gpu].pci)

    def product_name(self, gpu: int, text: str) -> None:
        """Write what the driver calls a GPU's board; some boards have no such name, and then there is no file."""
        (self.device(gpu) / "product_name").write_text(text + "\n")

    def properties(self, number: int, at: str = "", **said: int) -> None:
        """Write the properties of a KFD node, or of something below it."""
        lines = "\n".join(f"{key} {value}" for key, value in said.items())
        self.file(f"{NODES}/{number}/{at}properties", lines)

    def link(self, number: int, position: int, **said: int) -> None:
        """Write one link of a KFD node."""
        self.properties(number, f"io_links/{position}/", node_from=number, **said)

    def _gpu(self, i: int, gpu: Gpu, cpus: list[int]) -> None:
        number = self.numbers[gpu.index]
        domain, bus, device, function = (int(part, 16) for part in re.split("[:.]", gpu.pci))
        gfx = re.fullmatch(r"gfx([0-9]+)([0-9a-f])([0-9a-f])", gpu.architecture)
        assert gfx is not None
        self.properties(
            number,
            cpu_cores_count=0,
            simd_count=416,
            gfx_target_version=int(gfx[1]) * 10_000 + int(gfx[2], 16) * 100 + int(gfx[3], 16),
            vendor_id=0x1002,
            device_id=next(int(part, 16) for part, known in PARTS.items() if known.product == gpu.product),
            location_id=bus << 8 | device << 3 | function,
            domain=domain,
            drm_render_minor=gpu.minor,
            hive_id=1,
            local_mem_size=0,
            unique_id=int(gpu.uuid.removeprefix("GPU-"), 16),
        )
        self.file(f"{NODES}/{number}/gpu_id", str(1000 + gpu.index))
        self.properties(number, "mem_banks/0/", heap_type=1, size_in_bytes=gpu.memory_mib << 20)
        others = [other for j, other in enumerate(self.machine.gpus) if j != i and self.machine.links[i][j]]
        if gpu.numa is not None:
            self.link(
                number, 0, type=2, node_to=cpus.index(gpu.numa), weight=20, min_bandwidth=312, max_bandwidth=32000
            )
        for position, other in enumerate(others, 1):
            count = self.machine.links[i][self.machine.gpus.index(other)]
            self.link(
                number,
                position,
                type=11,
                node_to=self.numbers[other.index],
                weight=15,
                min_bandwidth=_ONE_LINK,
                max_bandwidth=_ONE_LINK * count,
            )
        if gpu.board:
            self.product_name(i, gpu.board)
        folder = self.sys.device(gpu.pci)
        for name in (f"card{gpu.index + 1}", f"renderD{gpu.minor}"):
            (folder / "drm" / name).mkdir(parents=True)


def amd(machine: Machine) -> Machine:
    """The machine with identities, render nodes, PCI ids and boards in AMD's form."""
    gpus = tuple(
        msgspec.structs.replace(gpu, minor=FIRST_RENDER + gpu.index, uuid=f"GPU-{_FIRST_ID + gpu.index:016x}")
        for gpu in machine.gpus
    )
    return on_boards(msgspec.structs.replace(machine, gpus=gpus))


def on_boards(machine: Machine) -> Machine:
    """The machine with its GPUs' boards, as far as their names are known."""
    gpus = tuple(msgspec.structs.replace(gpu, board=BOARDS.get(gpu.product, "")) for gpu in machine.gpus)
    return msgspec.structs.replace(machine, gpus=gpus)
