"""Computes PCIe paths from the places of devices in the PCI tree.

All path matrices from profiles and from /sys are made by this one rule.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from dradriver.topology.machine import PathType


class Place(msgspec.Struct, frozen=True):
    """The place of a device in the PCI tree.

    Attributes:
        numa: NUMA node, or None if it is not known.
        root: Root complex (``pci0000:00``); None if it is not known.
        switches: PCIe switches from the root down to the device, with any names; empty directly below the root.
    """

    numa: int | None = None
    root: str | None = None
    switches: tuple[str, ...] = ()


def pcie_path(a: Place, b: Place) -> PathType:
    """Return the PCIe path between two devices, as ``nvidia-smi topo -m`` would name it.

    ``a`` and ``b`` are the devices' places in the PCI tree.

    * same root complex: PIX if both are directly below the same switch, PXB if they have a common switch further up,
      else PHB
    * different roots: NODE if both are on the same known NUMA node, else SYS

    Two unknown roots count as different.
    """
    if a.root is None or a.root != b.root:
        return PathType.NODE if a.numa is not None and a.numa == b.numa else PathType.SYS
    if a.switches and a.switches == b.switches:
        return PathType.PIX
    if a.switches and b.switches and a.switches[0] == b.switches[0]:
        return PathType.PXB
    return PathType.PHB


def path_matrix(
    rows: tuple[Place, ...], columns: tuple[Place, ...], *, joined: Callable[[Place, Place], bool] = lambda *_: False
) -> tuple[tuple[PathType, ...], ...]:
    """Return the PCIe paths from every place of ``rows`` to every place of ``columns``, as a matrix.

    The path of a ``Place`` object to itself is SELF.

    Args:
        rows: Places.
        columns: Places.
        joined: Returns whether links join the PCIe switches of two places. If so, their path is PXB or nearer.
    """

    def path(a: Place, b: Place) -> PathType:
        tree = pcie_path(a, b)
        return PathType.PXB if tree > PathType.PXB and joined(a, b) else tree

    return tuple(tuple(PathType.SELF if a is b else path(a, b) for b in columns) for a in rows)
