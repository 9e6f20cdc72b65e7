"""What is shown of one machine, as picture and as page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import msgspec
import pytest
from click.testing import CliRunner

from dradriver.cli import machine_view
from dradriver.cli.main import main
from dradriver.topology import profiles
from dradriver.topology.groups import group
from dradriver.topology.machine import Machine, Nic
from dradriver.topology.topo_m import topo_m_writer
from dradriver.topology.vendors import ASCEND
from dradriver.view import html, svg
from tests.effort import sampled
from tests.fakes.pictures import SVG, boxes, check_nothing_overlaps, seen, texts, tip

HTML = "{http://www.w3.org/1999/xhtml}"
RACK = "gb200-nvl72-rack"  # too large to compare every pair of texts


def picture(machine: Machine) -> str:
    return svg.render(machine_view.document(machine, group(machine)))


def page(machine: Machine) -> str:
    return html.render(machine_view.document(machine, group(machine)))


def tables(text: str) -> dict[str, list[list[str]]]:
    """The rows of each table, heads too, by its caption."""
    found = {}
    for table in ET.fromstring(text).iter(f"{HTML}table"):
        rows = [["".join(cell.itertext()) for cell in row] for row in table.iter(f"{HTML}tr")]
        found[(table.findtext(f"{HTML}caption") or "").split(" (")[0]] = rows
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(name for name in profiles.names() if name != RACK))
def test_every_cell_of_the_matrix_is_drawn_in_the_order_that_shows_groups(name: str) -> None:
    machine = profiles.load(name)
    order = [*group(machine).order, *range(len(machine.gpus), len(machine.gpus) + len(machine.nics))]
    cells = topo_m_writer.cells(machine)
    drawn = picture(machine)
    words = [one.words for one in texts(ET.fromstring(drawn)) if one.kind not in ("title", "small", "start small")]
    expected = [cells[0][1 + i] for i in order]
    for i in order:
        expected += [cells[1 + i][0], *(cells[1 + i][1 + j].strip() for j in order)]
    assert words == expected
    check_nothing_overlaps(drawn)


def test_groups_are_bars_with_their_bandwidth_and_frames_where_members_are_adjacent() -> None:
    root = ET.fromstring(picture(profiles.load("dgx1-v100")))
    said = [tip(bar) for bar in boxes(root, "bar")]
    assert said[:2] == [
        "group of 8: GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7, 50 GB/s",
        "group of 4: GPU0 GPU1 GPU2 GPU3, 25 GB/s",
    ]
    assert [words.split(":")[0] for words in said] == ["group of 8", *["group of 4"] * 2, *["group of 2"] * 4]
    frames = [frame.bottom - frame.top for frame in boxes(root, "frame")]
    assert frames == [52] * 4 + [104] * 2 + [208]
    kinds = {box.kind for box in boxes(root)} - {"frame", "page"}
    assert {kind for kind in kinds if not kind.startswith("bar")} == {"X", "NV", "PIX", "PHB", "SYS"}


@pytest.mark.parametrize("name", sampled(profiles.names(ASCEND.word), fast=1))
def test_no_bandwidth_is_shown_of_links_of_unknown_rate(name: str) -> None:
    """Nor of what is beside them: that NCCL counts something for the way between two sockets says nothing of HCCL."""
    machine = profiles.load(name)
    shown = [CliRunner().invoke(main, ["topo", "-m", name, *more]).output for more in ((), ("-o", "svg"))]
    for text in (*shown, page(machine)):
        assert "group" in text
        assert "GB/s" not in text
        assert "NCCL" not in text
    listed = machine_view.data(machine, group(machine))["groups"]
    assert isinstance(listed, list)
    assert {tuple(one) for one in listed} == {("size", "gpus")}


def test_names_from_files_are_escaped() -> None:
    machine = profiles.load("dgx1-v100")
    gpus = tuple(msgspec.structs.replace(gpu, product="<script>&\x07") for gpu in machine.gpus)
    evil = msgspec.structs.replace(machine, name="a<b>\"'", gpus=gpus, nics=(Nic(name="<i>"), *machine.nics[1:]))
    title = ET.fromstring(picture(evil)).findtext(f"{SVG}title")
    assert title == "a<b>\"': 8 x <script>&\ufffd"
    assert "<script>" not in page(evil)
    assert "<i>" not in page(evil)
    assert "&lt;i&gt;" in page(evil)


def test_the_page_holds_picture_groups_levels_nodes_devices_and_legend() -> None:
    result = CliRunner().invoke(main, ["topo", "-m", "dgx1-v100", "-o", "html"])
    assert result.exit_code == 0
    assert result.output == page(profiles.load("dgx1-v100"))
    found = tables(result.output)
    assert found["Groups with the best links"][0] == ["size", "group", "members", "line rate", "NCCL counts"]
    assert ["4", "1", "GPU4 GPU5 GPU6 GPU7", "25 GB/s", "20 GB/s"] in found["Groups with the best links"]
    assert ["L0 NVLINK", "16", "25 to 50 GB/s", "20 to 40 GB/s"] in found["Levels"]
    assert ["1", "GPU4 GPU5 GPU6 GPU7 mlx5_2 mlx5_3", "20-39,60-79"] in found["NUMA nodes"]
    assert ["GPU3", "Tesla V100-SXM2-32GB", "0000:0b:00.0", "0"] in found["Devices"]
    assert ["NIC2", "mlx5_2", "0000:84:00.0", "1"] in found["Devices"]
    assert "NV#  = Connection traversing a bonded set of # NVLinks" in result.output
    assert not re.search(r"(src|href)=", result.output)  # nothing is fetched from elsewhere
    assert len(list(ET.fromstring(result.output).iter(f"{SVG}svg"))) == 1
    drawn = CliRunner().invoke(main, ["topo", "-m", "dgx1-v100", "-o", "svg"]).output
    assert drawn == picture(profiles.load("dgx1-v100"))


def test_a_rack_is_drawn_as_the_one_switch_that_joins_its_gpus() -> None:
    machine = profiles.load(RACK)
    drawn = picture(machine)
    check_nothing_overlaps(drawn)
    root = ET.fromstring(drawn)
    words = [one.words for one in texts(root)]
    assert words.count("NV18 between any two of 72: one switch") == 1
    assert [word for word in words if word.startswith("GPU")] == [f"GPU{n}" for n in group(machine).order]
    assert max(one.right for one in seen(root)) <= float(root.get("width", ""))
    assert max(one.bottom for one in seen(root)) <= float(root.get("height", ""))


@pytest.mark.slow
def test_a_rack_with_one_link_less_is_a_matrix() -> None:
    machine = profiles.load(RACK)
    links = [list(row) for row in machine.links]
    links[0][1] = links[1][0] = links[0][1] - 1
    worn = msgspec.structs.replace(machine, links=tuple(map(tuple, links)))
    root = ET.fromstring(picture(worn))
    assert "NV17" in [one.words for one in texts(root)]


def test_the_columns_of_groups_are_explained() -> None:
    said = [one.words for one in texts(ET.fromstring(picture(profiles.load("dgx1-v100"))))]
    assert "bars 8 4 2: groups of so many with the best links, by number. Frames: the same" in said
