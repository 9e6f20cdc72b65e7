"""Ascend's machines: what the texts of ``npu-smi`` become, and what follows from a product."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dradriver.topology import machine_codec, profiles, topo_m
from dradriver.topology.ascend import npu_smi_matrix, npu_smi_table
from dradriver.topology.complete import complete
from dradriver.topology.errors import TopologyError
from dradriver.topology.load import read_machine
from dradriver.topology.machine import Machine, PathType
from dradriver.topology.vendors import ASCEND
from tests.paths import SHARED_DATA

FOLDER = SHARED_DATA / "vendors"


@pytest.mark.shared_data
def test_a_text_of_npu_smi_is_the_profile() -> None:
    machine = read_machine(FOLDER / "ascend" / "npu-smi_topo_910b_hccs8.txt")
    mine = profiles.load("ascend-910b-x8")
    assert machine.vendor is ASCEND
    assert (machine.links, machine.paths, machine.numa) == (mine.links, mine.paths, mine.numa)
    assert machine.link_gbps == 0.0
    assert machine.blocks is None


@pytest.mark.shared_data
@pytest.mark.parametrize("order", [1, -1])
def test_the_table_of_npu_smi_says_bus_ids_product_and_memory(order: int) -> None:
    texts = [
        (FOLDER / "ascend" / name).read_text() for name in ("npu-smi_topo_910b_hccs8.txt", "npu-smi_info_910b.txt")
    ]
    machine, mine = npu_smi_matrix.read("\n".join(texts[::order])), profiles.load("ascend-910b-x8")
    told = [(gpu.pci, gpu.product, gpu.memory_mib) for gpu in machine.gpus]
    assert told == [(gpu.pci, gpu.product, gpu.memory_mib) for gpu in mine.gpus]


NPU_SMI = """\
           Phy-ID13 Phy-ID2 Phy-ID3 Phy-ID12
Phy-ID13   X        HCCS_SW HCCS_SW SIO
Phy-ID2    HCCS_SW  X       SIO     HCCS_SW
Phy-ID3    HCCS_SW  SIO     X       HCCS_SW
Phy-ID12   SIO      HCCS_SW HCCS_SW X
"""


def test_chips_of_an_a3_are_sorted_by_their_number_and_those_of_a_module_are_nearest() -> None:
    machine = npu_smi_matrix.read(NPU_SMI, name="a3")
    assert [gpu.index for gpu in machine.gpus] == [2, 3, 12, 13]
    assert machine.links == ((0, 2, 1, 1), (2, 0, 1, 1), (1, 1, 0, 2), (1, 1, 2, 0))
    assert machine.blocks is not None
    assert (machine.blocks.of, machine.blocks.whole) == ((0, 0, 1, 1), True)
    assert machine.blocks.counts == profiles.load("ascend-a3-x16").blocks.counts  # type: ignore[union-attr]
    assert machine_codec.decode(machine_codec.encode(machine)) == machine


INFO_OF_AN_A3 = """\
| npu-smi 25.2.0                   Version: 25.2.0                                               |
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
| 1     Ascend910           | OK            | 164.9       38                0    / 0             |
| 0     2                   | 0000:9A:00.0  | 0           0    / 0          3161 / 65536         |
| 1     Ascend910           | OK            | -           38                0    / 0             |
| 1     3                   | 0000:9B:00.0  | 0           0    / 0          2892 / 65536         |
| 6     Ascend910           | OK            | 160.1       36                0    / 0             |
| 0     12                  | 0000:1A:00.0  | 0           0    / 0          3154 / 65536         |
| 1     13                  | 0000:1B:00.0  | 0           0    / 0          2890 / 65536         |
"""


def test_dies_of_an_a3_are_joined_with_their_bus_ids_by_their_number() -> None:
    machine = npu_smi_matrix.read(INFO_OF_AN_A3 + NPU_SMI)
    assert [(gpu.index, gpu.pci) for gpu in machine.gpus] == [
        (2, "0000:9a:00.0"), (3, "0000:9b:00.0"), (12, "0000:1a:00.0"), (13, "0000:1b:00.0"),
    ]  # fmt: skip
    assert {(gpu.product, gpu.memory_mib) for gpu in machine.gpus} == {("Ascend910", 65536)}


@pytest.mark.parametrize("start", ["", "\t", "        "])
def test_the_header_may_start_without_a_blank_and_cells_may_be_unknown(start: str, tmp_path: Path) -> None:
    text = f"{start}NPU0\tNPU1\tCPU Affinity\nNPU0\tX\tNA\t0-23\nNPU1\tNA\tX\t24-47\n"
    (tmp_path / "npu.txt").write_text(text)
    machine = read_machine(tmp_path / "npu.txt")
    assert machine.links == ((0, 0), (0, 0))
    assert machine.paths[0][1] is PathType.SYS
    assert [node.cpus for node in machine.numa] == ["0-23", "24-47"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("Phy-ID13 Phy-ID2 Phy-ID3 Phy-ID12\n", "\n", "line 1: there is no header"),
        ("X       SIO     HCCS_SW", "X       SIO", "line 3: Phy-ID2 has 3 cells. 4 are needed"),
        ("X       SIO     HCCS_SW", "X       NV4     HCCS_SW", "line 3: 'NV4' between Phy-ID2 and Phy-ID3"),
        ("X       SIO     HCCS_SW", "SIO     X       HCCS_SW", "line 3: 'SIO' between Phy-ID2 and Phy-ID2"),
        (
            "Phy-ID3    HCCS_SW  SIO     X",
            "Phy-ID3    HCCS_SW  HCCS    X",
            "HCCS from Phy-ID3 to Phy-ID2, but SIO back",
        ),
        ("Phy-ID12   SIO", "Phy-ID14   SIO", "line 5: 'Phy-ID14': a row for each column"),
        ("Phy-ID12   SIO      HCCS_SW HCCS_SW X\n", "", "line 1: the row of Phy-ID12 is missing"),
    ],
)
def test_a_broken_text_of_npu_smi_is_refused_with_its_line(old: str, new: str, says: str) -> None:
    with pytest.raises(TopologyError) as caught:
        npu_smi_matrix.read(NPU_SMI.replace(old, new, 1))
    assert says in str(caught.value)


def npu_smi_of(machine: Machine, between: str = "SYS") -> str:
    """Return the matrix that npu-smi prints of a machine, without CPUs."""
    cells = {0: between, 1: "HCCS", 2: "SIO"}
    names = [f"NPU{gpu.index}" for gpu in machine.gpus]
    rows = [
        [name, *("X" if i == j else cells[count] for j, count in enumerate(row))]
        for i, (name, row) in enumerate(zip(names, machine.links, strict=True))
    ]
    return "\n".join("\t".join(row) for row in [["", *names], *rows]) + "\n"


def info(*chips: tuple[int, str, str], memory: str = "0    / 0          3318 / 65536") -> str:
    """Return the table of npu-smi info with these chips: the NPU, its name, and the chip with its device's number."""
    lines = ["| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|"]
    for at, (npu, name, chip) in enumerate(chips):
        lines.append(f"| {npu}     {name}  | OK            | 101.8       43                0    / 0             |")
        lines.append(f"| {chip}       | {at // 256:04X}:{at % 256:02X}:00.0  | 0           {memory}         |")
    lines += [
        "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |",
        "| 0       0                 | 12345         | python3                  | 1024                    |",
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("between", ["SYS", "PHB", "PXB", "NA"])
def test_two_groups_of_eight_are_a_box16(between: str) -> None:
    mine = profiles.load("ascend-box16-x16")
    machine = npu_smi_matrix.read(npu_smi_of(mine, between))
    assert (machine.links, machine.blocks) == (mine.links, mine.blocks)


def test_groups_of_a_box16_need_not_be_of_numbers_that_follow_each_other() -> None:
    mine = profiles.load("ascend-box16-x16")
    odd = [i for n in range(8) for i in (n, n + 8)]
    machine = npu_smi_matrix.read(npu_smi_of(msgspec.structs.replace(mine, links=mine.subset(odd).links)))
    assert machine.blocks is not None
    assert machine.blocks.of == (0, 1) * 8


@pytest.mark.parametrize("numbers", [range(8), range(4, 12), range(12), range(1, 16)])
def test_what_may_be_a_part_of_a_box16_has_no_blocks(numbers: range) -> None:
    assert npu_smi_matrix.read(npu_smi_of(profiles.load("ascend-box16-x16").subset(numbers))).blocks is None


@pytest.mark.parametrize(("product", "bound"), [("910B3", True), ("910B", True), ("910A", False)])
def test_two_groups_of_eight_of_another_product_are_no_box16(product: str, bound: bool) -> None:
    chips = [(n, product, "0") for n in range(16)]
    machine = npu_smi_matrix.read(info(*chips) + npu_smi_of(profiles.load("ascend-box16-x16")))
    assert (machine.blocks is not None) is bound


@pytest.mark.shared_data
def test_eight_910b_are_the_profile_by_their_table_alone(tmp_path: Path) -> None:
    machine, mine = read_machine(FOLDER / "ascend" / "npu-smi_info_910b.txt"), profiles.load("ascend-910b-x8")
    assert machine.vendor is ASCEND
    assert (machine.links, machine.blocks) == (mine.links, None)
    told = [(gpu.pci, gpu.product, gpu.memory_mib, gpu.pcie_gbps) for gpu in machine.gpus]
    assert told == [(gpu.pci, gpu.product, gpu.memory_mib, gpu.pcie_gbps) for gpu in mine.gpus]
    assert {gpu.numa for gpu in machine.gpus} == {None}  # a table says nothing of it
    assert machine_codec.decode(machine_codec.encode(machine)) == machine


@pytest.mark.parametrize("name", ["910A", "910B", "910ProA", "910ProB", "910PremiumA"])
def test_eight_of_the_first_910_stand_in_two_rings(name: str) -> None:
    machine = npu_smi_table.read(
        info(*((n, name, "0") for n in reversed(range(8))), memory="2387 / 13553      18   / 32768")
    )
    mine = profiles.load("ascend-910a-x8")
    assert (machine.links, machine.blocks) == (mine.links, mine.blocks)
    assert {(gpu.product, gpu.memory_mib) for gpu in machine.gpus} == {(f"Ascend {name}", 32768)}


def test_dies_of_an_a3_are_modules_by_their_table_alone(tmp_path: Path) -> None:
    mine = profiles.load("ascend-a3-x16")
    (tmp_path / "a3.txt").write_text(info(*((n // 2, "Ascend910", f"{n % 2}     {n}") for n in range(16))))
    machine = read_machine(tmp_path / "a3.txt")
    assert (machine.links, machine.blocks) == (mine.links, mine.blocks)
    some = npu_smi_table.read(INFO_OF_AN_A3)
    assert [gpu.index for gpu in some.gpus] == [2, 3, 12, 13]
    assert some.links == npu_smi_matrix.read(NPU_SMI).links
    assert some.blocks == npu_smi_matrix.read(NPU_SMI).blocks


def test_chips_of_a_300i_duo_are_linked_by_card_and_share_a_bus_id() -> None:
    text = info(*((n // 2 + 2, "310P3", f"{n % 2}       {n}") for n in range(8)), memory="1529 / 44280")
    for n in (1, 3, 5, 7):
        text = text.replace(f"0000:{n:02X}:", f"0000:{n - 1:02X}:")
    machine = npu_smi_table.read(text)
    assert machine.links == profiles.load("ascend-300i-duo-x8").links
    assert machine.blocks is None
    assert {(gpu.pci, gpu.memory_mib) for gpu in machine.gpus} == {("", 44280)}


@pytest.mark.parametrize(
    ("chips", "says"),
    [
        ([(n, "910B4", "0") for n in range(8)], "line 3: the links of 8 x Ascend 910B4 are not known from the product"),
        (
            [(n, "910B3", "0") for n in range(4)],
            "line 3: 4 x Ascend 910B3: the links are known from the product only if the machine has exactly NPUs 0 to "
            "7",
        ),
        (
            [(n, "910A", "0") for n in range(1, 9)],
            "line 3: 8 x Ascend 910A: the links are known from the product only if the machine has exactly NPUs 0 to 7",
        ),
        ([(n, "310P3", "0") for n in range(4)], "line 3: the links of 4 x Ascend 310P3 are not known from the product"),
        (
            [(0, "Ascend910", "0   0"), (0, "Ascend910", "1   1"), (1, "Ascend910", "0   2")],
            "the links of 3 x Ascend910 are not known from the product",
        ),
    ],
)
def test_a_table_from_which_links_do_not_follow_says_what_to_give(
    chips: list[tuple[int, str, str]], says: str, tmp_path: Path
) -> None:
    (tmp_path / "npu.txt").write_text(info(*chips))
    with pytest.raises(TopologyError) as caught:
        read_machine(tmp_path / "npu.txt")
    assert f"{tmp_path / 'npu.txt'}: npu-smi info, " in str(caught.value)
    assert says in str(caught.value)
    assert "Write the text of npu-smi info -t topo" in str(caught.value)


@pytest.mark.parametrize(
    ("chips", "says"),
    [
        ([], "line 1: the table has 0 chips"),
        ([(0, "910A", "0"), (0, "910A", "0")], "line 5: device 0 is in the table twice"),
        ([(0, "910A", "0"), (1, "910B3", "0")], "line 5: the table has Ascend 910B3 and Ascend 910A"),
        ([(n, "910A", "0") for n in range(257)], "line 1: the table has 257 chips"),
    ],
)
def test_a_broken_table_is_refused_with_its_line(chips: list[tuple[int, str, str]], says: str) -> None:
    with pytest.raises(TopologyError) as caught:
        npu_smi_table.read(info(*chips))
    assert says in str(caught.value)


def test_a_rule_that_the_matrix_tells_needs_no_line_of_every_chip_in_the_table() -> None:
    a3 = profiles.load("ascend-a3-x16")
    chips = [(gpu.index // 2, "Ascend910", f"{gpu.index % 2} {gpu.index}") for gpu in a3.gpus]
    assert npu_smi_matrix.read(npu_smi_of(a3) + info(*chips)).blocks == a3.blocks
    assert npu_smi_matrix.read(npu_smi_of(a3) + info(*chips[:-1])).blocks == a3.blocks


@pytest.mark.parametrize("health", ["N/A", "Minor Warning", "--", ""])
def test_a_chip_that_is_not_well_is_read_as_the_others_are(health: str) -> None:
    text = info(*((npu, "910B3", "0") for npu in range(8)))
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("| 3 "))
    lines[at] = lines[at].replace("OK", health)
    assert [gpu.pci for gpu in npu_smi_table.read("\n".join(lines)).gpus] == [
        gpu.pci for gpu in npu_smi_table.read(text).gpus
    ]


def test_a_product_said_by_hand_brings_its_rule_along() -> None:
    mine = profiles.load("ascend-910a-x8")
    text = npu_smi_matrix.read(npu_smi_of(mine))
    assert text.blocks is None  # others have groups of four, too
    machine = complete(text, product="910a")
    assert (machine.blocks, machine.gpus[0].product, machine.link_gbps) == (mine.blocks, "Ascend 910A", 0.0)
    assert complete(mine, product="910A").blocks == mine.blocks
    for other in ("910B3", "910C", "310P3"):
        assert complete(machine, product=other).blocks is None
    of_a_table = npu_smi_table.read(info(*((npu, "910A", "0") for npu in range(8))))
    assert of_a_table.blocks == mine.blocks
    assert complete(of_a_table, product="910B3").blocks is None
    box16 = npu_smi_matrix.read(npu_smi_of(profiles.load("ascend-box16-x16")))
    assert box16.blocks is not None
    assert [complete(box16, product=one).blocks for one in ("910A", "910C")] == [None, None]
    assert complete(box16, product="910B2").blocks == box16.blocks
    own = msgspec.structs.replace(profiles.load("ascend-910b-x8"), blocks=mine.blocks)
    assert complete(own, product="910B4").blocks == mine.blocks  # what a profile of one's own says stays
    assert complete(npu_smi_matrix.read(NPU_SMI), product="910C").gpus[0].pcie_gbps == 48.0


def test_an_unknown_product_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(TopologyError, match=r"'h100' is not a known product. Write one of: Ascend 910A, .*310P3"):
        complete(npu_smi_matrix.read(NPU_SMI), product="h100")


@pytest.mark.parametrize("name", [*profiles.names("ascend"), *profiles.names("amd")])
def test_what_is_written_of_a_machine_is_read_back(name: str) -> None:
    mine = profiles.load(name)
    again = topo_m.read(topo_m.write(mine), name=name)
    assert (again.vendor, again.links, again.nic_paths) == (mine.vendor, mine.links, mine.nic_paths)
    assert [gpu.numa for gpu in again.gpus] == [gpu.numa for gpu in mine.gpus]
    assert [nic.name for nic in again.nics] == [nic.name for nic in mine.nics]
    if name != "ascend-910a-x8":  # whose product alone tells
        assert again.blocks == mine.blocks
    assert complete(again, product=mine.product).blocks == mine.blocks


def test_links_of_two_vendors_are_refused() -> None:
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV4\tSIO\nGPU1\tNV4\tX\tSYS\nGPU2\tSIO\tSYS\tX\n"
    with pytest.raises(TopologyError, match=r"line 2, column 12: SIO and NV4 are in one matrix\. All links must be"):
        topo_m.read(text)
