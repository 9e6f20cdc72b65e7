"""Draws bars as an SVG picture: panels one below the other, each scaled to its largest bar. ``svg`` calls it.

A panel is a group of bars with a common scale.
"""

from __future__ import annotations

from dradriver.view.document import Bars, Panel
from dradriver.view.svg_elements import MARGIN, Drawing, box, moved, pixels, text

_WIDE, _HIGH, _STEP = 420, 16, 22
_HEAD = 28


def draw(bars: Bars) -> Drawing:
    """Return the SVG picture of bars: panels with names on the left and values on the right."""
    every = [bar for panel in bars.panels for bar in panel.bars]
    said = [_number(value, panel) for panel in bars.panels for _, value, _ in panel.bars]
    left = MARGIN + max(pixels(name) for name, _, _ in every) + 8
    right = max(map(pixels, said)) + 16
    lines, y = [], 0
    for panel in bars.panels:
        lines += moved(_panel(panel, left=left), y=y)
        y += _HEAD + len(panel.bars) * _STEP + 8
    return Drawing(lines, left + _WIDE + right, y)


def _panel(panel: Panel, *, left: int) -> list[str]:
    most = max((value for _, value, _ in panel.bars), default=0) or 1
    lines = [text(panel.title, x=MARGIN, y=_HEAD / 2, kind="title")]
    for number, (name, value, tone) in enumerate(panel.bars):
        y, wide = _HEAD + number * _STEP, max(1, round(_WIDE * value / most))
        lines.append(text(name, x=left - 8, y=y + _HIGH / 2, kind="end"))
        lines.append(box(tone.value, x=left, y=y, wide=wide, high=_HIGH))
        lines.append(text(_number(value, panel), x=left + wide + 6, y=y + _HIGH / 2, kind="start"))
    return lines


def _number(value: float, panel: Panel) -> str:
    """Return a bar's value as text, with one decimal.

    If all values of the bar's panel are whole numbers, the text has no decimals.
    """
    whole = all(float(one).is_integer() for _, one, _ in panel.bars)
    return f"{value:.0f}" if whole else f"{value:.1f}"
