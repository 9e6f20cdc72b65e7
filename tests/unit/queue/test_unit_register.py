"""The register of units: which unit is looked after, and when the newest pod was created."""

from __future__ import annotations

from dradriver.queue.unit_register import UnitRegister
from tests.unit.queue.test_order import unit


def test_another_unit_of_the_same_key_is_not_the_one_that_is_looked_after() -> None:
    register, first, second = UnitRegister(), unit("p", "default"), unit("p", "default")
    assert not register.has(first)
    register[first.key] = first
    assert register.has(first)
    register[second.key] = second
    assert not register.has(first)


def test_the_newest_pod_counts_and_one_without_a_time_does_not() -> None:
    register = UnitRegister()
    register.note_created(None)
    register.note_created()
    assert register.newest == ""
    register.note_created("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z")
    register.note_created("2026-01-01T12:00:00Z")
    assert register.newest == "2026-01-02T00:00:00Z"
