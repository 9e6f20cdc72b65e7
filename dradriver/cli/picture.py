"""A machine as a picture: the matrix of ``nvidia-smi topo -m`` in colours, in the order that shows the groups."""

from __future__ import annotations

import html as markup
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from dradriver.cli.plain import plain
from dradriver.cli.text import what
from dradriver.topology.groups import SIZES, Groups
from dradriver.topology.machine import Machine
from dradriver.topology.topo_m import writer

_WIDTH, HEIGHT = 46, 26  # of a cell
_BAR = 16  # of a group's bar
_LABEL, TOP = 74, 40
STYLE = """\
text { font: 12px ui-monospace, monospace; fill: #1a1a1a; text-anchor: middle; dominant-baseline: central }
.name { text-anchor: end } .title { text-anchor: start; font-weight: bold } .size { font-size: 10px }
rect { stroke: #fff } .X { fill: #d9d9d9 } .NV { fill: #7bc96f } .PIX { fill: #9ecae1 } .PXB { fill: #c6dbef }
.PHB { fill: #fee391 } .NODE { fill: #fdd0a2 } .SYS { fill: #fcbba1 }
.group { stroke: #1a1a1a; fill: none; stroke-width: 2 }
.bar { stroke: none } .g0 { fill: #4c78a8 } .g1 { fill: #f58518 } .g2 { fill: #54a24b } .g3 { fill: #b279a2 }
"""
_HTML = """\
<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2em; background: #fff; color: #1a1a1a }}
table {{ border-collapse: collapse; margin: 1em 0 }} td, th {{ padding: .2em 1em .2em 0; text-align: left }}
.picture {{ overflow-x: auto }} pre {{ color: #444 }}
</style></head>
<body>
<h1>{title}</h1>
<div class="picture">
{svg}</div>
{tables}<pre>{legend}</pre>
</body>
</html>
"""


class Drawing(NamedTuple):
    """Elements of SVG and the space that they take, in pixels."""

    lines: list[str]
    width: int
    height: int


def svg(machine: Machine, groups: Groups) -> str:
    """Return an SVG document of ``matrix`` with the machine's name; text is escaped."""
    title = _title(machine)
    drawn = matrix(machine, groups)
    return document(drawn._replace(lines=[heading(title), *drawn.lines]), title=title)


def document(drawing: Drawing, *, title: str) -> str:
    """Return an SVG document."""
    lines, width, height = drawing
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}">'
    )
    return "\n".join([head, f"<title>{escaped(title)}</title>\n<style>\n{STYLE}</style>", *lines, "</svg>"]) + "\n"


def heading(words: str) -> str:
    """Return the line above a matrix."""
    return f'<text class="title" x="8" y="16">{escaped(words)}</text>'


def matrix(machine: Machine, groups: Groups) -> Drawing:
    """Return the matrix: rows and columns are the GPUs in ``groups.order``, then the NICs.

    Bars left of the rows show the groups of 8, 4 and 2; a frame on the diagonal is a group whose members are adjacent.
    Row n, from 0, begins at ``TOP + (n + 1) * HEIGHT``; above ``TOP`` is room for a heading.
    """
    table = writer.cells(machine)
    gpus = len(machine.gpus)
    order = [*groups.order, *range(gpus, gpus + len(machine.nics))]
    left = _LABEL + len(SIZES) * _BAR
    lines = []
    for n, size in enumerate(reversed(SIZES)):
        lines.append(f'<text class="size" x="{_LABEL + n * _BAR + _BAR // 2}" y="{TOP + HEIGHT // 2}">{size}</text>')
        lines += _bars(groups, size, x=_LABEL + n * _BAR)
    for column, i in enumerate(order):
        lines.append(_words(table[0][1 + i], x=left + column * _WIDTH, y=TOP))
    for row, i in enumerate(order):
        y = TOP + (row + 1) * HEIGHT
        lines.append(f'<text class="name" x="{_LABEL - 6}" y="{y + HEIGHT // 2}">{escaped(table[1 + i][0])}</text>')
        for column, j in enumerate(order):
            lines += _cell(table[1 + i][1 + j].strip(), x=left + column * _WIDTH, y=y)
    for size in SIZES:
        lines += _frames(groups, size, left=left)
    return Drawing(lines, left + len(order) * _WIDTH + 10, TOP + HEIGHT * (len(order) + 1) + 10)


def html(machine: Machine, groups: Groups) -> str:
    """Return an HTML page of its own: the picture, the groups with their bandwidths, GPUs and NICs, the legend."""
    title, legend = escaped(_title(machine)), escaped(writer.legend(machine))
    return _HTML.format(title=title, svg=svg(machine, groups), tables=tables(machine, groups), legend=legend)


def tables(machine: Machine, groups: Groups) -> str:
    """Return HTML tables of the groups with their bandwidths, and of GPUs and NICs."""
    rows = [
        (f"{size} GPUs", _names(machine, groups.by_size[size], number), f"{gbps:g} GB/s")
        for size in SIZES
        for number, gbps in enumerate(groups.gbps[size])
    ]
    devices = [
        (f"GPU{gpu.index}", gpu.product, gpu.pci, "" if gpu.numa is None else str(gpu.numa)) for gpu in machine.gpus
    ] + [
        (f"NIC{n}", nic.name, nic.pci, "" if nic.numa is None else str(nic.numa)) for n, nic in enumerate(machine.nics)
    ]
    found = html_table(("group", "members", "weakest step of its best ring"), rows)
    return found + html_table(("device", "name", "bus id", "NUMA node"), devices)


def _title(machine: Machine) -> str:
    return f"{machine.name or 'unnamed'}: {what(machine)}"


def escaped(words: str) -> str:
    """Return text for XML: escaped, and without the control characters that XML cannot hold."""
    return markup.escape(plain(words, keep="\n"))


def _words(words: str, *, x: int, y: int) -> str:
    return f'<text x="{x + _WIDTH // 2}" y="{y + HEIGHT // 2}">{escaped(words)}</text>'


def _cell(token: str, *, x: int, y: int) -> list[str]:
    kind = "NV" if token.startswith("NV") else token
    return [f'<rect class="{kind}" x="{x}" y="{y}" width="{_WIDTH}" height="{HEIGHT}"/>', _words(token, x=x, y=y)]


def _runs(groups: Groups, size: int) -> list[tuple[int, int, int]]:
    """Return first row, number of rows and group's number for every run of rows of one group."""
    runs, row = [], 0
    for number, members in groupby(groups.by_size[size][i] for i in groups.order):
        length = len(list(members))
        if number is not None:
            runs.append((row, length, number))
        row += length
    return runs


def _bars(groups: Groups, size: int, *, x: int) -> list[str]:
    return [
        f'<rect class="bar g{number % 4}" x="{x + 2}" y="{TOP + (row + 1) * HEIGHT + 1}" width="{_BAR - 4}" '
        f'height="{length * HEIGHT - 2}"><title>group of {size}: {groups.gbps[size][number]:g} GB/s</title></rect>'
        for row, length, number in _runs(groups, size)
    ]


def _frames(groups: Groups, size: int, *, left: int) -> list[str]:
    return [
        f'<rect class="group" x="{left + row * _WIDTH}" y="{TOP + (row + 1) * HEIGHT}" width="{size * _WIDTH}" '
        f'height="{size * HEIGHT}"/>'
        for row, length, _ in _runs(groups, size)
        if length == size
    ]


def _names(machine: Machine, numbers: Sequence[int | None], number: int) -> str:
    return " ".join(f"GPU{gpu.index}" for gpu, n in zip(machine.gpus, numbers, strict=True) if n == number)


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table of text, empty without rows."""
    if not rows:
        return ""
    lines = ["<table>", "<tr>" + "".join(f"<th>{escaped(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"]) + "\n"
