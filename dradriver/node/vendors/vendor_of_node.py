"""Whose GPUs a node publishes, by what /sys says of its PCI devices: one vendor's, for a claim is for one vendor's.

Where both NVIDIA's and AMD's are, those made for data centres count: a CPU's own display, or a card for a console,
takes no GPU away. Looked at once, as the agent starts; whoever changes hardware starts the node anew.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from dradriver.node.discovery import sysfs
from dradriver.node.discovery.pci import PciTree
from dradriver.topology.amd import amd_products
from dradriver.topology.vendors import AMD, NVIDIA, Vendor

_NVIDIA: Final = "0x10de"
_AMD: Final = f"0x{amd_products.PCI_VENDOR}"
_DISPLAY: Final = "0x03"
_COMPUTES: Final = ("0x0302", "0x12")  # 3D controllers, and processing accelerators
_UNKNOWN: Final = f"0x{amd_products.HYGON}"  # its DCUs show as AMD's GPUs do, by a fork of AMD's driver


class Present(NamedTuple):
    """Whose GPUs a node publishes.

    Attributes:
        vendor: Theirs.
        refused: Why nobody's; None where somebody's are.
        left_out: Which GPUs of another vendor are not published, and why; None where there are none.
    """

    vendor: Vendor
    refused: str | None = None
    left_out: str | None = None


def look(root: Path) -> Present:
    """Return whose GPUs the node has by its PCI devices; NVIDIA's if it has none, which a driver may still know.

    Args:
        root: Where the host's /sys is.
    """
    tree, devices = PciTree(root), root / "sys/bus/pci/devices"
    there: Counter[Vendor] = Counter()
    large: set[Vendor] = set()
    unknown = 0
    for busid in sysfs.entries(devices):
        kind, made_by = tree.pci_class(busid), tree.vendor(busid)
        unknown += made_by == _UNKNOWN and kind.startswith((_DISPLAY, *_COMPUTES))
        vendor = {_NVIDIA: NVIDIA, _AMD: AMD}.get(made_by)
        if vendor is None or not kind.startswith((_DISPLAY, *_COMPUTES)):
            continue
        there[vendor] += 1
        known = vendor is AMD and sysfs.text(devices / busid / "device").removeprefix("0x") in amd_products.PARTS
        if known or kind.startswith(_COMPUTES):
            large.add(vendor)
    if len(large) > 1:
        said = "the node has GPUs of NVIDIA and of AMD for data centres, and publishes one vendor's only"
        return Present(NVIDIA, f"{said}; name it in the chart (discovery: nvml or amd), or part them")
    chosen = AMD if (large or set(there)) == {AMD} else NVIDIA
    other = NVIDIA if chosen is AMD else AMD
    left_out = None
    if there[other]:
        why = "which are for data centres" if large else "for a node publishes one vendor's only"
        count = f"{there[other]} device{'s' if there[other] > 1 else ''} of {other.word} left out"
        beside = f"{there[chosen]} of {chosen.word}, {why}"
        left_out = f"{count} beside {beside}; the chart's discovery names another vendor"
    if unknown:
        many = "s" if unknown > 1 else ""
        strange = f"{unknown} device{many} of {amd_products.maker(amd_products.HYGON)} left out: they are not AMD's"
        left_out = f"{left_out}; {strange}" if left_out else strange
    return Present(chosen, left_out=left_out)
