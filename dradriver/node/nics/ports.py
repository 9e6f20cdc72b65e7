"""One reading of the ports of RDMA devices, as Documentation/ABI/stable/sysfs-class-infiniband describes them.

Each file is read separately: if a file is missing, cannot be read or has an unknown form, only its value is left empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from dradriver.node.discovery import nic_functions, sysfs
from dradriver.topology.identifiers import is_bus_id

ACTIVE: Final = "ACTIVE"
ETHERNET: Final = "Ethernet"
INFINIBAND: Final = "InfiniBand"
ERRORS: Final = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
"""Files of ``counters``, some of which RoCE devices and virtual functions lack."""
HARDWARE_ERRORS: Final = ("rx_icrc_encapsulated",)
"""Files of ``hw_counters``: mlx5's."""

_CLASS: Final = "sys/class/infiniband"
_MOST_NICS: Final = 256
_MOST_PORTS: Final = 16  # of one device
_MOST_GIDS: Final = 256  # of one port; tables of mlx5 have as many
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")  # IB_DEVICE_NAME_MAX is 64
_PORT: Final = re.compile(r"[1-9][0-9]{0,2}")
_STATE: Final = re.compile(r"[0-9]{1,2}: ([A-Za-z][A-Za-z _]{0,31})")
_RATE: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec(?: \(([0-9A-Za-z ]{1,24})\))?")
_TEXT: Final = re.compile(r"[!-~][ -~]{0,63}")
_COUNT: Final = re.compile(r"[0-9]{1,20}")
_FLAGS: Final = re.compile(r"0x[0-9a-f]{1,8}")
_IFF_UP: Final = 0x1
_IPV4: Final = re.compile(r"(0000:){5}ffff:(?!0000:0000)[0-9a-f]{4}:[0-9a-f]{4}")
_ROCE_V2: Final = "RoCE v2"


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """One port of an RDMA device.

    Attributes:
        number: From 1 on.
        state: ``ACTIVE``, ``DOWN``, ``INIT``, ``ARMED``, ``ACTIVE_DEFER``; empty if it cannot be read.
        phys: ``LinkUp``, ``Polling``, ``Disabled``, …; empty if it cannot be read. mlx5 has ``Disabled`` for every
            Ethernet port that is not up, even if only its cable is missing.
        layer: ``InfiniBand`` or ``Ethernet``; other values for other devices, such as EFA; empty if it cannot be read.
        gbit: Rate of an active port in Gbit/s; 0 for any other port, although /sys has 10 for ports that are not
            active.
        lanes: Width and generation of an active port, for example ``4X NDR``; empty if unknown.
        ipv4: Whether the port has a RoCE v2 GID with an IPv4 address. None if the port needs no such GID, is not
            active, or has no interface on the host.
        off: Whether an administrator switched the port off. On InfiniBand its physical state shows this, on Ethernet
            its interface.
        away: Whether an Ethernet port has no interface on the host. Either a pod has the interface, or the card is in
            switchdev mode and the port belongs to a function. The port may then be ``DOWN`` without a fault.
        errors: Totals of error counters since the driver was loaded; counters that cannot be read are left out.
    """

    number: int
    state: str = ""
    phys: str = ""
    layer: str = ""
    gbit: float = 0.0
    lanes: str = ""
    ipv4: bool | None = None
    off: bool = False
    away: bool = False
    errors: Mapping[str, int] = MappingProxyType({})

    @property
    def up(self) -> bool:
        """Return whether NCCL would use the port.

        NCCL skips all other ports without a message (``net_ib/init.cc``).
        """
        return self.state == ACTIVE

    @property
    def verbs(self) -> bool:
        """Return whether the port has a type that NCCL's verbs transport can use."""
        return self.layer in (INFINIBAND, ETHERNET)


class NicState(msgspec.Struct, frozen=True, kw_only=True):
    """One RDMA device and its ports.

    Attributes:
        name: ``mlx5_0``.
        pci: Bus id; empty if /sys does not have it.
        product: ``hca_type`` (``MT4129``), else the PCI ids; empty if neither can be read.
        board: ``board_id`` (``MT_0000000838``), empty if it cannot be read. Cards of one board use the same firmware.
        firmware: ``28.39.1002``; empty if it cannot be read.
        function: Whether the device is a virtual or scalable function. The program that assigned the function decides
            the state of its port.
        ports: The ports, by number.
    """

    name: str
    pci: str = ""
    product: str = ""
    board: str = ""
    firmware: str = ""
    function: bool = False
    ports: tuple[Port, ...] = ()


def read(root: Path) -> tuple[NicState, ...]:
    """Return the RDMA devices of this network namespace with their ports.

    First come whole cards, then virtual and scalable functions of cards, each by name. A device that a pod has in
    RDMA's exclusive mode is left out. If there are more than 256 devices, the last functions are left out.

    Args:
        root: ``/``, or the folder in which the host's /sys is mounted.
    """
    names = _names(root)
    names.sort(key=lambda name: nic_functions.is_function(root / _CLASS / name / "device"))
    return tuple(_nic(root / _CLASS / name, name) for name in names[:_MOST_NICS])


def count(root: Path) -> int:
    """Return the number of RDMA devices of this network namespace, even if ``read`` leaves some out."""
    return len(_names(root))


def active(nics: Sequence[NicState]) -> dict[str, tuple[int, ...]]:
    """Return the numbers of the active ports that NCCL's verbs transport can use, by network card."""
    found = {nic.name: tuple(port.number for port in nic.ports if port.up and port.verbs) for nic in nics}
    return {name: numbers for name, numbers in found.items() if numbers}


def _names(root: Path) -> list[str]:
    return [name for name in sysfs.entries(root / _CLASS) if _NAME.fullmatch(name)]


def _nic(folder: Path, name: str) -> NicState:
    """Return the state of a card and its ports, from its folder in /sys."""
    device = folder / "device"
    numbers = sorted(int(port) for port in sysfs.entries(folder / "ports") if _PORT.fullmatch(port))
    numbers = numbers[:_MOST_PORTS]

    # The link layer of each port (InfiniBand or Ethernet), and the interfaces of the Ethernet ones.
    layers = [_text(folder / "ports" / str(number) / "link_layer") for number in numbers]
    interfaces = _Interfaces(device, several=layers.count(ETHERNET) > 1)
    try:
        path_parts = (folder / "device").resolve().parts
    except (OSError, RuntimeError):  # RuntimeError: links in a circle
        path_parts = ()
    pci = next((path_part for path_part in reversed(path_parts) if is_bus_id(path_part)), "")
    ids = [_text(device / file) for file in ("vendor", "device")]
    return NicState(
        name=name,
        pci=pci,
        product=_text(folder / "hca_type") or (":".join(ids) if all(ids) else ""),
        board=_text(folder / "board_id"),
        firmware=_text(folder / "fw_ver"),
        function=nic_functions.is_function(device),
        ports=tuple(
            _port(folder / "ports" / str(number), number, layer, interfaces)
            for number, layer in zip(numbers, layers, strict=True)
        ),
    )


class _Interfaces:
    """The network interfaces of a card, without the representors of its virtual and scalable functions.

    Representors are left out because they are up even if their function is not used. In switchdev mode, a card has one
    RDMA device with a port for each function (mlx5, ib_rep.c).
    """

    def __init__(self, device: Path, *, several: bool) -> None:
        self._several = several  # Ethernet ports
        self._net = device / "net"
        self._there = sysfs.entries(self._net)
        self._own = [name for name in self._there if not nic_functions.is_representor(self._net / name)]

    def flags(self, port: Path) -> list[int | None]:
        """Return the flags of the interfaces of a port; an entry is None if the flags cannot be read.

        The list is empty if the port has no interface on the host. If a card has several ports, only the port's GID
        tells which interface belongs to the port.
        """
        named = _text(port / "gid_attrs/ndevs/0")
        if named in self._there:
            judged = [named] if named in self._own else []
        else:  # a bond's, or a pod's
            judged = self._own if named or not self._several else []
        return [_flags(self._net / name) for name in judged]


def _port(folder: Path, number: int, layer: str, interfaces: _Interfaces) -> Port:
    state, phys = (_word(folder / name) for name in ("state", "phys_state"))
    rate = _RATE.fullmatch(sysfs.text(folder / "rate")) if state == ACTIVE else None
    is_down = state not in ("", ACTIVE)

    # Off: an administrator switched it off. Away: it has no interface here, because a pod has it.
    if layer == ETHERNET:
        flags = interfaces.flags(folder)
        is_off, is_away = bool(flags) and all(flag is not None and not flag & _IFF_UP for flag in flags), not flags
    else:
        is_off, is_away = phys == "Disabled", False
    return Port(
        number=number,
        state=state,
        phys=phys,
        layer=layer,
        gbit=float(rate[1]) if rate else 0.0,
        lanes=(rate[2] or "") if rate else "",
        ipv4=_has_ipv4(folder) if layer == ETHERNET and state == ACTIVE and not is_away else None,
        off=is_down and is_off,
        away=bool(state) and is_away,
        errors=_errors(folder),
    )


def _has_ipv4(port: Path) -> bool:
    """Return whether a port has a RoCE v2 GID with an IPv4 address.

    Empty GID entries cannot be read, and are skipped.
    """
    indices = [index for index in sysfs.entries(port / "gid_attrs/types") if index.isdecimal()]
    return any(
        sysfs.text(port / "gid_attrs/types" / index) == _ROCE_V2 and _IPV4.fullmatch(sysfs.text(port / "gids" / index))
        for index in indices[:_MOST_GIDS]
    )


def _errors(port: Path) -> Mapping[str, int]:
    files = {name: port / "counters" / name for name in ERRORS}
    files |= {name: port / "hw_counters" / name for name in HARDWARE_ERRORS}
    return {name: int(text) for name, file in files.items() if _COUNT.fullmatch(text := sysfs.text(file))}


def _word(path: Path) -> str:
    found = _STATE.fullmatch(sysfs.text(path))
    return found[1] if found else ""


def _text(path: Path) -> str:
    text = sysfs.text(path)
    return text if _TEXT.fullmatch(text) else ""


def _flags(interface: Path) -> int | None:
    text = sysfs.text(interface / "flags")
    return int(text, 16) if _FLAGS.fullmatch(text) else None
