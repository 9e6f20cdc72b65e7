from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from dradriver.topology import nccl, profiles
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Cpu, Machine, Nic, NumaNode, PathType, PciDevice
from dradriver.topology.nccl.file_needed import explain, flattened
from dradriver.topology.nccl.nccl_file_writer import MOST_ELEMENTS, without_rate, write_file
from tests.paths import SHARED_DATA

DUMP = SHARED_DATA / "nccl_xml" / "simllm-hgx-h200-8x-vastai.xml"
AWS = SHARED_DATA / "nccl_xml" / "aws-p4d-24xl-topo.xml"
WRITABLE = [name for name in profiles.names("nvidia") if name != "gb200-nvl72-rack"]


def change(machine: Machine, **fields: object) -> Machine:
    return msgspec.structs.replace(machine, **fields)


def kept(machine: Machine) -> object:
    """What a file can hold of the paths: an NCCL file does not know root complexes."""
    flat = {PathType.PHB: PathType.NODE}
    paths = [[flat.get(path, path) for path in row] for row in machine.paths]
    nics = {nic.pci: row for nic, row in zip(machine.nics, machine.nic_paths, strict=True) if nic.pci}
    return paths, {pci: [flat.get(path, path) for path in row] for pci, row in nics.items()}


@pytest.mark.parametrize("name", WRITABLE)
def test_a_profiles_file_is_faultless_and_gives_its_paths_back(name: str) -> None:
    machine = profiles.load(name)
    text = nccl.write(machine)
    assert nccl.check(text, machine=machine) == []
    again = nccl.read(text)
    assert kept(again) == kept(machine) or name == "h100-x8-flat-vm"  # one root on no NUMA node: SYS in the file
    assert [(gpu.pci, gpu.numa, gpu.pcie_gbps) for gpu in again.gpus] == [
        (gpu.pci, gpu.numa, gpu.pcie_gbps) for gpu in machine.gpus
    ]
    assert {(node.id, node.cpus) for node in again.numa} >= {(node.id, node.cpus) for node in machine.numa}
    assert again.cpu == machine.cpu


@pytest.mark.shared_data
def test_a_dump_is_written_without_what_nccl_must_find_itself() -> None:
    machine = nccl.read(DUMP.read_text())
    text = nccl.write(machine)
    assert nccl.check(text, machine=machine) == []
    assert not any(word in text for word in ("<gpu", "<nic", "<net", "\t", "<?xml", "host_hash"))
    assert text.startswith('<system version="1">\n  <cpu numaid="0" affinity="00000000,00000000,00000000,ffffffff,')
    assert 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="207">' in text
    assert (
        '    <pci busid="0000:81:00.0" class="0x060400" vendor="0x104c" device="0x8232" subsystem_vendor="0x0000" '
        'subsystem_device="0x0000" link_speed="32.0 GT/s PCIe" link_width="16">\n      <pci busid="0000:83:00.0" '
    ) in text
    assert nccl.read(text).pci == machine.pci


@pytest.mark.shared_data
def test_a_virtual_machines_file_keeps_its_nics_as_plain_devices() -> None:
    machine = nccl.read(AWS.read_text())
    again = nccl.read(nccl.write(machine))
    assert (again.paths, again.nic_paths, again.virtual) == (machine.paths, machine.nic_paths, True)
    assert [nic.pci for nic in again.nics] == [nic.pci for nic in machine.nics]


TREE = (
    PciDevice("0000:01:00.0", None, 0, "0x060400", "1000:c030:1000:0001", "32.0 GT/s PCIe", 16),
    PciDevice("0000:02:00.0", 0, 0, "0x030200", "10de:2330:10de:16c1", "32.0 GT/s PCIe", 16),
    PciDevice("0000:03:00.0", None, 0, "0x060400", "1000:c030:1000:0001", "32.0 GT/s PCIe", 16),
    PciDevice("0000:04:00.0", 2, 0, "0x020700", "15b3:1021:15b3:0041", "32.0 GT/s PCIe", 16),
)


def box(**fields: object) -> Machine:
    one = profiles.load("rtx-a6000-x4-pairs")
    gpu = msgspec.structs.replace(one.gpus[0], pci="0000:02:00.0")
    machine = Machine(
        name="box",
        gpus=(gpu,),
        links=((0,),),
        paths=((PathType.SELF,),),
        nics=(Nic(name="mlx5_0", pci="0000:04:00.0", numa=0),),
        nic_paths=((PathType.NODE,),),
        numa=(NumaNode(id=0, cpus="0-7"), NumaNode(id=1), NumaNode(id=2, cpus="8-15")),
        cpu=Cpu(arch="x86_64", vendor="AuthenticAMD", family=25, model=17),
        pci=TREE,
        virtual=False,
    )
    return change(machine, **fields)


def test_every_numa_node_is_listed_and_bridges_without_gpus_are_not() -> None:
    text = nccl.write(box())
    assert text.splitlines() == [
        '<system version="1">',
        '  <cpu numaid="0" affinity="000000ff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="17">',
        '    <pci busid="0000:01:00.0" class="0x060400" vendor="0x1000" device="0xc030" subsystem_vendor="0x1000" '
        'subsystem_device="0x0001" link_speed="32.0 GT/s PCIe" link_width="16">',
        '      <pci busid="0000:02:00.0" class="0x030200" vendor="0x10de" device="0x2330" subsystem_vendor="0x10de" '
        'subsystem_device="0x16c1" link_speed="32.0 GT/s PCIe" link_width="16"/>',
        "    </pci>",
        "  </cpu>",
        '  <cpu numaid="1" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="17"/>',
        '  <cpu numaid="2" affinity="0000ff00" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="17"/>',
        "</system>",
    ]  # fmt: skip
    assert "0000:04:00.0" in nccl.write(box(virtual=True))


def test_the_kernels_own_mask_comes_first_and_arm_has_neither_vendor_nor_model() -> None:
    text = nccl.write(box(cpu=Cpu(arch="arm64"), numa=(NumaNode(id=0, cpus="0-7", cpumap="0,000000ff"),)))
    assert '<cpu numaid="0" affinity="0,000000ff" arch="arm64">' in text


def test_a_device_on_no_numa_node_hangs_where_nccl_hangs_it() -> None:
    tree = tuple(PciDevice(d.busid, d.parent, None, d.kind) for d in TREE)
    text = nccl.write(box(pci=tree, numa=()))
    assert '  <cpu numaid="-1" arch="x86_64"' in text


def test_nodes_before_one_of_a_high_number_are_not_made_up() -> None:
    tree = tuple(PciDevice(d.busid, d.parent, 1000, d.kind, d.ids, d.link_speed, d.link_width) for d in TREE)
    assert nccl.write(box(pci=tree, numa=())).count("<cpu ") == 1
    listed = box(numa=(NumaNode(id=0, cpus="0-7"), NumaNode(id=3)))  # of which the last one has no device
    assert nccl.write(listed).count("<cpu ") == 4


@pytest.mark.parametrize("listed", [(), (NumaNode(id=2, cpus="8-15"),)], ids=["none", "the device's alone"])
def test_unlisted_nodes_are_written_where_a_device_is_on_a_later_one(listed: tuple[NumaNode, ...]) -> None:
    tree = tuple(PciDevice(d.busid, d.parent, 2, d.kind, d.ids, d.link_speed, d.link_width) for d in TREE)
    machine = box(pci=tree, numa=listed)
    text = nccl.write(machine)
    assert [line.split('"')[1] for line in text.splitlines() if "<cpu" in line] == ["0", "1", "2"]
    assert nccl.check(text, machine=machine) == []


@pytest.mark.shared_data
def test_a_flat_virtual_machine_gets_the_paths_of_the_server_below_it() -> None:
    flat, server = profiles.load("h100-x8-flat-vm"), profiles.load("hgx-h100")
    assert flattened(flat)
    text = nccl.write(flat, like=server)
    assert nccl.check(text, machine=flat) == []
    again = nccl.read(text)
    assert [gpu.pci for gpu in again.gpus] == [gpu.pci for gpu in flat.gpus]
    assert [row.index(PathType.PIX) for row in again.nic_paths] == list(range(8))


BELOW = msgspec.structs.replace(profiles.load("rtx-a6000-x4-pairs").gpus[0], pci="0000:05:00.0")


def chain(bridges: int) -> tuple[PciDevice, ...]:
    """The GPU below so many bridges, one below another."""
    above = [PciDevice(f"0000:{n:02x}:01.0", n - 1 if n else None, 0, "0x060400") for n in range(bridges)]
    return (*above, msgspec.structs.replace(TREE[1], parent=bridges - 1))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"cpu": None}, "cpu: the CPUs' model is not known"),
        ({"pci": TREE[2:3]}, r"pci: the tree lacks GPU0 \(0000:02:00.0\)"),
        ({"numa": (NumaNode(id=0, cpumap=",".join(["ffffffff"] * 30)),)}, "affinity: 'ffffffff,.*269 characters"),
        ({"pci": chain(200)}, f"205 elements. .* at most {MOST_ELEMENTS} are safe"),
        ({"cpu": Cpu(arch='x86"')}, "arch: 'x86\"', 4 characters"),
        (
            {"cpu": Cpu(arch="riscv64")},
            "<cpu .*: arch 'riscv64': NCCL takes it for another CPU. Write x86_64",
        ),
        ({"cpu": Cpu(arch="x86_64", vendor="VIA")}, "vendor 'VIA': NCCL takes it for another CPU. Write GenuineIntel"),
        ({"pci": chain(70)}, "nested deeper than 64 elements"),
        (
            {"pci": (*TREE[:2], msgspec.structs.replace(TREE[1], busid="0000:05:00.0", parent=1)), "gpus": (BELOW,)},
            "a <pci> in a device with class 0x030200",
        ),
    ],
)
def test_what_nccl_would_refuse_is_not_written(fields: dict[str, object], says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        nccl.write(box(**fields))


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("32.0 GT/s PCIe", "32.0 GT/s PCIe"),
        ("32 GT/s", "32 GT/s"),  # an old kernel's words, which NCCL knows
        ("32.0 GT/s", "32.0 GT/s PCIe"),
        ("8.0GT/s", "8.0 GT/s PCIe"),
        ("64 GT/s", "64.0 GT/s PCIe"),
        ("2.5 gt/s pcie", "2.5 GT/s PCIe"),
        ("Gen5", "32.0 GT/s PCIe"),
        ("PCIe Gen 4", "16.0 GT/s PCIe"),
        ("gen1", "2.5 GT/s PCIe"),
        ("Gen6", "64.0 GT/s PCIe"),
        ("Unknown", ""),
        ("Unknown speed", ""),
        ("32.0", ""),
        ("7.0 GT/s", ""),
        ("Gen9", ""),
    ],
)
def test_a_rate_is_written_in_words_that_nccl_knows(said: str, written: str) -> None:
    machine = box(pci=tuple(msgspec.structs.replace(device, link_speed=said) for device in TREE))
    text = nccl.write(machine)
    assert text.count(f'link_speed="{written}"') == 2
    assert not [finding for finding in nccl.check(text, machine=machine) if finding.error]
    assert without_rate(machine) == ([] if written else ["0000:01:00.0", "0000:02:00.0"])


@pytest.mark.parametrize(
    ("cpu", "written"),
    [
        (Cpu(arch="amd64", vendor="AMD", family=25, model=1), 'arch="x86_64" vendor="AuthenticAMD" familyid="175"'),
        (Cpu(arch="x86_64", vendor="Intel", family=6, model=143), 'arch="x86_64" vendor="GenuineIntel" familyid="6"'),
        (Cpu(arch="aarch64"), 'arch="arm64">'),
        (Cpu(arch="x86_64", vendor="HygonGenuine", family=24), 'arch="x86_64" vendor="HygonGenuine"'),
    ],
)
def test_a_cpu_is_written_by_the_names_that_nccl_knows(cpu: Cpu, written: str) -> None:
    text = nccl.write(box(cpu=cpu))
    assert written in text
    assert not [finding for finding in nccl.check(text) if finding.error]


def test_a_class_that_the_source_does_not_say_is_written() -> None:
    text = nccl.write(box(pci=tuple(msgspec.structs.replace(device, kind="") for device in TREE), virtual=True))
    assert text == nccl.write(box(virtual=True)).replace("0x020700", "0x020000")


def test_a_nic_whose_domain_nccl_cannot_write_is_left_out() -> None:
    nic, tree = Nic(name="mlx5_0", pci="10000:04:00.0", numa=0), list(TREE)
    tree[3] = msgspec.structs.replace(TREE[3], busid=nic.pci)
    assert nccl.write(box(nics=(nic,), pci=tuple(tree), virtual=True)) == nccl.write(box())


@pytest.mark.parametrize("busid", ["", "00010000:02:00.0"])
def test_a_gpu_without_a_bus_id_of_four_digits_is_refused(busid: str) -> None:
    gpu = msgspec.structs.replace(box().gpus[0], pci=busid)
    with pytest.raises(
        TopologyError, match=r"GPU0: bus id .* is invalid in a file. Use a bus id with a domain of four digits."
    ):
        nccl.write(box(gpus=(gpu,)))


def test_a_file_is_replaced_as_a_whole_and_anybody_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "nvidia-topologyd" / "virtualTopology.xml"
    write_file("one\n", path)
    write_file("two\n", path)
    assert path.read_text() == "two\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [p.name for p in path.parent.iterdir()] == ["virtualTopology.xml"]
    with pytest.raises(TopologyError, match="cannot be written"):
        write_file("three\n", path / "below-a-file")


@pytest.mark.parametrize(
    ("name", "needed", "says"),
    [
        ("dgx-h100", False, "this is no virtual machine"),
        ("l40s-x8", False, "this is no virtual machine"),
        ("h100-x8-flat-vm", True, "NCCL sees all GPUs and NICs equally far apart"),
        ("hgx-h100-degraded", False, "GPU2, GPU5: fewer links than the others"),
    ],
)
def test_who_needs_a_file(name: str, needed: bool, says: str) -> None:
    advice = explain(profiles.load(name))
    assert advice.needed is needed
    assert says in " ".join(advice.reasons)


def test_a_virtual_machine_needs_a_file_only_where_it_would_tell_nccl_something() -> None:
    flat = profiles.load("h100-x8-flat-vm")
    without = explain(change(flat, nics=(), nic_paths=()))
    assert not without.needed
    assert "links join all GPUs and there is no NIC" in without.reasons[0]
    assert "NUMA nodes are not known" in without.reasons[1]
    shown = explain(change(profiles.load("hgx-h100"), virtual=True))
    assert not shown.needed
    assert "its PCI tree shows which devices are near" in shown.reasons[0]
    slow = change(flat, links=((0,) * 8,) * 8, nics=(), nic_paths=())
    assert explain(slow).needed


def test_a_containers_file_has_the_nics_that_no_other_gpu_is_nearer_to() -> None:
    server = msgspec.structs.replace(profiles.load("dgx-a100"), virtual=True)
    for gpu in (0, 5):
        listed = {device.busid for device in nccl.read(nccl.write(server, gpus=[gpu])).pci}
        for nic, row in zip(server.nics, server.nic_paths, strict=True):
            assert (nic.pci in listed) == (row[gpu] == min(row)), (gpu, nic.name)
        assert [one.pci in listed for one in server.gpus] == [n == gpu for n in range(8)]
