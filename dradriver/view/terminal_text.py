"""Text of others made safe for a terminal, measured and cut by the cells that it takes there."""

from __future__ import annotations


def plain(text: str, *, keep: str = "") -> str:
    """Return text that is safe for a terminal: U+FFFD for every character that a terminal must not print.

    Args:
        text: A name or message that somebody else wrote.
        keep: Characters that stay all the same.
    """
    return "".join(c if c.isprintable() or c in keep else "\ufffd" for c in text)


def width(text: str) -> int:
    """Return the width of a text on a terminal in cells: two for a wide character, none for one that combines."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # only here: importing it costs as much as a whole run of topo

    return cell_len(text)


def cut(text: str, cells: int) -> str:
    """Return a text cut to so many cells of a terminal, with an ellipsis."""
    return text if width(text) <= cells else _start(text, cells - 1) + "…"


def wrapped(text: str, cells: int) -> list[str]:
    """Return a text wrapped to lines of at most so many cells of a terminal."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if width(joined) <= cells:
            line = joined
            continue
        if line:
            lines.append(line)
        line = word
        while width(line) > cells:
            piece = _start(line, cells) or line[0]
            lines.append(piece)
            line = line[len(piece) :]
    return [*lines, line]


def _start(text: str, cells: int) -> str:
    """Return as much of the text's start as so many cells hold."""
    length = min(len(text), max(0, cells))
    while length and width(text[:length]) > cells:
        length -= 1
    return text[:length]
