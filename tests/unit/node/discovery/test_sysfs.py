"""What is made of /sys, against trees written down as real servers have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dradriver.node.discovery import nic_discovery, sysfs
from dradriver.node.discovery.pci import PciTree
from dradriver.node.discovery.problem import Problem
from dradriver.topology.machine import Cpu, Nic, NumaNode, PathType, PciDevice
from dradriver.topology.pcie_paths import Place, pcie_path
from tests.fakes.hardware import Server

# Two NVSwitch-era boards: root port, switch (upstream port, downstream ports), devices. As in a DGX H100.
SWITCH = "pci0000:15/0000:15:01.0/0000:16:00.0"
NIC = f"{SWITCH}/0000:17:00.0/0000:18:00.0"
GPU = f"{SWITCH}/0000:17:02.0/0000:1b:00.0"
# A switch below a switch, as in a 10-slot PCIe server.
DEEP = f"{SWITCH}/0000:17:03.0/0000:1c:00.0/0000:1d:00.0/0000:1e:00.0"


class Tree:
    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, **files: str) -> Path:
        folder = self.root / "sys/devices" / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(f"{text}\n")
        return folder

    def link(self, path: str, target: Path) -> None:
        whole = self.root / "sys" / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.symlink_to(os.path.relpath(target, whole.parent))

    def device(self, path: str, *, kind: str = "0x020700", numa: int | str = 0, **files: str) -> Path:
        folder = self.write(path, **{"class": kind, "numa_node": str(numa)}, **files)
        self.link(f"bus/pci/devices/{folder.name}", folder)
        return folder

    def rdma(
        self, name: str, path: str, *, layer: str = "InfiniBand", rate: str = "400 Gb/sec (4X NDR)", **files: str
    ) -> Path:
        self.device(path, **files)
        port = self.write(f"{path}/infiniband/{name}/ports/1", link_layer=layer, rate=rate)
        (port.parents[1] / "device").symlink_to("../..")
        self.link(f"class/infiniband/{name}", port.parents[1])
        return port

    def scalable(self, name: str, card: str, number: int) -> Path:
        """Write an RDMA device of a scalable function: the function is on the auxiliary bus, below its card."""
        path = f"{card}/mlx5_core.sf.{number}"
        port = self.write(f"{path}/infiniband/{name}/ports/1", link_layer="Ethernet", rate="400 Gb/sec (4X NDR)")
        (port.parents[1] / "device").symlink_to("../..")
        self.link(f"class/infiniband/{name}", port.parents[1])
        self.link(f"bus/auxiliary/devices/mlx5_core.sf.{number}", self.root / "sys/devices" / path)
        return port

    def interface(self, name: str, path: str, **files: str) -> Path:
        folder = self.write(f"{path}/net/{name}", **files)
        self.link(f"class/net/{name}", folder)
        if not path.startswith("virtual"):
            (folder / "device").symlink_to("../..")
        return folder

    def pci(self) -> PciTree:
        return PciTree(self.root)

    def nics(self) -> list[Nic]:
        return [one.nic for one in nic_discovery.read_nics(self.root, self.pci(), [])]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def place(tree: Tree, busid: str) -> Place:
    seat = tree.pci().seat(busid)
    assert seat is not None
    return seat.place


# --- PCI


def test_a_device_hangs_from_the_upstream_ports_of_switches(tree: Tree) -> None:
    tree.device(GPU, kind="0x030200", numa=1)
    tree.device(DEEP)
    assert place(tree, "0000:1b:00.0") == Place(numa=1, root="pci0000:15", switches=("0000:16:00.0",))
    assert place(tree, "0000:1e:00.0").switches == ("0000:16:00.0", "0000:1c:00.0")


@pytest.mark.parametrize(
    ("other", "numa", "path"),
    [
        (NIC, 0, PathType.PIX),
        (DEEP, 0, PathType.PXB),
        ("pci0000:15/0000:15:02.0/0000:20:00.0", 0, PathType.PHB),
        ("pci0000:26/0000:26:01.0/0000:29:00.0", 0, PathType.NODE),
        ("pci0000:97/0000:97:01.0/0000:9a:00.0", 1, PathType.SYS),
        ("pci0000:26/0000:26:01.0/0000:29:00.0", -1, PathType.SYS),  # not known to be the same node
    ],
)
def test_paths_are_those_of_topo_m(other: str, numa: int, path: PathType, tree: Tree) -> None:
    tree.device(GPU, kind="0x030200")
    folder = tree.device(other, numa=numa)
    assert pcie_path(place(tree, "0000:1b:00.0"), place(tree, folder.name)) is path


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("pci0000:00/0000:00:1e.0", "pci0000:00"),  # a virtual machine without a port
        ("LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:01/47505500-0001/pci0001:00/0001:00:00.0", "pci0001:00"),  # Hyper-V
        ("pci0000:e2/0000:e2:00.5/pci10000:00/10000:00:02.0/10000:01:00.0", "pci10000:00"),  # below a VMD
        ("platform/NVDA0008:00/pci0008:00/0008:00:00.0/0008:01:00.0", "pci0008:00"),  # Grace
    ],
)
def test_devices_without_a_switch_have_their_root_alone(path: str, root: str, tree: Tree) -> None:
    folder = tree.device(path, numa=-1)
    assert place(tree, folder.name) == Place(numa=None, root=root)


@pytest.mark.parametrize("busid", ["", "0000:99:00.0", "../../etc", "ffffffff:ffff:ff.0"])
def test_what_sys_does_not_have_hangs_nowhere(busid: str, tree: Tree) -> None:
    tree.device(GPU)
    pci = tree.pci()
    assert (pci.seat(busid), pci.pci_class(busid)) == (None, "")
    assert pci.listed([busid]) == ()


def test_a_sys_that_cannot_be_looked_at_has_nothing(tmp_path: Path) -> None:
    pci = PciTree(tmp_path / ("x" * 300))  # stat fails, and not because there is none
    assert pci.seat("0000:1b:00.0") is None
    assert pci.above(tmp_path / ("x" * 300) / "device") == ""


@pytest.mark.parametrize(
    ("device", "port", "speed", "width"),
    [
        (("32.0 GT/s PCIe", "16"), ("16.0 GT/s PCIe", "16"), "16.0 GT/s PCIe", 16),
        (("16.0 GT/s PCIe", "16"), ("32.0 GT/s PCIe", "8"), "16.0 GT/s PCIe", 8),
        (("8 GT/s", "16"), ("8 GT/s", "16"), "8 GT/s", 16),  # before Linux 5.1
        (("Unknown", "255"), ("Unknown", "255"), "Unknown", 0),
        (("32.0 GT/s PCIe", "16"), ("Unknown", "255"), "32.0 GT/s PCIe", 0),
        (("", ""), ("16.0 GT/s PCIe", "4"), "16.0 GT/s PCIe", 0),
        (("32.0 GT/s PCIe", "16"), ("", ""), "32.0 GT/s PCIe", 0),
        (("\x07bell", "much"), ("", ""), "", 0),
        (("x" * 99, "-3"), ("", ""), "", 0),
    ],
)
def test_a_link_is_as_nccl_reads_it(
    device: tuple[str, str], port: tuple[str, str], speed: str, width: int, tree: Tree
) -> None:
    tree.device(GPU, max_link_speed=device[0], max_link_width=device[1])
    tree.write(os.path.dirname(GPU), max_link_speed=port[0], max_link_width=port[1])
    found = tree.pci().listed(["0000:1b:00.0"])[-1]
    assert (found.link_speed, found.link_width) == (speed, width)


def test_the_tree_has_every_second_bridge_and_each_once(tree: Tree) -> None:
    ids = {"vendor": "0x10de", "device": "0x2330", "subsystem_vendor": "0x10de", "subsystem_device": "0x16c1"}
    tree.device(GPU, kind="0x030200", numa=1, **ids)
    tree.device(NIC, vendor="0x15b3", device="0x1021")  # two of four ids are none
    tree.device(DEEP, kind="garbage", numa=-1)
    tree.device(SWITCH, kind="0x060400")
    tree.device("pci0000:97/0000:97:01.0/0000:9a:00.0")
    assert tree.pci().listed(["0000:9a:00.0", "0000:1e:00.0", "0000:1b:00.0", "0000:18:00.0"]) == (
        PciDevice("0000:16:00.0", None, 0, "0x060400"),
        PciDevice("0000:18:00.0", 0, 0, "0x020700"),
        PciDevice("0000:1b:00.0", 0, 1, "0x030200", "10de:2330:10de:16c1"),
        PciDevice("0000:1c:00.0", 0, None, ""),
        PciDevice("0000:1e:00.0", 3, None, ""),
        PciDevice("0000:9a:00.0", None, 0, "0x020700"),
    )


# --- Network cards


@pytest.mark.parametrize(
    ("layer", "vendor", "rate", "kind", "gbps"),
    [
        ("InfiniBand", "0x15b3", "400 Gb/sec (4X NDR)", "infiniband", 50.0),
        ("Ethernet", "0x15b3", "100 Gb/sec (4X EDR)", "roce", 12.5),
        ("Unspecified", "0x1d0f", "100 Gb/sec (4X EDR)", "efa", 12.5),
        ("Ethernet", "0x14e4", "2.5 Gb/sec (1X SDR)", "roce", 0.3125),
        ("Unspecified", "0x15b3", "fast", "", 0.0),
        ("", "", "", "", 0.0),
    ],
)
def test_rdma_devices(layer: str, vendor: str, rate: str, kind: str, gbps: float, tree: Tree) -> None:
    tree.rdma("mlx5_0", NIC, layer=layer, rate=rate, vendor=vendor)
    assert tree.nics() == [Nic(name="mlx5_0", pci="0000:18:00.0", numa=0, kind=kind, gbps=gbps)]


def test_a_card_of_two_ports_has_the_rate_of_the_faster(tree: Tree) -> None:
    tree.rdma("mlx4_0", NIC, rate="10 Gb/sec (4X SDR)")
    tree.write(f"{NIC}/infiniband/mlx4_0/ports/2", link_layer="Ethernet", rate="40 Gb/sec (4X QDR)")
    assert [(nic.kind, nic.gbps) for nic in tree.nics()] == [("infiniband", 5.0)]


def test_a_port_that_is_down_has_no_rate(tree: Tree) -> None:
    port = tree.rdma("mlx5_0", NIC, rate="10 Gb/sec (4X SDR)")
    (port / "state").write_text("1: DOWN\n")
    assert [(nic.kind, nic.gbps) for nic in tree.nics()] == [("infiniband", 0.0)]
    second = tree.write(f"{NIC}/infiniband/mlx5_0/ports/2", link_layer="InfiniBand", rate="200 Gb/sec (4X HDR)")
    (second / "state").write_text("4: ACTIVE\n")
    assert [nic.gbps for nic in tree.nics()] == [25.0]


def test_names_are_in_natural_order(tree: Tree) -> None:
    for n, name in enumerate(("mlx5_10", "mlx5_2", "mlx5_bond_0", "mlx5_0")):
        tree.rdma(name, f"pci0000:15/0000:15:01.0/0000:2{n}:00.0")
    assert [nic.name for nic in tree.nics()] == ["mlx5_0", "mlx5_2", "mlx5_10", "mlx5_bond_0"]


def test_names_that_are_no_text_are_left_out(tree: Tree) -> None:
    """They could neither be published nor written into a file."""
    tree.rdma("mlx5_0", NIC)
    for n, name in enumerate((b"mlx\xff", b"mlx\x07")):
        tree.rdma(os.fsdecode(name), f"pci0000:15/0000:15:01.0/0000:2{n}:00.0")
    assert [nic.name for nic in tree.nics()] == ["mlx5_0"]


def test_text_that_can_be_no_path_leads_nowhere(tree: Tree) -> None:
    tree.rdma("mlx5_0", NIC)
    tree.write(f"{NIC}/infiniband/mlx5_0/ports/1/gid_attrs/ndevs", **{"0": "bond\x000"})
    tree.write("virtual/net/bond0/bonding", slaves="ens\x001 ens2")
    tree.link("class/net/bond0", tree.root / "sys/devices/virtual/net/bond0")
    assert [(nic.name, nic.members) for nic in tree.nics()] == [("mlx5_0", ())]


def test_a_virtual_function_names_its_physical_one(tree: Tree) -> None:
    tree.rdma("mlx5_0", NIC)
    tree.rdma("mlx5_1", f"{SWITCH}/0000:17:00.0/0000:18:00.1")
    (tree.root / "sys/devices" / SWITCH / "0000:17:00.0/0000:18:00.1/physfn").symlink_to("../0000:18:00.0")
    assert [(nic.name, nic.parent) for nic in tree.nics()] == [("mlx5_0", ""), ("mlx5_1", "mlx5_0")]


def test_a_crowd_of_virtual_functions_is_left_out_and_told_of(tree: Tree) -> None:
    tree.rdma("mlx5_0", NIC)
    for n in range(64):
        path = f"{SWITCH}/0000:17:00.0/0000:18:{n // 8 + 1:02x}.{n % 8}"
        tree.rdma(f"mlx5_{n + 1}", path)
        (tree.root / "sys/devices" / path / "physfn").symlink_to("../0000:18:00.0")
    problems: list[Problem] = []
    found = nic_discovery.read_nics(tree.root, tree.pci(), problems)
    assert [one.nic.name for one in found] == ["mlx5_0"]
    assert [str(p) for p in problems] == [
        "machine: NICs: 64 virtual functions left out, more than 64 NICs are too many to publish"
    ]


def test_a_virtual_function_of_a_card_without_a_name_names_its_bus_id(tree: Tree) -> None:
    tree.device(NIC)
    tree.rdma("mlx5_1", f"{SWITCH}/0000:17:00.0/0000:18:00.1")
    (tree.root / "sys/devices" / SWITCH / "0000:17:00.0/0000:18:00.1/physfn").symlink_to("../0000:18:00.0")
    assert [(nic.name, nic.parent) for nic in tree.nics()] == [("mlx5_1", "0000:18:00.0")]


def test_a_scalable_function_names_its_card_in_any_order(tree: Tree) -> None:
    tree.rdma("mlx5_2", NIC, layer="Ethernet")
    tree.scalable("mlx5_1", NIC, 4)
    tree.scalable("mlx5_3", NIC, 5)
    tree.interface("eth0", f"{NIC}/mlx5_core.sf.4")
    assert [(nic.name, nic.pci, nic.parent, nic.gbps) for nic in tree.nics()] == [
        ("mlx5_1", "0000:18:00.0", "mlx5_2", 50.0),
        ("mlx5_2", "0000:18:00.0", "", 50.0),
        ("mlx5_3", "0000:18:00.0", "mlx5_2", 50.0),
    ]


def _told(tree: Tree) -> tuple[list[str], list[str]]:
    problems: list[Problem] = []
    found = nic_discovery.read_nics(tree.root, tree.pci(), problems)
    return [one.nic.name for one in found], [problem.said.partition(",")[0] for problem in problems]


def test_a_crowd_of_scalable_functions_is_left_out_and_told_of(tree: Tree) -> None:
    tree.rdma("rocep24s0", NIC, layer="Ethernet")
    for n in range(64):
        tree.scalable(f"mlx5_{n}", NIC, n)
    assert _told(tree) == (["rocep24s0"], ["64 scalable functions left out"])


def test_a_crowd_of_functions_of_a_card_without_a_name_is_left_out(tree: Tree) -> None:
    tree.device(NIC)
    for n in range(60):
        path = f"{SWITCH}/0000:17:00.0/0000:18:{n // 8 + 1:02x}.{n % 8}"
        tree.rdma(f"mlx5_{n}", path)
        (tree.root / "sys/devices" / path / "physfn").symlink_to("../0000:18:00.0")
    for n in range(5):
        tree.scalable(f"mlx5_{60 + n}", NIC, n)
    assert _told(tree) == ([], ["60 virtual functions and 5 scalable functions left out"])


def test_of_a_crowd_that_says_nothing_of_functions_the_last_are_left_out(tree: Tree) -> None:
    """A virtual machine has functions without their card."""
    for n in range(70):
        tree.rdma(f"mlx5_{n}", f"pci0000:00/0000:00:{n // 8 + 1:02x}.{n % 8}")
    assert _told(tree) == ([f"mlx5_{n}" for n in range(64)], ["6 other NICs left out"])


def test_a_crowd_of_interfaces_of_functions_is_left_out(tree: Tree) -> None:
    tree.device(NIC, kind="0x020000")
    tree.interface("eth0", NIC, speed="100000", phys_port_name="p0")
    for n in range(70):
        tree.interface(f"eth0_{n}", NIC, speed="100000", phys_port_name=f"pf0sf{n}")
    assert _told(tree) == (["eth0"], [])
    for n in range(70):
        tree.interface(f"sf{n}", f"{NIC}/mlx5_core.sf.{n}", speed="100000")
    assert _told(tree) == (["eth0"], ["70 scalable functions left out"])


def test_a_bond_of_rdma_has_members_and_the_nearest_of_their_paths(tree: Tree) -> None:
    far = "pci0000:97/0000:97:01.0/0000:9a:00.0"
    port = tree.rdma("mlx5_bond_0", NIC, layer="Ethernet")
    tree.device(far, kind="0x020000", numa=1)
    tree.write(f"{NIC}/infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs", **{"0": "bond0"})
    tree.write("virtual/net/bond0/bonding", slaves="ens1 ens2")
    tree.link("class/net/bond0", tree.root / "sys/devices/virtual/net/bond0")
    tree.device(NIC.replace("18:00.0", "18:00.1"), kind="0x020000")
    tree.interface("ens2", NIC.replace("18:00.0", "18:00.1"))
    tree.interface("ens1", far)
    assert port.exists()
    (bond,) = nic_discovery.read_nics(tree.root, tree.pci(), [])
    assert bond.nic == Nic(name="mlx5_bond_0", pci="", numa=None, kind="roce", gbps=50.0, members=("ens1", "ens2"))
    tree.device(GPU, kind="0x030200")
    tree.device("pci0000:97/0000:97:02.0/0000:9b:00.0", kind="0x030200", numa=1)
    gpus = [place(tree, "0000:1b:00.0"), place(tree, "0000:9b:00.0")]
    assert nic_discovery.nic_paths([bond], gpus, tree.pci()) == ((PathType.PIX, PathType.PHB),)


def test_ethernet_counts_where_there_is_no_rdma(tree: Tree) -> None:
    tree.device(NIC, kind="0x020000")
    tree.interface("eth10", NIC, speed="100000")
    down = "pci0000:97/0000:97:01.0/0000:9a:00.0"
    tree.device(down, kind="0x020000", numa=-1)
    tree.interface("eth2", down, speed="-1")
    assert tree.nics() == [
        Nic(name="eth2", pci="0000:9a:00.0", numa=None, kind="ethernet", gbps=0.0),
        Nic(name="eth10", pci="0000:18:00.0", numa=0, kind="ethernet", gbps=12.5),
    ]
    tree.rdma("mlx5_0", f"{SWITCH}/0000:17:05.0/0000:1f:00.0")
    assert [nic.name for nic in tree.nics()] == ["mlx5_0"]


def test_what_is_no_card_is_no_nic(tree: Tree) -> None:
    """A bridge, the loopback, a BMC's port behind USB, a card's interface that cannot say its speed."""
    tree.interface("lo", "virtual")
    tree.interface("docker0", "virtual", speed="10000")
    tree.device("pci0000:00/0000:00:14.0", kind="0x0c0330")
    usb = tree.write("pci0000:00/0000:00:14.0/usb1/1-5/1-5:2.0/net/usb0", speed="425")
    tree.link("class/net/usb0", usb)
    (usb / "device").symlink_to("../..")
    tree.device("pci0000:00/0000:00:03.0", kind="0x020000")
    virtio = tree.write("pci0000:00/0000:00:03.0/virtio2/net/eth0")
    tree.link("class/net/eth0", virtio)
    (virtio / "device").symlink_to("../..")
    (virtio / "speed").mkdir()  # reading it fails, as it does while a link is down
    (tree.root / "sys/class/net/bonding_masters").write_text("\n")
    assert tree.nics() == [Nic(name="eth0", pci="0000:00:03.0", numa=0, kind="ethernet")]


def test_a_bond_of_ethernet_stands_for_its_members(tree: Tree) -> None:
    for n in range(2):
        path = f"{SWITCH}/0000:17:00.0/0000:18:00.{n}"
        tree.device(path, kind="0x020000")
        tree.interface(f"ens{n}", path, speed="100000")
    tree.interface("bond0", "virtual", speed="200000")
    tree.write("virtual/net/bond0/bonding", slaves="ens0 ens1")
    assert tree.nics() == [Nic(name="bond0", numa=0, kind="ethernet", gbps=25.0, members=("ens0", "ens1"))]


def test_software_rdma_is_no_card(tree: Tree) -> None:
    folder = tree.write("virtual/infiniband/rxe0/ports/1", link_layer="Ethernet")
    tree.link("class/infiniband/rxe0", folder.parents[1])
    assert tree.nics() == []


# --- The server


INTEL = (
    "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Xeon\nflags\t\t: fpu vme"
)
XEON = Cpu(arch="x86_64", vendor="GenuineIntel", family=6, model=143)


@pytest.mark.parametrize(
    ("text", "cpu", "virtual"),  # without a firmware that says more
    [
        (INTEL, XEON, False),
        (f"{INTEL} hypervisor\n\nprocessor\t: 1\nvendor_id\t: Other\n", XEON, True),
        ("vendor_id : AuthenticAMD\nmodel : x\n", Cpu(arch="x86_64", vendor="AuthenticAMD"), False),
        ("processor\t: 0\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\n", Cpu(arch="arm64"), None),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", Cpu(arch="ppc64"), None),
        ("processor\t: 0\nisa\t: rv64imafdc\n", None, None),
        ("", None, None),
    ],
)
def test_cpu_models(text: str, cpu: Cpu | None, virtual: bool | None, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(text)
    assert sysfs.cpu(tmp_path) == (cpu, virtual)


def test_every_numa_node_is_there_with_or_without_cpus(tree: Tree) -> None:
    tree.write("system/node/node0", cpulist="0-3,8-11", cpumap="00000f0f")
    tree.write("system/node/node2", cpulist="", cpumap="00000000")
    tree.write("system/node/node10", cpulist="all", cpumap="0x0f")
    tree.write("system/node/power")
    tree.write("system/node", online="0,2,10")
    assert sysfs.numa_nodes(tree.root) == (
        NumaNode(id=0, cpus="0-3,8-11", cpumap="00000f0f"),
        NumaNode(id=2, cpumap="00000000"),
        NumaNode(id=10),
    )
    tree.write("system/node/node010")
    assert [node.id for node in sysfs.numa_nodes(tree.root)] == [0, 2, 10]


def test_the_product_is_the_firmwares_word(tmp_path: Path) -> None:
    assert sysfs.product_name(tmp_path) == ""
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/class/dmi/id/product_name").write_bytes(b" DGXH100 \xff\n")
    assert sysfs.product_name(tmp_path) == "DGXH100 \ufffd"


def test_a_machine_without_sys_has_nvmls_facts(tmp_path: Path) -> None:
    server = Server("dgx1-v100", tmp_path)
    (tmp_path / "root").rename(tmp_path / "gone")
    reading = server.read()
    machine, whole = reading.machine, server.machine
    assert (machine.links, machine.paths, machine.link_gbps) == (whole.links, whole.paths, whole.link_gbps)
    assert [(g.uuid, g.pci, g.numa, g.pcie_root, g.pcie_gbps) for g in machine.gpus] == [
        (g.uuid, g.pci, None, None, g.pcie_gbps) for g in whole.gpus
    ]
    assert (machine.nics, machine.numa, machine.pci, machine.cpu, machine.socket_gbps) == ((), (), (), None, 10.0)
    assert [p.where for p in reading.problems] == [f"GPU {index}" for index in range(8)]


def test_one_gpu_that_sys_lacks_hides_no_other(tmp_path: Path) -> None:
    server = Server("dgx1-v100", tmp_path)
    (server.sys.root / "sys/bus/pci/devices" / server.machine.gpus[2].pci).unlink()
    reading = server.read()
    assert [gpu.numa is None for gpu in reading.machine.gpus] == [False, False, True] + [False] * 5
    assert reading.machine.links == server.machine.links
    assert len(reading.machine.pci) == len(server.machine.pci) - 1
    assert [p.where for p in reading.problems] == ["GPU 2"]
