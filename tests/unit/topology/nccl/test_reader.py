from __future__ import annotations

from pathlib import Path

import pytest

from dradriver.topology import machine_codec, nccl, topo_m
from dradriver.topology.errors import TopologyError
from dradriver.topology.load import read_machine
from dradriver.topology.machine import Cpu, NumaNode, PathType
from dradriver.topology.nccl import nccl_bandwidths
from tests.paths import SHARED_DATA

FOLDER = SHARED_DATA / "nccl_xml"
REFUSED = {"azure-ncv4-graph.xml": "line 1, column 1: this is a graph file"}

SMALL = """\
<system version="1">
  <cpu numaid="0" affinity="0000000f" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:02:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="8">
        <gpu dev="1" sm="86"><nvlink target="0000:03:00.0" count="4" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:04:00.0" class="0x060400">
        <pci busid="0000:05:00.0" class="0x020700"><nic><net name="mlx5_0" speed="200000"/></nic></pci>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="000000f0">
    <pci busid="0000:03:00.0" class="0x030200">
      <gpu dev="0" sm="86"><nvlink target="0000:02:00.0" count="4" tclass="0x030200"/></gpu>
    </pci>
  </cpu>
</system>
"""


@pytest.mark.shared_data
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.xml")), ids=lambda p: p.stem)
def test_every_real_file_is_read_or_refused_with_its_place(path: Path) -> None:
    if path.name in REFUSED:
        with pytest.raises(TopologyError, match=REFUSED[path.name]):
            nccl.read(path.read_text())
        return
    machine = read_machine(path)
    assert machine.name == path.stem
    assert machine_codec.decode(machine_codec.encode(machine)) == machine
    assert topo_m.read(topo_m.write(machine)).nic_paths == machine.nic_paths


@pytest.mark.shared_data
def test_a_dump_and_topo_m_of_one_machine_agree() -> None:
    dump = read_machine(FOLDER / "simllm-perlmutter-a100-4x.xml")
    text = read_machine(SHARED_DATA / "topo_m" / "perlmutter-a100x4-nv4-mesh.txt")
    assert (dump.links, dump.paths, dump.numa[0].cpus) == (text.links, text.paths, text.numa[0].cpus)
    assert [gpu.numa for gpu in dump.gpus] == [gpu.numa for gpu in text.gpus] == [3, 2, 1, 0]
    assert [nic.name for nic in dump.nics] == ["cxi0", "cxi1", "cxi2", "cxi3"]
    assert {nic.gbps for nic in dump.nics} == {25.0}


@pytest.mark.shared_data
def test_switches_are_told_by_the_class_of_the_links_target() -> None:
    machine = read_machine(FOLDER / "simllm-hgx-h200-8x-vastai.xml")
    assert {gpu.switch_links for gpu in machine.gpus} == {18}
    assert {machine.links[i][j] for i in range(8) for j in range(8) if i != j} == {18}
    assert (machine.link_gbps, machine.socket_gbps, machine.gpus[0].pcie_gbps) == (20.6, 40.0, 48.0)
    assert machine.gpus[0].product == "NVIDIA H200"
    assert [(nic.name, nic.numa) for nic in machine.nics] == [("eth0", None)]  # in the file once a socket


@pytest.mark.shared_data
def test_a_clouds_file_has_invented_switches_and_no_links() -> None:
    machine = read_machine(FOLDER / "aws-p4d-24xl-topo.xml")
    assert machine.virtual
    assert not any(map(any, machine.links))
    assert machine.paths[0][1:4] == (PathType.PIX, PathType.NODE, PathType.NODE)
    assert [row.index(PathType.PIX) for row in machine.nic_paths] == [0, 2, 4, 6]
    assert {nic.kind for nic in machine.nics} == {"efa"}
    assert machine.numa[0] == NumaNode(id=0, cpus="0-23,48-71", cpumap="000000ff,ffff0000,00ffffff")
    assert machine.cpu == Cpu(arch="x86_64", vendor="GenuineIntel", family=6, model=85)


@pytest.mark.shared_data
def test_a_link_to_itself_as_vms_show_it_does_not_count() -> None:
    machine = read_machine(FOLDER / "azure-ncv4-topo.xml")
    assert not any(map(any, machine.links))
    assert machine.link_gbps == 0


@pytest.mark.parametrize(
    "link",
    [
        '<nvlink target="0000:09:00.0" count="2" tclass="0x030200"/>',  # a GPU that is not in the file
        '<nvlink target="0004:00:00.0" count="2" tclass="0x068001"/>',  # a POWER CPU
        '<nvlink target="0000:02:00.0" count="2" tclass="0x030200"/>',  # itself
    ],
)
def test_links_that_lead_to_no_gpu_of_the_file_and_no_switch_are_none(link: str) -> None:
    assert nccl.read(SMALL.replace('<gpu dev="1" sm="86">', f'<gpu dev="1" sm="86">{link}')) == nccl.read(SMALL)


def test_the_tree_gives_paths_numbers_and_facts() -> None:
    machine = nccl.read(SMALL, name="box")
    assert [gpu.pci for gpu in machine.gpus] == ["0000:03:00.0", "0000:02:00.0"]  # by dev
    assert machine.links == ((0, 4), (4, 0))
    assert machine.link_gbps == 12.0
    assert [gpu.pcie_gbps for gpu in machine.gpus] == [12.0, 12.0]  # nothing said: x16 Gen 3; x8 Gen 4
    assert machine.nic_paths == ((PathType.SYS, PathType.PXB),)
    assert machine.paths[0][1] is PathType.SYS
    assert machine.gpus[1].compute_capability == "8.6"
    assert [device.parent for device in machine.pci] == [None, 0, 0, 2, None]
    assert machine.cpu == Cpu(arch="x86_64", vendor="AuthenticAMD", family=25, model=1)


def switches(*links: tuple[int, int], numa: tuple[int, ...], below: int = 0) -> str:
    """A file of a GPU and a NIC below each of some switches, joined by links.

    Args:
        links: Pairs of switches.
        numa: Each switch's NUMA node.
        below: How many more switches there are between each switch and its devices.
    """
    cpus = ""
    for node in sorted(set(numa)):
        cpus += f'<cpu numaid="{node}" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">'
        for n in (n for n, own in enumerate(numa) if own == node):
            peers = [b for a, b in links if a == n] + [a for a, b in links if b == n]
            cpus += f'<pci busid="{n:04x}:01:00.0" class="0x060400">'
            cpus += "".join(f'<pcilink target="{peer:04x}:01:00.0"/>' for peer in peers)
            cpus += "".join(f'<pci busid="{n:04x}:02:{m:02x}.0" class="0x060400">' for m in range(below))
            cpus += f'<pci busid="{n:04x}:03:00.0" class="0x030200"/><pci busid="{n:04x}:04:00.0" class="0x020700"/>'
            cpus += "</pci>" * (below + 1)
        cpus += "</cpu>"
    return f'<system version="1">{cpus}</system>'


@pytest.mark.parametrize(
    ("links", "numa", "below", "path"),
    [
        ((), (0, 0), 0, PathType.NODE),
        (((0, 1),), (0, 0), 0, PathType.PXB),
        (((0, 1),), (0, 1), 0, PathType.PXB),
        (((0, 1),), (0, 0), 2, PathType.PXB),
        (((0, 2), (2, 1)), (0, 0, 0), 0, PathType.PXB),  # four steps, as many as by way of the CPU, and faster
        (((0, 2), (2, 3), (3, 1)), (0, 0, 0, 0), 0, PathType.NODE),  # five, and by way of the CPU four
        (((0, 2), (2, 3), (3, 1)), (0, 1, 0, 0), 0, PathType.PXB),  # five, as many as by way of both CPUs
        (((0, 2), (2, 3), (3, 4), (4, 1)), (0, 1, 0, 0, 0), 0, PathType.SYS),
    ],
)
def test_links_between_switches_join_what_is_below_them(
    links: tuple[tuple[int, int], ...], numa: tuple[int, ...], below: int, path: PathType
) -> None:
    """As NCCL's paths.cc searches: fewest steps first, then the faster way."""
    machine = nccl.read(switches(*links, numa=numa, below=below))
    assert machine.paths[0][1] is machine.paths[1][0] is path
    assert machine.nic_paths[0][1] is machine.nic_paths[1][0] is path


def test_links_between_switches_that_one_side_lacks_or_that_lead_nowhere_are_none() -> None:
    text = switches((0, 1), numa=(0, 0))
    assert nccl.read(text.replace('<pcilink target="0000:01:00.0"/>', "")).paths[0][1] is PathType.NODE
    assert nccl.read(text.replace('target="0001:01:00.0"', 'target="0009:01:00.0"')).paths[0][1] is PathType.NODE
    assert nccl.read(text.replace('target="', 'target="0000')).paths[0][1] is PathType.PXB  # NVML's long form


def test_without_dev_everywhere_bus_ids_number_the_gpus() -> None:
    machine = nccl.read(SMALL.replace('dev="1"', ""))
    assert [(gpu.index, gpu.pci) for gpu in machine.gpus] == [(0, "0000:02:00.0"), (1, "0000:03:00.0")]


def test_nvmls_and_capital_bus_ids_are_understood() -> None:
    text = SMALL.replace("0000:02:00.0", "00000000:0A:00.0")
    assert nccl.read(text).links == ((0, 4), (4, 0))


def test_grace_gpus_have_a_link_to_their_cpu() -> None:
    text = SMALL.replace('<gpu dev="1" sm="86">', '<gpu dev="1" sm="100"><c2c bw="44712" count="5"/>')
    assert [gpu.c2c_gbps for gpu in nccl.read(text).gpus] == [0.0, 223.56]


def test_what_only_nccls_parser_refuses_is_imported() -> None:
    odd = "\ufeff<?xml version='1.0'?>\n<!DOCTYPE system>\n" + SMALL.replace("  ", "\t").replace('"', "'")
    assert nccl.read(odd) == nccl.read(SMALL)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            'version="1"',
            'version="3"',
            "line 1, column 9: version '3' is unknown. NCCL reads version 1, RCCL also version 2.",
        ),
        ("system", "topology", "line 1, column 1: this is a topology of hwloc's. Write"),
        ("system", "html", "line 1, column 1: this is a file of <html>"),
        ('numaid="0"', "", "line 2, column 3: numaid None"),
        ('numaid="1"', 'numaid="0"', "line 12, column 8: numaid 0 exists twice"),
        ("0000000f", "0-3", "line 2, column 19: affinity '0-3' is no mask. Write a hex mask as /sys does"),
        ("0000:04:00.0", "4:0.0", "line 7, column 12: busid '4:0.0' is invalid. Write it as /sys does"),
        ("0000:04:00.0", "0000:02:00.0", "line 7, column 12: busid 0000:02:00.0 stands in line 4 too"),
        ("0x020700", "nic", "line 8, column 35: class 'nic'"),
        (
            'link_width="8"',
            'link_width="wide"',
            "line 4, column 78: link_width 'wide' is invalid. Write a number from 0 to 64",
        ),
        ('count="4"', 'count="640"', "line 5, column 60: count '640' is invalid. Write a number from 0 to 18"),
        ('count="4"', 'count="3"', "4 links from 0000:03:00.0 to 0000:02:00.0, but 3 back"),
        ('target="0000:03:00.0"', 'target="0000:77:00.0"', "4 links from 0000:03:00.0 to 0000:02:00.0, but 0 back"),
        ('count="4"', "", "line 5, column 30: a link (<nvlink>) needs target, a bus id, and count"),
        ('name="mlx5_0"', "", "line 8, column 57: a <net> without a name"),
        ('speed="200000"', 'speed="fast"', "line 8, column 76: speed 'fast' is invalid. Write Mbit/s"),
        ("</cpu>", "", "line 17, column 1: </system> where </cpu> should stand: every NCCL refuses"),
        ("</system>", "", "line 18, column 1: the file ends inside <system> of line 1: every NCCL"),
        ("<gpu", "text<gpu", "line 5, column 9: text between elements ('text')"),
        ('numaid="1"', 'numaid="1" host_hash="0x1"', None),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_line_and_column(old: str, new: str, says: str | None) -> None:
    assert old in SMALL
    text = SMALL.replace(old, new, 2 if old == "system" else 1)
    if says is None:
        assert nccl.read(text).gpus
        return
    with pytest.raises(TopologyError) as caught:
        nccl.read(text)
    assert str(caught.value).startswith("NCCL XML, line ")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1, column 1: there is no element"),
        ("<!-- nothing -->", "line 1, column 1: there is no element"),
        ('<system version="1"/>', "line 1, column 1: no GPU"),
        ("<" * 5, "line 1, column 1: a '<' without an element's name"),
        ("<system>" * 99, "line 1, column 513: nested deeper than 64"),
        ("<system", "line 1, column 1: the file ends inside the tag"),
        ("<system version=", "line 1, column 17: the value of version does not start"),
        ("<!-- ", "line 1, column 1: the file ends inside a comment. Write -->"),
        ("<?xml", "line 1, column 1: the file ends inside a declaration"),
    ],
)
def test_what_is_no_topology_file_is_refused(text: str, says: str) -> None:
    with pytest.raises(TopologyError) as caught:
        nccl.read(text)
    assert says in str(caught.value)


@pytest.mark.slow
def test_a_file_of_more_devices_than_a_machine_has_is_refused_at_once() -> None:
    devices = "".join(f'<pci busid="{n:04x}:01:00.0" class="0x030200"/>' for n in range(12_000))
    with pytest.raises(TopologyError, match="12000 GPUs and NICs, and at most 512 are read"):
        nccl.read(f'<system version="1"><cpu numaid="0">{devices}</cpu></system>')


def test_a_dump_of_several_hosts_is_no_machine() -> None:
    text = SMALL.replace('numaid="0"', 'numaid="0" host_hash="0x1"').replace('numaid="1"', 'numaid="1" host_hash="0x2"')
    with pytest.raises(TopologyError, match=r"CPUs of 2 hosts\. Keep the CPUs of one"):
        nccl.read(text)


@pytest.mark.parametrize(
    ("family", "model", "gbps"),
    [(7, 0x5B, 9.0), (7, 0x3B, 6.0), (6, 0x19, 6.0)],
)
@pytest.mark.parametrize("vendor", ["CentaurHauls", "  Shanghai  "])
def test_the_way_between_zhaoxins_sockets(vendor: str, family: int, model: int, gbps: float) -> None:
    """6, and 9 for Yongfeng (``topo.h``: ZPI_BW, YONGFENG_ZPI_BW; ``topo.cc``: family 7, model 0x5B)."""
    assert nccl_bandwidths.socket_gbps(Cpu(arch="x86_64", vendor=vendor, family=family, model=model)) == gbps
