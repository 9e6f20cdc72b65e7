from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import msgspec
import pytest
from click.testing import CliRunner

from dradriver.cli import picture
from dradriver.cli.main import main
from dradriver.topology import profiles
from dradriver.topology.groups import group
from dradriver.topology.machine import Machine, Nic
from dradriver.topology.topo_m import writer

SVG = "{http://www.w3.org/2000/svg}"


def drawn(machine: Machine) -> ET.Element:
    return ET.fromstring(picture.svg(machine, group(machine)))


@pytest.mark.parametrize("name", [n for n in profiles.names() if n != "gb200-nvl72-rack"])
def test_every_cell_of_the_matrix_is_drawn_in_the_order_that_shows_groups(name: str) -> None:
    machine = profiles.load(name)
    order = [*group(machine).order, *range(len(machine.gpus), len(machine.gpus) + len(machine.nics))]
    table = writer.cells(machine)
    words = [text.text for text in drawn(machine).iter(f"{SVG}text") if text.get("class") not in ("title", "size")]
    expected = [table[0][1 + i] for i in order]
    for i in order:
        expected += [table[1 + i][0], *(table[1 + i][1 + j].strip() for j in order)]
    assert words == expected


def test_groups_are_bars_with_their_bandwidth_and_frames_where_members_are_adjacent() -> None:
    root = drawn(profiles.load("dgx1-v100"))
    titles = [title.text for title in root.iter(f"{SVG}title")][1:]
    assert titles == ["group of 8: 40 GB/s", *["group of 4: 20 GB/s"] * 2, *["group of 2: 40 GB/s"] * 4]
    frames = [rect.get("height") for rect in root.iter(f"{SVG}rect") if rect.get("class") == "group"]
    assert frames == ["52"] * 4 + ["104"] * 2 + ["208"]
    colours = {rect.get("class") for rect in root.iter(f"{SVG}rect")} - {"group"}
    assert {c for c in colours if c and not c.startswith("bar")} == {"X", "NV", "PIX", "PHB", "SYS"}


def test_names_from_files_are_escaped() -> None:
    machine = profiles.load("dgx1-v100")
    gpus = tuple(msgspec.structs.replace(gpu, product="<script>&\x07") for gpu in machine.gpus)
    evil = msgspec.structs.replace(machine, name="a<b>\"'", gpus=gpus, nics=(Nic(name="<i>"), *machine.nics[1:]))
    title = drawn(evil).find(f"{SVG}title")
    assert title is not None
    assert title.text == "a<b>\"': 8 x <script>&\ufffd"
    page = picture.html(evil, group(evil))
    assert "<script>" not in page
    assert "<i>" not in page
    assert "&lt;i&gt;" in page


def test_the_page_holds_picture_groups_devices_and_legend() -> None:
    result = CliRunner().invoke(main, ["topo", "-m", "dgx1-v100", "-o", "html"])
    assert result.exit_code == 0
    page = result.output
    assert page.startswith("<!DOCTYPE html>")
    assert "<td>4 GPUs</td><td>GPU4 GPU5 GPU6 GPU7</td><td>20 GB/s</td>" in page
    assert "<td>GPU3</td><td>Tesla V100-SXM2-32GB</td><td>0000:0b:00.0</td><td>0</td>" in page
    assert "<td>NIC2</td><td>mlx5_2</td><td>0000:84:00.0</td><td>1</td>" in page
    assert "NV#  = Connection traversing a bonded set of # NVLinks" in page
    assert not re.search(r"(src|href)=", page)  # nothing is fetched from elsewhere
    machine = profiles.load("dgx1-v100")
    svg = CliRunner().invoke(main, ["topo", "-m", "dgx1-v100", "-o", "svg"]).output
    assert svg == picture.svg(machine, group(machine))
    assert svg in page


def test_a_machine_without_groups_has_no_table_of_them() -> None:
    machine = profiles.load("rtx4090-x8")
    page = picture.html(machine, group(machine))
    assert "<th>group</th>" not in page
    assert "<th>device</th>" in page
