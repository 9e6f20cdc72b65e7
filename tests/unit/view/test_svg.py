"""Pictures: what they show, that all of it can be read, and their colours."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from dradriver.cli import machine_view
from dradriver.topology import profiles
from dradriver.topology.groups import group
from dradriver.view import palette, svg
from dradriver.view.document import Bars, Cell, Document, Entry, Grouping, Key, Mark, Matrix, Panel, Tone, report
from tests.fakes.pictures import boxes, check_nothing_overlaps, seen, texts, tip


def matrix(
    *devices: str, order: tuple[int, ...], groupings: tuple[Grouping, ...] = (), marks: tuple[Mark, ...] = ()
) -> Matrix:
    cells = tuple(tuple(Cell(f"{i}{j}", Tone.NV) for j in range(len(devices))) for i in range(len(devices)))
    return Matrix(
        title="a machine", devices=devices, cells=cells, order=order, groupings=groupings, marks=marks, marked="by"
    )


def drawn(document: Document) -> ET.Element:
    picture = svg.render(document)
    check_nothing_overlaps(picture)
    return ET.fromstring(picture)


def test_a_matrix_stands_in_its_order_with_a_bar_and_frame_for_each_group() -> None:
    whole = Grouping(title="2", group=(0, 1, 0, 1, None), names=("zero", "one"))
    split = Grouping(title="4", group=(0, None, 0, 0, 0), names=("all",))
    root = drawn(report(matrix("G0", "G1", "G2", "G3", "N0", order=(0, 2, 1, 3, 4), groupings=(split, whole))))
    words = [one.words for one in texts(root) if "small" not in one.kind]
    assert words[:6] == ["a machine", "G0", "G2", "G1", "G3", "N0"]
    assert words[6:12] == ["G0", "00", "02", "01", "03", "04"]
    assert [tip(one) for one in boxes(root, "bar")] == ["all", "all", "zero", "one"]
    assert [one.words for one in texts(root) if one.kind == "small"] == ["4", "0", "0", "2", "0", "1"]
    assert len(boxes(root, "frame")) == 2  # the group with a gap has none
    first, last = boxes(root, "bar")[2:]
    zero, _, one, _ = (box for box in texts(root) if box.kind == "end" and box.words.startswith("G"))
    assert first.top < zero.top < one.top < last.bottom


def test_values_that_are_not_all_whole_have_tenths() -> None:
    panel = Panel(title="GB/s", bars=(("ours", 12.0, Tone.OURS), ("others", 0.25, Tone.OTHERS)))
    words = [one.words for one in texts(drawn(report(Bars(title="b", panels=(panel,)))))]
    assert words == ["b", "GB/s", "ours", "12.0", "others", "0.2"]


def test_what_holds_gpus_of_a_switch_is_in_their_boxes() -> None:
    devices = tuple(f"G{n}" for n in range(18))
    cells = tuple(
        tuple(Cell("X" if i == j else "NV6", Tone.SELF if i == j else Tone.NV) for j in range(18)) for i in range(18)
    )
    held = Mark(
        text="team/a-pod-with-a-long-name", more="team/a-pod-with-a-long-name claim c", tone=Tone.PLAIN, series=3
    )
    free = Mark(text="free", more="free", tone=Tone.FREE)
    whole = Matrix(
        title="t",
        devices=devices,
        cells=cells,
        order=tuple(reversed(range(18))),
        marks=(held, *(free,) * 17),
        marked="by",
    )
    root = drawn(report(whole))
    marks = boxes(root, "mark")
    assert [one.kind for one in marks] == ["mark free"] * 17 + ["mark plain s3"]
    assert tip(marks[-1]) == "G0: team/a-pod-with-a-long-name claim c"
    assert [one.words for one in texts(root)][-2:] == ["G0", "team/a-pod-w…"]


def test_marks_stand_next_to_their_rows_in_one_column_over_all_matrices() -> None:
    held = Mark(text="team/pod", more="team/pod by claim c", tone=Tone.PLAIN, series=1)
    long = Mark(text="n" * 300, more="n" * 300, tone=Tone.PROMISED, series=0)
    free = Mark(text="free", more="free", tone=Tone.FREE)
    first = matrix("G0", "G1", "N0", order=(1, 0, 2), marks=(held, free))
    second = matrix("G0", order=(0,), marks=(long,))
    root = drawn(report(first, second))
    marks = boxes(root, "mark")
    assert [one.kind for one in marks] == ["mark free", "mark plain s1", "mark promised s0"]
    assert [tip(one) for one in marks] == ["free", "team/pod by claim c", "n" * 300]
    assert len({one.right for one in marks}) == 1
    names = {one.words: one for one in texts(root) if one.kind == "end"}
    said = {one.words: one for one in texts(root) if "start" in one.kind}
    assert said["free"].top == names["G1"].top
    assert said["team/pod"].bottom == marks[1].top + 17
    assert [words for words in said if words.endswith("…")] == ["n" * 47 + "…"]


def test_a_title_longer_than_the_picture_is_cut_and_whole_where_a_pointer_rests() -> None:
    root = drawn(report(Matrix(title="t" * 300, devices=("G0",), cells=((Cell("X", Tone.SELF),),), order=(0,))))
    (title,) = [one for one in texts(root) if one.kind == "title"]
    assert title.words.endswith("tt…")
    assert tip(title) == "t" * 300


def test_the_key_goes_on_in_further_lines() -> None:
    entries = (
        Entry(series=0, name="a", where="; ".join(f"node-{n} GPU0 GPU1" for n in range(40))),
        Entry(series=1, name="n" * 253, where="node-1 GPU7"),
    )
    root = drawn(report(matrix("G0", order=(0,)), Key(title="Holders", heads=("", ""), entries=entries)))
    assert [one.kind for one in boxes(root, "swatch")] == ["swatch s0", "swatch s1"]
    words = " ".join(one.words for one in texts(root) if one.kind == "start")
    assert all(f"node-{n} GPU0 GPU1" in words for n in range(40))
    assert words.replace(" ", "").count("n" * 253 + ":") == 1
    assert "Holders" not in svg.render(report(Key(title="Holders", heads=("", ""), entries=())))


def test_bars_are_scaled_to_the_largest_of_their_panel() -> None:
    panels = (
        Panel(title="share (%)", bars=(("ours", 100.0, Tone.OURS), ("go-gpuallocator", 25.0, Tone.OTHERS))),
        Panel(title="none", bars=(("ours", 0.0, Tone.OURS),)),
    )
    root = drawn(report(Bars(title="b", panels=panels)))
    ours, others, nothing = (one.right - one.left for one in boxes(root) if one.kind != "page")
    assert ours == 4 * others
    assert nothing == 1
    words = [one.words for one in texts(root)]
    assert words == ["b", "share (%)", "ours", "100", "go-gpuallocator", "25", "none", "ours", "0"]


def test_a_picture_brings_its_page_and_fetches_nothing() -> None:
    picture = svg.render(report(matrix("G0", order=(0,)), title="<a> & b"))
    root = ET.fromstring(picture)
    (page,) = boxes(root, "page")
    assert next(iter(seen(root))) == page
    assert (page.right, page.bottom) == (float(root.get("width", "")), float(root.get("height", "")))
    assert root.findtext("{http://www.w3.org/2000/svg}title") == "<a> & b"
    assert not re.search(r"(src|href|url\()", picture)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


FILLS = [palette.PAGE, palette.BOX, *palette.FILLS.values(), *palette.GROUPS, *(palette.series(n) for n in range(200))]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_are_legible_on_every_colour(scheme: str) -> None:
    ink = getattr(palette.INK, scheme)
    assert [fill for fill in FILLS if contrast(ink, getattr(fill, scheme)) < 4.5] == []
    page = getattr(palette.PAGE, scheme)
    inks = [palette.QUIET, *palette.INKS.values()]
    assert [shade for shade in inks if contrast(page, getattr(shade, scheme)) < 4.5] == []


def fills(rule: str) -> dict[str, str]:
    """Return the fill that a style says for each selector."""
    return {
        selector.strip(): fill
        for selectors, fill in re.findall(r"([^{};]+)\{[^{}]*?\bfill: ([^;} ]+)", rule)
        for selector in selectors.split(",")
    }


def fill_of(kind: str, known: dict[str, str]) -> str:
    """Return the fill of a rectangle by its classes, then as of any; black if no rule says one."""
    by_class = [known[name] for one in kind.split() for name in (f".{one}", f"rect.{one}") if name in known]
    return by_class[-1] if by_class else known.get("rect", "#000000")


@pytest.mark.parametrize("machine", ["gb200-nvl72-rack", "dgx1-v100", "dgx-h100"])
def test_words_are_legible_on_every_box_of_a_machine(machine: str) -> None:
    """A rectangle without a fill of its own is black in SVG, with words on it in black."""
    own = profiles.load(machine)
    root = drawn(machine_view.document(own, group(own)))
    style = root.findtext("{http://www.w3.org/2000/svg}style") or ""
    for scheme, rules in zip(("light", "dark"), style.split("@media (prefers-color-scheme: dark) {"), strict=True):
        known = fills(style.partition("@media")[0]) | fills(rules)
        ink = getattr(palette.INK, scheme)
        shown = {box.kind: fill_of(box.kind, known) for box in boxes(root)}
        assert {kind: fill for kind, fill in shown.items() if fill != "none" and contrast(ink, fill) < 4.5} == {}


def test_holders_have_colours_of_their_own() -> None:
    assert len({palette.series(number) for number in range(200)}) == 200


def test_every_class_that_a_picture_uses_has_its_rules_in_light_and_dark() -> None:
    light, dark = palette.css(3).split("@media (prefers-color-scheme: dark)")
    for kind in ("X", "NV", "PIX", "PXB", "PHB", "NODE", "SYS", "free", "blocked", "ours", "others", "g3", "s2"):
        assert re.search(rf"\.{kind} {{ (fill|stroke)", light), kind
        assert re.search(rf"\.{kind} {{ (fill|stroke)", dark), kind
    assert ".s3" not in light
