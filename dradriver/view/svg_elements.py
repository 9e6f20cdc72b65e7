"""SVG elements for pictures: text, boxes and groups, and functions that measure them in pixels."""

from __future__ import annotations

import html
from typing import Final, NamedTuple

from dradriver.view.terminal_text import cut, plain, width

CHARACTER: Final = 7.3  # of one cell in the pictures' font of 12 px; monospace fonts have 7.2
LINE: Final = 20  # from one line of text to the next
MARGIN: Final = 8
FONT: Final = """\
svg text { font: 12px ui-monospace, 'DejaVu Sans Mono', monospace; text-anchor: middle; dominant-baseline: central }
svg text.start { text-anchor: start } svg text.end { text-anchor: end } svg text.small { font-size: 10px }
svg text.title { text-anchor: start; font-weight: bold }
.frame { fill: none; stroke-width: 2 } rect.free { fill: none } .promised { stroke-dasharray: 4 3; stroke-width: 1.5 }
"""


class Drawing(NamedTuple):
    """SVG elements with the space that they need, in pixels."""

    lines: list[str]
    width: int
    height: int


def escaped(words: str) -> str:
    """Return a text escaped for an SVG element, with U+FFFD for each character that does not print."""
    return html.escape(plain(words))


def pixels(words: str) -> int:
    """Return the width in pixels of a text in an SVG picture, in the larger of the two font sizes."""
    return round(width(plain(words)) * CHARACTER)


def text(words: str, *, x: float, y: float, kind: str = "") -> str:
    """Return an SVG text element at a position.

    Args:
        words: The text.
        x: The horizontal position: of the text's middle, or of another point that the style of ``kind`` sets.
        y: The vertical position of the text's middle.
        kind: The CSS class.
    """
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:g}" y="{y:g}">{escaped(words)}</text>'


def within(words: str, space: float, *, x: float, y: float, kind: str = "") -> str:
    """Return an SVG text element, cut to ``space`` pixels.

    If the text was cut, the full text is shown when a pointer rests on the element. ``x`` and ``y`` are the position of
    the text's middle, ``kind`` is the CSS class. The style of ``kind`` can set another point for ``x``.
    """
    words = plain(words)
    shown = cut(words, max(1, int(space / CHARACTER)))
    line = text(shown, x=x, y=y, kind=kind)
    return line if shown == words else line.replace("</text>", f"<title>{escaped(words)}</title></text>")


def box(kind: str, *, x: float, y: float, wide: float, high: float, says: str = "") -> str:
    """Return an SVG rectangle with the CSS class ``kind``; lengths are in pixels.

    ``x`` and ``y`` are the top left corner. The text ``says`` is shown when a pointer rests on the rectangle.
    """
    shape = f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}"'
    return f"{shape}><title>{escaped(says)}</title></rect>" if says else f"{shape}/>"


def moved(lines: list[str], *, x: float = 0, y: float = 0) -> list[str]:
    """Return SVG elements wrapped in a group element that moves them by x and y pixels."""
    return [f'<g transform="translate({x:g} {y:g})">', *lines, "</g>"]
