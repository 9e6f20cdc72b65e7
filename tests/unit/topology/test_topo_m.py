from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from dradriver.topology import machine_codec, profiles, topo_m
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Machine, Nic, NumaNode, PathType, PciDevice
from dradriver.topology.topo_m import topo_m_writer
from tests.paths import SHARED_DATA

FOLDER = SHARED_DATA / "topo_m"
REFUSED = {
    "b200x8-4numa-SYSSYS-glitch-partial.txt": "line 2, column 92: 'SYSSYS' is SYS and SYS. Write the missing tab",
    "topo-mp-h800x8-nonvlink-partial.txt": "line 5, column 1: the row of GPU3 is missing",
}
files = sorted(FOLDER.glob("*.txt"))


def _text(name: str) -> str:
    return (FOLDER / name).read_text()


@pytest.mark.shared_data
@pytest.mark.parametrize("path", files, ids=lambda p: p.stem)
def test_every_real_file_is_read_or_refused_with_its_place(path: Path) -> None:
    if path.name in REFUSED:
        with pytest.raises(TopologyError) as caught:
            topo_m.read(path.read_text())
        assert REFUSED[path.name] in str(caught.value)
        return
    machine = topo_m.read(path.read_text(), name=path.stem)
    again = topo_m.read(topo_m.write(machine), name=path.stem, link_gbps=machine.link_gbps)
    assert again == machine


@pytest.mark.shared_data
def test_a_dgx1_of_an_old_driver() -> None:
    machine = topo_m.read(_text("dgx1v-v100x8-mlx5x4.txt"))
    assert machine.links[0] == (0, 1, 1, 2, 2, 0, 0, 0)
    assert [nic.name for nic in machine.nics] == ["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"]
    assert [nic.numa for nic in machine.nics] == [0, 1, 0, 1]
    assert machine.numa == (NumaNode(id=0, cpus="0-19,40-59"), NumaNode(id=1, cpus="20-39,60-79"))
    assert machine.paths[0][:5] == (
        PathType.SELF, PathType.PIX, PathType.PHB, PathType.PHB, PathType.SYS,
    )  # fmt: skip
    assert not machine.switched
    assert machine.link_gbps == 20.0


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "links", "gbps"),
    [
        ("dgx-a100x8-nic10.txt", 12, 20.0),
        ("hgx-h200x8-sriov-vf-vastai.txt", 18, 20.6),
        ("perlmutter-a100x4-nv4-mesh.txt", 0, 20.0),
        ("a100-pcie-x8-nv12-bridge-pairs.txt", 0, 20.0),
        ("ansi-header-2gpu-nv12.txt", 0, 20.0),
        ("rtx4090x8-pix-sys-bond.txt", 0, 0.0),
    ],
)
def test_switches_are_told_from_direct_links(name: str, links: int, gbps: float) -> None:
    machine = topo_m.read(_text(name))
    assert {gpu.switch_links for gpu in machine.gpus} == {links}
    assert machine.link_gbps == gbps


@pytest.mark.shared_data
def test_a_mesh_of_more_links_than_an_ampere_has_is_a_hoppers() -> None:
    machine = topo_m.read((SHARED_DATA / "reports" / "25-h100x4-nv6-mesh-interleaved-cpus.txt").read_text())
    assert {(gpu.compute_capability, gpu.pcie_gbps, gpu.switch_links) for gpu in machine.gpus} == {("9.0", 48.0, 0)}
    assert machine.link_gbps == 20.6
    assert [gpu.numa for gpu in machine.gpus] == [3, 1, 7, 5]


@pytest.mark.shared_data
def test_what_single_files_are_there_for() -> None:
    assert topo_m.read(_text("k80x4-legacy-legend-mlx4.txt")).nics[0].name == "mlx4_0"
    perlmutter = topo_m.read(_text("perlmutter-a100x4-nv4-mesh.txt"))
    assert [gpu.numa for gpu in perlmutter.gpus] == [3, 2, 1, 0]
    assert [node.id for node in perlmutter.numa] == [0, 1, 2, 3]
    cloud = topo_m.read(_text("v100x8-vm-phb-p3.16xlarge.txt"))
    assert {gpu.numa for gpu in cloud.gpus} == {None}
    assert {path for row in cloud.paths for path in row} == {PathType.SELF, PathType.PHB}
    degraded = topo_m.read(_text("rtx3090x2-nv3-degraded.txt"))
    assert degraded.links[0][1] == 3
    assert degraded.paths[0][1] is PathType.SYS
    colours = topo_m.read(_text("ansi-header-2gpu-nv12.txt"))
    assert [gpu.numa for gpu in colours.gpus] == [0, 1]
    assert topo_m.read(_text("rtx4090x8-pix-sys-bond.txt")).nics[0].name == "mlx5_bond_0"


def _small(**changes: str) -> str:
    cells = {"ab": "NV2", "ba": "NV2", "an": "PIX", "na": "PIX", "bn": "SYS", "nb": "SYS"}
    cells |= changes
    return (
        "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        f"GPU0\t X \t{cells['ab']}\t{cells['an']}\t0-7\t0\t\tN/A\n"
        f"GPU1\t{cells['ba']}\t X \t{cells['bn']}\t8-15\t1\t\tN/A\n"
        f"NIC0\t{cells['na']}\t{cells['nb']}\t X \t\t\t\t\n"
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ab": "NODE"}, "line 3, column 6: GPU1 to GPU0 is NV2, but GPU0 to GPU1 (line 2) is NODE"),
        ({"na": "PXB"}, "line 4, column 6: NIC0 to GPU0 is PXB, but GPU0 to NIC0 (line 2) is PIX"),
        ({"bn": "NV2"}, "line 3, column 14: NV2 between GPU1 and NIC0 is not allowed. Links join GPUs only."),
        ({"bn": "X"}, "line 3, column 14: 'X' between GPU1 and NIC0"),
        ({"ab": "NV0"}, "line 2, column 10: 'NV0' is no cell of GPU0's row. Allowed"),
        ({"ab": ""}, "line 2, column 10: '' is no cell of GPU0's row"),
        ({"an": "PIX\tPIX"}, "line 2, column 18: 'PIX' is no CPU Affinity of GPU0"),
    ],
)
def test_a_wrong_cell_is_refused_with_line_and_column(changes: dict[str, str], says: str) -> None:
    with pytest.raises(TopologyError) as caught:
        topo_m.read(_small(**changes))
    assert str(caught.value).startswith(f"topo -m, {says}")


def test_mp_output_is_told_by_its_legend_or_its_prompt() -> None:
    text = _small(ab="SYS", ba="SYS")
    assert topo_m.read(text).links == ((0, 0), (0, 0))
    legend = "\nLegend:\n\n  X    = Self\n  SYS  = far\n  PIX  = near\n"
    with pytest.raises(TopologyError, match="line 9, column 1: this is the output of nvidia-smi topo -mp"):
        topo_m.read(text + legend)
    with pytest.raises(TopologyError, match="line 1, column 14: this is the output of"):
        topo_m.read("$ nvidia-smi topo -mp\n" + text)
    assert topo_m.read(text + legend + "  NV#  = links\n").gpus


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1, column 1: there is no header"),
        ("GPU0\t X \t0-7\n", "line 1, column 1: there is no header"),
        ("\tGPU0\tGPU0\n", "line 1, column 7: GPU0 stands twice"),
        ("\tGPU0\tGPU10000\n", "line 1, column 7: 'GPU10000' is no GPU. Columns"),
        ("\tGPU0\tGPU\u0663\n", "line 1, column 7: 'GPU\u0663' is no GPU. Columns"),
        ("\tGPU1\tGPU0\n", "line 1, column 1: the GPU columns are not in ascending order"),
        ("\tGPU0\tCPU Affinity\tGPU1\n", "line 1, column 20: 'GPU1' is no column"),
        ("\tGPU0\tGPU1\nGPU0\t X \n", "line 2, column 9: GPU0's row ends before its cell for GPU1"),
        ("\tGPU0\nGPU7\t X \n", "line 2, column 1: 'GPU7' has no column"),
        ("\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU0\t X \tSYS\n", "line 3, column 1: a second row of GPU0"),
        ("\tGPU0\nGPU0\tSYS\n", "line 2, column 6: 'SYS' between GPU0 and GPU0 is not allowed. X marks only"),
        ("\tGPU0\tNIC0\nGPU0\tX\tSYS\nNIC0\tSYS\tX\nNIC1: a\n", "line 4, column 1: NIC1: a. The legend must name"),
        ("text\nGPU0 X NV4\nGPU1 NV4 X\n", "line 2, column 1: there is no header"),
        ("\tGPU0\tNIC11NIC12\nGPU0\tX\tSYSPIX\n", "line 1, column 7: 'NIC11NIC12' is NIC11 and NIC12. Write the"),
        ("GPU0 GPU1CPU Affinity\nGPU0 X SYS 0\nGPU1 SYS X 0\n", "line 1, column 6: 'GPU1CPU Affinity' is GPU1 and"),
        ("GPU0 a_0a_1\nGPU0 X PIX SYS\na_0 PIX X SYS\na_1 SYS SYS X\n", "line 1, column 6: 'a_0a_1' is a_0 and a_1"),
        ("GPU0 GPU1\nGPU0 X SYS\nGPU1SYS X\n", "line 3, column 1: 'GPU1SYS' is GPU1 and SYS. Write the missing tab"),
        ("GPU0 GPU1\nGPU0 X SYS PIX\nGPU1 SYS X PIX\nNIC0 PIX PIX X\n", "line 1, column 1: 2 devices in the header"),
        ("GPU0 GPU1 CPU Affinity\nGPU0 X 0-7\nGPU1 SYS X 0-7\n", "line 2, column 8: '0-7' stands where"),
        ("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\tX\t0-550\t\tN/A\n", "line 2, column 18: GPU0's row"),
        ("GPU0 GPU1 CPU Affinity\nGPU0 X SYS 0-7\nGPU1 SYS X\n", "line 3, column 11: GPU1's row has too few cells"),
        ("GPU0 GPU1\nGPU0 X SYS 0-7\nGPU1 SYS X 0-7\n", "line 1, column 1: the header has no heading for"),
        ("GPU0 NUMA Affinity\nGPU0 X 0\n", "line 1, column 6: NUMA Affinity is in this place. The columns after"),
        ("GPU0\nGPU0 X\n\n GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n", "line 4, column 2: a second matrix begins here"),
        (" GPU0 GPU1\n GPU0 X OK\n GPU1 OK X\n", "line 2, column 9: this is the output of nvidia-smi topo -p2p"),
        (" GPU0\n GPU0 X\n\n OK = Status Ok\n", "line 4, column 1: this is the output of nvidia-smi topo -p2p"),
    ],
)  # fmt: skip
def test_a_broken_text_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(TopologyError) as caught:
        topo_m.read(text)
    assert str(caught.value).startswith(f"topo -m, {says}")


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("02-tab-eaten-two-nic-columns-glued", "line 1, column 17: 'NIC1NIC2' is NIC1 and NIC2. Write the missing tab"),
        ("08-topo-p2p-gns", "line 2, column 9: this is the output of nvidia-smi topo -p2p, which has"),
    ],
)  # fmt: skip
def test_texts_of_public_reports_that_are_refused(name: str, says: str) -> None:
    with pytest.raises(TopologyError) as caught:
        topo_m.read((SHARED_DATA / "reports" / f"{name}.txt").read_text())
    assert str(caught.value).startswith(f"topo -m, {says}")


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "links", "numas"),
    [
        ("05-pod-two-gpus-blank-affinity", [12], [None, None]),
        ("07-prompt-and-header-in-one-line", [0], [0, 0]),
        ("31c-lines-wrapped-at-80", [6, 6, 6], [0, 0, 1, 1]),
        ("31i-collect-env-indented-by-kubectl-logs", [18], [0, 0]),
    ],
)
def test_texts_of_public_reports_that_are_read(name: str, links: list[int], numas: list[int | None]) -> None:
    machine = topo_m.read((SHARED_DATA / "reports" / f"{name}.txt").read_text())
    assert list(machine.links[0][1:]) == links
    assert [gpu.numa for gpu in machine.gpus] == numas


def test_the_matrix_of_paths_is_found_next_to_other_matrices() -> None:
    p2p = "\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n\n  OK = Status Ok\n"
    mp = "$ nvidia-smi topo -mp\n" + _small(ab="SYS", ba="SYS") + "\n"
    assert topo_m.read(p2p + mp + "$ nvidia-smi topo -m\n" + _small() + "\n" + p2p) == topo_m.read(_small())


def test_the_matrix_ends_after_its_last_row_though_its_header_is_wrapped_between_headings() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n" + "".join(
        f"GPU{i}\t{cells}\t0-47\t0\tN/A\n" for i, cells in enumerate(("X\tNV18", "NV18\tX"))
    )
    wrapped = text.replace("NUMA Affinity", "NUMA\n Affinity")
    assert topo_m.read(f"{wrapped}the links NV18 are those of an H100\n") == topo_m.read(text)


def test_blanks_and_tabs_mean_the_same() -> None:
    tabs = _small()
    assert topo_m.read(tabs.replace("\t", "    ")) == topo_m.read(tabs)
    assert topo_m.read("$ nvidia-smi topo -m\n\n" + tabs.replace("\n", "\r\n")) == topo_m.read(tabs)


@pytest.mark.parametrize(
    ("nic_to_0", "nic_to_1", "path"),
    [("PIX", "PIX", "PIX"), ("PIX", "PXB", "PXB"), ("PHB", "PXB", "PHB"), ("NODE", "SYS", "SYS")],
)
def test_a_path_that_links_hide_is_the_nearest_that_a_nic_proves(nic_to_0: str, nic_to_1: str, path: str) -> None:
    machine = topo_m.read(_small(an=nic_to_0, na=nic_to_0, bn=nic_to_1, nb=nic_to_1))
    assert machine.paths[0][1] is PathType[path]


def test_grace_and_ambiguous_numa_affinities() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV18\t0-71\t{}\nGPU1\tNV18\t X \t0-71\t{}\n"
    assert [g.numa for g in topo_m.read(text.format("0,2-17", "1,18-33")).gpus] == [0, 1]
    assert [g.numa for g in topo_m.read(text.format("0-1", "N/A")).gpus] == [None, None]


@pytest.mark.parametrize(
    ("cpus", "nodes"),
    [
        (("0-7", "24-31"), [0, 3]),  # GPUs on two of four nodes
        (("8-15", "0-7"), [1, 0]),
        (("20-39,60-79", "20-39,60-79"), [1, 1]),  # all on the second
        (("0-19,40-59", "20-39,60-79"), [0, 1]),
        (("48-63,176-191", "16-31,144-159"), [3, 1]),  # a DGX A100, had its text no column
        (("0,2,4,6", "1,3,5,7"), [0, 1]),  # CPUs numbered across the sockets
        (("0-7", "24-27"), [0, 1]),  # nodes that are not alike: in the order of their CPUs
        (("4-11", "20-27"), [0, 1]),  # which do not start where such nodes would
        (("0-7", "4-11"), [None, None]),
        (("0-7", "N/A"), [0, None]),
    ],
)
def test_old_texts_tell_numa_nodes_by_their_cpus(cpus: tuple[str, str], nodes: list[int | None]) -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSYS\t{}\nGPU1\tSYS\t X \t{}\n"
    machine = topo_m.read(text.format(*cpus))
    assert [gpu.numa for gpu in machine.gpus] == nodes
    told = {node: text for node, text in zip(nodes, cpus, strict=True) if node is not None}
    assert {node.id: node.cpus for node in machine.numa} == told


def test_a_degraded_fabric_is_still_a_fabric() -> None:
    healthy = profiles.load("dgx-h100")
    text = topo_m.write(healthy)
    rows = text.splitlines()
    lost = [row.replace("NV18", "SYS") if row.startswith("GPU7") else row for row in rows[:9]]
    lost = ["\t".join("SYS" if n == 8 and c == "NV18" else c for n, c in enumerate(row.split("\t")))
            for row in lost]  # fmt: skip
    machine = topo_m.read("\n".join([*lost, *rows[9:]]))
    assert [gpu.switch_links for gpu in machine.gpus] == [18] * 7 + [0]


@pytest.mark.shared_data
@pytest.mark.parametrize("path", [path for path in files if path.name not in REFUSED], ids=lambda p: p.stem)
def test_cells_between_nics_stay_as_the_text_has_them(path: Path) -> None:
    rows = [line.split() for line in path.read_text().splitlines() if re.match(r"(NIC|mlx)\w+\s+[A-Z]", line)]
    machine = topo_m.read(path.read_text())
    kept = machine_codec.decode(machine_codec.encode(machine))
    _, *cells = topo_m_writer.cells(kept)
    gpus = len(machine.gpus)
    shown = [[cell.strip() for cell in row[1 : 1 + gpus + len(rows)]] for row in cells[gpus:]]
    assert shown == [row[1 : 1 + gpus + len(rows)] for row in rows]


@pytest.mark.shared_data
def test_nics_of_a_pod_that_no_gpu_is_near_are_as_the_text_says() -> None:
    machine = topo_m.read((SHARED_DATA / "reports" / "05-pod-two-gpus-blank-affinity.txt").read_text())
    assert machine.nic_pairs is not None
    assert [[path.name for path in row] for row in machine.nic_pairs] == [
        ["SELF", "PIX", "SYS", "SYS"],
        ["PIX", "SELF", "SYS", "SYS"],
        ["SYS", "SYS", "SELF", "PIX"],
        ["SYS", "SYS", "PIX", "SELF"],
    ]
    cells = _nic_cells(machine)
    assert [cells[0, 1], cells[0, 2], cells[2, 3]] == ["PIX", "SYS", "PIX"]


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        (((0,),), r"nic_pairs: 1 rows, but 2 are needed"),
        (((0, 1), (2, 0)), r"nic_pairs\[0\]\[1\]: 1, but nic_pairs\[1\]\[0\] is 2"),
        (((0, 0), (0, 0)), r"nic_pairs\[0\]\[1\]: 0 is not possible here. 0 \(self\) is on the diagonal"),
    ],
)
def test_a_bad_matrix_of_nics_is_refused(pairs: tuple[tuple[int, ...], ...], says: str) -> None:
    machine = topo_m.read("GPU0 a b\nGPU0 X PIX SYS\na PIX X SYS\nb SYS SYS X\n")
    bad = tuple(tuple(map(PathType, row)) for row in pairs)
    with pytest.raises(TopologyError, match=says):
        machine_codec.encode(msgspec.structs.replace(machine, nic_pairs=bad))


def _kept(machine: Machine) -> object:
    visible = [
        [None if count else path for count, path in zip(counts, paths, strict=True)]
        for counts, paths in zip(machine.links, machine.paths, strict=True)
    ]
    nics = [nic.name for nic in machine.nics]
    gpus = [(gpu.index, gpu.numa) for gpu in machine.gpus]
    return machine.links, visible, nics, machine.nic_paths, gpus


@pytest.mark.parametrize("name", profiles.names("nvidia"))
def test_writing_and_reading_keeps_what_the_text_can_hold(name: str) -> None:
    machine = profiles.load(name)
    again = topo_m.read(topo_m.write(machine), name=name)
    assert _kept(again) == _kept(machine)
    named = {gpu.numa for gpu in machine.gpus}
    assert again.numa == tuple(node for node in machine.numa if node.id in named)
    assert [g.switch_links for g in again.gpus] == [g.switch_links for g in machine.gpus]


def _nic_cells(machine: Machine) -> dict[tuple[int, int], str]:
    width = len(machine.gpus)
    rows = [line.split("\t") for line in topo_m.write(machine).splitlines() if line.startswith("NIC") and "\t" in line]
    return {(n, m): rows[n][1 + width + m].strip() for n in range(len(rows)) for m in range(len(rows)) if n != m}


@pytest.mark.parametrize(("name", "pairs"), [("dgx-h100", [(1, 2), (7, 8)]), ("dgx-a100", [(8, 9)])])
def test_two_ports_of_one_card_are_pix(name: str, pairs: list[tuple[int, int]]) -> None:
    cells = _nic_cells(profiles.load(name))
    assert [cells[pair] for pair in pairs] == ["PIX"] * len(pairs)  # as dgx-a100x8-nic10.txt has NIC8 and NIC9


def test_the_pci_tree_tells_how_far_two_nics_are_apart() -> None:
    bus = ["0000:05:00.0", "0000:06:00.0", "0000:15:00.0", "0000:25:00.0", "0000:35:00.0"]
    tree = [PciDevice("0000:01:00.0", None, 0, "0x060400"), PciDevice("0000:02:00.0", 0, 0, "0x060400")]
    tree += [PciDevice("0000:21:00.0", None, 0, "0x060400")]
    tree += [PciDevice(busid, parent, 0, "0x020700") for busid, parent in zip(bus, (1, 1, 0, 2, None), strict=True)]
    one = msgspec.structs.replace(profiles.load("rtx-a6000-x4-pairs"), pci=tuple(tree))
    nics = tuple(Nic(name=f"mlx5_{n}", pci=busid, numa=0) for n, busid in enumerate(bus))
    far = ((PathType.SYS,) * 4,) * len(nics)
    cells = _nic_cells(msgspec.structs.replace(one, nics=nics, nic_paths=far))
    assert [cells[0, m] for m in (1, 2, 3, 4)] == ["PIX", "PXB", "NODE", "NODE"]
    assert all(cells[n, m] == cells[m, n] for n, m in cells)


def test_a_virtual_function_is_listed_with_its_card() -> None:
    one = profiles.load("rtx-a6000-x4-pairs")
    names = [("mlx5_0", "0000:29:00.0", ""), ("mlx5_1", "0000:29:08.1", "mlx5_0"), ("mlx5_2", "0000:29:08.2", "mlx5_0")]
    nics = (*(Nic(name=name, pci=pci, parent=parent) for name, pci, parent in names), Nic(name="bond0"), Nic(name="b1"))
    cells = _nic_cells(msgspec.structs.replace(one, nics=nics, nic_paths=((PathType.SYS,) * 4,) * 5))
    assert [cells[0, 1], cells[1, 2], cells[0, 3], cells[3, 4]] == ["PIX", "PIX", "SYS", "SYS"]


@pytest.mark.shared_data
def test_nics_of_a_real_dgx_a100_are_as_far_apart_as_the_tool_says() -> None:
    text = _text("dgx-a100x8-nic10.txt")
    rows = [line.split("\t") for line in text.splitlines() if line.startswith("NIC") and "\t" in line]
    real = {(n, m): rows[n][9 + m].strip() for n in range(10) for m in range(10) if n != m}
    assert _nic_cells(profiles.load("dgx-a100")) == real


def test_two_seeds_share_no_uuid() -> None:
    a, b = (topo_m.read(_small(), name="box", seed=seed) for seed in ("a", "b"))
    assert not {gpu.uuid for gpu in a.gpus} & {gpu.uuid for gpu in b.gpus}
    assert a == topo_m.read(_small(), name="box", seed="a")


def test_all_links_of_a_gpu_to_one_peer_are_a_bridge() -> None:
    machine = topo_m.read("\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV18\tSYS\nGPU1\tNV18\tX\tSYS\nGPU2\tSYS\tSYS\tX\n")
    assert not machine.switched
    assert machine.links[0] == (0, 18, 0)


PAIR = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tNV4\t0-19\nGPU1\tNV4\tX\t0-19\n\nLegend:\n"


@pytest.mark.parametrize("more", ["GPU0\tX\tNV4\n", "NV4\n"], ids=["rows", "pieces"])
def test_a_log_with_thousands_of_lines_like_rows_is_read_as_any_other(more: str) -> None:
    assert topo_m.read(PAIR + more * 5000).links == ((0, 4), (4, 0))


@pytest.mark.parametrize("odd", ["NV4" * 50_000, "q" * 50_000, "OK" * 50_000, "0-" + "1" * 50_000])
def test_a_long_word_is_refused_in_a_short_message(odd: str) -> None:
    for old in ("NV4", "0-19", "GPU1\tCPU"):
        with pytest.raises(TopologyError) as caught:
            topo_m.read(PAIR.replace(old, odd, 1))
        assert len(str(caught.value)) < 1000
