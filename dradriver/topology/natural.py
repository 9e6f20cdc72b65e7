"""Sorts names by the numbers in them, as people count (natural order)."""

from __future__ import annotations

import re


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names in natural order: ``mlx5_2`` comes before ``mlx5_10``."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [(int(part), "") if i % 2 else (-1, part) for i, part in enumerate(parts)]
