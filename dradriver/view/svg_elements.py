"""Elements of SVG that pictures are made of: text, boxes, groups, and the space that they take in pixels."""

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
    """Elements of SVG and the space that they take, in pixels."""

    lines: list[str]
    width: int
    height: int


def escaped(words: str) -> str:
    """Return the text for an SVG element, escaped, with U+FFFD for what does not print."""
    return html.escape(plain(words))


def pixels(words: str) -> int:
    """Return how many pixels a text element takes in an SVG picture, in the larger font."""
    return round(width(plain(words)) * CHARACTER)


def text(words: str, *, x: float, y: float, kind: str = "") -> str:
    """Return an SVG text element that is centred at y, and at x too unless its kind says otherwise."""
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:g}" y="{y:g}">{escaped(words)}</text>'


def within(words: str, space: float, *, x: float, y: float, kind: str = "") -> str:
    """Return an SVG text element cut to so many pixels; a pointer on it shows all of it."""
    words = plain(words)
    shown = cut(words, max(1, int(space / CHARACTER)))
    line = text(shown, x=x, y=y, kind=kind)
    return line if shown == words else line.replace("</text>", f"<title>{escaped(words)}</title></text>")


def box(kind: str, *, x: float, y: float, wide: float, high: float, says: str = "") -> str:
    """Return an SVG element with a rectangle; a pointer on it shows ``says``."""
    shape = f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}"'
    return f"{shape}><title>{escaped(says)}</title></rect>" if says else f"{shape}/>"


def moved(lines: list[str], *, x: float = 0, y: float = 0) -> list[str]:
    """Return the SVG elements in a group that is moved by x and y."""
    return [f'<g transform="translate({x:g} {y:g})">', *lines, "</g>"]
