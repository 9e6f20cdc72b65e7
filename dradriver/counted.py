"""Numbers with their nouns in texts for people: ``1 GPU``, ``2 GPUs``."""

from __future__ import annotations


def counted(number: float, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 GPU``, ``0.5 GPUs``.

    Args:
        number: The number; a fraction is written with at most six digits.
        noun: The noun for one.
        plural: The noun for any other number; the noun with an ``s`` by default.
    """
    shown = str(number) if isinstance(number, int) else f"{number:g}"
    return f"{shown} {noun if number == 1 else plural or f'{noun}s'}"
