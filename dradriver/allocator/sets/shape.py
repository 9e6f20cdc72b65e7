"""A machine without its names: the properties on which the figures of its sets of GPUs depend.

Figures are, for example, bandwidths. Machines with equal properties share one shape, and so all figures.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import TypeVar

import msgspec

from dradriver.topology.machine import Blocks, Machine, PathType
from dradriver.topology.nccl_version import Release, release

_T = TypeVar("_T")

# A topo -m text says nothing of the generation, but the speed of its links does.
_CAPABILITY_OF_LINK = {12.0: 86, 20.6: 90, 40.1: 100}
# NCCL's releases from which on it predicts otherwise (its sources by version tag): see ``reach`` and ``busbw``.
BY_CPU: Release = (2, 23)
SPLITS: Release = (2, 26)
NVLS_MEASURED: Release = (2, 28)
_RELEASES = (BY_CPU, SPLITS, NVLS_MEASURED)


class Shape(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """The properties of a machine on which the figures of its sets depend; hashable.

    Machines with equal properties share one object.

    Attributes:
        links: GPUs x GPUs, direct links, or over a switch the smaller of both sides' links.
        switch_links: Per GPU, links that end in a switch.
        paths: GPUs x GPUs, PCIe paths.
        numa: Per GPU, a number of its NUMA node, counted from 0 in order of appearance; None if it is unknown.
        roots: Per GPU, a number of its PCIe root, counted from 0 in order of appearance; None if it is unknown.
        nics: Per GPU, the nearest path to any NIC; ``PathType.SYS`` without NICs.
        direct: Per GPU, whether it is attached to its CPU without a PCIe switch.
        pcie_gbps: Per GPU, bandwidth of its PCIe link.
        memory_mib: Per GPU, its memory.
        power_watts: Per GPU, its power limit.
        link_gbps: Bandwidth of one link as NCCL counts it.
        socket_gbps: Bandwidth between CPU sockets.
        socket_gbps_or: The bandwidth between CPU sockets if the machine has the other likely CPU; 0 if the CPU is
            known.
        capability: Compute capability times ten (70, 90); the lowest of all GPUs, 0 if unknown.
        nccl: The oldest NCCL release whose predictions equal those of the machine's release; (0, 0) for the oldest
            releases.
        predicted: Whether bandwidth can be predicted. If not, sets are compared by the strength of their links
            (``strength.of_sets``).
        blocks: The maker's blocks of GPUs, which say which GPUs one pod may have together. Blocks are numbered from 0
            in order of appearance. None if a pod may have any GPUs together.
    """

    links: tuple[tuple[int, ...], ...]
    switch_links: tuple[int, ...]
    paths: tuple[tuple[PathType, ...], ...]
    numa: tuple[int | None, ...]
    roots: tuple[int | None, ...]
    nics: tuple[PathType, ...]
    direct: tuple[bool, ...]
    pcie_gbps: tuple[float, ...]
    memory_mib: tuple[int, ...]
    power_watts: tuple[int, ...]
    link_gbps: float
    socket_gbps: float
    socket_gbps_or: float
    capability: int
    nccl: Release
    predicted: bool = True
    blocks: Blocks | None = None

    @property
    def size(self) -> int:
        """Return the number of GPUs of a machine's shape."""
        return len(self.links)

    @property
    def switched(self) -> bool:
        """Return whether NVLink switches join the GPUs of this shape."""
        return any(self.switch_links)

    def renumbered(self, order: Sequence[int]) -> Shape:
        """Return the shape with its GPUs in another order.

        The GPU at position ``i`` of the result is the GPU at position ``order[i]`` of this shape.
        """
        return Shape(
            links=_reordered_matrix(self.links, order),
            switch_links=_reordered(self.switch_links, order),
            paths=_reordered_matrix(self.paths, order),
            numa=_numbered(_reordered(self.numa, order)),
            roots=_numbered(_reordered(self.roots, order)),
            nics=_reordered(self.nics, order),
            direct=_reordered(self.direct, order),
            pcie_gbps=_reordered(self.pcie_gbps, order),
            memory_mib=_reordered(self.memory_mib, order),
            power_watts=_reordered(self.power_watts, order),
            link_gbps=self.link_gbps,
            socket_gbps=self.socket_gbps,
            socket_gbps_or=self.socket_gbps_or,
            capability=self.capability,
            nccl=self.nccl,
            predicted=self.predicted,
            blocks=_blocks(self.blocks, order),
        )

    def linked(self, a: int, b: int) -> int:
        """Return the number of links that traffic between two GPUs can use.

        These are direct links, or over a switch the smaller of both GPUs' links to it. ``a`` and ``b`` are the GPUs'
        positions.
        """
        if self.switched and self.links[a][b]:
            return min(self.switch_links[a], self.switch_links[b])
        return self.links[a][b]


@lru_cache(maxsize=64)
def shape_of(machine: Machine) -> Shape:
    """Return the shape of a machine, with GPUs at the same positions as in ``machine.gpus``.

    If a GPU's compute capability is not known, it is derived from the link speed.
    """
    # ``_numbered`` replaces ids by numbers in order of appearance, so that machines that differ only in ids are equal.
    # ``nic_paths`` has a row for each NIC: the nearest NIC of a GPU is the least in its column.
    return Shape(
        links=machine.links,
        switch_links=tuple(gpu.switch_links for gpu in machine.gpus),
        paths=machine.paths,
        numa=_numbered([gpu.numa for gpu in machine.gpus]),
        roots=_numbered([gpu.pcie_root for gpu in machine.gpus]),
        nics=tuple(
            min((row[position] for row in machine.nic_paths), default=PathType.SYS)
            for position in range(len(machine.gpus))
        ),
        direct=_direct(machine),
        pcie_gbps=tuple(gpu.pcie_gbps for gpu in machine.gpus),
        memory_mib=tuple(gpu.memory_mib for gpu in machine.gpus),
        power_watts=tuple(gpu.power_watts for gpu in machine.gpus),
        link_gbps=machine.link_gbps,
        socket_gbps=machine.socket_gbps,
        socket_gbps_or=machine.socket_gbps_or,
        capability=min(
            (
                _capability(gpu.compute_capability) or _CAPABILITY_OF_LINK.get(round(machine.link_gbps, 2), 0)
                for gpu in machine.gpus
            ),
            default=0,
        ),
        # The newest release that changes predictions and is not newer than the machine's NCCL.
        nccl=max(
            (known_release for known_release in _RELEASES if known_release <= release(machine.nccl_version)),
            default=(0, 0),
        ),
        predicted=machine.vendor.predicted,
        blocks=_blocks(machine.blocks, range(len(machine.gpus))),
    )


def _direct(machine: Machine) -> tuple[bool, ...]:
    """Return for each GPU whether it is attached to its CPU without a PCIe switch.

    If the PCI tree is not known, the answer is True for all GPUs, provided that no two GPUs share a switch.
    """
    above = {device.busid: device.parent for device in machine.pci}
    if all(gpu.pci in above for gpu in machine.gpus):
        return tuple(above[gpu.pci] is None for gpu in machine.gpus)
    none = not any(PathType.SELF < path <= PathType.PXB for row in machine.paths for path in row)
    return (none,) * len(machine.gpus)


def _reordered(values: Sequence[_T], order: Sequence[int]) -> tuple[_T, ...]:
    return tuple(values[position] for position in order)


def _reordered_matrix(matrix: Sequence[Sequence[_T]], order: Sequence[int]) -> tuple[tuple[_T, ...], ...]:
    return tuple(_reordered(matrix[position], order) for position in order)


def _numbered(values: Sequence[Hashable | None]) -> tuple[int | None, ...]:
    numbers: dict[Hashable, int] = {}
    return tuple(None if value is None else numbers.setdefault(value, len(numbers)) for value in values)


def _blocks(blocks: Blocks | None, order: Sequence[int]) -> Blocks | None:
    if blocks is None:
        return None
    number: dict[int, int] = {}
    of = tuple(number.setdefault(blocks.of[position], len(number)) for position in order)
    return msgspec.structs.replace(blocks, of=of)


def _capability(text: str) -> int:
    major, _, minor = text.partition(".")
    if not major.isdecimal():
        return 0
    return int(major) * 10 + (int(minor) if minor.isdecimal() else 0)
