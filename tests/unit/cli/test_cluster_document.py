"""The cluster as SVG and HTML."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from dradriver.cli.cluster.cluster_view import document, views
from dradriver.cluster.views.node_views import NodeView
from dradriver.view import html, svg
from tests.fakes.gpunodes import allocated, machine, piece, promised, read_claims, read_slices
from tests.fakes.pictures import SVG, Seen, boxes, check_nothing_overlaps, texts, tip
from tests.unit.cli.test_cluster_views import HOSTILE

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


def picture(nodes: list[NodeView]) -> str:
    return svg.render(document(nodes))


def page(nodes: list[NodeView]) -> str:
    return html.render(document(nodes))


def rows(root: ET.Element) -> list[dict[str, Seen]]:
    """Of each node the box that stands in the row of each GPU."""
    found: list[dict[str, Seen]] = []
    names = [one for one in texts(root) if one.kind == "end" and one.words.startswith("GPU")]
    for mark in boxes(root, "mark"):
        (name,) = (one.words for one in names if mark.top < one.top and one.bottom < mark.bottom)
        if not found or name in found[-1]:
            found.append({})
        found[-1][name] = mark
    return found


def test_each_gpus_row_has_its_holder_in_the_holders_colour(nodes: list[NodeView]) -> None:
    root = ET.fromstring(picture(nodes))
    a, b = rows(root)
    assert list(a) == ["GPU0", "GPU3", "GPU1", "GPU2", "GPU4", "GPU7", "GPU5", "GPU6"]  # the matrix's own order
    assert [a[name].kind for name in ("GPU0", "GPU3", "GPU1", "GPU2")] == [
        "mark plain s0",
        "mark plain s0",
        "mark promised s1",
        "mark free",
    ]
    assert [b[name].kind for name in ("GPU0", "GPU1", "GPU7")] == ["mark plain s0", "mark free", "mark blocked"]
    assert [tip(a["GPU0"]), tip(b["GPU1"])] == ["team-a/p claim c1", "free; ops/dcgm (adminAccess) claim watch"]
    words = [one.words for one in texts(root)]
    assert words.count("team-a/p") == 3
    assert words.count("team-a/q (tentative)") == 1
    assert "free; ops/dcgm (adminAccess)" in words
    assert "tainted xid:NoSchedule" in words
    assert root.findtext(f"{SVG}title") == "2 nodes, 16 GPUs, 11 free, 1 unhealthy"
    assert [one.kind for one in boxes(root, "swatch")] == ["swatch s0", "swatch s1"]
    assert words[-3:] == ["Users of GPUs", "team-a/p: a GPU0 GPU3; b GPU0", "team-a/q: a GPU1"]


def test_all_of_it_can_be_read(nodes: list[NodeView]) -> None:
    check_nothing_overlaps(picture(nodes))
    wide = seen(
        [piece("n" * 253, "rtx-a6000-x4-pairs")],
        allocated("c", "n" * 253, [0], pods=["p" * 253], profile="rtx-a6000-x4-pairs"),
    )
    check_nothing_overlaps(picture(wide))


def test_many_holders_have_as_many_colours() -> None:
    names = [f"n{i}" for i in range(4)]
    claims = [allocated(f"c{n}{i}", n, [i], pods=[f"p{n}{i}"]) for n in names for i in range(8)]
    root = ET.fromstring(picture(seen([piece(n) for n in names], *claims)))
    assert len({one.kind for one in boxes(root, "swatch")}) == 32


def test_free_nodes_have_no_legend() -> None:
    free = seen([piece("a")])
    assert "Users of GPUs" not in picture(free)
    assert "Users of GPUs" not in page(free)


def test_holders_stand_in_natural_order() -> None:
    shown = seen([piece("a")], *(allocated(f"c{i}", "a", [i], pods=[f"p-{10 - i}"]) for i in range(3)))
    words = [one.words for one in texts(ET.fromstring(picture(shown)))]
    assert words[-3:] == ["team-a/p-8: a GPU2", "team-a/p-9: a GPU1", "team-a/p-10: a GPU0"]


def test_the_page_has_summary_holders_pictures_and_tables(nodes: list[NodeView]) -> None:
    text = page(nodes)
    root = ET.fromstring(text)
    assert [h.text for h in root.iter(f"{HTML}h2")] == ["Node: a", "Node: b"]
    assert len([one for one in root.iter(f"{SVG}svg") if one.get("role") == "img"]) == 2
    tables = [
        [["".join(cell.itertext()) for cell in row] for row in table.iter(f"{HTML}tr")]
        for table in root.iter(f"{HTML}table")
    ]
    assert tables[0] == [
        ["node", "product", "GPUs", "free", "unhealthy", "largest free linked set"],
        ["a", "Tesla V100-SXM2-32GB", "8", "5", "", "4: GPU4 GPU5 GPU6 GPU7 (80 GB/s all-reduce)"],
        ["b", "NVIDIA H100 80GB HBM3", "8", "6", "1", "6: GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 (360 GB/s all-reduce)"],
    ]
    assert tables[1] == [["pods", "GPUs"], ["team-a/p", "a GPU0 GPU3; b GPU0"], ["team-a/q", "a GPU1"]]
    gpu = machine("a").gpus[1]
    assert tables[2][0] == ["GPU", "uuid", "bus id", "used by", "claim"]
    assert ["GPU1", gpu.uuid, gpu.pci, "team-a/q (tentative)", "c2"] in tables[2]
    assert ["4", "1", "GPU4 GPU5 GPU6 GPU7", "25 GB/s", "20 GB/s"] in tables[3]
    assert not re.search(r"(src|href)=", text)  # nothing is fetched from elsewhere
    assert text.count("PHB  = Connection traversing") == 1
    folded = [details.findtext(f"{HTML}summary") for details in root.iter(f"{HTML}details")]
    assert folded == ["Groups and devices", "Groups and devices", "Legend of the matrix"]


@pytest.mark.parametrize("name", [HOSTILE, "<script>alert(1)</script>", '"/><rect onload="x', "]]>&amp;", "n" * 253])
def test_hostile_names_stay_text(name: str) -> None:
    claims = [
        allocated(name, "a", [0], pods=[name], namespace=name),
        promised("c2", "a", [1], pod=name),
        allocated("c3", "a", [2], pods=[name], shareID=name),
    ]
    shown = seen([piece("a"), piece(name)], *claims)
    assert len(shown) == 2
    for text in (picture(shown), page(shown)):
        root = ET.fromstring(text)
        tags = {element.tag.split("}")[1] for element in root.iter()}
        assert not tags & {"script", "img", "a"}
        assert not any("onload" in element.attrib for element in root.iter())
        assert "\x1b" not in text
        assert "".join(c if c.isprintable() else "\ufffd" for c in name) in "".join(root.itertext())


def test_a_long_name_is_cut_on_the_row_and_whole_in_the_tooltip() -> None:
    root = ET.fromstring(picture(seen([piece("a")], allocated("c", "a", [0], pods=["n" * 253]))))
    (row,) = [one.words for one in texts(root) if one.words.endswith("…")]
    assert len(row) == 48
    assert tip(boxes(root, "mark")[0]) == f"team-a/{'n' * 253} claim c"
