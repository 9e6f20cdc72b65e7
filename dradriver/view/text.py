"""Renders a document as text, in colours on a terminal. Only this module aligns columns.

A document has sections with blocks, such as tables and notes (``document``).
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from dradriver.view.document import Block, Cell, Column, Document, Key, Matrix, Notes, Table, words
from dradriver.view.palette import TERMINAL
from dradriver.view.terminal_text import plain, width

_MOST = 72  # cells of a column


def render(document: Document, *, colour: bool) -> str:
    """Render a document as text for a terminal or pipe; an empty line separates blocks.

    ``colour`` says whether the text contains the codes for colours.
    """
    parts = []
    for section in document.sections:
        if section.title:
            parts.append([_styled(section.title, colour=colour, bold=True)])
        parts += [_lines(block, colour=colour) for block in section.blocks]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _lines(block: Block, *, colour: bool) -> list[str]:
    match block:
        case Table():
            return _table(block, colour=colour)
        case Key():
            rows = tuple(words(entry.name, entry.where) for entry in block.entries)
            heads = tuple(Column(head) for head in block.heads)
            return _table(Table(title=block.title, columns=heads, rows=rows), colour=colour)
        case Matrix():
            return _matrix(block, colour=colour)
        case Notes():
            return [_painted(line, colour=colour) for line in block.lines]
        case _:
            return []  # bars say nothing that a table beside them does not


def _table(table: Table, *, colour: bool) -> list[str]:
    kept = [number for number, column in enumerate(table.columns) if not column.detail]
    if not kept or not table.rows:
        return []
    columns = [table.columns[number] for number in kept]
    rows = [[row[number] for number in kept] for row in table.rows]
    heads = [column.title.upper() for column in columns]
    if any(heads):
        rows.insert(0, list(words(*heads)))
    right = [column.number for column in columns]
    lines = _aligned(rows, right=right, heads=0, colour=colour)
    return [f"{plain(table.title)}:", *(f"  {line}" for line in lines)] if table.title else lines


def _matrix(matrix: Matrix, *, colour: bool) -> list[str]:
    rows = [words("", *matrix.devices, *(title for title, _ in matrix.further))]
    for i, device in enumerate(matrix.devices):
        rows.append((Cell(device), *matrix.cells[i], *words(*(column[i] for _, column in matrix.further))))
    return _aligned(rows, right=[False] * len(rows[0]), heads=1, colour=colour)


def _aligned(rows: Sequence[Sequence[Cell]], *, right: Sequence[bool], heads: int, colour: bool) -> list[str]:
    """Return one line of text for each row, with two spaces between the aligned cells.

    A cell with more than 72 characters (``_MOST``) does not make its column wider. It shifts only the cells to its
    right in its own row.

    Args:
        rows: The cells of each row.
        right: For each column, whether it is aligned to the right.
        heads: The number of heading rows, which are underlined if there are colours.
        colour: Whether to use colours.
    """
    sizes = [[width(plain(cell.text)) for cell in row] for row in rows]
    widths = [max((size for size in column if size <= _MOST), default=0) for column in zip(*sizes, strict=True)]
    lines = []
    for number, (row, own) in enumerate(zip(rows, sizes, strict=True)):
        cells = []
        for column, (cell, size) in enumerate(zip(row, own, strict=True)):
            blanks = " " * (widths[column] - size)
            underlined = number < heads and bool(cell.text)
            shown = _styled(cell.text, colour=colour, underline=True) if underlined else _painted(cell, colour=colour)
            cells.append(blanks + shown if right[column] else shown + blanks)
        lines.append("  ".join(cells).rstrip())
    return lines


def _painted(cell: Cell, *, colour: bool) -> str:
    return _styled(cell.text, colour=colour and cell.tone in TERMINAL, **TERMINAL.get(cell.tone, {}))


def _styled(text: str, *, colour: bool, **style: bool | str) -> str:
    return click.style(plain(text), **style) if colour else plain(text)  # type: ignore[arg-type]
