"""Network cards from /sys: the RDMA devices, or the Ethernet interfaces if the server has no RDMA devices.

NCCL makes the same choice: it uses sockets only if there is no verbs device. So the driver never counts the server's
management port as the nearest NIC of a GPU.

A card can be divided: a virtual function has a PCI function of its own, a scalable function has none. A bond is one
interface that sends through several cards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dradriver.node.discovery import nic_functions, sysfs
from dradriver.node.discovery.kept_nics import FoundNic, KeptNics, in_order
from dradriver.node.discovery.pci import PciTree
from dradriver.node.discovery.problem import Problem
from dradriver.topology.machine import Nic, PathType
from dradriver.topology.pcie_paths import Place, pcie_path

_MOST_NICS = 64  # a machine with more is described without its functions, then without the last of its cards
_AMAZON = "0x1d0f"
_LAYERS = {"InfiniBand": "infiniband", "Ethernet": "roce"}
_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec")


def read_nics(root: Path, tree: PciTree, problems: list[Problem], kept: KeptNics | None = None) -> tuple[FoundNic, ...]:
    """Return the machine's NICs in order, including NICs that pods have now.

    The rate of a NIC is the best rate that any reading has found.

    Args:
        root: ``/``, or the folder in which the host's /sys is mounted.
        tree: The PCI tree below the same root.
        problems: This function adds a problem if NICs were left out.
        kept: The cards of earlier readings. /sys does not show cards that pods have now, so they are found here. This
            function adds the cards of this reading. None if no earlier reading is kept.
    """
    kept = KeptNics() if kept is None else kept
    cards = _with_gone(_rdma(root, tree, kept), kept, tree, rdma=True)
    cards = cards or _with_gone(_ethernet(root, tree, kept), kept, tree, rdma=False)
    cards = kept.at_best(cards)
    kept.keep(cards)
    cards, left_out = _bounded(cards)
    if left_out:
        said = f"{left_out} left out, more than {_MOST_NICS} NICs are too many to publish"
        problems.append(Problem("machine", "NICs", said))
    return tuple(cards)


def _bounded(cards: list[FoundNic]) -> tuple[list[FoundNic], str]:
    """Return the NICs to publish, and a text with the number of left-out NICs of each kind.

    If there are more than 64 NICs, all virtual and scalable functions are left out, then the last of the other NICs.
    The text is empty if no NIC is left out.
    """
    if len(cards) <= _MOST_NICS:
        return cards, ""
    whole = [card for card in cards if not card.nic.parent]
    counts = {
        "virtual functions": sum(bool(card.nic.parent) and not card.scalable for card in cards),
        "scalable functions": sum(bool(card.scalable) for card in cards),
        "other NICs": max(0, len(whole) - _MOST_NICS),
    }
    return whole[:_MOST_NICS], " and ".join(f"{count} {kind}" for kind, count in counts.items() if count)


def _with_gone(found: list[FoundNic], kept: KeptNics, tree: PciTree, *, rdma: bool) -> list[FoundNic]:
    gone = [card for card in kept.gone(found, tree) if (card.nic.kind != "ethernet") == rdma]
    return in_order([*found, *gone]) if gone else found


def _rdma(root: Path, tree: PciTree, kept: KeptNics) -> list[FoundNic]:
    """Return the NICs that are RDMA devices (InfiniBand, RoCE and EFA)."""
    # RDMA devices by name, with the bus id of the card that each is on.
    folder = root / "sys/class/infiniband"
    busids = {name: busid for name in sysfs.entries(folder) if (busid := tree.above(folder / name / "device"))}
    names = _names(folder, busids, kept)
    cards = []
    for name, busid in busids.items():
        ports = [folder / name / "ports" / port for port in sysfs.entries(folder / name / "ports")]
        # A port that is down has a rate, too: 10 Gb/s.
        active_ports = [port for port in ports if "DOWN" not in sysfs.text(port / "state")]
        layer = next(filter(None, (sysfs.text(port / "link_layer") for port in ports)), "")
        nic_kind = "efa" if tree.vendor(busid) == _AMAZON else _LAYERS.get(layer, "")
        rates = [float(rate[1]) for port in active_ports if (rate := _RATE.match(sysfs.text(port / "rate")))]
        interfaces = [sysfs.text(port / "gid_attrs/ndevs/0") for port in ports]
        members = next((found_members for interface in interfaces if (found_members := _members(root, interface))), ())

        # 8 Gbit/s are 1 GB/s. Members are the interfaces of a bond.
        cards.append(
            _nic(
                root,
                tree,
                name=name,
                busid=busid,
                scalable=nic_functions.scalable(folder / name / "device"),
                kind=nic_kind,
                gbps=max(rates, default=0) / 8,
                members=members,
                names=names,
            )
        )
    return cards


def _ethernet(root: Path, tree: PciTree, kept: KeptNics) -> list[FoundNic]:
    """Return the NICs that are Ethernet interfaces; the interfaces of a bond are one NIC."""
    # Interfaces of cards by name, without representors (the host's end of a function in switchdev mode).
    folder = root / "sys/class/net"
    busids = {
        name: busid
        for name in sysfs.entries(folder)
        if (busid := _card(tree, folder / name)) and not nic_functions.is_representor(folder / name)
    }
    names = _names(folder, busids, kept)
    bonds = {name: members for name in sysfs.entries(folder) if (members := _members(root, name))}

    # Interfaces of a bond count as one NIC, the bond.
    taken = {member for members in bonds.values() for member in members}
    cards = []
    for name in sysfs.entries(folder):
        if name in taken or (name not in bonds and name not in busids):
            continue
        gbps = max(0, sysfs.number(folder / name / "speed") or 0) / 8000  # Mbit/s; -1 while the link is down
        cards.append(
            _nic(
                root,
                tree,
                name=name,
                busid=busids.get(name, ""),
                scalable=nic_functions.scalable(folder / name / "device"),
                kind="ethernet",
                gbps=gbps,
                members=bonds.get(name, ()),
                names=names,
            )
        )
    return [card for card in cards if card.busids]


def _names(folder: Path, busids: Mapping[str, str], kept: KeptNics) -> dict[str, str]:
    """Return the name of the NIC of each PCI function, by the function's bus id.

    The names are needed for the parents of virtual and scalable functions, so NICs that pods have now are included.
    Scalable functions are left out, because they have the same bus id as their card.

    Args:
        folder: The folder of NICs in /sys/class.
        busids: The bus id of each NIC in the folder, by name.
        kept: The NICs of earlier readings.
    """
    whole = {busid: name for name, busid in busids.items() if not nic_functions.scalable(folder / name / "device")}
    return kept.names() | whole


def _nic(
    root: Path,
    tree: PciTree,
    *,
    name: str,
    busid: str,
    scalable: str,
    kind: str,
    gbps: float,
    members: Sequence[str],
    names: dict[str, str],
) -> FoundNic:
    """Return a NIC with the PCI functions that it sends through.

    Args:
        root: ``/``, or the folder in which the host's /sys is mounted.
        tree: The PCI tree below the same root.
        name: The NIC's name.
        busid: Bus id of its PCI function; empty if there is none.
        scalable: Name of its scalable function (``mlx5_core.sf.4``); empty for other NICs.
        kind: ``infiniband``, ``roce``, ``efa`` or ``ethernet``; empty if unknown.
        gbps: Line rate in GB/s; 0 if unknown.
        members: The interfaces of a bond; empty for other NICs.
        names: The name of each PCI function's NIC, for the parents of virtual and scalable functions.
    """
    # The cards that it sends through (several of a bond), their NUMA nodes, and the physical function of a virtual one.
    net = root / "sys/class/net"
    functions = [card for member in members if (card := _card(tree, net / member))] or [busid] * bool(busid)
    nodes = {place.numa if (place := tree.seat(card)) else None for card in functions}
    physical = busid if scalable else tree.above(root / "sys/bus/pci/devices" / busid / "physfn") if busid else ""
    nic = Nic(
        name=name,
        pci="" if members else busid,
        numa=nodes.pop() if len(nodes) == 1 else None,
        kind=kind,
        gbps=gbps,
        parent=names.get(physical, physical),
        members=tuple(members),
    )
    return FoundNic(nic, tuple(functions), scalable)


def _card(tree: PciTree, interface: Path) -> str:
    """Return the bus id of the network card behind an interface; empty for a virtual interface or a USB card."""
    busid = tree.above(interface / "device")
    return busid if tree.pci_class(busid).startswith("0x02") else ""


def _members(root: Path, interface: str) -> tuple[str, ...]:
    """Return the interfaces of a bond, in the kernel's order; empty if the interface is not a bond."""
    if not re.fullmatch(r"[^/\s]{1,15}", interface):
        return ()
    return tuple(sysfs.text(root / "sys/class/net" / interface / "bonding/slaves").split())


def nic_paths(nics: Sequence[FoundNic], places: Sequence[Place], tree: PciTree) -> tuple[tuple[PathType, ...], ...]:
    """Return a matrix of the PCIe paths from the NICs (rows) to the GPUs (columns).

    A bond has the path of its nearest member. ``places`` are the GPUs' places in the PCI tree.
    """
    rows = []
    for card in nics:
        seats = [seat.place for busid in card.busids if (seat := tree.seat(busid))] or [Place(numa=card.nic.numa)]
        rows.append(tuple(min(pcie_path(place, gpu) for place in seats) for gpu in places))
    return tuple(rows)
