"""What Prometheus and Grafana are given: rules that a real promtool tests, a dashboard over metrics that there are."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from typing import Any, Final

import pytest
import yaml

from docs import metrics, questions
from dradriver.cluster.derived.gpu_states import STATES
from dradriver.node.faults import KINDS
from dradriver.reason import Cause
from tests import needs
from tests.fakes.chart import CHART, objects
from tests.paths import REPO

RULES: Final = CHART / "monitoring" / "rules.yaml"
TESTS: Final = REPO / "tests" / "monitoring" / "rules.test.yaml"
ALL: Final = tuple(
    f"metrics.{part}.enabled=true"
    for part in ("service", "podMonitor", "serviceMonitor", "prometheusRule", "dashboard")
)


def rules() -> list[dict[str, Any]]:
    """Return all rules."""
    return [rule for group in yaml.load(RULES.read_text(), yaml.CSafeLoader)["groups"] for rule in group["rules"]]


ALERTS: Final = {rule["alert"]: rule for rule in rules() if "alert" in rule}
RECORDS: Final = {rule["record"] for rule in rules() if "record" in rule}


def test_an_alert_tells_of_every_fault_of_gpus() -> None:
    def told(alert: str) -> set[str]:
        said = re.findall(r'gpu_fault_info{kind=~?"([^"]+)"}', ALERTS[alert]["expr"])
        return {kind for each in said for kind in each.split("|")}

    by_effect = {one: {kind for kind, what in KINDS.items() if what.effect == one} for one in ("NoSchedule", "None")}
    assert told("GpuTopologyGpuUnhealthy") == by_effect["NoSchedule"] - {"held"}, (
        "programs on it are no fault of a GPU's"
    )
    assert told("GpuTopologyGpuWarning") == by_effect["None"]


@pytest.mark.slow
@pytest.mark.timeout(900)  # in CI on a new machine it is built here
def test_promtool_takes_the_rules_and_their_tests_pass() -> None:
    promtool = str(needs.prometheus() / "promtool")
    for command in (["check", "rules", str(RULES)], ["test", "rules", str(TESTS)]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_is_tested_where_it_fires_and_where_it_does_not(alert: str) -> None:
    tests = yaml.load(TESTS.read_text(), yaml.CSafeLoader)["tests"]
    tried = [one for test in tests for one in test.get("alert_rule_test", ())]
    fires = {bool(one["exp_alerts"]) for one in tried if one["alertname"] == alert}
    assert fires == {True, False}


def test_every_recording_rule_is_tested() -> None:
    text = TESTS.read_text()
    used = "\n".join(rule["expr"] for rule in rules()) + questions.page()
    assert sorted(name for name in RECORDS if name not in text and name not in used) == []


def test_every_alert_has_a_runbook_and_no_runbook_is_left_over() -> None:
    page = (REPO / "docs" / "runbooks" / "alerts.md").read_text()
    assert re.findall(r"(?m)^## (\w+)$", page) == list(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["annotations"]["runbook"] == f"docs/runbooks/alerts.md#{name.lower()}"
        (section,) = re.findall(rf"(?ms)^## {name}\n\n\*(\w+)\.\*", page)
        assert section == rule["labels"]["severity"]


def test_the_states_and_causes_of_the_page_are_the_codes() -> None:
    page = (REPO / "docs" / "tasks" / "monitoring.md").read_text()
    for title, known in (("States of GPUs", STATES), ("Causes of waiting", tuple(Cause))):
        (section,) = re.findall(rf"(?ms)^## {title}\n(.*?)(?=^## |\Z)", page)
        assert tuple(re.findall(r"(?m)^\| `(\w+)` \|", section)) == known


def named(queries: Iterable[str]) -> set[str]:
    """Return the names of the series that queries ask for, without those of others than this driver."""
    return {name for query in queries for name in re.findall(r"\bgpu_topology[:\w]+", query)}


@pytest.mark.slow
def test_every_query_asks_for_what_there_is() -> None:
    kinds = {metric.name: metric.kind for some in metrics.everywhere().values() for metric in some}
    there = set(RECORDS)
    for name, kind in kinds.items():
        there |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    asked = named(query for question in questions.QUESTIONS for panel in question.panels for query, _ in panel.queries)
    assert sorted((asked | named(rule["expr"] for rule in rules())) - there) == []


def test_the_page_and_the_dashboard_are_up_to_date() -> None:
    assert questions.PAGE.read_text() == questions.page(), "run make metrics"
    assert questions.DASHBOARD.read_text() == questions.dashboard_text(), "run make metrics"


def test_every_question_is_answered() -> None:
    assert len(questions.QUESTIONS) == 16
    assert [question.text for question in questions.QUESTIONS if not (question.panels or question.commands)] == []


def test_no_panel_lies_on_another() -> None:
    rows = questions.dashboard()["panels"]
    for panels in (rows, *(row["panels"] for row in rows if row.get("collapsed"))):
        cells = [
            (x, y)
            for panel in panels
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]
        assert len(cells) == len(set(cells))
        assert max(x for x, _ in cells) < 24


def test_the_dashboard_opens_with_figures_and_the_rest_is_collapsed() -> None:
    first, *panels = questions.dashboard()["panels"]
    stats = [panel["title"] for panel in panels if panel["type"] == "stat"]
    assert (first["collapsed"], stats) == (
        False,
        ["GPUs", "Free", "With faults", "Waiting", "Oldest wait", "p95 of the wait", "Agents"],
    )
    rows = [panel for panel in panels if panel["type"] == "row"]
    assert [first, *(panel for panel in panels if panel["type"] == "stat"), *rows] == [first, *panels]
    assert all(row["collapsed"] and row["panels"] for row in rows)
    shown = [panel for row in rows for panel in row["panels"]] + [panel for panel in panels if panel["type"] == "stat"]
    assert all(panel["description"] for panel in shown)


def test_the_dashboards_variables_filter_what_has_their_label() -> None:
    variables = [each["name"] for each in questions.dashboard()["templating"]["list"]]
    assert variables == ["datasource", "namespace", "product", "node"]
    text = questions.dashboard_text()
    for name in variables[1:]:
        assert f'{name}=~\\"${name}\\"' in text
    assert "<" not in text
    queries = [query for question in questions.QUESTIONS for panel in question.panels for query, _ in panel.queries]
    assert "sum(gpu_topology:gpus)" in queries
    assert 'sum(gpu_topology:gpus{state="free"})' in queries
    assert not [query for query in queries if "$" in query or "<" in query or "{}" in query or "{," in query]


@pytest.mark.helm
def test_runbooks_are_absolute_links_where_the_chart_knows_the_docs() -> None:
    made = objects(*ALL, "metrics.prometheusRule.runbookUrl=https://git.example.com/gpus/docs/")
    (rule,) = (found for (kind, _), found in made.items() if kind == "PrometheusRule")
    notes = [each["annotations"] for group in rule["spec"]["groups"] for each in group["rules"] if "alert" in each]
    assert notes[0]["runbook_url"] == "https://git.example.com/gpus/docs/runbooks/alerts.md#gputopologynoleader"
    assert [each for each in notes if "runbook" in each or "runbook_url" not in each] == []


@pytest.mark.helm
def test_the_chart_has_them_where_they_are_asked_for() -> None:
    kinds = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
    assert not kinds & {kind for kind, _ in objects()}
    made = objects(*ALL, "metrics.podMonitor.labels.release=prom", "mps.enabled=true")
    (rule,) = (found for (kind, _), found in made.items() if kind == "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    (board,) = (found for (kind, name), found in made.items() if kind == "ConfigMap" and name.endswith("-dashboard"))
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["gpu-topology.json"]) == questions.dashboard()
    monitors = [found for (kind, _), found in made.items() if kind == "PodMonitor"]
    assert len(monitors) == 4
    pods = [found for (kind, _), found in made.items() if kind in ("Deployment", "DaemonSet")]
    services = [found for (kind, name), found in made.items() if kind == "Service" and name.endswith("-metrics")]
    (of_services,) = (found for (kind, _), found in made.items() if kind == "ServiceMonitor")
    for monitor in monitors:
        assert monitor["metadata"]["labels"]["release"] == "prom"
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["honorLabels"] is True
        chosen = monitor["spec"]["selector"]["matchLabels"].items()
        (own,) = (pod for pod in pods if chosen <= pod["spec"]["template"]["metadata"]["labels"].items())
        ports = {
            port["name"]: port["containerPort"]
            for c in own["spec"]["template"]["spec"]["containers"]
            for port in c["ports"]
        }
        assert endpoint["port"] in ports
        (service,) = (one for one in services if one["spec"]["selector"] == dict(chosen))
        assert service["spec"]["ports"][0]["port"] == ports["health"]
        assert of_services["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert of_services["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
