"""Forgetting what was computed; for measurements."""

from __future__ import annotations

from dradriver.allocator.sets import canonical, shape, tables
from dradriver.topology.machine import Machine


def forget_choices(machine: Machine) -> None:
    """Drop what is remembered of single choices on a machine; its tables stay."""
    tables.tables_of(machine).forget_answers()


def forget() -> None:
    """Drop everything."""
    shape.shape_of.cache_clear()
    tables.forget()
    canonical.canonical.cache_clear()
