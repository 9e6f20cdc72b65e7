"""Documents as pages: one shell, tables that can be read aloud, and text that stays text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from dradriver.view import html
from dradriver.view.document import (
    Bars,
    Cell,
    Column,
    Document,
    Entry,
    Grouping,
    Key,
    Mark,
    Matrix,
    Notes,
    Panel,
    Section,
    Table,
    Tone,
    report,
    table,
    words,
)

HTML = "{http://www.w3.org/1999/xhtml}"
HOSTILE = ["x\x1b]0;owned\x07\x9b31m\u202e\r\n", "<script>alert(1)</script>", '"/><rect onload="x', "]]>&amp;"]


def page(document: Document) -> ET.Element:
    return ET.fromstring(html.render(document))


def test_the_shell_stands_alone() -> None:
    text = html.render(report(table(rows=[("a", "b")]), title="Two & more"))
    assert text.startswith('<!DOCTYPE html>\n<html lang="en"')
    root = ET.fromstring(text)
    assert root.findtext(f"{HTML}head/{HTML}title") == "Two & more"
    metas = [meta.attrib for meta in root.iter(f"{HTML}meta")]
    assert metas == [{"charset": "utf-8"}, {"name": "viewport", "content": "width=device-width, initial-scale=1"}]
    assert [h.text for h in root.iter(f"{HTML}h1")] == ["Two & more"]
    assert not re.search(r"(src|href|url\()", text)
    assert "<script" not in text
    assert "@media (prefers-color-scheme: dark)" in text


def test_heads_say_what_they_are_the_heads_of() -> None:
    columns = (Column("GPU"), Column("uuid", detail=True), Column("MiB", number=True))
    rows = (words("GPU0", "u", "1"), (Cell(""), Cell(""), Cell("free", Tone.FREE)))
    (found,) = page(report(Table(title="All", columns=columns, rows=rows))).iter(f"{HTML}table")
    assert found.findtext(f"{HTML}caption") == "All"
    heads = [(th.text, th.get("scope"), th.get("class")) for th in found.iter(f"{HTML}th")]
    col = [("GPU", "col", None), ("uuid", "col", None), ("MiB", "col", "number")]
    assert heads == [*col, ("GPU0", "row", None)]
    cells = [(td.text or "", td.get("class")) for td in found.iter(f"{HTML}td")]
    assert cells == [("u", None), ("1", "number"), ("", None), ("", None), ("free", "free number")]


def test_what_is_empty_is_not_there_and_one_without_heads_has_none() -> None:
    empty = Notes(lines=(), verbatim=True)
    root = page(report(table("a", "b", rows=[]), Key(title="k", heads=("a", "b"), entries=()), empty))
    (main,) = root.iter(f"{HTML}main")
    assert list(main) == []
    (found,) = page(report(table(rows=[("a", "b")]))).iter(f"{HTML}table")
    assert list(found.iter(f"{HTML}thead")) == []


def test_long_words_may_be_broken_and_short_ones_not() -> None:
    (found,) = page(report(table(rows=[("n" * 49, "n" * 48)]))).iter(f"{HTML}table")
    assert [cell.get("class") for cell in found.iter() if cell.tag in (f"{HTML}th", f"{HTML}td")] == ["long", None]


def test_sections_fold_and_notes_keep_their_blanks() -> None:
    notes = (Notes(lines=words("  a = b", "  c = d"), verbatim=True), Notes(lines=words("one", "two")))
    root = page(Document(title="t", sections=(Section(title="Node: a", folded="more", blocks=notes),)))
    assert [h.text for h in root.iter(f"{HTML}h2")] == ["Node: a"]
    (details,) = root.iter(f"{HTML}details")
    assert details.findtext(f"{HTML}summary") == "more"
    assert details.findtext(f"{HTML}pre") == "  a = b\n  c = d"
    assert [p.text for p in details.iter(f"{HTML}p")] == ["one", "two"]


@pytest.mark.parametrize("name", [*HOSTILE, "n" * 253])
def test_text_stays_text_wherever_it_stands(name: str) -> None:
    mark = Mark(text=name, more=name, tone=Tone.PLAIN, series=0)
    grouping = Grouping(title=name, group=(0,), names=(name,))
    blocks = (
        Table(title=name, columns=(Column(name), Column(name)), rows=(words(name, name),)),
        Notes(lines=words(name)),
        Notes(lines=words(name), verbatim=True),
        Matrix(
            title=name, devices=(name,), cells=((Cell(name, Tone.NV),),), order=(0,), groupings=(grouping,),
            marks=(mark,), marked=name,
        ),
        Key(title=name, heads=(name, name), entries=(Entry(series=0, name=name, where=name),)),
        Bars(title=name, panels=(Panel(title=name, bars=((name, 1.0, Tone.OURS),)),)),
    )  # fmt: skip
    text = html.render(Document(title=name, sections=(Section(title=name, folded=name, blocks=blocks),)))
    root = ET.fromstring(text)
    tags = {element.tag.split("}")[1] for element in root.iter()}
    assert not tags & {"script", "img", "a"}
    assert not any(key.startswith("on") for element in root.iter() for key in element.attrib)
    assert all(c.isprintable() or c == "\n" for c in text)
    safe = "".join(c if c.isprintable() else "\ufffd" for c in name)
    assert "".join(root.itertext()).count(safe) >= 20


def test_a_page_of_many_sections_has_an_index_of_them() -> None:
    sections = tuple(Section(title=f"Node: <{n}>", blocks=(Notes(lines=words("x")),)) for n in range(3))
    root = ET.fromstring(html.render(Document(title="t", sections=sections)))
    xhtml = "{http://www.w3.org/1999/xhtml}"
    links = {link.text: link.get("href") for link in root.iter(f"{xhtml}a")}
    places = {f"#{head.get('id')}": head.text for head in root.iter(f"{xhtml}h2")}
    assert [places[str(where)] for where in links.values()] == list(links) == ["Node: <0>", "Node: <1>", "Node: <2>"]
    few = ET.fromstring(html.render(Document(title="t", sections=sections[:2])))
    assert not list(few.iter(f"{xhtml}a"))
