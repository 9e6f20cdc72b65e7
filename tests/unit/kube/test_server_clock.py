"""The API server's time, whatever this machine's clock says."""

from __future__ import annotations

import email.utils

import pytest

from dradriver.kube.server_clock import ServerClock

TRUE = 1_800_000_000.0


class Machine:
    """A machine whose clock can be wrong, and what the API server says."""

    def __init__(self, *, ahead_s: float = 0.0) -> None:
        self.passed_s, self.ahead_s = 0.0, ahead_s
        self.told = "", 0.0
        self.clock = ServerClock(
            lambda: self.told, own=lambda: TRUE + self.passed_s + self.ahead_s, monotonic=lambda: 50.0 + self.passed_s
        )

    def asks(self) -> None:
        """Have the API server answer now."""
        self.told = email.utils.formatdate(TRUE + self.passed_s, usegmt=True), 50.0 + self.passed_s


@pytest.mark.parametrize("ahead_s", [-7200.0, -3.0, 3.0, 7200.0])
def test_a_machine_whose_clock_is_wrong_has_the_servers_time(ahead_s: float) -> None:
    machine = Machine(ahead_s=ahead_s)
    assert machine.clock() == TRUE + ahead_s, "before any answer"
    machine.passed_s = 100.0
    machine.asks()
    machine.passed_s = 130.0
    machine.clock.set()
    assert machine.clock() == pytest.approx(TRUE + 130.0, abs=1.0), "the answer is half a minute old"


def test_a_machine_whose_clock_is_right_keeps_its_fractions_of_seconds() -> None:
    machine = Machine(ahead_s=0.4)
    machine.asks()
    machine.clock.set()
    assert machine.clock() == TRUE + 0.4


def test_what_becomes_of_the_machines_clock_later_counts_for_nothing() -> None:
    machine = Machine(ahead_s=-7200.0)
    machine.asks()
    machine.clock.set()
    before = machine.clock()
    machine.ahead_s = 0.0
    machine.passed_s = 10.0
    machine.asks()
    assert machine.clock() - before == 10.0


@pytest.mark.parametrize("date", ["", "yesterday", "Thu, 99 Foo 2026"])
def test_a_server_that_does_not_say_the_time_leaves_the_machines(date: str) -> None:
    machine = Machine(ahead_s=-7200.0)
    machine.told = date, 50.0
    machine.ahead_s = 0.0
    machine.clock.set()
    assert machine.clock() == TRUE
