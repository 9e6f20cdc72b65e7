"""Chooses the vendor whose GPUs a node publishes, by its PCI devices in /sys.

A node publishes GPUs of one vendor, because a claim is for one vendor's GPUs. If a node has GPUs of both NVIDIA and
AMD, GPUs for data centres count. So the display of a CPU, or a card for a console, does not change the choice. The
devices are read once, when the agent starts, because a change of hardware needs a restart of the node.
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
_HYGON: Final = f"0x{amd_products.HYGON}"  # its DCUs show as AMD's GPUs do, by a fork of AMD's driver


class Present(NamedTuple):
    """The vendor whose GPUs a node publishes.

    Attributes:
        vendor: The vendor.
        refused: Why the node publishes no GPUs at all; None if it publishes this vendor's GPUs.
        left_out: A text that says which devices of other vendors are not published, and why; None if there are none.
    """

    vendor: Vendor
    refused: str | None = None
    left_out: str | None = None


def look(root: Path) -> Present:
    """Return the vendor whose GPUs the node publishes, by the node's PCI devices.

    GPUs for data centres take precedence over graphics cards. If there is no GPU, the result is NVIDIA, because
    NVIDIA's driver may know GPUs that are not PCI devices.

    Args:
        root: Folder that contains the host's /sys.
    """
    # 1. Count the devices. ``large``: vendors with GPUs for data centres. ``forks``: devices of Hygon, whose driver is
    #    a fork of AMD's; they are not published.
    tree, devices = PciTree(root), root / "sys/bus/pci/devices"
    gpu_counts: Counter[Vendor] = Counter()
    large: set[Vendor] = set()
    forks = 0
    for busid in sysfs.entries(devices):
        # PCI class and vendor id. A class of displays or of compute devices is a GPU.
        pci_class, made_by = tree.pci_class(busid), tree.vendor(busid)
        forks += made_by == _HYGON and pci_class.startswith((_DISPLAY, *_COMPUTES))
        vendor = {_NVIDIA: NVIDIA, _AMD: AMD}.get(made_by)
        if vendor is None or not pci_class.startswith((_DISPLAY, *_COMPUTES)):
            continue
        gpu_counts[vendor] += 1
        is_product = vendor is AMD and sysfs.text(devices / busid / "device").removeprefix("0x") in amd_products.PARTS
        if is_product or pci_class.startswith(_COMPUTES):
            large.add(vendor)

    # 2. Choose. If there are GPUs for data centres, only they count. AMD is chosen if all GPUs that count are AMD's.
    if len(large) > 1:
        text = "the node has GPUs of NVIDIA and of AMD for data centres, and an agent publishes those of one vendor"
        return Present(NVIDIA, f"{text}. Name the vendor in the chart (discovery: nvml or amd), or use two nodes")
    chosen = AMD if (large or set(gpu_counts)) == {AMD} else NVIDIA
    other = NVIDIA if chosen is AMD else AMD

    # 3. Say what is left out.
    left_out = None
    if gpu_counts[other]:
        why = "which are for data centres" if large else "for a node publishes one vendor's only"
        count = f"{gpu_counts[other]} device{'s' if gpu_counts[other] > 1 else ''} of {other.word} left out"
        published = f"{gpu_counts[chosen]} of {chosen.word}, {why}"
        left_out = f"{count} next to {published}. To publish these instead, set discovery in the chart"
    if forks:
        many = "s" if forks > 1 else ""
        of_forks = f"{forks} device{many} of {amd_products.maker(amd_products.HYGON)} left out: they are not AMD's"
        left_out = f"{left_out}. {of_forks}" if left_out else of_forks
    return Present(chosen, left_out=left_out)
