"""Forgetting what the allocator computed, for measurements and for tests of what is kept how long."""

from __future__ import annotations

from dradriver.allocator.parts import layouts
from dradriver.allocator.sets import canonical, facts, shape, tables
from dradriver.topology.machine import Machine


def forget_choices(machine: Machine) -> None:
    """Drop what is remembered of single choices on a machine; its tables stay."""
    tables.tables_of(machine)._answers.clear()


def forget_tables() -> None:
    """Drop all tables and facts, and all layouts of MIG instances."""
    for kept in (tables._KEPT, facts._KEPT, layouts._KEPT):
        kept.clear()


def forget() -> None:
    """Drop everything."""
    forget_tables()
    shape.shape_of.cache_clear()
    canonical.canonical.cache_clear()
