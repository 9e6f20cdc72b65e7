"""RDMA devices in a /sys written by hand, one line a file, as the kernel has them (sysfs-class-infiniband)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LINK_LOCAL = "fe80:0000:0000:0000:0a00:27ff:fe00:0001"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a00:0001"
UP = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
DOWN = {"state": "1: DOWN", "phys_state": "2: Polling", "rate": "10 Gb/sec (4X SDR)"}
INIT = {"state": "2: INIT", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
COUNTERS = {"symbol_error": 7, "link_downed": 1, "port_rcv_errors": 0}


class NicTree:
    """The tree below ``root``; cards are numbered as their PCI devices."""

    def __init__(self, root: Path) -> None:
        """Write nothing yet."""
        self.root = root

    def file(self, path: str, text: object) -> Path:
        """Write one file."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        return file

    def device(self, number: int) -> Path:
        """The folder of a card's PCI device."""
        return self.root / f"sys/devices/pci0000:{number:02x}/0000:{number:02x}:00.0"

    def port(self, number: int, port: int = 1) -> Path:
        """The folder of a card's port."""
        return self.device(number) / f"infiniband/mlx5_{number}/ports/{port}"

    def card(
        self,
        number: int,
        *,
        layer: str = "InfiniBand",
        port: Mapping[str, str] = UP,
        ports: int = 1,
        counters: Mapping[str, int] = COUNTERS,
        gids: tuple[str, ...] = (LINK_LOCAL, LINK_LOCAL, IPV4, IPV4),
        interface: str | None = "",
        flags: str = "0x1003",
        parent: int | None = None,
        **own: Any,
    ) -> None:
        """Write a card ``mlx5_<number>`` anew; ``own`` are its files, ``interface`` is None for one in a pod."""
        device = self.device(number)
        shutil.rmtree(device, ignore_errors=True)
        device.mkdir(parents=True, exist_ok=True)
        about = {"hca_type": "MT4129", "board_id": "MT_0000000838", "fw_ver": "28.39.1002"} | own
        for name, text in about.items():
            self._write(device / f"infiniband/mlx5_{number}" / name, text)
        for name, text in {"vendor": "0x15b3", "device": "0x1021", "class": "0x020700", "numa_node": "0"}.items():
            self._write(device / name, text)
        for n in range(1, ports + 1):
            folder = self.port(number, n)
            for name, text in {**port, "link_layer": layer}.items():
                self._write(folder / name, text)
            for name, count in counters.items():
                self._write(folder / "counters" / name, count)
            if layer == "Ethernet":
                self._gids(folder, gids, f"eth{number}" if interface == "" else interface)
        if layer == "Ethernet" and interface is not None:
            self._write(device / "net" / (interface or f"eth{number}") / "flags", flags)
        own_folder = device / f"infiniband/mlx5_{number}"
        self._link(own_folder / "device", device)
        self._link(self.root / f"sys/class/infiniband/mlx5_{number}", own_folder)
        self._link(self.root / f"sys/bus/pci/devices/{device.name}", device)
        if parent is not None:
            self._link(device / "physfn", self.device(parent))

    def scalable(self, number: int, *, of: int, port: Mapping[str, str] = UP) -> None:
        """Write ``mlx5_<number>``, a scalable function: its device is on the auxiliary bus, below that of its card."""
        device = self.device(of) / f"mlx5_core.sf.{number}"
        own = device / f"infiniband/mlx5_{number}"
        for name, text in {**port, "link_layer": "InfiniBand"}.items():
            self._write(own / "ports/1" / name, text)
        self._link(own / "device", device)
        self._link(self.root / f"sys/class/infiniband/mlx5_{number}", own)
        self._link(self.root / f"sys/bus/auxiliary/devices/{device.name}", device)

    def rename(self, number: int, name: str) -> None:
        """Have the kernel know a card under another name."""
        own = self.device(number) / f"infiniband/mlx5_{number}"
        (self.root / f"sys/class/infiniband/mlx5_{number}").unlink()
        self._link(self.root / f"sys/class/infiniband/{name}", own.rename(own.with_name(name)))

    def vports(self, number: int, ports: int, *, up: str = "", interfaces: bool = True) -> None:
        """Put a card into switchdev mode: port 1 is the card's own, the others are functions', by representors.

        Args:
            number: The card.
            ports: How many there are, its own included.
            up: The number of a function's port that is up.
            interfaces: Whether the ports know their representors; mlx5's without RoCE have no GID to tell it by.
        """
        idle = {"state": "1: DOWN", "phys_state": "3: Disabled", "rate": "10 Gb/sec (4X SDR)"}
        for n in range(2, ports + 1):
            name = f"eth{number}_{n - 2}"
            for file, text in ((UP if str(n) == up else idle) | {"link_layer": "Ethernet"}).items():
                self._write(self.port(number, n) / file, text)
            if interfaces:
                self._write(self.port(number, n) / "gid_attrs/ndevs/0", name)
            self.representor(number, name, f"pf0vf{n - 2}")

    def representor(self, number: int, name: str, of: str) -> None:
        """Give a card the representor of a function, which is up whoever uses the function."""
        for file, text in {"flags": "0x1003", "phys_port_name": of}.items():
            self._write(self.device(number) / "net" / name / file, text)

    def take(self, number: int) -> None:
        """Have a pod take a card in RDMA's exclusive mode: its PCI device stays."""
        (self.root / f"sys/class/infiniband/mlx5_{number}").unlink()
        shutil.rmtree(self.device(number) / "infiniband")

    def _gids(self, folder: Path, gids: tuple[str, ...], interface: str | None) -> None:
        for index, gid in enumerate(gids):
            self._write(folder / f"gids/{index}", gid)
            self._write(folder / f"gid_attrs/types/{index}", "RoCE v2" if index % 2 else "IB/RoCE v1")
            if interface is not None:
                self._write(folder / f"gid_attrs/ndevs/{index}", interface)
        empty = len(gids)  # an index whose attributes cannot be read: EINVAL on a real one, a folder here
        self._write(folder / f"gids/{empty}", "0000:0000:0000:0000:0000:0000:0000:0000")
        (folder / f"gid_attrs/types/{empty}").mkdir(parents=True, exist_ok=True)

    def _write(self, path: Path, text: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def _link(self, path: Path, target: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_symlink():
            path.symlink_to(os.path.relpath(target, path.parent))


def eight(root: Path, **same: Any) -> NicTree:
    """Eight cards alike."""
    tree = NicTree(root)
    for number in range(8):
        tree.card(number, **same)
    return tree
