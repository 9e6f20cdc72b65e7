"""NCCL 2.18 to 2.20 have room for 32 children of one element, 2.21 to 2.28 for 128."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.topology import nccl, profiles
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Cpu, Gpu, Machine, Nic, NumaNode, PathType, PciDevice
from dradriver.topology.nccl.child_limits import MAX_CHILDREN, wanted_nodes
from dradriver.topology.nccl.xml import Element, parse
from dradriver.topology.synthetic import synthetic_uuid

CPU = '<cpu numaid="0" affinity="000000ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">'


def wide(count: int, *, extra: str = "") -> str:
    pci = [f'<pci busid="0000:{n:02x}:00.0" class="0x030200"/>' for n in range(count)]
    return f'<system version="1">{CPU}{"".join(pci)}{extra}</cpu></system>'


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (32, None),
        (33, "<cpu> has 33 children: NCCL 2.18 to 2.20 have room for 32 and overwrite their memory"),
        (128, "<cpu> has 128 children: NCCL 2.18 to 2.20 have room for 32 and overwrite their memory"),
        (129, "<cpu> has 129 children: NCCL 2.18 to 2.20 have room for 32 and overwrite their memory, "
              "2.21 to 2.28 refuse more than 128"),
    ],
)  # fmt: skip
def test_the_versions_that_cannot_read_so_many_are_named(count: int, says: str | None) -> None:
    found = [finding for finding in nccl.check(wide(count)) if finding.rule == "children"]
    assert [finding.problem for finding in found] == ([] if says is None else [says])
    assert all(finding.error for finding in found)


def test_what_nccl_skips_is_no_child() -> None:
    assert "children" not in {f.rule for f in nccl.check(wide(32, extra="<note/>" * 9 + "<gpu/>"))}


def cloud(*, nics: int, path: PathType = PathType.PHB, gpus: int = 8) -> Machine:
    """A flat virtual machine with more NICs than NCCL 2.18 has room for below one CPU."""
    flat = profiles.load("h100-x8-flat-vm")
    cards = tuple(
        Nic(name=f"efa_{n}", pci=f"0000:{0x20 + n:02x}:00.0", kind="efa", gbps=12.5, numa=None) for n in range(nics)
    )
    return msgspec.structs.replace(
        flat,
        gpus=flat.gpus[:gpus],
        links=tuple(row[:gpus] for row in flat.links[:gpus]),
        paths=tuple(row[:gpus] for row in flat.paths[:gpus]),
        nics=cards,
        nic_paths=((path,) * gpus,) * nics,
    )


def written(machine: Machine) -> Element:
    root = parse(nccl.write(machine)).root
    assert root is not None
    return root


def most_children(element: Element) -> int:
    return max([len(element.children), *map(most_children, element.children)])


@pytest.mark.parametrize("nics", [24, 25, 32, 100])
def test_no_written_element_has_more_than_32_children_and_distances_stay(nics: int) -> None:
    machine = cloud(nics=nics)
    text = nccl.write(machine)
    root = parse(text).root
    assert root is not None
    assert most_children(root) <= MAX_CHILDREN
    assert nccl.check(text, machine=machine) == []
    again = nccl.read(text)
    plain = nccl.read(nccl.write(cloud(nics=24)))
    assert again.paths == plain.paths
    assert {path for row in again.nic_paths for path in row} == {path for row in plain.nic_paths for path in row}
    assert len(again.nics) == nics
    assert [device.busid for device in again.pci if device.busid.startswith("ffff:")] == ([] if nics == 24 else [
        f"ffff:ff:{n:02x}.0" for n in range({25: 1, 32: 8, 100: 24}[nics])
    ])  # fmt: skip


def test_no_switch_between_is_narrower_than_the_nics_below_it() -> None:
    tree = nccl.read(nccl.write(cloud(nics=32))).pci
    switch = next(device for device in tree if device.busid == "ffff:ff:00.0")
    assert (switch.link_speed, switch.link_width) == ("64.0 GT/s PCIe", 16)  # 96: two NICs of 48


def test_a_discovered_flat_tree_gets_switches_whose_bus_ids_are_free() -> None:
    machine = cloud(nics=32)
    taken = PciDevice("ffff:ff:00.0", None, None, "0x060400", "ffff:ffff:ffff:ffff", "32.0 GT/s PCIe", 16)
    leaves = [PciDevice(gpu.pci, None, None, "0x030200", "10de:2330:10de:16c1") for gpu in machine.gpus[1:]]
    leaves += [PciDevice(nic.pci, None, None, "0x020000", "1d0f:efa1:1d0f:efa1") for nic in machine.nics]
    below = PciDevice(machine.gpus[0].pci, 0, None, "0x030200", "10de:2330:10de:16c1")
    discovered = msgspec.structs.replace(machine, pci=(taken, below, *leaves))
    text = nccl.write(discovered)
    root = parse(text).root
    assert root is not None
    assert most_children(root) == MAX_CHILDREN
    assert {f.rule for f in nccl.check(text, machine=discovered)} <= {"speed-empty"}
    again = nccl.read(text)
    assert again.paths == nccl.read(nccl.write(machine)).paths
    assert len(again.pci) == 1 + 8 + 32 + 8


def test_where_switches_would_lie_the_file_is_refused() -> None:
    with pytest.raises(TopologyError) as caught:
        nccl.write(cloud(nics=32, path=PathType.PIX, gpus=1))
    assert str(caught.value) == (
        "<pci> ffff:ff:00.0: the element has 33 children, and NCCL 2.18 to 2.20 have room for 32. A switch between "
        "them would change what NCCL reads. Remove NICs that no job uses."
    )
    many = tuple(
        Gpu(index=n, uuid=synthetic_uuid("box", n), minor=n, pci=f"0000:{n:02x}:00.0", numa=0) for n in range(33)
    )
    square = tuple(tuple(PathType.SELF if i == j else PathType.NODE for j in range(33)) for i in range(33))
    machine = Machine(
        name="box", gpus=many, links=((0,) * 33,) * 33, paths=square, numa=(NumaNode(id=0),), cpu=Cpu(arch="arm64")
    )
    with pytest.raises(TopologyError, match="<cpu> 0: the element has 33 children, and NCCL 2"):
        nccl.write(machine)
    full = machine.subset(range(32))
    assert most_children(written(full)) == 32
    larger = msgspec.structs.replace(
        full, nics=(Nic(name="mlx5_0", pci="0000:80:00.0", numa=0),), nic_paths=((PathType.NODE,) * 32,)
    )
    with pytest.raises(TopologyError, match=r"<cpu> 0: the element has 33 children, .*Remove NICs that no job uses."):
        nccl.write(larger)


def test_nodes_of_gpu_memory_are_left_out_where_there_are_too_many() -> None:
    """A Grace tray has two nodes with CPUs and eight of GPU memory for each of four GPUs."""
    tray = profiles.load("gb200-nvl72-tray")
    memory = tuple(NumaNode(id=n) for n in range(2, 34))
    machine = msgspec.structs.replace(tray, numa=(*tray.numa, *memory))
    text = nccl.write(machine)
    assert text.count("<cpu ") == 2
    assert nccl.check(text, machine=machine) == []
    used = msgspec.structs.replace(
        machine,
        gpus=(msgspec.structs.replace(machine.gpus[0], numa=5), *machine.gpus[1:]),
        numa=(*tray.numa, *(NumaNode(id=n, cpumap="1" if n == 7 else "") for n in range(2, 34))),
    )
    nodes = [node.id for node in wanted_nodes(used)]
    assert nodes == sorted({*(node.id for node in tray.numa), 5, 7})
    crowd = msgspec.structs.replace(tray, numa=tuple(NumaNode(id=n, cpus=str(n)) for n in range(33)))
    with pytest.raises(TopologyError, match="<system>: the server has 33 NUMA nodes"):
        nccl.write(crowd)
