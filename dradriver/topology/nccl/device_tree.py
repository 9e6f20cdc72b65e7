"""The devices of an NCCL topology file, in the order of its tree, each with its place in the tree.

A device's place is its NUMA node, its root complex, and the PCIe switches above it (``Place``). RCCL is AMD's form of
NCCL.
"""

from __future__ import annotations

import re
from copy import copy

import msgspec

from dradriver.topology.errors import TopologyError
from dradriver.topology.identifiers import is_bus_id, short_bus_id
from dradriver.topology.machine import Nic, PciDevice
from dradriver.topology.nccl.xml import Element
from dradriver.topology.pcie_paths import Place

IDS = ("vendor", "device", "subsystem_vendor", "subsystem_device")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_HEX = re.compile(r"0x[0-9a-f]{4}")
_CLASS = re.compile(r"0x[0-9a-f]{6}")
MOST_LANES = 64


class Leaf(msgspec.Struct, frozen=True):
    """One GPU: its ``<pci>`` element, its place in the tree, and the ``<gpu>`` element in it.

    ``gpu`` is None if the file has no ``<gpu>`` element for it.
    """

    busid: str
    pci: Element
    gpu: Element | None
    place: Place


class Devices(msgspec.Struct):
    """All devices of a topology file.

    Every device has its own ``Place`` object.

    Attributes:
        pci: The PCI devices, parents first.
        gpus: The GPUs.
        nics: The NICs with their places, by name.
        lines: The line of each device in the file, by bus id.
        twice: For a file of RCCL, the number of repeated bus ids so far; each repetition is a separate device. None for
            a file of NCCL, in which each bus id may occur only once.
    """

    pci: list[PciDevice] = []
    gpus: list[Leaf] = []
    nics: dict[str, tuple[Nic, Place]] = {}
    lines: dict[str, int] = {}
    twice: int | None = None


def error(element: Element, attribute: str | None, message: str) -> TopologyError:
    """Return an error with ``message`` and the place of an element's ``attribute`` in the file."""
    line, column = element.place_of(attribute or "")
    return TopologyError(f"NCCL XML, line {line}, column {column}: {message}")


def number(element: Element, attribute: str, most: int) -> int | None:
    """Return an attribute of a device as a whole number from 0 to ``most``.

    The result is None if the attribute is missing or empty.

    Raises:
        TopologyError: The attribute has another value.
    """
    text = element.get(attribute)
    if not text:
        return None
    if not _NUMBER.fullmatch(text) or int(text) > most:
        raise error(element, attribute, f"{attribute} {text!r} is invalid. Write a number from 0 to {most}.")
    return int(text)


def add_devices(parent: Element, place: Place, devices: Devices, *, above: int | None = None) -> None:
    """Add the devices below a ``<cpu>`` or ``<pci>`` element to ``devices``.

    The function calls itself for elements below; the parser limits their depth.

    Args:
        parent: The element.
        place: The place of devices directly below it.
        devices: Collects the devices.
        above: Position of ``parent`` in ``devices.pci``; None for a CPU.

    Raises:
        TopologyError: An attribute of a device is invalid, or a device is twice in the file. The message has line and
            column.
    """
    for child in parent.children:
        if child.name == "pci":
            _add_pci(child, place, above, devices)
        elif child.name == "nic":
            for net in child.children:
                if net.name == "net":
                    _add_nic(net, place, above, devices)


def _add_pci(element: Element, place: Place, above: int | None, devices: Devices) -> None:
    """Add a ``<pci>`` element to ``devices`` as a GPU, a NIC or a switch.

    The elements below a switch are added, too.

    Args:
        element: The element.
        place: The NUMA node, root and switches above it.
        above: The position of its parent in ``devices.pci``; None at the top.
        devices: Collects the devices. ``twice`` is the number of repeated bus ids; None if none may repeat (NCCL).

    Raises:
        TopologyError: An attribute is invalid, or the bus id is in the file twice, which only RCCL allows.
    """
    device = _pci_device(element, place, above)
    busid = device.busid
    unique_id = busid
    if busid in devices.lines:
        line = devices.lines[busid]
        if devices.twice is None:
            raise error(element, "busid", f"busid {busid} stands in line {line} too: NCCL saw one device as two")
        devices.twice += 1
        # RCCL takes them for two devices, so the paths need two names.
        unique_id = f"{busid}/{devices.twice}"
    devices.lines.setdefault(busid, element.place[0])
    devices.pci.append(device)

    # PCI class 03 is a GPU, 02 a network card. ``copy``: each device needs its own ``Place`` object, because a path
    # from an object to itself is SELF.
    gpu = next((child for child in element.children if child.name == "gpu"), None)
    if gpu is not None or device.kind.startswith("0x03"):
        devices.gpus.append(Leaf(busid, element, gpu, copy(place)))
        return
    names = {child.name for child in element.children}
    if device.kind.startswith("0x02") and not names & {"nic", "pci"}:
        # The file has no name for it.
        nic = Nic(name=busid, pci=busid, numa=place.numa, kind=_nic_kind(device))
        devices.nics[busid] = (nic, copy(place))
        return

    # Anything else is a bridge; one with PCI devices below it is a switch on their way to the root.
    below = place
    if "pci" in names:
        below = Place(numa=place.numa, root=place.root or unique_id, switches=(*place.switches, unique_id))
    add_devices(element, below, devices, above=len(devices.pci) - 1)


def _pci_device(element: Element, place: Place, above: int | None) -> PciDevice:
    busid = short_bus_id(element.get("busid") or "")
    if not is_bus_id(busid):
        raise error(element, "busid", f"busid {element.get('busid')!r} is invalid. Write it as /sys does: 0000:06:00.0")
    kind = (element.get("class") or "").lower()
    if kind and not _CLASS.fullmatch(kind):
        raise error(element, "class", f"class {kind!r} is invalid. Write six hex digits: 0x030200")
    ids = [(element.get(name) or "").lower() for name in IDS]
    return PciDevice(
        busid=busid,
        parent=above,
        numa=place.numa,
        kind=kind,
        ids=":".join(text[2:] for text in ids) if all(map(_HEX.fullmatch, ids)) else "",
        link_speed=element.get("link_speed") or "",
        link_width=number(element, "link_width", MOST_LANES) or 0,
    )


def _nic_kind(device: PciDevice) -> str:
    if device.kind.startswith("0x0207"):
        return "infiniband"
    return "efa" if device.ids.startswith("1d0f:efa") else ""


def _add_nic(net: Element, place: Place, above: int | None, devices: Devices) -> None:
    name = net.get("name")
    if not name:
        raise error(net, "name", "a <net> without a name")
    known = devices.nics.get(name)
    if known is not None and (above is not None or known[0].pci):
        raise error(net, "name", f"NIC {name} exists twice. Give each NIC its own name.")
    if known is not None:  # a virtual NIC: each rank hangs it below its own first CPU
        if known[1].numa != place.numa:
            devices.nics[name] = (msgspec.structs.replace(known[0], numa=None), Place())
        return
    speed = net.get("speed") or "0"
    if not _DECIMAL.fullmatch(speed):
        raise error(net, "speed", f"speed {speed!r} is invalid. Write Mbit/s: 400000")
    device = None if above is None else devices.pci[above]
    nic = Nic(
        name=name,
        pci="" if device is None else device.busid,
        numa=place.numa,
        kind="ethernet" if device is None else _nic_kind(device),
        gbps=float(speed) / 8000,
    )
    devices.nics[name] = (nic, copy(place))
