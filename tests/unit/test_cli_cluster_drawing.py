"""The cluster as SVG and HTML."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from dradriver.cli.cluster import drawing
from dradriver.cli.cluster.model import NodeView
from dradriver.cli.cluster.views import views
from dradriver.cli.picture import HEIGHT, TOP
from tests.fakes.gpunodes import allocated, machine, piece, promised, read_claims, read_slices
from tests.unit.test_cli_cluster_views import HOSTILE

SVG = "{http://www.w3.org/2000/svg}"
HTML = "{http://www.w3.org/1999/xhtml}"


def seen(slices: list[dict[str, Any]], *claims: dict[str, Any]) -> list[NodeView]:
    return views(read_slices(*slices), read_claims(*claims))[0]


@pytest.fixture
def nodes() -> list[NodeView]:
    tainted = piece("b", "dgx-h100")
    tainted["spec"]["devices"][7]["taints"] = [{"key": "xid", "effect": "NoSchedule"}]
    return seen(
        [piece("a"), tainted],
        allocated("c1", "a", [0, 3], pods=["p"]),
        promised("c2", "a", [1], pod="q"),
        allocated("c3", "b", [0], pods=["p"], profile="dgx-h100"),
        allocated("watch", "b", [1], pods=["dcgm"], namespace="ops", profile="dgx-h100", adminAccess=True),
    )


def rows(group: ET.Element) -> dict[str, ET.Element]:
    """The rectangle that stands in the row of each GPU."""
    found: dict[str, ET.Element] = {}
    inner = group.find(f"{SVG}g")
    assert inner is not None
    names = {text.get("y"): str(text.text) for text in inner.iter(f"{SVG}text") if text.get("class") == "name"}
    for rect in group.findall(f"{SVG}rect"):
        found[names[str(int(str(rect.get("y"))) - 1 + HEIGHT // 2)]] = rect
    return found


def test_each_gpus_row_has_its_holder_in_the_holders_colour(nodes: list[NodeView]) -> None:
    root = ET.fromstring(drawing.svg(nodes))
    a, b = (rows(group) for group in root.findall(f"{SVG}g"))
    assert list(a) == ["GPU0", "GPU3", "GPU1", "GPU2", "GPU4", "GPU7", "GPU5", "GPU6"]  # the matrix's own order
    assert a["GPU0"].get("y") == str(TOP + HEIGHT + 1)
    p, q = a["GPU0"].get("fill"), a["GPU1"].get("fill")
    assert p is not None
    assert (p, p) == (a["GPU3"].get("fill"), b["GPU0"].get("fill"))
    assert q not in (None, p)
    assert [a[name].get("class") for name in ("GPU0", "GPU1", "GPU2")] == ["allocated", "promised", "free"]
    assert a["GPU2"].get("fill") is None
    assert (b["GPU1"].get("class"), b["GPU7"].get("class")) == ("free", "blocked")
    tooltips = [a["GPU0"].findtext(f"{SVG}title"), b["GPU1"].findtext(f"{SVG}title")]
    assert tooltips == ["team-a/p claim c1", "free; ops/dcgm (adminAccess) claim watch"]
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert words.count("team-a/p") == 3
    assert words.count("promised to team-a/q") == 1
    assert "free; ops/dcgm (adminAccess)" in words
    assert "tainted xid:NoSchedule" in words
    assert root.findtext(f"{SVG}title") == "2 nodes, 16 GPUs, 11 free"
    swatches = [rect.get("fill") for rect in root.findall(f"{SVG}rect")]
    legend = [text.text for text in root.findall(f"{SVG}text")]
    assert swatches == [p, q]
    assert legend == ["Holders", "team-a/p: a GPU0 GPU3; b GPU0", "team-a/q: a GPU1"]


def test_all_of_it_lies_inside_the_picture(nodes: list[NodeView]) -> None:
    root = ET.fromstring(drawing.svg(nodes))
    height = int(str(root.get("height")))
    offsets = [int(re.findall(r"\d+", str(group.get("transform")))[1]) for group in root.findall(f"{SVG}g")]
    assert offsets == sorted(offsets)
    lowest = max(int(str(text.get("y"))) for text in root.findall(f"{SVG}text"))
    assert offsets[-1] < lowest < height


def test_many_holders_have_as_many_colours() -> None:
    names = [f"n{i}" for i in range(4)]
    claims = [allocated(f"c{n}{i}", n, [i], pods=[f"p{n}{i}"]) for n in names for i in range(8)]
    root = ET.fromstring(drawing.svg(seen([piece(n) for n in names], *claims)))
    assert len({rect.get("fill") for rect in root.findall(f"{SVG}rect")}) == 32


def test_free_nodes_have_no_legend() -> None:
    free = seen([piece("a")])
    assert "Holders" not in drawing.svg(free)
    assert "<th>holder</th>" not in drawing.html(free)


def test_the_page_has_summary_holders_pictures_and_tables(nodes: list[NodeView]) -> None:
    page = drawing.html(nodes)
    root = ET.fromstring(page)
    assert page.startswith("<!DOCTYPE html>")
    assert [h.text for h in root.iter(f"{HTML}h2")] == ["a", "b"]
    assert len(list(root.iter(f"{SVG}svg"))) == 2
    tables = [[[cell.text for cell in row] for row in table] for table in root.iter(f"{HTML}table")]
    assert tables[0] == [
        ["node", "product", "GPUs", "free", "largest free NVLink set"],
        ["a", "Tesla V100-SXM2-32GB", "8", "5", "4: GPU4 GPU5 GPU6 GPU7 (80 GB/s all-reduce)"],
        ["b", "NVIDIA H100 80GB HBM3", "8", "6", "6: GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 (360 GB/s all-reduce)"],
    ]
    assert "team-a/p</td><td>a GPU0 GPU3; b GPU0</td>" in page
    gpu = machine("a").gpus[1]
    assert ["GPU1", gpu.uuid, gpu.pci, "promised to team-a/q", "c2"] in tables[2]
    assert ["4 GPUs", "GPU4 GPU5 GPU6 GPU7", "20 GB/s"] in tables[3]
    assert not re.search(r"(src|href)=", page)  # nothing is fetched from elsewhere
    assert page.count("PHB  = Connection traversing") == 1


@pytest.mark.parametrize("name", [HOSTILE, "<script>alert(1)</script>", '"/><rect onload="x', "]]>&amp;", "n" * 253])
def test_hostile_names_stay_text(name: str) -> None:
    claims = [
        allocated(name, "a", [0], pods=[name], namespace=name),
        promised("c2", "a", [1], pod=name),
        allocated("c3", "a", [2], pods=[name], shareID=name),
    ]
    shown = seen([piece("a"), piece(name)], *claims)
    assert len(shown) == 2
    for page in (drawing.svg(shown), drawing.html(shown)):
        root = ET.fromstring(page)
        tags = {element.tag.split("}")[1] for element in root.iter()}
        assert not tags & {"script", "img", "a"}
        assert not any("onload" in element.attrib for element in root.iter())
        assert "\x1b" not in page
        texts = "".join(root.itertext())
        assert "".join(c if c.isprintable() else "\ufffd" for c in name) in texts


def test_a_long_name_is_cut_on_the_row_and_whole_in_the_tooltip() -> None:
    root = ET.fromstring(drawing.svg(seen([piece("a")], allocated("c", "a", [0], pods=["n" * 253]))))
    (row,) = [text.text for text in root.iter(f"{SVG}text") if text.text and text.text.endswith("…")]
    assert len(row) == 64
    assert any(f"team-a/{'n' * 253} claim c" == title.text for title in root.iter(f"{SVG}title"))
