"""A matrix as a picture: cells in colours, in the order that shows the groups; bars and frames of groups; marks."""

from __future__ import annotations

from itertools import groupby
from typing import Final

from dradriver.view import switch
from dradriver.view.document import Cell, Grouping, Mark, Matrix
from dradriver.view.palette import GROUPS
from dradriver.view.svg_elements import LINE, MARGIN, Drawing, box, pixels, text
from dradriver.view.terminal_text import cut, plain

HIGH: Final = 26  # of a cell
_WIDE: Final = 46  # of a cell, at least
_BAR: Final = 20  # of a group's bar
_MOST: Final = 48  # characters of a mark


def draw(matrix: Matrix, *, side: int) -> Drawing:
    """Return the picture of a matrix; its heads are the first row of height ``HIGH``.

    A bar left of the rows is a group, with the group's number; a frame on the diagonal is a group whose members are
    adjacent. Devices that all hang on one switch are drawn as that (``switch``).

    Args:
        matrix: What to draw.
        side: The width of the marks, ``side`` of all matrices that stand below each other.
    """
    if word := switch.link(matrix):
        return switch.draw(matrix, word)
    names = max(map(pixels, ("GPU00", *matrix.devices))) + 16
    left = side + names + len(matrix.groupings) * _BAR + 4
    wide = max(_WIDE, max(map(pixels, matrix.devices)) + 8)
    lines = [text(matrix.marked, x=MARGIN + 6, y=HIGH / 2, kind="start small")] if matrix.marks else []
    for row, device in enumerate(matrix.order):
        if device < len(matrix.marks):
            lines += _mark(matrix.marks[device], y=(row + 1) * HIGH, wide=side - MARGIN)
    for n, grouping in enumerate(matrix.groupings):
        x = side + names + n * _BAR
        if grouping.names:
            lines.append(text(grouping.title, x=x + _BAR / 2, y=HIGH / 2, kind="small"))
        lines += _bars(matrix, grouping, x=x)
    for column, device in enumerate(matrix.order):
        lines.append(text(matrix.devices[device], x=left + (column + 0.5) * wide, y=HIGH / 2))
    for row, device in enumerate(matrix.order):
        y = (row + 1) * HIGH
        lines.append(text(matrix.devices[device], x=side + names - 6, y=y + HIGH / 2, kind="end"))
        for column, other in enumerate(matrix.order):
            lines += _cell(matrix.cells[device][other], x=left + column * wide, y=y, wide=wide)
    for grouping in reversed(matrix.groupings):
        lines += _frames(matrix, grouping, left=left, wide=wide)
    count = len(matrix.order)
    across, y = left + count * wide + MARGIN, (count + 1) * HIGH + 2
    if said := _legend(matrix):
        lines.append(text(said, x=MARGIN, y=y + LINE / 2, kind="start small"))
        across, y = max(across, MARGIN + pixels(said) + MARGIN), y + LINE
    return Drawing(lines, across, y)


def _legend(matrix: Matrix) -> str:
    """Return what the bars and frames of groups are; empty without groups."""
    titles = [grouping.title for grouping in matrix.groupings if grouping.names]
    return (
        f"bars {' '.join(titles)}: groups of so many with the best links, by number; frames: the same" if titles else ""
    )


def side(matrix: Matrix) -> int:
    """Return the width of the marks next to a matrix, 0 without any."""
    if not matrix.marks:
        return 0
    longest = max(pixels(cut(plain(words), _MOST)) for words in (matrix.marked, *(mark.text for mark in matrix.marks)))
    return MARGIN + longest + 16


def _mark(mark: Mark, *, y: int, wide: int) -> list[str]:
    kind = mark.tone.value if mark.series is None else f"{mark.tone.value} s{mark.series}"
    words = cut(plain(mark.text), _MOST)
    return [
        box(f"mark {kind}", x=MARGIN, y=y + 2, wide=wide, high=HIGH - 4, says=mark.more),
        text(words, x=MARGIN + 6, y=y + HIGH / 2, kind="start"),
    ]


def _cell(cell: Cell, *, x: int, y: int, wide: int) -> list[str]:
    word = cell.text.strip()
    return [box(cell.tone.value, x=x, y=y, wide=wide, high=HIGH), text(word, x=x + wide / 2, y=y + HIGH / 2)]


def _runs(matrix: Matrix, grouping: Grouping) -> list[tuple[int, int, int]]:
    """Return first row, number of rows and group's number for every run of rows of one group."""
    runs, row = [], 0
    numbers = (grouping.group[device] for device in matrix.order if device < len(grouping.group))
    for number, members in groupby(numbers):
        length = len(list(members))
        if number is not None:
            runs.append((row, length, number))
        row += length
    return runs


def _bars(matrix: Matrix, grouping: Grouping, *, x: int) -> list[str]:
    lines = []
    for row, length, number in _runs(matrix, grouping):
        y, high = (row + 1) * HIGH + 2, length * HIGH - 4
        kind, says = f"bar g{number % len(GROUPS)}", grouping.names[number]
        lines.append(box(kind, x=x + 1, y=y, wide=_BAR - 2, high=high, says=says))
        lines.append(text(str(number), x=x + _BAR / 2, y=y + high / 2, kind="small"))
    return lines


def _frames(matrix: Matrix, grouping: Grouping, *, left: int, wide: int) -> list[str]:
    sizes = {number: grouping.group.count(number) for number in set(grouping.group)}
    return [
        box("frame", x=left + row * wide, y=(row + 1) * HIGH, wide=length * wide, high=length * HIGH)
        for row, length, number in _runs(matrix, grouping)
        if length == sizes[number]
    ]
