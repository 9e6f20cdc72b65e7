"""Numbers with their nouns in texts for people, ``1 GPU``, ``2 GPUs``, and the beginning of long lists and texts."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: float, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 GPU``, ``0.5 GPUs``.

    Args:
        number: The number; a fraction is written with at most six digits.
        noun: The noun for one.
        plural: The noun for any other number; the noun with an ``s`` by default.
    """
    shown = str(number) if isinstance(number, int) else f"{number:g}"
    return f"{shown} {noun if number == 1 else plural or f'{noun}s'}"


def first_of(texts: Sequence[str], most: int) -> str:
    """Return at most ``most`` of some texts, joined by commas, and how many more there are: ``a, b and 3 more``."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def shortened(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters; a text that was longer ends with ``...``."""
    return text if len(text) <= most else text[: most - 3] + "..."
