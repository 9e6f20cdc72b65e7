"""Metrics by names: few series however many names there are, and none that only grows ever falls."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dradriver.kube.labelled_metrics import OTHER, Amounts, Spans, Totals
from tests.effort import sampled

MOST = 100
NAMESPACES = 10_000


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def shown(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Return what a scrape reads: the sample's name and its labels' values, the namespace first, and the value."""
    text = generate_latest(registry).decode()
    return {
        (sample.name, sample.labels.pop("namespace"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_largest_namespaces_are_told_apart_and_the_rest_together(registry: CollectorRegistry) -> None:
    metric = Amounts("gpus", "A.", most=MOST, registry=registry, namespace="a namespace", kind="a kind")
    held = {(f"team-{number}", kind): float(number + 1) for number in range(NAMESPACES) for kind in ("whole", "share")}
    metric.set(held)
    seen = shown(registry)
    assert len(seen) == 2 * (MOST + 1)
    assert sum(seen.values()) == pytest.approx(sum(held.values()))
    named = {name for _, name, *_ in seen}
    assert named == {OTHER, *(f"team-{number}" for number in range(NAMESPACES - MOST, NAMESPACES))}
    metric.set({("team-1", "whole"): 3.0})
    assert shown(registry) == {("gpus", "team-1", "whole"): 3.0}


def test_one_label_needs_no_tuple(registry: CollectorRegistry) -> None:
    metric = Amounts("gpus", "A.", most=1, registry=registry, namespace="a namespace")
    metric.set({"a": 1.0, "b": 2.0})
    assert shown(registry) == {("gpus", "b"): 2.0, ("gpus", OTHER): 1.0}


@pytest.mark.parametrize("seed", sampled(range(5), fast=1))
def test_a_counter_by_namespace_loses_nothing_and_no_series_falls(registry: CollectorRegistry, seed: int) -> None:
    """As Prometheus adds up increases: a series that is new, or came back smaller, grew by all that it shows."""
    metric = Totals("spent_total", "A.", most=3, registry=registry, namespace="a namespace", kind="a kind")
    random_ = random.Random(seed)
    before: dict[tuple[str, ...], float] = {}
    increase = counted = 0.0
    for turn in range(302):
        for _ in range(random_.randrange(3) if turn < 300 else 0):
            amount = random_.choice((0.5, 1.0, 20.0))
            metric.add(amount, f"team-{random_.randrange(12)}", random_.choice(("whole", "share")))
            counted += amount
        now = shown(registry)
        assert len({key[1] for key in now} - {OTHER}) <= 3
        for key, total in now.items():
            assert key in before or total == 0, "else the first of it is no increase"
            increase += total - before.get(key, 0.0) if total >= before.get(key, 0.0) else total
        assert now.get(("spent_total", OTHER, "whole"), 0.0) >= before.get(("spent_total", OTHER, "whole"), 0.0)
        before = now
    assert increase == pytest.approx(counted)


def test_a_namespace_that_grows_large_is_told_apart(registry: CollectorRegistry) -> None:
    metric = Totals("spent_total", "A.", most=MOST, registry=registry, namespace="a namespace")
    for number in range(NAMESPACES):
        metric.add(1.0, f"team-{number}")
    assert len(shown(registry)) == MOST + 1
    metric.add(50.0, "team-9999")
    metric.add(7.0, "team-9999")
    assert shown(registry)["spent_total", "team-9999"] == 0
    seen = shown(registry)
    assert seen["spent_total", "team-9999"] == 57.0
    assert len(seen) == MOST + 1


def test_names_that_come_and_go_are_forgotten(registry: CollectorRegistry) -> None:
    metric = Totals("spent_total", "A.", most=4, registry=registry, namespace="a namespace")
    for number in range(NAMESPACES):
        metric.add(1.0, f"run-{number}")
    assert len(metric._largest._sums) <= 16 * 4 + 1
    assert sum(shown(registry).values()) == 0
    assert sum(shown(registry).values()) == NAMESPACES


def test_who_is_called_other_is_one_of_the_others(registry: CollectorRegistry) -> None:
    metric = Totals("spent_total", "A.", most=1, registry=registry, namespace="a namespace")
    for name, amount in ((OTHER, 5.0), ("a", 1.0), ("b", 1.0), ("b", 3.0)):
        metric.add(amount, name)
    shown(registry)
    assert shown(registry) == {("spent_total", OTHER): 7.0, ("spent_total", "b"): 3.0}
    gauge = Amounts("gpus", "A.", most=2, registry=registry, namespace="a namespace")
    gauge.set({OTHER: 9.0, "a": 2.0, "b": 1.0})
    assert {key[1]: n for key, n in shown(registry).items() if key[0] == "gpus"} == {OTHER: 10.0, "a": 2.0}
    gauge.set({OTHER: 9.0, "a": 2.0, "b": 1.0}, always=("b",))
    assert ("gpus", "b") in shown(registry)


def test_a_histogram_by_namespace(registry: CollectorRegistry) -> None:
    metric = Spans(
        "wait_seconds", "A.", most=MOST, buckets=(1, 60), registry=registry, namespace="a namespace", gpus="how many"
    )
    for number in range(NAMESPACES):
        metric.observe(0.5, f"team-{number}", "8")
    for seconds in (1.0, 30.0, 600.0):
        metric.observe(seconds, "team-0", "8")
    assert sum(shown(registry).values()) == 0
    seen = shown(registry)
    own = {key[0] + (key[3] if len(key) > 3 else ""): n for key, n in seen.items() if key[1:3] == ("team-0", "8")}
    assert own == {
        "wait_seconds_bucket1.0": 2, "wait_seconds_bucket60.0": 3, "wait_seconds_bucket+Inf": 4,
        "wait_seconds_count": 4, "wait_seconds_sum": 631.5,
    }  # fmt: skip
    counts = Counter({key[1]: int(n) for key, n in seen.items() if key[0] == "wait_seconds_count"})
    assert len(counts) == MOST + 1
    assert counts.total() == NAMESPACES + 3
