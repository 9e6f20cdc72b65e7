"""Write what answers a platform team's questions: docs/questions.md, and the chart's Grafana dashboard.

Usage: python -m docs.questions

One list for both, so that no question is without an answer, and no panel without a question.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "questions.md"
DASHBOARD: Final = ROOT / "helm" / "gpu-topology-dra" / "monitoring" / "dashboard.json"
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH: Final = 24  # of Grafana's grid
_HEIGHT: Final = 8


@dataclass(frozen=True)
class Panel:
    """One picture.

    Attributes:
        title: What is seen.
        queries: PromQL, and what each series is called.
        unit: As Grafana names units.
        kind: Grafana's type: timeseries, table, stat, bargauge.
        stacked: Whether series lie on each other.
        width: Of 24.
        now: Whether only the last values count.
    """

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    stacked: bool = False
    width: int = 12
    now: bool = False


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


QUESTIONS: Final = (
    Question(
        "Which team holds GPUs that do nothing?",
        (
            Panel("Idle GPUs by namespace", (("gpu_topology:gpus_idle:by_namespace", "{{namespace}}"),)),
            Panel(
                "GPUs at work by namespace",
                (("sum by (namespace) (gpu_topology_node_gpus_busy)", "{{namespace}}"),),
            ),
        ),
        ("gputopo idle",),
    ),
    Question(
        "What is free and what is held, by product?",
        (Panel("GPUs by what becomes of them", (("gpu_topology:gpus", "{{product}}: {{state}}"),), stacked=True),),
        ("gputopo free",),
    ),
    Question(
        "How fragmented is what is free, and is it getting worse?",
        (
            Panel(
                "Free GPUs that are in no set of eight",
                (("gpu_topology:fragmentation", "{{product}}"),), unit="percentunit",
            ),
            Panel(
                "Free sets by size",
                (("sum by (gpus) (gpu_topology:free_sets)", "sets of {{gpus}}"),),
            ),
            Panel(
                "Largest gang that fits",
                (("max by (level, gpus) (gpu_topology_largest_gang_pods)", "{{level}}: pods of {{gpus}} GPUs"),),
            ),
        ),
        ("gputopo free", "gputopo defrag"),
    ),
    Question("Why does this pod wait?", (), ("gputopo explain POD -n NAMESPACE", "kubectl describe pod POD")),
    Question(
        "How long do pods wait, by size and by team?",
        (
            Panel(
                "p95 of the wait by GPUs",
                (("gpu_topology:pod_wait_duration_seconds:p95_1h_by_size", "{{gpus}}"),), unit="s",
            ),
            Panel(
                "p95 of the wait by namespace",
                (("gpu_topology:pod_wait_duration_seconds:p95_1h_by_namespace", "{{namespace}}"),), unit="s",
            ),
        ),
    ),
    Question(
        "How good were last week's placements?",
        (
            Panel(
                "Mean score by GPUs, a week",
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
                "Placements by level, a week",
                (("sum by (level) (increase(gpu_topology_placements_total[7d]))", "{{level}}"),),
                kind="bargauge", now=True,
            ),
            Panel(
                "Predicted all-reduce, median by GPUs",
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
                "Preferences by what was got, a day",
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
                (
                    (
                        "(sum by (gpus) (increase(gpu_topology_placements_across_numa_total[1d]))"
                        ' or 0 * sum by (gpus) (increase(gpu_topology_placements_total{gpus!~"1|part"}[1d])))'
                        ' / (sum by (gpus) (increase(gpu_topology_placements_total{gpus!~"1|part"}[1d])) > 0)',
                        "{{gpus}}",
                    ),
                ),
                unit="percentunit",
            ),
        ),
    ),
    Question(
        "What keeps those that wait?",
        (
            Panel(
                "Waiting pods by cause",
                (("max by (cause) (gpu_topology_waiting_pods_by_cause)", "{{cause}}"),), stacked=True,
            ),
            Panel(
                "Promises kept and taken back, a minute",
                (
                    ("60 * sum(rate(gpu_topology_promises_kept_total[5m]))", "kept"),
                    ("60 * sum by (cause) (rate(gpu_topology_promises_withdrawn_total[5m]))", "{{cause}}"),
                ),
            ),
        ),
        ("gputopo queue", "gputopo explain -A"),
    ),
    Question(
        "What does each team cost?",
        (
            Panel(
                "Cost by namespace, a day",
                (
                    (
                        "sum by (namespace, currency)"
                        " (sum by (namespace, product) (increase(gpu_topology_gpu_seconds_total[1d])) / 3600"
                        " * on (product) group_left (currency)"
                        " max by (product, currency) (gpu_topology_gpu_price_per_hour))",
                        "{{namespace}} {{currency}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "GPU-hours by namespace, a day",
                (("sum by (namespace) (increase(gpu_topology_gpu_seconds_total[1d])) / 3600", "{{namespace}}"),),
                stacked=True,
            ),
            Panel(
                "GPU-hours by product and kind, a day",
                (
                    (
                        "sum by (product, kind) (increase(gpu_topology_gpu_seconds_total[1d])) / 3600",
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
                "What tenants have of their caps",
                (
                    (
                        "max by (tenant) (gpu_topology_tenant_gpus) / max by (tenant) (gpu_topology_tenant_cap_gpus)",
                        "{{tenant}}",
                    ),
                ),
                unit="percentunit", kind="bargauge", now=True,
            ),
            Panel(
                "GPUs held by namespace",
                (("sum by (namespace) (gpu_topology:gpus_held:by_namespace)", "{{namespace}}"),),
            ),
        ),
        ("gputopo tenants", "gputopo quota"),
    ),
    Question(
        "Which GPUs are ill, and whose jobs are on them?",
        (
            Panel(
                "GPUs with faults",
                (("max by (uuid, node, kind) (gpu_topology_gpu_fault_info)", ""),),
                kind="table", now=True,
            ),
            Panel(
                "Pods on GPUs with faults",
                (("gpu_topology:gpu_faults:by_pod", ""),),
                kind="table", now=True,
            ),
            Panel(
                "GPUs with faults by kind",
                (("sum by (kind) (gpu_topology_node_faults) > 0 or vector(0)", "{{kind}}"),),
            ),
        ),
        ("gputopo topo --cluster",),
    ),
    Question(
        "Which processes use GPUs outside of any claim?",
        (
            Panel(
                "GPUs that foreign processes keep",
                (("sum by (node) (gpu_topology_node_gpus_held)", "{{node}}"),),
            ),
        ),
        ("kubectl get events -A --field-selector reason=GPUUnhealthy",),
    ),
    Question(
        "How full are GPUs that are shared or sliced?",
        (
            Panel(
                "Used of the GPUs that are in parts",
                (("gpu_topology:parts_occupancy", "{{product}}: {{kind}}"),), unit="percentunit",
            ),
            Panel(
                "GPUs in parts",
                (("max by (product, kind) (gpu_topology_gpus_in_parts)", "{{product}}: {{kind}}"),),
            ),
        ),
        ("gputopo free",),
    ),
    Question(
        "Is the driver itself well?",
        (
            Panel(
                "Leaders, agents that are registered, webhooks",
                (
                    ("sum(gpu_topology_controller_leads)", "leaders"),
                    ("sum(gpu_topology_node_registered)", "registered agents"),
                    ("count(gpu_topology_webhook_certificate_end_timestamp_seconds)", "webhooks"),
                ),
            ),
            Panel(
                "p99 of the parts' work",
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
                "The certificate ends in",
                (("min(gpu_topology_webhook_certificate_end_timestamp_seconds) - time()", "certificate"),),
                unit="s", kind="stat", now=True,
            ),
            Panel(
                "Policies in force",
                (("min(gpu_topology_policies_valid)", "valid"),), kind="stat", now=True,
            ),
        ),
        ("gputopo verify",),
    ),
)  # fmt: skip

_HEAD: Final = """\
# A platform team's questions

*Reference.* What answers each question that a platform team asks.

Each is answered by a command, or by panels of the chart's dashboard (`metrics.dashboard.enabled`), whose queries stand
here. Names that contain `:` are the recording rules of the chart (`metrics.prometheusRule.enabled`). `make metrics`
writes this page from `docs/questions.py`; a test asks a real Prometheus each query, over a scrape of a cluster.
"""


def page() -> str:
    """Return the whole of docs/questions.md."""
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
    """Return the Grafana dashboard: a row for each question that has panels."""
    panels: list[dict[str, Any]] = []
    top = 0
    for question in QUESTIONS:
        if not question.panels:
            continue
        place = {"h": 1, "w": _WIDTH, "x": 0, "y": top}
        panels.append(
            {
                "type": "row",
                "title": question.text,
                "collapsed": False,
                "gridPos": place,
                "id": len(panels),
                "panels": [],
            }
        )
        top += 1
        left = 0
        for panel in question.panels:
            if left + panel.width > _WIDTH:
                left, top = 0, top + _HEIGHT
            panels.append(_panel(panel, len(panels), {"h": _HEIGHT, "w": panel.width, "x": left, "y": top}))
            left += panel.width
        top += _HEIGHT
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
            "list": [{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}]
        },
        "panels": panels,
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
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": SOURCE,
                "expr": query,
                "legendFormat": legend,
                "instant": panel.now,
                "range": not panel.now,
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for at, (query, legend) in enumerate(panel.queries)
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
