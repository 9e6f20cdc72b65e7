"""Forgetting what was computed; for measurements."""

from __future__ import annotations

from dradriver.allocator import canonical, facts, picks, rings, tables


def forget_choices() -> None:
    """Drop what is remembered of single choices; the tables stay."""
    picks.forget()
    for cached in (rings.best_ring, rings.rank_order, rings.split):
        cached.cache_clear()


def forget() -> None:
    """Drop everything."""
    forget_choices()
    tables.of_machine.cache_clear()
    tables.of_shape.cache_clear()
    facts.facts_of.cache_clear()
    canonical.canonical.cache_clear()
