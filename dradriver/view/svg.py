"""Renders a document's pictures as SVG: one SVG document with all of them, or one picture for an HTML page.

A mark is a short text next to a row of a matrix, such as a pod's name. A tone is the meaning of a text, such as free or
blocked, which selects its colour.
"""

from __future__ import annotations

from collections.abc import Iterable

from dradriver.view import bars, matrix
from dradriver.view.document import Bars, Document, Key, Matrix, Tone
from dradriver.view.palette import css
from dradriver.view.svg_elements import CHARACTER, FONT, LINE, MARGIN, Drawing, box, escaped, moved, text, within
from dradriver.view.terminal_text import plain, wrapped

_NARROWEST = 480  # titles and keys have at least this
_BETWEEN = 16
_SWATCH = 14


def render(document: Document) -> str:
    """Return one SVG document of all pictures, with a background; text is escaped."""
    pictures, keys = _blocks(document)
    side = sides(document)
    drawn = [(picture.title, picture_of(picture, side=side)) for picture in pictures]
    wide = max([_NARROWEST, *(drawing.width for _, drawing in drawn)])
    lines, y = [], MARGIN
    for title, drawing in drawn:
        lines.append(_title(title, y=y, wide=wide))
        lines += moved(drawing.lines, y=y + LINE)
        y += LINE + drawing.height + _BETWEEN
    for key in keys:
        drawing = _key(key, wide=wide)
        lines += moved(drawing.lines, y=y)
        y += drawing.height + _BETWEEN
    style = f"<style>\n{FONT}{css(colours(document))}</style>"
    page = box("page", x=0, y=0, wide=wide, high=y)
    return _svg(Drawing([style, page, *lines], wide, y), title=document.title)


def inline(picture: Matrix | Bars, *, side: int) -> str:
    """Return a picture as an SVG element for an HTML page.

    The page must contain the CSS rules of ``palette``, because the element has no rules of its own. The picture's title
    is for screen readers.

    Args:
        picture: The matrix or the bars.
        side: The width of a matrix's marks, in pixels (``marks_width`` of ``matrix.draw``).
    """
    return _svg(picture_of(picture, side=side), title=picture.title)


def picture_of(picture: Matrix | Bars, *, side: int) -> Drawing:
    """Return the SVG picture of a matrix or of bars.

    Args:
        picture: The matrix or the bars.
        side: The width of a matrix's marks, in pixels (``marks_width`` of ``matrix.draw``).
    """
    return bars.draw(picture) if isinstance(picture, Bars) else matrix.draw(picture, marks_width=side)


def sides(document: Document) -> int:
    """Return the largest width of the marks next to a document's matrices, in pixels.

    All matrices are drawn with this width, so that their columns are aligned.
    """
    pictures, _ = _blocks(document)
    return max((matrix.side(picture) for picture in pictures if isinstance(picture, Matrix)), default=0)


def colours(document: Document) -> int:
    """Return how many colours of ``palette.series`` a document's pictures need.

    This is the highest colour number in the document's legends plus 1; 0 without legends.
    """
    _, keys = _blocks(document)
    return max((entry.series + 1 for key in keys for entry in key.entries), default=0)


def swatch(colour: Tone | int) -> str:
    """Return a small coloured square as an SVG element, for a legend.

    ``colour`` is a tone, or the number of a colour of ``palette.series``.
    """
    kind = colour.value if isinstance(colour, Tone) else f"s{colour}"
    shape = box(f"swatch {kind}", x=0, y=0, wide=_SWATCH, high=_SWATCH)
    size = f'width="{_SWATCH}" height="{_SWATCH}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" aria-hidden="true" {size}>{shape}</svg>'


def _blocks(document: Document) -> tuple[list[Matrix | Bars], list[Key]]:
    every = [block for section in document.sections for block in section.blocks]
    pictures = [block for block in every if isinstance(block, Matrix | Bars)]
    return pictures, [block for block in every if isinstance(block, Key) and block.entries]


def _title(title: str, *, y: int, wide: int) -> str:
    return within(title, wide - 2 * MARGIN, x=MARGIN, y=y + LINE / 2, kind="title")


def _key(key: Key, *, wide: int) -> Drawing:
    """Return the drawing of a legend, which explains the colours. Long lines are wrapped.

    Args:
        key: The colours and their meanings.
        wide: The width of the drawing in pixels.
    """
    lines, y = [_title(key.title, y=0, wide=wide)], LINE
    left = MARGIN + _SWATCH + 8
    for entry in key.entries:
        lines.append(box(f"swatch s{entry.series}", x=MARGIN, y=y + (LINE - _SWATCH) / 2, wide=_SWATCH, high=_SWATCH))
        for line in wrapped(plain(f"{entry.name}: {entry.where}"), int((wide - left - MARGIN) / CHARACTER)):
            lines.append(text(line, x=left, y=y + LINE / 2, kind="start"))
            y += LINE
    return Drawing(lines, wide, y)


def _svg(drawing: Drawing, *, title: str) -> str:
    lines: Iterable[str] = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {drawing.width} {drawing.height}" '
        f'width="{drawing.width}" height="{drawing.height}">',
        f"<title>{escaped(title)}</title>",
        *drawing.lines,
        "</svg>",
    )
    return "\n".join(lines) + "\n"
