"""The PCI tree of /sys: the place of each device, the speed of its link, and the bridges above it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dradriver.node.discovery import sysfs
from dradriver.topology.identifiers import is_bus_id
from dradriver.topology.machine import PciDevice
from dradriver.topology.nccl import nccl_bandwidths
from dradriver.topology.pcie_paths import Place

_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_CLASS = re.compile(r"0x[0-9a-f]{6}")
_ID = re.compile(r"0x[0-9a-f]{4}")
_SPEED = re.compile(r"[ -~]{1,32}")
_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # with which the classes of all GPUs begin, also of those without a display
_MOST_LANES = 64


class Seat(msgspec.Struct, frozen=True):
    """The place of a device in the PCI tree.

    Attributes:
        root: Root complex: ``pci0000:15``.
        bridges: Bus ids of the PCIe switches above the device, from the root down. A switch is named by its upstream
            port. A switch has two bridges on the path, so these are every second bridge, as in NCCL.
        numa: NUMA node; None if /sys has -1.
    """

    root: str
    bridges: tuple[str, ...]
    numa: int | None

    @property
    def place(self) -> Place:
        """Return the place of a PCI device in the form that ``paths.pcie_path`` compares."""
        return Place(numa=self.numa, root=self.root, switches=self.bridges)


class PciTree:
    """The PCI devices of a server. The place of each device is read once."""

    def __init__(self, root: Path) -> None:
        """Store the path of /sys below ``root``; each device is read when it is first needed."""
        self._devices = root / "sys/bus/pci/devices"
        self._auxiliary = root / "sys/bus/auxiliary/devices"
        self._seats: dict[str, Seat | None] = {}
        self._folders: dict[str, Path] = {}

    def pci_class(self, busid: str) -> str:
        """Return the class of a PCI device (``0x030200``); empty if there is no such device."""
        found = sysfs.text(self._devices / busid / "class") if is_bus_id(busid) else ""
        return found if _CLASS.fullmatch(found) else ""

    def vendor(self, busid: str) -> str:
        """Return the vendor of a PCI device (``0x15b3``); empty if it is not known."""
        return sysfs.text(self._devices / busid / "vendor")

    def has_auxiliary(self, name: str) -> bool:
        """Return whether the host has a device with this name on the auxiliary bus (``mlx5_core.sf.4``)."""
        return os.path.exists(self._auxiliary / name)

    def gpus(self) -> set[str]:
        """Return the PCI bus ids of all NVIDIA GPUs, also of GPUs with another driver such as ``vfio-pci``."""
        nvidias = (busid for busid in sysfs.entries(self._devices) if self.vendor(busid) == _NVIDIA)
        return {busid for busid in nvidias if self.pci_class(busid).startswith(_DISPLAY)}

    def seat(self, busid: str) -> Seat | None:
        """Return the place of a device in the PCI tree, or None if /sys does not know the device."""
        if busid not in self._seats:
            self._seats[busid] = self._read_seat(busid)
        return self._seats[busid]

    def _read_seat(self, busid: str) -> Seat | None:
        if not is_bus_id(busid) or not os.path.exists(self._devices / busid):
            return None
        parts = self._folder(busid).parts
        roots = [i for i, part in enumerate(parts) if _ROOT.fullmatch(part)]
        if not roots:
            return None
        way = [part for part in parts[roots[-1] + 1 :] if is_bus_id(part)]
        return Seat(parts[roots[-1]], tuple(way[-3::-2][::-1]), self._numa(busid))

    def _folder(self, busid: str) -> Path:
        """Return a PCI device's real folder in /sys, with all links resolved.

        The parent of this folder belongs to the port above the device in the PCI tree.
        """
        if busid not in self._folders:
            self._folders[busid] = Path(os.path.realpath(self._devices / busid))
        return self._folders[busid]

    def _numa(self, busid: str) -> int | None:
        node = sysfs.number(self._devices / busid / "numa_node")
        return None if node is None or node < 0 else node

    def above(self, folder: Path) -> str:
        """Return the bus id of the PCI device behind an entry in /sys (``class/net/eth0/device``).

        The result is empty if there is no PCI device.
        """
        if not os.path.exists(folder):
            return ""
        return next((part for part in reversed(Path(os.path.realpath(folder)).parts) if is_bus_id(part)), "")

    def gbps(self, busid: str) -> float | None:
        """Return the bandwidth of a PCI device's own link in GB/s, as NCCL counts it.

        The result is None if /sys has no speed.
        """
        speed, width = self._link(busid)
        return nccl_bandwidths.pci_gbps(speed, width) if speed in nccl_bandwidths.LINK_SPEEDS else None

    def listed(self, busids: Iterable[str]) -> tuple[PciDevice, ...]:
        """Return these PCI devices, as far as /sys knows them, and all bridges above them.

        Parents come before their children. Devices with the same parent are in the order of their bus ids.
        """
        # By bus id of a bridge, or None at the top, the devices directly below it.
        below: dict[str | None, set[str]] = {}
        placed: set[str] = set()  # by who says it first: read while devices come and go, /sys may say two places
        for busid in busids:
            seat = self.seat(busid)
            above: str | None = None
            for hop in () if seat is None else (*seat.bridges, busid):
                if hop not in placed:
                    placed.add(hop)
                    below.setdefault(above, set()).add(hop)
                above = hop

        # Depth first, so that parents come before their children.
        tree: list[PciDevice] = []

        def add(above: str | None, parent: int | None) -> None:
            for busid in sorted(below.get(above, ())):
                tree.append(self._device(busid, parent))
                add(busid, len(tree) - 1)

        add(None, None)
        return tuple(tree)

    def _device(self, busid: str, parent: int | None) -> PciDevice:
        folder = self._devices / busid
        names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
        ids = [hex_id for name in names if _ID.fullmatch(hex_id := sysfs.text(folder / name))]
        speed, width = self._link(busid)
        return PciDevice(
            busid=busid,
            parent=parent,
            numa=self._numa(busid),
            kind=self.pci_class(busid),
            ids=":".join(hex_id[2:] for hex_id in ids) if len(ids) == len(names) else "",
            link_speed=speed,
            link_width=width,
        )

    def _link(self, busid: str) -> tuple[str, int]:
        """Return the speed and width (lanes) of a device's PCIe link: the lower values of the device and its port.

        NCCL does the same. A speed that is not a number is ignored; a width that is not a number counts as 0.
        """
        device = self._folder(busid)
        own, port = (sysfs.text(folder / "max_link_speed") for folder in (device, device.parent))
        speed = port if _rate(port) < _rate(own) else own
        widths = [sysfs.number(folder / "max_link_width") or 0 for folder in (device, device.parent)]
        width = min(0 if not 0 < lanes <= _MOST_LANES else lanes for lanes in widths)
        return speed if _SPEED.fullmatch(speed) else "", width


def _rate(speed: str) -> float:
    """Return the number at the start of a PCIe speed (``32.0 GT/s PCIe``).

    The result is infinite if there is no number, so an unknown speed is never the lower of two.
    """
    match = re.match(r"\d{1,4}(\.\d{1,4})?", speed)
    return float(match[0]) if match else float("inf")
