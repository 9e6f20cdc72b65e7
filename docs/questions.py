"""Write the answers to a platform team's questions: docs/reference/questions.md, and the chart's Grafana dashboard.

Usage: python -m docs.questions

One list for both, so that no question is without an answer, and no panel without a question.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "reference" / "questions.md"
DASHBOARD: Final = ROOT / "helm" / "gpu-topology-dra" / "monitoring" / "dashboard.json"
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
VARIABLES: Final = {  # of the dashboard, each with the metric whose label has the values
    "namespace": "gpu_topology_gpus_allocated",
    "product": "gpu_topology_gpus",
    "node": "gpu_topology_gpu_number_info",
}
_WIDTH: Final = 24  # of Grafana's grid
_HEIGHT: Final = 8


@dataclass(frozen=True)
class Panel:
    """One picture.

    Attributes:
        title: What is seen.
        about: What it counts, in a sentence or two.
        filtered: PromQL, and what each series is called. ``<product>`` in a selector stands for a variable's filter.
        unit: As Grafana names units.
        kind: Grafana's type: timeseries, table, stat, bargauge.
        stacked: Whether series lie on each other.
        width: Of 24.
        now: Whether only the last values count.
    """

    title: str
    about: str
    filtered: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    stacked: bool = False
    width: int = 12
    now: bool = False

    @property
    def queries(self) -> tuple[tuple[str, str], ...]:
        """Return the queries without the filters of the dashboard's variables."""
        bare = ((re.sub(r",?<\w+>", "", query), legend) for query, legend in self.filtered)
        return tuple((re.sub(r"{,?}", "", query).replace("{,", "{"), legend) for query, legend in bare)


@dataclass(frozen=True)
class Question:
    """A question, and what answers it.

    Attributes:
        text: The question.
        panels: Pictures in the dashboard.
        commands: Commands that answer it, or tell more.
    """

    text: str
    panels: tuple[Panel, ...] = field(default=())
    commands: tuple[str, ...] = field(default=())


def _stat(title: str, about: str, query: str, unit: str = "short") -> Panel:
    return Panel(title, about, ((query, ""),), unit=unit, kind="stat", width=3, now=True)


QUESTIONS: Final = (
    Question(
        "Is something broken?",
        (
            _stat("GPUs", "All GPUs that the agents publish.", "sum(gpu_topology:gpus{<product>})"),
            _stat(
                "Free", "GPUs that a pod can have whole now, as gputopo free counts them.",
                'sum(gpu_topology:gpus{state="free",<product>})',
            ),
            _stat(
                "With faults", "GPUs that have a fault now; the row of unhealthy GPUs says which.",
                "count(count by (uuid) (gpu_topology_gpu_fault_info{<node>})) or vector(0)",
            ),
            _stat("Waiting", "Pods that wait for a place; a gang counts as one.", "max(gpu_topology_waiting_pods)"),
            _stat(
                "Oldest wait",
                "Time since the creation of the pod that waits longest. Pods that were handed over do not count.",
                "(time() - (max(gpu_topology_oldest_waiting_pod_timestamp_seconds) > 0)) or vector(0)", unit="s",
            ),
            _stat(
                "p95 of the wait", "From the creation of a pod to its placement, over the last hour.",
                "histogram_quantile(0.95, sum by (le)"
                " (rate(gpu_topology_pod_wait_duration_seconds_bucket{<namespace>}[1h])))",
                unit="s",
            ),
            _stat("Agents", "Node agents that are registered.", "sum(gpu_topology_node_registered{<node>})"),
        ),
        ("gputopo verify", "gputopo serve"),
    ),
    Question(
        "Which team has GPUs that do nothing?",
        (
            Panel(
                "Idle GPUs by namespace",
                "GPUs that are allocated and that did no work, counted by the node agents.",
                (("gpu_topology:gpus_idle:by_namespace{<namespace>}", "{{namespace}}"),),
            ),
            Panel(
                "GPUs at work by namespace", "GPUs that are allocated and that do work.",
                (("sum by (namespace) (gpu_topology_node_gpus_busy{<namespace>})", "{{namespace}}"),),
            ),
        ),
        ("gputopo idle",),
    ),
    Question(
        "What is free and what is allocated, by product?",
        (
            Panel(
                "GPUs by state",
                "Each GPU counts in one state. Free is what gputopo free counts.",
                (("gpu_topology:gpus{<product>}", "{{product}}: {{state}}"),), stacked=True,
            ),
        ),
        ("gputopo free",),
    ),
    Question(
        "How fragmented are the free GPUs, and is it getting worse?",
        (
            Panel(
                "Free GPUs that are in no set of eight",
                "The share of the free GPUs that no pod with 8 GPUs can use. It grows while the cluster fragments.",
                (("gpu_topology:fragmentation{<product>}", "{{product}}"),), unit="percentunit",
            ),
            Panel(
                "Free sets by size",
                "How many pods of each size would find a set of free GPUs now, each size for itself.",
                (("sum by (gpus) (gpu_topology:free_sets{<product>})", "sets of {{gpus}}"),),
            ),
            Panel(
                "Largest gang that fits",
                "Pods of the largest gang that fits within one domain of each level of the network.",
                (("max by (level, gpus) (gpu_topology_largest_gang_pods)", "{{level}}: pods of {{gpus}} GPUs"),),
            ),
        ),
        ("gputopo free", "gputopo defrag"),
    ),
    Question("Why does this pod wait?", (), ("gputopo explain NAMESPACE/POD", "kubectl describe pod POD")),
    Question(
        "How long do pods wait, by size and by team?",
        (
            Panel(
                "p95 of the wait by GPUs",
                "From the creation of a pod to its placement, over the last hour, by the number of its GPUs.",
                (("gpu_topology:pod_wait_duration_seconds:p95_1h_by_size", "{{gpus}}"),), unit="s",
            ),
            Panel(
                "p95 of the wait by namespace", "From the creation of a pod to its placement, over the last hour.",
                (("gpu_topology:pod_wait_duration_seconds:p95_1h_by_namespace{<namespace>}", "{{namespace}}"),),
                unit="s",
            ),
        ),
    ),
    Question(
        "How good were last week's placements?",
        (
            Panel(
                "Mean score by GPUs, a week", "100 is the best set that the machine has when it is empty.",
                (
                    (
                        "sum by (gpus) (increase(gpu_topology_placement_score_percent_sum[7d]))"
                        " / sum by (gpus) (increase(gpu_topology_placement_score_percent_count[7d]))",
                        "{{gpus}}",
                    ),
                ),
                unit="percent", kind="bargauge", now=True,
            ),
            Panel(
                "Placements by level, a week", "The worst link between the GPUs of each placement.",
                (("sum by (level) (increase(gpu_topology_placements_total[7d]))", "{{level}}"),),
                kind="bargauge", now=True,
            ),
            Panel(
                "Predicted all-reduce, median by GPUs",
                "The predicted bus bandwidth of the sets that pods got.",
                (
                    (
                        "histogram_quantile(0.5, sum by (le, gpus)"
                        " (increase(gpu_topology_placement_busbw_gbps_bucket[7d])))",
                        "{{gpus}}",
                    ),
                ),
                unit="GBs", kind="bargauge", now=True,
            ),
        ),
    ),
    Question(
        "How often did pods not get what they prefer?",
        (
            Panel(
                "Preferences by result, a day", "Which fallback level of their request pods got.",
                (("sum by (got) (increase(gpu_topology_placement_preferences_total[1d]))", "{{got}}"),),
                stacked=True,
            ),
        ),
    ),
    Question(
        "How many sets are across NUMA nodes?",
        (
            Panel(
                "Sets on several NUMA nodes, a day",
                "The share of the sets of two GPUs and more that cross NUMA nodes.",
                (
                    (
                        "(sum by (gpus) (increase(gpu_topology_placements_across_numa_total[1d]))"
                        ' or 0 * sum by (gpus) (increase(gpu_topology_placements_total{gpus!~"1|fraction"}[1d])))'
                        ' / (sum by (gpus) (increase(gpu_topology_placements_total{gpus!~"1|fraction"}[1d])) > 0)',
                        "{{gpus}}",
                    ),
                ),
                unit="percentunit",
            ),
        ),
    ),
    Question(
        "Why do pods wait?",
        (
            Panel(
                "Waiting pods by cause",
                "The cause of each waiting pod now. gputopo explain POD says more.",
                (("max by (cause) (gpu_topology_waiting_pods_by_cause)", "{{cause}}"),), stacked=True,
            ),
            Panel(
                "Tentative placements kept and revoked, a minute",
                "Tentative placements that became allocations, and those that were revoked, by cause.",
                (
                    ("60 * sum(rate(gpu_topology_tentative_placements_kept_total[5m]))", "kept"),
                    ("60 * sum by (cause) (rate(gpu_topology_tentative_placements_revoked_total[5m]))", "{{cause}}"),
                ),
            ),
        ),
        ("gputopo queue", "gputopo explain -A"),
    ),
    Question(
        "What does each team cost?",
        (
            Panel(
                "Cost by namespace, a day", "GPU time of the last day at the prices of the policies file.",
                (
                    (
                        "sum by (namespace, currency)"
                        " (sum by (namespace, product)"
                        " (increase(gpu_topology_gpu_seconds_total{<namespace>,<product>}[1d])) / 3600"
                        " * on (product) group_left (currency)"
                        " max by (product, currency) (gpu_topology_gpu_price_per_hour))",
                        "{{namespace}} {{currency}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "GPU-hours by namespace, a day", "GPU time of the last day, shares and MIG slices as fractions.",
                (
                    (
                        "sum by (namespace)"
                        " (increase(gpu_topology_gpu_seconds_total{<namespace>,<product>}[1d])) / 3600",
                        "{{namespace}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "GPU-hours by product and kind, a day",
                "GPU time of the last day of whole GPUs, shares and MIG slices.",
                (
                    (
                        "sum by (product, kind)"
                        " (increase(gpu_topology_gpu_seconds_total{<namespace>,<product>}[1d])) / 3600",
                        "{{product}} {{kind}}",
                    ),
                ),
                stacked=True,
            ),
        ),
        ("gputopo usage --from 30d --by tenant",),
    ),
    Question(
        "Who is near a cap or a quota?",
        (
            Panel(
                "Used part of each tenant's cap", "100 % is the cap of the policies file.",
                (
                    (
                        "max by (tenant) (gpu_topology_tenant_gpus) / max by (tenant) (gpu_topology_tenant_cap_gpus)",
                        "{{tenant}}",
                    ),
                ),
                unit="percentunit", kind="bargauge", now=True,
            ),
            Panel(
                "GPUs allocated by namespace", "GPUs that are allocated; a share or MIG slice counts as its fraction.",
                (
                    (
                        "sum by (namespace) (gpu_topology:gpus_allocated:by_namespace{<namespace>,<product>})",
                        "{{namespace}}",
                    ),
                ),
            ),
        ),
        ("gputopo tenants", "kubectl get resourcequotas -A"),
    ),
    Question(
        "Which GPUs are unhealthy, and whose jobs are on them?",
        (
            Panel(
                "GPUs with faults",
                "Which GPUs have which faults now. gputopo health says what to do about each.",
                (("max by (uuid, node, kind) (gpu_topology_gpu_fault_info{<node>})", ""),),
                kind="table", now=True,
            ),
            Panel(
                "Pods on GPUs with faults", "The pods whose claims have GPUs with faults.",
                (("gpu_topology:gpu_faults:by_pod{<namespace>,<node>}", ""),),
                kind="table", now=True,
            ),
            Panel(
                "GPUs with faults by kind", "How many GPUs have each kind of fault.",
                (("sum by (kind) (gpu_topology_node_faults{<node>}) > 0 or vector(0)", "{{kind}}"),),
            ),
        ),
        ("gputopo health",),
    ),
    Question(
        "Which processes use GPUs outside of any claim?",
        (
            Panel(
                "GPUs that foreign processes use",
                "GPUs that no pod gets because processes without a claim use them.",
                (("sum by (node) (gpu_topology_node_gpus_unaccounted{<node>})", "{{node}}"),),
            ),
        ),
        ("kubectl get events -A --field-selector reason=GPUUnhealthy",),
    ),
    Question(
        "How full are shared and sliced GPUs?",
        (
            Panel(
                "Used fraction of shared and sliced GPUs",
                "How much of the GPUs with shares or MIG slices is allocated.",
                (("gpu_topology:fractions_occupancy{<product>}", "{{product}}: {{kind}}"),), unit="percentunit",
            ),
            Panel(
                "Shared and sliced GPUs", "GPUs that have shares or MIG slices.",
                (("max by (product, kind) (gpu_topology_gpus_in_fractions{<product>})", "{{product}}: {{kind}}"),),
            ),
        ),
        ("gputopo free",),
    ),
    Question(
        "Does the driver itself work?",
        (
            Panel(
                "Leaders, registered agents, webhooks",
                "One leader, one agent for each node with GPUs, as many webhooks as replicas.",
                (
                    ("sum(gpu_topology_controller_leads)", "leaders"),
                    ("sum(gpu_topology_node_registered)", "registered agents"),
                    ("count(gpu_topology_webhook_certificate_end_timestamp_seconds)", "webhooks"),
                ),
            ),
            Panel(
                "p99 of the parts' work", "Time of admission, placing and preparing, over five minutes.",
                (
                    (
                        "histogram_quantile(0.99, sum by (le)"
                        " (rate(gpu_topology_admission_request_duration_seconds_bucket[5m])))",
                        "admission",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le)"
                        " (rate(gpu_topology_placement_duration_seconds_bucket[5m])))",
                        "placing",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le)"
                        ' (rate(gpu_topology_node_call_duration_seconds_bucket{call="prepare"}[5m])))',
                        "preparing",
                    ),
                ),
                unit="s",
            ),
            Panel(
                "The certificate ends in", "The webhook renews its certificate itself, long before this is 0.",
                (("min(gpu_topology_webhook_certificate_end_timestamp_seconds) - time()", "certificate"),),
                unit="s", kind="stat", now=True,
            ),
            Panel(
                "Policies in force", "0 if the policies file is invalid: then the last valid one is in force.",
                (("min(gpu_topology_policies_valid)", "valid"),), kind="stat", now=True,
            ),
        ),
        ("gputopo verify",),
    ),
)  # fmt: skip

_HEAD: Final = """\
# A platform team's questions

Find the command or the query that answers a platform team's question.

The chart's dashboard has the same queries (`metrics.dashboard.enabled`). Names that contain `:` are recording
rules of the chart (`metrics.prometheusRule.enabled`). `make metrics` writes this page from `docs/questions.py`. A test
runs each query on a real Prometheus that scrapes a cluster.
"""


def page() -> str:
    """Return the whole of docs/reference/questions.md."""
    parts = [_HEAD]
    for question in QUESTIONS:
        parts.append(f"## {question.text}\n")
        if question.commands:
            parts.append("\n".join(f"    {command}" for command in question.commands) + "\n")
        parts += (
            f"{panel.title}:\n\n" + "\n".join(f"    {query}" for query, _ in panel.queries) + "\n"
            for panel in question.panels
        )
    return "\n".join(parts)


def dashboard() -> dict[str, Any]:
    """Return the Grafana dashboard: a row for each question that has panels; all but the first are collapsed."""
    rows: list[dict[str, Any]] = []
    numbers = itertools.count()
    top = 0
    for question in QUESTIONS:
        if not question.panels:
            continue
        is_open = not rows
        row = {
            "type": "row",
            "title": question.text,
            "collapsed": not is_open,
            "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": top},
            "id": next(numbers),
        }
        top += 1
        height = _HEIGHT // 2 if all(panel.kind == "stat" for panel in question.panels) else _HEIGHT
        left, y = 0, top
        panels = []
        for panel in question.panels:
            if left + panel.width > _WIDTH:
                left, y = 0, y + height
            panels.append(_panel(panel, next(numbers), {"h": height, "w": panel.width, "x": left, "y": y}))
            left += panel.width
        # Grafana keeps the panels of a collapsed row in the row.
        rows += [row | {"panels": []}, *panels] if is_open else [row | {"panels": panels}]
        top = y + height if is_open else top
    return {
        "title": "GPU topology",
        "uid": "gpu-topology",
        "description": "Who has which GPUs, what is free, who waits and why, and how good placements are.",
        "tags": ["gpu", "kubernetes"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-24h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                *(_variable(name, metric) for name, metric in VARIABLES.items()),
            ]
        },
        "panels": rows,
    }


def _variable(name: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {name})"
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.kind == "timeseries":
        custom: dict[str, Any] = {"fillOpacity": 20 if panel.stacked else 0, "showPoints": "never"}
        custom["stacking"] = {"mode": "normal" if panel.stacked else "none"}
        defaults |= {"custom": custom, "min": 0}
    made: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": SOURCE,
                "expr": re.sub(r"<(\w+)>", r'\1=~"$\1"', query),
                "legendFormat": legend,
                "instant": panel.now,
                "range": not panel.now,
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for at, (query, legend) in enumerate(panel.filtered)
        ],
    }
    if panel.kind == "timeseries":
        made["options"] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return made


def dashboard_text() -> str:
    """Return the dashboard as it is written."""
    return json.dumps(dashboard(), indent=1) + "\n"


def main() -> None:
    """Write both."""
    PAGE.write_text(page())
    DASHBOARD.write_text(dashboard_text())


if __name__ == "__main__":
    main()
