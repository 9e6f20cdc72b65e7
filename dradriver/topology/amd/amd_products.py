"""AMD's products: names, memory, and the bandwidths that RCCL counts for their links and between their CPUs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

PCI_VENDOR: Final = "1002"
HYGON: Final = "1d94"  # whose DCUs a fork of AMD's driver shows as AMD's GPUs
_GCN = re.compile(r"(?:gfx)?(9[0-9a-f]{2})")
# One xGMI link, GB/s in one direction (RCCL, topo.h); gfx95x is counted as gfx94x.
_LINK_GBPS: Final = {"gfx906": 24.0, "gfx908": 24.0, "gfx90a": 36.0}
_NEWER_LINK_GBPS: Final = 48.0
SOCKET_GBPS: Final = 16.0  # between AMD's own CPUs, which most such machines have
_BEFORE_NAMES: Final = {"910": "90a"}  # what RCCL's early files call it


class Part(msgspec.Struct, frozen=True):
    """One AMD GPU product. If a package has two dies, each die is a GPU.

    Attributes:
        product: AMD's name of the product. The driver names its board (``product_name`` in /sys), which differs from
            maker to maker: ``AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2``; not all boards have such a name.
        architecture: The name of its architecture in AMD's tools, such as ``gfx942``.
        memory_mib: Its memory in MiB.
        pcie_gbps: The highest bandwidth of its PCIe link as NCCL counts it, GB/s in one direction (x16 Gen 4 is 24).
    """

    product: str
    architecture: str
    memory_mib: int
    pcie_gbps: float


PARTS: Final = {  # by PCI device id (the pci.ids database; AMD's data sheets)
    "738c": Part("AMD Instinct MI100", "gfx908", 32 << 10, 24.0),
    "7408": Part("AMD Instinct MI250X", "gfx90a", 64 << 10, 24.0),
    "740c": Part("AMD Instinct MI250X/MI250", "gfx90a", 64 << 10, 24.0),
    "740f": Part("AMD Instinct MI210", "gfx90a", 64 << 10, 24.0),
    "74a0": Part("AMD Instinct MI300A", "gfx942", 128 << 10, 48.0),
    "74a1": Part("AMD Instinct MI300X", "gfx942", 192 << 10, 48.0),
    "74a2": Part("AMD Instinct MI308X", "gfx942", 192 << 10, 48.0),
    "74a5": Part("AMD Instinct MI325X", "gfx942", 256 << 10, 48.0),
    "74b5": Part("AMD Instinct MI300X VF", "gfx942", 192 << 10, 48.0),
    "75a0": Part("AMD Instinct MI350X", "gfx950", 288 << 10, 48.0),
    "75a3": Part("AMD Instinct MI355X", "gfx950", 288 << 10, 48.0),
}


def maker(vendor: str) -> str:
    """Return a name for the maker of a device that is not AMD's.

    Examples are ``Hygon (1d94)`` and ``vendor 10de``.

    Args:
        vendor: The PCI vendor id of the device, in hex.
    """
    return f"Hygon ({vendor})" if vendor == HYGON else f"vendor {vendor}"


def architecture(gcn: str) -> str:
    """Return an AMD architecture's name from the number in RCCL's files: ``gfx90a`` for ``910``.

    ``gcn`` is this number. The result is empty if it is unknown.
    """
    match = _GCN.fullmatch(gcn)
    return f"gfx{_BEFORE_NAMES.get(match[1], match[1])}" if match else ""


def link_gbps(architecture: str) -> float:
    """Return one xGMI link's bandwidth as RCCL counts it, GB/s in one direction.

    For an unknown architecture, return the bandwidth of the newest products.
    """
    return _LINK_GBPS.get(architecture, _NEWER_LINK_GBPS)


def likely(links: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Return the bandwidths of one xGMI link and of the PCIe link, GB/s, of the most likely AMD product.

    The links between the GPUs decide: eight GPUs in a full mesh are probably MI300s or newer, all others MI200s.

    Args:
        links: GPUs x GPUs, the number of links of each pair.
    """
    newer = len(links) == 8 and all(count for i, row in enumerate(links) for j, count in enumerate(row) if i != j)
    return (link_gbps("gfx942"), 48.0) if newer else (link_gbps("gfx90a"), 24.0)
