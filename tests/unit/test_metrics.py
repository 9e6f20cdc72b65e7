"""Every metric follows one convention, and docs/reference/metrics.md tells of all."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter, generate_latest

from docs import metrics
from docs.metrics import Metric
from dradriver.kube.labelled_metrics import Labelled, Names


@pytest.fixture(scope="module")
def found() -> dict[str, list[Metric]]:
    return metrics.everywhere()


@pytest.mark.slow
def test_every_metric_follows_the_convention(found: dict[str, list[Metric]]) -> None:
    assert all(found.values())
    said = {metric.name: metrics.faults(metric) for some in found.values() for metric in some}
    assert {name: faults for name, faults in said.items() if faults} == {}


def test_the_page_is_up_to_date(found: dict[str, list[Metric]]) -> None:
    assert metrics.TARGET.read_text() == metrics.page(found), "run make metrics"


def test_an_alert_counts_for_the_metrics_of_its_recording_rule() -> None:
    assert "GpuTopologyIdleGpus" in metrics.alerts_of("gpu_topology_node_gpus_idle")


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (Metric("admissions_total", "counter", "A.", {}), "write a name that starts with gpu_topology_"),
        (
            Metric("gpu_topology_call_ms", "histogram", "A.", {}),
            "write a name that ends in _seconds, _percent or _gbps",
        ),
        (Metric("gpu_topology_gpus_total", "gauge", "A.", {}), "write a gauge's name without suffix"),
        (Metric("gpu_topology_age_seconds", "gauge", "A.", {}), "write a gauge's name without suffix"),
        (Metric("gpu_topology_age", "summary", "A.", {}), "a summary is none of counter, histogram, gauge, info"),
        (Metric("gpu_topology_pods", "gauge", "A", {}), "write its text as a sentence"),
        (
            Metric("gpu_topology_pods", "gauge", "A.", None),
            "write dradriver.kube.labelled_metrics.Labelled and what each label can be",
        ),
    ],
)
def test_what_is_against_the_convention_is_told_with_the_cure(metric: Metric, said: str) -> None:
    assert metrics.faults(metric) == [said]


@pytest.mark.parametrize("seen", [[], ["a", "b"]])
def test_a_label_without_bounds_is_found(seen: list[str]) -> None:
    loose = Counter("gpu_topology_test_loose_total", "A.", ["name"])
    for name in seen:
        loose.labels(name)
    try:
        (metric,) = [metric for metric in metrics.defined("webhook") if metric.name == "gpu_topology_test_loose_total"]
    finally:
        REGISTRY.unregister(loose)
    assert metric.labels is None


def test_text_from_outside_becomes_no_time_series() -> None:
    registry = CollectorRegistry()

    def counter(name: str, text: str, labels: object) -> Counter:
        return Counter(name, text, labels, registry=registry)  # type: ignore[arg-type]

    metric = Labelled(counter, "gpu_topology_test_total", "A.", verb=("create", "delete"))
    assert registry.get_sample_value("gpu_topology_test_total", {"verb": "create"}) == 0, "there before it is counted"
    for verb in ("create", "a pod's text", "another's", "create"):
        metric.labels(verb).inc()
    samples = {sample.labels["verb"]: sample.value for f in registry.collect() for sample in f.samples}
    assert samples.keys() == {"create", "delete", "other"}
    assert registry.get_sample_value("gpu_topology_test_total", {"verb": "create"}) == 2
    assert registry.get_sample_value("gpu_topology_test_total", {"verb": "other"}) == 2


def test_names_that_belong_together_are_as_many_series_as_is_said() -> None:
    registry = CollectorRegistry()
    metric = Names("gpu_topology_test_info", "A.", most=3, registry=registry, uuid="a GPU's", pod="its pod")

    def shown() -> set[tuple[str, str]]:
        return {(sample.labels["uuid"], sample.labels["pod"]) for f in registry.collect() for sample in f.samples}

    assert shown() == set()
    metric.set("x", [("a", "p"), ("a", "p"), ("b", "p")])
    metric.set("y", [("a", "p")])
    assert shown() == {("a", "p"), ("b", "p")}
    metric.set("x", ())
    assert shown() == {("a", "p")}
    metric.set("z", [(str(number), "q") for number in range(100)])
    assert len(shown()) == 3
    assert b'gpu_topology_test_info{pod="p",uuid="a"} 1.0' in generate_latest(registry)
