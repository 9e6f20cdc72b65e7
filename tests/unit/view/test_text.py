"""Documents as text: columns, colours, and nothing that steers a terminal."""

from __future__ import annotations

import json

import pytest
import yaml

from dradriver.view import output, text
from dradriver.view.document import (
    Bars,
    Cell,
    Column,
    Document,
    Entry,
    Key,
    Matrix,
    Notes,
    Section,
    Table,
    Tone,
    report,
    table,
    words,
)
from dradriver.view.terminal_text import cut, plain, width, wrapped

HOSTILE = "x\x1b]0;owned\x07\x9b31m\u202e\r\n"


def shown(*blocks: Table | Notes | Matrix | Key | Bars, colour: bool = False) -> str:
    return text.render(report(*blocks), colour=colour)


def test_columns_are_aligned_by_what_a_terminal_shows() -> None:
    found = shown(table("name", "of", rows=[("ab", "x"), ("学习", "y"), ("e\u0301", "z")]))
    assert found.splitlines() == ["NAME  OF", "ab    x", "学习  y", "e\u0301     z"]


def test_numbers_stand_on_the_right_and_details_are_left_out() -> None:
    columns = (Column("node"), Column("uuid", detail=True), Column("GPUs", number=True))
    found = shown(Table(title="Nodes", columns=columns, rows=(words("a", "u-1", "8"), words("b", "u-2", "16"))))
    assert found.splitlines() == ["Nodes:", "  NODE  GPUS", "  a        8", "  b       16"]


def test_a_table_without_rows_or_with_details_alone_is_not_there() -> None:
    details = Table(columns=(Column("a", detail=True),), rows=(words("x"),))
    assert shown(table("a", rows=[], title="none"), details, Notes(lines=())) == ""


def test_a_table_without_heads_has_no_head() -> None:
    assert shown(table(rows=[("GPUs", "0, 1"), ("score", "100")])) == "GPUs   0, 1\nscore  100"


def test_one_long_name_moves_its_own_row_alone() -> None:
    lines = shown(table(rows=[("n" * 253, "x"), ("a", "y"), ("bcd", "z")])).splitlines()
    assert lines == ["n" * 253 + "  x", "a    y", "bcd  z"]


def test_sections_have_titles_and_blocks_an_empty_line_between_them() -> None:
    first = Section(title="Node: a", blocks=(table(rows=[("x", "y")]), Notes(lines=words("one", "two"))))
    last = Section(folded="more", blocks=(Notes(lines=words("three")),))
    document = Document(title="of a page", sections=(first, last))
    assert text.render(document, colour=False) == "Node: a\n\nx  y\n\none\ntwo\n\nthree"


def test_a_matrix_has_its_further_columns_and_the_devices_own_order() -> None:
    cells = ((Cell(" X ", Tone.SELF), Cell("NV2", Tone.NV)), (Cell("NV2", Tone.NV), Cell(" X ", Tone.SELF)))
    matrix = Matrix(title="t", devices=("GPU0", "GPU1"), cells=cells, further=(("NUMA", ("0", "")),), order=(1, 0))
    assert shown(matrix).splitlines() == ["      GPU0  GPU1  NUMA", "GPU0   X    NV2   0", "GPU1  NV2    X"]
    green = "\x1b[32m\x1b[1mNV2\x1b[0m"
    assert shown(matrix, colour=True).splitlines()[1] == f"GPU0   X    {green}   0"


def test_colours_are_around_words_and_a_key_is_a_table() -> None:
    rows = ((Cell("free", Tone.FREE), Cell("x")), (Cell("a", Tone.ERROR), Cell("y")))
    found = shown(Table(columns=(Column(), Column()), rows=rows), colour=True)
    assert found.splitlines() == ["\x1b[32mfree\x1b[0m  x", "\x1b[31m\x1b[1ma\x1b[0m     y"]
    key = Key(title="Holders", heads=("holder", "GPUs"), entries=(Entry(series=0, name="t/p", where="a GPU0"),))
    assert shown(key).splitlines() == ["Holders:", "  HOLDER  GPUS", "  t/p     a GPU0"]


@pytest.mark.parametrize("colour", [False, True])
def test_nothing_steers_a_terminal(colour: bool) -> None:
    cells = ((Cell(HOSTILE, Tone.SELF),),)
    blocks = (
        Table(title=HOSTILE, columns=(Column(HOSTILE),), rows=((Cell(HOSTILE, Tone.FREE),),)),
        Notes(lines=(Cell(HOSTILE, Tone.ERROR),)),
        Matrix(title=HOSTILE, devices=(HOSTILE,), cells=cells, further=((HOSTILE, (HOSTILE,)),), order=(0,)),
        Key(title=HOSTILE, heads=(HOSTILE, HOSTILE), entries=(Entry(series=0, name=HOSTILE, where=HOSTILE),)),
    )
    document = Document(title=HOSTILE, sections=(Section(title=HOSTILE, folded=HOSTILE, blocks=blocks),))
    found = text.render(document, colour=colour)
    for codes in ("\x1b[0m", "\x1b[1m", "\x1b[4m", "\x1b[31m", "\x1b[32m"):  # our own
        found = found.replace(codes, "")
    assert found == plain(found, keep="\n")
    assert found.upper().count("OWNED") == 15
    assert len(found.splitlines()) == 14


def test_json_and_yaml_hold_the_same_text_and_no_control_characters() -> None:
    for value in (HOSTILE, "\x7f\x85\u2028\U000e0001", "学习 é", "\ud800"):
        line = output.safe_json(json.dumps({"name": value}, ensure_ascii=False))
        assert line.isprintable()
        assert json.loads(line) == {"name": value}
    assert output.safe_json('{"name": "学习"}') == '{"name": "学习"}'


@pytest.mark.parametrize("value", [HOSTILE, "\x7f\x85\u2028", "学习 é"])
def test_yaml_holds_the_same_text_and_no_control_characters(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.show_as("yaml", document=report, data=lambda: {"name": value})
    found = capsys.readouterr().out
    assert found == plain(found, keep="\n")
    assert yaml.safe_load(found) == {"name": value}
    assert ("学" in value) == ("学" in found)


def test_a_warning_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.warn(HOSTILE)
    assert capsys.readouterr().err == "warning: x\ufffd]0;owned\ufffd\ufffd31m\ufffd\ufffd\ufffd\n"


def test_widths_cuts_and_lines_count_cells() -> None:
    assert [width(words) for words in ("abc", "学习", "e\u0301", "…")] == [3, 4, 1, 1]
    assert [cut("abcdef", 6), cut("abcdef", 5), cut("学习学习", 6), cut("学习学习", 5)] == [
        "abcdef",
        "abcd…",
        "学习…",
        "学习…",
    ]
    assert wrapped("one two three", 7) == ["one two", "three"]
    assert wrapped("", 7) == [""]
    assert wrapped("a " + "n" * 20 + " b", 8) == ["a", "n" * 8, "n" * 8, "nnnn b"]
    assert wrapped("学习学习学", 5) == ["学习", "学习", "学"]
    assert wrapped("…………", 2) == ["……", "……"]
    assert wrapped("学a", 1) == ["学", "a"]
