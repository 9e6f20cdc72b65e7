"""A /sys and a /proc/cpuinfo as a server has them, written from its ``Machine``."""

from __future__ import annotations

import os
from pathlib import Path

from dradriver.topology.machine import Machine, Nic, PathType, PciDevice

_LAYERS = {"infiniband": "InfiniBand", "roce": "Ethernet", "efa": "Unspecified"}


class Sys:
    """The tree below ``root``."""

    def __init__(self, root: Path, machine: Machine) -> None:
        """Write it. Every device of ``machine.pci`` is there; ports that NCCL does not list are invented."""
        self.root = root
        self._machine = machine
        self._ports = 0
        self._made: set[Path] = set()
        self._folders: list[Path] = []
        tops = self._top_roots()
        for i, device in enumerate(machine.pci):
            if device.parent is None:
                above = root / "sys/devices" / tops[i]
                port = above if machine.virtual else self._port(above)
            else:
                port = self._port(self._folders[device.parent])
            self._folders.append(self._device(port, device))
        for n, nic in enumerate(machine.nics):
            if nic.members:
                self._bond(n, nic)
            else:
                self._nic(nic)
        self._numa_nodes()
        self._cpuinfo()
        self.file("sys/class/dmi/id/product_name", machine.name)
        if machine.virtual is not None:
            self.file("sys/class/dmi/id/sys_vendor", "QEMU" if machine.virtual else "A vendor")

    def file(self, path: str, text: str) -> Path:
        """Write one file."""
        return self._write(self.root / path, text)

    def device(self, busid: str) -> Path:
        """The real folder of a PCI device."""
        return (self.root / "sys/bus/pci/devices" / busid).resolve()

    def _write(self, path: Path, text: str) -> Path:
        self._make(path.parent)
        path.write_text(text + "\n")
        return path

    def _link(self, path: Path, target: Path) -> None:
        """Make a relative symbolic link, as all of /sys are."""
        self._make(path.parent)
        path.symlink_to(os.path.relpath(target, path.parent))

    def _make(self, folder: Path) -> None:
        if folder not in self._made:
            folder.mkdir(parents=True, exist_ok=True)
            self._made.add(folder)

    def _top_roots(self) -> dict[int, str]:
        """The root complex of each device directly below one: its GPUs', else that of the GPUs it is PHB to."""
        gpus = {gpu.pci: gpu for gpu in self._machine.gpus}
        nics = {nic.pci: n for n, nic in enumerate(self._machine.nics) if nic.pci}
        tops: dict[int, int] = {}
        found: dict[int, str] = {}
        for i, device in enumerate(self._machine.pci):
            tops[i] = i if device.parent is None else tops[device.parent]
            if device.busid in gpus:
                found[tops[i]] = gpus[device.busid].pcie_root or ""
        for i, device in enumerate(self._machine.pci):
            if tops[i] not in found and device.busid in nics:
                found[tops[i]] = self._near_root(nics[device.busid])
        return found

    def _near_root(self, nic: int) -> str:
        row = self._machine.nic_paths[nic]
        near = [gpu.pcie_root for gpu, path in zip(self._machine.gpus, row, strict=True) if path <= PathType.PHB]
        return (near[0] if near else None) or f"pci00fd:{nic:02x}"

    def _port(self, above: Path) -> Path:
        self._ports += 1
        return above / f"00fc:{self._ports >> 5:02x}:{self._ports & 31:02x}.0"

    def _device(self, port: Path, device: PciDevice) -> Path:
        folder = port / device.busid
        self._write(folder / "numa_node", str(-1 if device.numa is None else device.numa))
        if device.kind:
            self._write(folder / "class", device.kind)
        names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
        for name, number in zip(names, device.ids.split(":") if device.ids else (), strict=bool(device.ids)):
            self._write(folder / name, f"0x{number}")
        if port.parent.name == "devices":  # directly below the root complex, which is no port
            speeds, widths = {folder: device.link_speed}, {folder: device.link_width}
        else:  # the port is the slower one of the two
            speeds = {folder: "64.0 GT/s PCIe", port: device.link_speed} if device.link_speed else {}
            widths = {folder: 32, port: device.link_width} if device.link_width else {}
        for at, speed in speeds.items():
            self._write(at / "max_link_speed", speed)
        for at, width in widths.items():
            self._write(at / "max_link_width", str(width))
        self._link(self.root / "sys/bus/pci/devices" / device.busid, folder)
        return folder

    def _nic(self, nic: Nic) -> None:
        folder = self.device(nic.pci)
        if nic.kind == "ethernet":
            self._interface(nic.name, folder, speed=round(nic.gbps * 8000))
        else:
            self._rdma(nic, folder)
        if nic.parent:
            pf = next(one for one in self._machine.nics if one.name == nic.parent)
            self._link(folder / "physfn", self.device(pf.pci))

    def _interface(self, name: str, folder: Path, *, speed: int) -> None:
        own = folder / "net" / name
        self._write(own / "speed", str(speed))
        self._link(own / "device", folder)
        self._link(self.root / "sys/class/net" / name, own)

    def _rdma(self, nic: Nic, folder: Path) -> Path:
        own = folder / "infiniband" / nic.name
        self._write(own / "ports/1/link_layer", _LAYERS[nic.kind])
        self._write(own / "ports/1/state", "4: ACTIVE" if nic.gbps else "1: DOWN")
        self._write(own / "ports/1/rate", f"{nic.gbps * 8:g} Gb/sec (4X NDR)" if nic.gbps else "10 Gb/sec (4X SDR)")
        self._link(own / "device", folder)
        self._link(self.root / "sys/class/infiniband" / nic.name, own)
        return own

    def _bond(self, n: int, nic: Nic) -> None:
        """Two or more functions of one card, at a place that makes the bond's paths true."""
        port = self._bond_port(n)
        name = nic.name if nic.kind == "ethernet" else f"bond{n}"
        for function, member in enumerate(nic.members):
            card = PciDevice(f"00fb:{n:02x}:00.{function}", None, nic.numa, "0x020000", "15b3:1021:15b3:0041")
            folder = self._device(port, card)
            self._interface(member, folder, speed=100_000)
            if function == 0 and nic.kind != "ethernet":
                self._write(self._rdma(nic, folder) / "ports/1/gid_attrs/ndevs/0", name)
        bond = self.root / "sys/devices/virtual/net" / name
        self._write(bond / "bonding/slaves", " ".join(nic.members))
        if nic.kind == "ethernet":
            self._write(bond / "speed", str(round(nic.gbps * 8000)))
        self._link(self.root / "sys/class/net" / name, bond)

    def _bond_port(self, n: int) -> Path:
        row = self._machine.nic_paths[n]
        nearest = min(range(len(row)), key=lambda g: row[g])
        parents = {device.busid: device.parent for device in self._machine.pci}
        chain = []  # bridges above the nearest GPU, from below
        at = parents[self._machine.gpus[nearest].pci]
        while at is not None:
            chain.append(self._folders[at])
            at = self._machine.pci[at].parent
        if row[nearest] <= PathType.PXB:
            return self._port(chain[0 if row[nearest] <= PathType.PIX else -1])
        return self._port(self.root / "sys/devices" / self._near_root(n))

    def _numa_nodes(self) -> None:
        for node in self._machine.numa:
            self.file(f"sys/devices/system/node/node{node.id}/cpulist", node.cpus)
            self.file(f"sys/devices/system/node/node{node.id}/cpumap", node.cpumap)

    def _cpuinfo(self) -> None:
        cpu = self._machine.cpu
        if cpu is None:
            return
        if cpu.arch == "x86_64":
            flags = "fpu sse2" + (" hypervisor" if self._machine.virtual else "")
            lines = [f"vendor_id\t: {cpu.vendor}", f"cpu family\t: {cpu.family}", f"model\t\t: {cpu.model}"]
            lines += ["model name\t: A processor: the best", f"flags\t\t: {flags}"]
        elif cpu.arch == "arm64":
            lines = ["BogoMIPS\t: 2000.00", "CPU implementer\t: 0x41", "CPU architecture: 8"]
        else:
            lines = ["cpu\t\t: POWER9, altivec supported", "clock\t\t: 3800.000000MHz"]
        self.file("proc/cpuinfo", "\n\n".join("\n".join([f"processor\t: {n}", *lines]) for n in range(2)))
