"""Text of others, safe to print."""

from __future__ import annotations


def plain(text: str, *, keep: str = "") -> str:
    """Return the text with every character that does not print, escape sequences and line ends too, as U+FFFD.

    Args:
        text: A name or message that somebody else wrote.
        keep: Characters that stay all the same.
    """
    return "".join(c if c.isprintable() or c in keep else "\ufffd" for c in text)
