"""Forgetting what was computed; for measurements."""

from __future__ import annotations

from dradriver.allocator.choice import best_set
from dradriver.allocator.sets import canonical, facts, rings, shape, tables


def forget_choices() -> None:
    """Drop what is remembered of single choices; the tables stay."""
    for cached in (best_set.search, rings.best_ring, rings.rank_order, rings.split):
        cached.cache_clear()


def forget() -> None:
    """Drop everything."""
    forget_choices()
    shape.shape_of.cache_clear()
    tables.tables_of_shape.cache_clear()
    facts.facts_of.cache_clear()
    canonical.canonical.cache_clear()
