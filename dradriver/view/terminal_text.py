"""Makes text of other authors safe for a terminal, and measures and cuts text by terminal cells."""

from __future__ import annotations


def plain(text: str, *, keep: str = "") -> str:
    """Return text that is safe for a terminal: unprintable characters are replaced by U+FFFD.

    Control characters from another author could otherwise change what the terminal shows.

    Args:
        text: A name or message of another author.
        keep: Characters that are never replaced, such as a line break.
    """
    return "".join(c if c.isprintable() or c in keep else "\ufffd" for c in text)


def width(text: str) -> int:
    """Return the width of a text in terminal cells: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # only here: importing it costs as much as a whole run of topo

    return cell_len(text)


def cut(text: str, cells: int) -> str:
    """Return a text cut to at most ``cells`` terminal cells, with an ellipsis if it was longer."""
    return text if width(text) <= cells else _start(text, cells - 1) + "…"


def wrapped(text: str, cells: int) -> list[str]:
    """Return a text wrapped to lines of at most ``cells`` terminal cells."""
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
    """Return as many characters from the start of a text as fit into ``cells`` terminal cells."""
    length = min(len(text), max(0, cells))
    while length and width(text[:length]) > cells:
        length -= 1
    return text[:length]
