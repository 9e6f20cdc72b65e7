"""Which changes of a machine are news."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.node.discovery.debounce import CALM, SAME, Debounce
from dradriver.node.discovery.simulated_machine import without
from dradriver.topology.machine import Machine
from tests.fakes.node import machine

WHOLE = machine()


def unlinked(a: int, b: int, whole: Machine = WHOLE) -> Machine:
    """The machine while the links of a pair are down."""
    links = tuple(
        tuple(0 if {i, j} == {a, b} else count for j, count in enumerate(row)) for i, row in enumerate(whole.links)
    )
    return msgspec.structs.replace(whole, links=links)


@pytest.fixture
def steady() -> Debounce:
    found = Debounce()
    assert found.machine(WHOLE) == WHOLE
    return found


def test_a_change_counts_when_it_lasts(steady: Debounce) -> None:
    for _ in range(SAME - 1):
        assert steady.machine(unlinked(0, 1)) == WHOLE
    assert steady.machine(unlinked(0, 1)) == unlinked(0, 1)


def test_one_that_comes_and_goes_never_does(steady: Debounce) -> None:
    for number in range(1000):
        assert steady.machine(WHOLE if number % SAME == 0 else unlinked(0, 1)) == WHOLE
    for number in range(1000):
        assert steady.machine(unlinked(0, number % 7 + 1)) == WHOLE


def test_one_that_comes_and_goes_slowly_counts_ever_more_rarely(steady: Debounce) -> None:
    changes, last = 0, WHOLE
    for number in range(360):  # an hour
        now = steady.machine(unlinked(0, 1) if number // (2 * SAME) % 2 else WHOLE)
        changes += now != last
        last = now
    assert changes == 1


def test_after_calm_a_change_counts_quickly_again(steady: Debounce) -> None:
    for _ in range(SAME):
        steady.machine(unlinked(0, 1))
    for _ in range(CALM):
        steady.machine(unlinked(0, 1))
    for _ in range(SAME):
        found = steady.machine(WHOLE)
    assert found == WHOLE


@pytest.mark.parametrize("gpu", [0, 7])
def test_a_gpu_that_goes_or_comes_counts_at_once(gpu: int, steady: Debounce) -> None:
    assert steady.machine(without(WHOLE, {str(gpu)})) == without(WHOLE, {str(gpu)})
    assert steady.machine(WHOLE) == WHOLE


def test_mig_mode_and_the_driver_count_at_once(steady: Debounce) -> None:
    sliced = (msgspec.structs.replace(WHOLE.gpus[0], mig=()), *WHOLE.gpus[1:])
    for now in (msgspec.structs.replace(WHOLE, gpus=sliced), msgspec.structs.replace(WHOLE, driver_version="600.1")):
        assert steady.machine(now) == now
