"""PCIe paths from places in the PCI tree: the one rule by which profiles and /sys become a path matrix."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from dradriver.topology.machine import PathType


class Place(msgspec.Struct, frozen=True):
    """Where a device hangs.

    Attributes:
        numa: NUMA node, or None where the machine does not say.
        root: Root complex (``pci0000:00``); None where it is not known.
        switches: PCIe switches from the root down to the device, named as one likes; empty directly below the root.
    """

    numa: int | None = None
    root: str | None = None
    switches: tuple[str, ...] = ()


def pcie_path(a: Place, b: Place) -> PathType:
    """Return the PCIe path between two devices by their places, as ``nvidia-smi topo -m`` would name it.

    One root: PIX when both hang from the same switch, PXB when their ways part below a common switch, else PHB. Two
    roots: NODE within one known NUMA node, else SYS. Two unknown roots count as two.
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
    """Return the PCIe paths from every row's place to every column's, rows x columns; an object to itself is SELF.

    Args:
        rows: Places.
        columns: Places.
        joined: Says of two places whether links between their switches join them: then they are PXB at most.
    """

    def path(a: Place, b: Place) -> PathType:
        tree = pcie_path(a, b)
        return PathType.PXB if tree > PathType.PXB and joined(a, b) else tree

    return tuple(tuple(PathType.SELF if a is b else path(a, b) for b in columns) for a in rows)
