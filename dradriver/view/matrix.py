"""Draws a link matrix as an SVG picture. ``svg`` calls it.

A cell's colour shows the link. Devices of a group are side by side, with a bar and a frame for the group. A mark is a
short text next to a row of the picture, for example the pod that uses the device.
"""

from __future__ import annotations

from itertools import groupby
from typing import Final

from dradriver.view import switch
from dradriver.view.document import Cell, Grouping, Mark, Matrix
from dradriver.view.palette import GROUPS
from dradriver.view.svg_elements import CHARACTER, LINE, MARGIN, Drawing, box, pixels, text
from dradriver.view.terminal_text import cut, plain, wrapped

ROW_HEIGHT: Final = 26  # in pixels, as all lengths here
_MIN_CELL_WIDTH: Final = 46  # least width of a cell
_BAR_WIDTH: Final = 20  # width of a group's bar
_MAX_MARK_CHARACTERS: Final = 48  # characters of a mark


def draw(matrix: Matrix, *, marks_width: int) -> Drawing:
    """Return the SVG picture of a link matrix.

    The picture's first row, of height ``ROW_HEIGHT``, has the headings of the columns.

    From left to right: marks, names of devices, bars of groups, cells. A bar shows a group, with the group's number. If
    the members of a group are adjacent, a frame on the diagonal also shows the group. If one switch joins all of at
    least 17 devices, ``switch`` draws the switch instead of a matrix.

    Args:
        matrix: The matrix. Its marks name the users of the devices.
        marks_width: Width of the marks in pixels, as ``side`` returns it. If several matrices stand one below the
            other, pass the largest of their widths to all, so that their columns are aligned.
    """
    # ``pixels`` returns the width of a text. All lengths are in pixels.
    if link_name := switch.link(matrix):
        return switch.draw(matrix, link_name)
    names_width = max(map(pixels, ("GPU00", *matrix.devices))) + 16
    cells_x = marks_width + names_width + len(matrix.groupings) * _BAR_WIDTH + 4
    cell_width = max(_MIN_CELL_WIDTH, max(map(pixels, matrix.devices)) + 8)

    # Marks.
    elements = [text(matrix.marked, x=MARGIN + 6, y=ROW_HEIGHT / 2, kind="start small")] if matrix.marks else []
    for row, device in enumerate(matrix.order):
        if device < len(matrix.marks):
            elements += _mark_elements(matrix.marks[device], y=(row + 1) * ROW_HEIGHT, wide=marks_width - MARGIN)

    # Bars of groups.
    for number, grouping in enumerate(matrix.groupings):
        x = marks_width + names_width + number * _BAR_WIDTH
        if grouping.names:
            elements.append(text(grouping.title, x=x + _BAR_WIDTH / 2, y=ROW_HEIGHT / 2, kind="small"))
        elements += _group_bars(matrix, grouping, x=x)

    # Heads, names and cells.
    for column, device in enumerate(matrix.order):
        elements.append(text(matrix.devices[device], x=cells_x + (column + 0.5) * cell_width, y=ROW_HEIGHT / 2))
    for row, device in enumerate(matrix.order):
        y = (row + 1) * ROW_HEIGHT
        elements.append(text(matrix.devices[device], x=marks_width + names_width - 6, y=y + ROW_HEIGHT / 2, kind="end"))
        for column, other in enumerate(matrix.order):
            elements += _cell_elements(
                matrix.cells[device][other], x=cells_x + column * cell_width, y=y, wide=cell_width
            )

    # Frames cover the cells: those of the first grouping are drawn last, above all others.
    for grouping in reversed(matrix.groupings):
        elements += _group_frames(matrix, grouping, left=cells_x, wide=cell_width)

    count = len(matrix.order)
    width, height = cells_x + count * cell_width + MARGIN, (count + 1) * ROW_HEIGHT + 2
    for legend in wrapped(_legend(matrix), int((width - 2 * MARGIN) / CHARACTER)):
        elements.append(text(legend, x=MARGIN, y=height + LINE / 2, kind="start small"))
        height += LINE
    return Drawing(elements, width, height)


def _legend(matrix: Matrix) -> str:
    """Return the text under a link matrix that names its bars and frames of groups; empty without groups."""
    titles = [grouping.title for grouping in matrix.groupings if grouping.names]
    return (
        f"bars {' '.join(titles)}: groups of so many with the best links, by number. Frames: the same" if titles else ""
    )


def side(matrix: Matrix) -> int:
    """Return the width in pixels that the marks to the left of a link matrix need; 0 without marks."""
    if not matrix.marks:
        return 0
    longest = max(
        pixels(cut(plain(words), _MAX_MARK_CHARACTERS))
        for words in (matrix.marked, *(mark.text for mark in matrix.marks))
    )
    return MARGIN + longest + 16


def _mark_elements(mark: Mark, *, y: int, wide: int) -> list[str]:
    kind = mark.tone.value if mark.series is None else f"{mark.tone.value} s{mark.series}"
    words = cut(plain(mark.text), _MAX_MARK_CHARACTERS)
    return [
        box(f"mark {kind}", x=MARGIN, y=y + 2, wide=wide, high=ROW_HEIGHT - 4, says=mark.more),
        text(words, x=MARGIN + 6, y=y + ROW_HEIGHT / 2, kind="start"),
    ]


def _cell_elements(cell: Cell, *, x: int, y: int, wide: int) -> list[str]:
    word = cell.text.strip()
    return [
        box(cell.tone.value, x=x, y=y, wide=wide, high=ROW_HEIGHT),
        text(word, x=x + wide / 2, y=y + ROW_HEIGHT / 2),
    ]


def _runs_of_group(matrix: Matrix, grouping: Grouping) -> list[tuple[int, int, int]]:
    """Return the runs of adjacent rows of one group, for bars next to a matrix.

    Each run is the number of its first row, its number of rows, and the number of the group. ``grouping`` is the
    division into groups.
    """
    runs, row = [], 0
    numbers = (grouping.group[device] for device in matrix.order if device < len(grouping.group))
    for number, members in groupby(numbers):
        length = len(list(members))
        if number is not None:
            runs.append((row, length, number))
        row += length
    return runs


def _group_bars(matrix: Matrix, grouping: Grouping, *, x: int) -> list[str]:
    lines = []
    for row, length, number in _runs_of_group(matrix, grouping):
        y, high = (row + 1) * ROW_HEIGHT + 2, length * ROW_HEIGHT - 4
        kind, says = f"bar g{number % len(GROUPS)}", grouping.names[number]
        lines.append(box(kind, x=x + 1, y=y, wide=_BAR_WIDTH - 2, high=high, says=says))
        lines.append(text(str(number), x=x + _BAR_WIDTH / 2, y=y + high / 2, kind="small"))
    return lines


def _group_frames(matrix: Matrix, grouping: Grouping, *, left: int, wide: int) -> list[str]:
    sizes = {number: grouping.group.count(number) for number in set(grouping.group)}
    return [
        box("frame", x=left + row * wide, y=(row + 1) * ROW_HEIGHT, wide=length * wide, high=length * ROW_HEIGHT)
        for row, length, number in _runs_of_group(matrix, grouping)
        if length == sizes[number]
    ]
