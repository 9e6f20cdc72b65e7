"""Texts of ``nvidia-smi topo -m`` as people paste them: read as the same machine, or refused at the damage."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.topology import profiles, topo_m
from dradriver.topology.errors import TopologyError
from tests.effort import examples
from tests.paths import SHARED_DATA

REFUSED = ("b200x8-4numa-SYSSYS-glitch-partial", "topo-mp-h800x8-nonvlink-partial")
OWN = {name: topo_m.write(profiles.load(name)) for name in ("dgx-h100", "hgx-h100-degraded", "rtx-a6000-x4-pairs")}
REAL = {
    path.stem: path.read_text() for path in sorted((SHARED_DATA / "topo_m").glob("*.txt")) if path.stem not in REFUSED
}
WIDTH = 80


class Row(NamedTuple):
    """A line of a text, and whether something of it is lost or moved."""

    text: str
    is_damaged: bool = False


Damage = Callable[[list[Row], random.Random], list[Row]]


def matrix_lines(rows: Sequence[Row]) -> list[int]:
    """The lines of the matrix: from the header to the last row."""
    end = next((at for at, row in enumerate(rows) if "Legend" in row.text), len(rows))
    return [at for at in range(end) if re.search(r"(GPU|NIC|mlx)\w*[0-9]", rows[at].text)]


def each(change: Callable[[str], str]) -> Damage:
    return lambda rows, _: [Row(change(row.text), row.is_damaged) for row in rows]


def at_lines(rows: Sequence[Row], lines: Sequence[int], change: Callable[[str], str]) -> list[Row]:
    out = list(rows)
    for at in lines:
        text = change(out[at].text)
        out[at] = Row(text, out[at].is_damaged or text != out[at].text)
    return out


def lost_tab(rows: list[Row], chance: random.Random) -> list[Row]:
    """One separator of one line is gone."""
    at = chance.choice(matrix_lines(rows))
    gaps = list(re.finditer(r"(?<=\S)(\t|  +)(?=\S|\t)", rows[at].text))
    if not gaps:
        return rows
    gap = chance.choice(gaps)
    return at_lines(rows, [at], lambda text: text[: gap.start()] + text[gap.end() :])


def lost_column_of_tabs(rows: list[Row], chance: random.Random) -> list[Row]:
    """The same tab of all lines is gone, as a terminal eats it."""
    nth = chance.randrange(1, 12)

    def change(text: str) -> str:
        tabs = [match.start() for match in re.finditer("\t", text)]
        return text if len(tabs) <= nth else text[: tabs[nth]] + text[tabs[nth] + 1 :]

    return at_lines(rows, matrix_lines(rows), change)


def lost_word(rows: list[Row], chance: random.Random) -> list[Row]:
    """A heading or a cell is gone with its tab or blanks."""
    at = chance.choice(matrix_lines(rows))
    word = chance.choice(list(re.finditer(r"(CPU Affinity|NUMA Affinity|GPU NUMA ID|\S+)[ ]*\t?", rows[at].text)))
    return at_lines(rows, [at], lambda text: text[: word.start()] + text[word.end() :])


def wrapped(rows: list[Row], chance: random.Random) -> list[Row]:
    """Lines go on in the next one where a terminal, or a mail's writer, has its width."""
    width, kind = chance.choice([60, WIDTH, 100]), chance.randrange(3)
    out: list[Row] = []
    for row in rows:
        text = row.text.expandtabs()
        if len(text) <= width:
            out.append(row)
            continue
        pieces = [text[at : at + width] for at in range(0, len(text), width)]
        if kind == 1:
            pieces = [piece.rstrip() for piece in pieces]
        elif kind == 2:
            pieces = [piece.strip() for piece in re.findall(rf"\S.{{0,{width - 1}}}(?=\s|$)|\S+", text)]
        out += [Row(piece, True) for piece in pieces]
    return out


def stamped(rows: list[Row], _: random.Random) -> list[Row]:
    stamp = "2026-01-01T00:00:00.{:09d}Z "
    return [Row(stamp.format(at) + row.text, row.is_damaged) for at, row in enumerate(rows)]


def numbered(rows: list[Row], _: random.Random) -> list[Row]:
    return [Row(f"{at}. {row.text}", row.is_damaged) for at, row in enumerate(rows, 1)]


def prompted(rows: list[Row], _: random.Random) -> list[Row]:
    """The header stands behind the prompt."""
    first = next(at for at, row in enumerate(rows) if row.text.strip())
    return [
        *rows[:first],
        Row("root@node-1:~# nvidia-smi topo -m   " + rows[first].text, rows[first].is_damaged),
        *rows[first + 1 :],
    ]


def surrounded(rows: list[Row], _: random.Random) -> list[Row]:
    before = ["Collecting environment information...", "GPU 0: NVIDIA H100", "driver: 570.1", "", "GPU topology:"]
    after = ["", "vLLM API server version 0.8.4", "GPU0 has 80 GB", "key: value"]
    return [*map(Row, before), *rows, *map(Row, after)]


def markdown(rows: list[Row], _: random.Random) -> list[Row]:
    return [Row("```"), *rows, Row("```")]


HARMLESS: dict[str, Damage] = {
    "quoted": each(lambda text: "> " + text),
    "quoted twice": each(lambda text: "> > " + text),
    "stroke": each(lambda text: "| " + text),
    "list": each(lambda text: "- " + text if text else text),
    "star": each(lambda text: "  * " + text),
    "numbered": numbered,
    "stamped": stamped,
    "container": each(lambda text: "[pod/trainer-0/GPU0] " + text),
    "compose": each(lambda text: "worker-1  | " + text),
    "ray": each(lambda text: "\x1b[36m(Worker pid=12)\x1b[0m " + text),
    "indented": each(lambda text: "        " + text),
    "quotation marks": each(lambda text: f'"{text}"'),
    "colours": each(lambda text: f"\x1b[4m{text}\x1b[0m"),
    "colours without escape": each(lambda text: f"[4m{text}[0m" if text else text),
    "carriage returns": each(lambda text: text + "\r"),
    "doubled line ends": each(lambda text: text + "\r\r"),
    "hard blanks": each(lambda text: text.replace(" ", "\xa0")),
    "invisible": each(lambda text: "\ufeff" + text.replace("\t", "\t\u200b")),
    "blanks for tabs": each(str.expandtabs),
    "trimmed": each(str.rstrip),
    "prompted": prompted,
    "surrounded": surrounded,
    "markdown": markdown,
}
LINE_ENDS = ("carriage returns", "doubled line ends")
HARMFUL: dict[str, Damage] = {
    "lost tab": lost_tab,
    "lost column of tabs": lost_column_of_tabs,
    "lost word": lost_word,
    "wrapped": wrapped,
}


def check(text: str, damages: Sequence[Damage], chance: random.Random, *, is_harmless: bool) -> None:
    machine = topo_m.read(text)
    rows = [Row(line) for line in text.splitlines()]
    for damage in damages:
        rows = damage(rows, chance)
    pasted = "\n".join(row.text for row in rows)
    try:
        again = topo_m.read(pasted, link_gbps=machine.link_gbps)
    except TopologyError as error:
        assert not is_harmless, f"{error}\n{pasted}"
        named = {int(number) for number in re.findall(r"line ([0-9]+)", str(error))}
        damaged = {at for at, row in enumerate(rows, 1) if row.is_damaged}
        is_headless = "no header" in str(error) and min(damaged) < min(named)  # nothing of the header names a GPU
        assert named & damaged or is_headless, f"{error}\n{pasted}"
    else:
        assert again == machine, pasted


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("source", OWN)
def test_what_surrounds_a_matrix_is_undone(source: str, name: str) -> None:
    check(OWN[source], [HARMLESS[name]], random.Random(1), is_harmless=True)


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("source", REAL)
def test_what_surrounds_a_real_matrix_is_undone(source: str, name: str) -> None:
    check(REAL[source], [HARMLESS[name]], random.Random(1), is_harmless=True)


@given(source=st.sampled_from(sorted(OWN)), name=st.sampled_from(sorted(HARMFUL)), seed=st.integers(0, 1 << 30))
@settings(max_examples=examples(300), deadline=None)
def test_a_damaged_matrix_is_the_same_machine_or_refused_at_the_damage(source: str, name: str, seed: int) -> None:
    check(OWN[source], [HARMFUL[name]], random.Random(seed), is_harmless=False)


@pytest.mark.shared_data
@given(
    source=st.sampled_from(sorted(REAL) or ["none"]),
    name=st.sampled_from(sorted(HARMFUL)),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=examples(600), deadline=None)
def test_a_damaged_real_matrix_is_the_same_machine_or_refused_at_the_damage(source: str, name: str, seed: int) -> None:
    check(REAL[source], [HARMFUL[name]], random.Random(seed), is_harmless=False)


@pytest.mark.shared_data
@given(
    source=st.sampled_from(sorted(REAL) or ["none"]),
    harmful=st.lists(st.sampled_from(sorted(HARMFUL)), max_size=2, unique=True),
    harmless=st.lists(st.sampled_from(sorted(HARMLESS)), max_size=3),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=examples(800), deadline=None)
def test_damages_together_never_make_another_machine(
    source: str, harmful: list[str], harmless: list[str], seed: int
) -> None:
    harmless.sort(key=lambda name: name in LINE_ENDS)  # nothing stands behind the end of a line
    damages = [*map(HARMFUL.__getitem__, harmful), *map(HARMLESS.__getitem__, harmless)]
    check(REAL[source], damages, random.Random(seed), is_harmless=False)
