"""Draws a machine in which one switch joins more than 16 GPUs. ``matrix`` calls it.

A matrix would show the same link in every cell. For fewer GPUs the matrix is small, and it also shows groups.

A mark is a short text about a device, such as the pod that uses it.
"""

from __future__ import annotations

from typing import Final

from dradriver.view.document import Matrix, Tone
from dradriver.view.svg_elements import CHARACTER, MARGIN, Drawing, box, pixels, text
from dradriver.view.terminal_text import cut, plain

_FEWEST: Final = 17  # devices; of fewer the matrix is small, and shows groups, too
_ROW: Final = 9  # devices beside each other
_HIGH, _GAP, _RAIL = 26, 8, 6
_HEAD: Final = 30
_WIDEST: Final = 13  # characters of who holds a GPU


def link(matrix: Matrix) -> str:
    """Return the link type, such as ``NV18``, if one switch joins at least 17 devices.

    This is assumed if all pairs of devices have the same NVLink. If they do not, or if there are fewer devices, the
    result is empty.
    """
    count = len(matrix.devices)
    if count < _FEWEST:
        return ""
    words = {cell.text.strip() for row, cells in enumerate(matrix.cells) for cell in (*cells[:row], *cells[row + 1 :])}
    return words.pop() if len(words) == 1 and matrix.cells[0][1].tone is Tone.NV else ""


def draw(matrix: Matrix, word: str) -> Drawing:
    """Return the picture of a machine whose GPUs are all joined by one switch.

    The boxes of the devices are in rows. Each box also shows the device's mark, such as the pod that uses it.

    Args:
        matrix: The devices and their marks.
        word: The link between any two devices, such as ``NV18``.
    """
    holders = any(mark.text for mark in matrix.marks)  # else marks are colours alone
    box_width = round((_WIDEST if holders else 6) * CHARACTER) + 8
    box_height = _HIGH * (2 if holders else 1)
    count, columns = len(matrix.order), min(_ROW, len(matrix.order))
    title = f"{word} between any two of {count}: one switch"
    width = max(columns * (box_width + _GAP) - _GAP + _RAIL + _GAP, pixels(title) + 16)
    elements = [box(Tone.NV.value, x=MARGIN, y=2, wide=width, high=_HEAD - 6)]
    rows = -(-count // columns)
    row_height = box_height + _RAIL + _GAP
    elements.append(box(Tone.NV.value, x=MARGIN, y=_HEAD - 4, wide=_RAIL, high=(rows - 1) * row_height + _RAIL + 4))
    elements.append(text(title, x=MARGIN + 8, y=_HEAD / 2 - 1, kind="start"))
    for place, device in enumerate(matrix.order):
        row, column = divmod(place, columns)
        y = _HEAD + row * row_height
        if column == 0:
            elements.append(box(Tone.NV.value, x=MARGIN, y=y, wide=width, high=_RAIL))
        x = MARGIN + _RAIL + _GAP + column * (box_width + _GAP)
        elements += _device(matrix, device, x=x, y=y + _RAIL, wide=box_width, high=box_height)
    return Drawing(elements, MARGIN + width + MARGIN, _HEAD + rows * row_height)


def _device(matrix: Matrix, device: int, *, x: float, y: float, wide: int, high: int) -> list[str]:
    name = matrix.devices[device]
    if device >= len(matrix.marks):
        return [box("mark", x=x, y=y, wide=wide, high=high), text(name, x=x + wide / 2, y=y + high / 2)]
    mark = matrix.marks[device]
    kind = mark.tone.value if mark.series is None else f"{mark.tone.value} s{mark.series}"
    shape = box(f"mark {kind}", x=x, y=y, wide=wide, high=high, says=f"{name}: {mark.more}")
    if not mark.text:
        return [shape, text(name, x=x + wide / 2, y=y + high / 2)]
    return [
        shape,
        text(name, x=x + wide / 2, y=y + high / 4 + 2),
        text(cut(plain(mark.text), _WIDEST), x=x + wide / 2, y=y + high * 3 / 4 - 2),
    ]
