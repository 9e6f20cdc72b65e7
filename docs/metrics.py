"""Write docs/reference/metrics.md: every metric of every process, as their code defines it.

Usage: python -m docs.metrics

The alerts of each metric are those of the chart's rules.yaml whose expression has it, or has a recording rule with it.

Each process's modules are imported in a Python of its own, so that a metric is told of where it really is.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec
import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "docs" / "reference" / "metrics.md"
RULES: Final = ROOT / "helm" / "gpu-topology-dra" / "monitoring" / "rules.yaml"
# A process and the package whose modules it can load.
PROCESSES: Final = {
    "node agent": "dradriver.node",
    "MPS": "dradriver.node.mps",
    "controller": "dradriver.controller",
    "webhook": "webhook",
}
PREFIX: Final = "gpu_topology_"
_SUFFIX: Final = {"counter": "_total", "histogram": "", "gauge": "", "info": "_info"}
_UNITS: Final = ("_seconds", "_percent", "_gbps")  # of histograms; gbps is GB/s
_NO_GAUGE: Final = re.compile("_(total|count|sum|bucket|info|created)$|(?<!_timestamp)_seconds$")
_HEAD: Final = """\
# Metrics

Every metric of every process.

Each process serves its metrics as Prometheus text on its health port, at `/metrics`. The same address has the metrics
of every Python process (`python_*`, `process_*`). Written by `make metrics` from what the code defines.

[monitoring.md](../tasks/monitoring.md) says how Prometheus scrapes them, and [questions.md](questions.md) has queries.

* All names start with `gpu_topology_`. Counters end in `_total`. Histograms end in their unit (`gbps` is GB/s). Gauges
  have no ending, or `_timestamp_seconds` if the value is a time.
* A label has one of the values in the table, or `other`, but never a text that a user wrote. The label `namespace`
  names the hundred largest namespaces. All smaller namespaces together are `other`.
* Metrics that end in `_info` always have the value 1. Join them with other metrics by their labels, which are names of
  objects. Each has at most 1,024 series.
* The labels `nic` and `port` are the kernel's names on the node, of at most 64 cards.
"""


@dataclass(frozen=True)
class Metric:
    """What the registry of a process knows of a metric. ``labels`` is None where nobody bounds what they hold."""

    name: str
    kind: str
    text: str
    labels: Mapping[str, tuple[str, ...]] | None


def defined(package: str) -> list[Metric]:
    """Return the metrics that a package's modules and all that they import define, in this process, by name."""
    from prometheus_client import REGISTRY

    from dradriver.kube.labelled_metrics import Amounts, Labelled, Names, Spans, Totals

    top = importlib.import_module(package)
    others = tuple(f"{other}." for other in PROCESSES.values() if other.startswith(f"{package}."))
    for module in pkgutil.walk_packages(top.__path__, f"{package}."):
        if not module.name.startswith(others):
            importlib.import_module(module.name)
    ours = [module for name, module in sys.modules.items() if name.split(".")[0] in ("dradriver", "webhook")]
    values = [value for module in ours for value in vars(module).values()]
    words = {
        value.name: value.words for value in values if isinstance(value, Amounts | Labelled | Names | Spans | Totals)
    }
    found = []
    for family in REGISTRY.collect():
        name = family.name + (_SUFFIX[family.type] if family.type in ("counter", "info") else "")
        if not name.startswith(("python_", "process_")):
            # Without labels a metric has its samples from the start, and they have none but a bucket's.
            plain = family.samples and all(sample.labels.keys() <= {"le"} for sample in family.samples)
            labels = words.get(name, {} if plain else None)
            found.append(Metric(name, family.type, family.documentation, labels))
    return sorted(found, key=lambda metric: metric.name)


def everywhere() -> dict[str, list[Metric]]:
    """Return the metrics of each process.

    Raises:
        CalledProcessError: A module cannot be imported; Python has said why.
    """
    found = {}
    for process, package in PROCESSES.items():
        command = [sys.executable, "-m", "docs.metrics", f"--of={package}"]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
        found[process] = msgspec.json.decode(done.stdout, type=list[Metric])
    return found


def faults(metric: Metric) -> list[str]:
    """Return what is against the convention, in sentences that say what to write."""
    suffix = _SUFFIX.get(metric.kind)
    said = []
    if not re.fullmatch(f"{PREFIX}[a-z0-9_]+", metric.name):
        said.append(f"write a name that starts with {PREFIX}")
    if suffix is None:
        said.append(f"a {metric.kind} is none of {', '.join(_SUFFIX)}")
    elif not metric.name.endswith(suffix):
        said.append(f"write a name that ends in {suffix}")
    elif metric.kind == "histogram" and not metric.name.endswith(_UNITS):
        said.append(f"write a name that ends in {', '.join(_UNITS[:-1])} or {_UNITS[-1]}")
    if metric.kind == "gauge" and _NO_GAUGE.search(metric.name):
        said.append("write a gauge's name without suffix")
    if metric.labels is None:
        said.append("write dradriver.kube.labelled_metrics.Labelled and what each label can be")
    if not metric.text.endswith("."):
        said.append("write its text as a sentence")
    return said


@functools.cache
def _rules(kind: Literal["alert", "record"]) -> dict[str, str]:
    """Return the expression of each alert, or of each recording rule, of the chart."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return {rule[kind]: rule["expr"] for group in groups for rule in group["rules"] if kind in rule}


def alerts_of(name: str) -> list[str]:
    """Return the alerts of the chart whose expressions have a metric, also through recording rules."""
    samples = re.compile(rf"(?<![\w:]){name}(_bucket|_count|_sum)?(?![\w:])")
    alerts = {alert for alert, expression in _rules("alert").items() if samples.search(expression)}
    for record, expression in _rules("record").items():
        if samples.search(expression):
            alerts.update(alerts_of(record))
    return [alert for alert in _rules("alert") if alert in alerts]


def page(found: Mapping[str, Iterable[Metric]]) -> str:
    """Return the whole of docs/reference/metrics.md for the metrics of each process."""
    metrics = {metric.name: metric for some in found.values() for metric in some}
    rows = ["| metric | type | labels | process | what it says | alerts |", "|---|---|---|---|---|---|"]
    for name, metric in sorted(metrics.items()):
        labels = "; ".join(f"`{label}`: {', '.join(words)}" for label, words in (metric.labels or {}).items())
        processes = ", ".join(process for process, some in found.items() if metric in some)
        alerts = ", ".join(f"[{alert}](../runbooks/alerts.md#{alert.lower()})" for alert in alerts_of(name))
        rows.append(f"| `{name}` | {metric.kind} | {labels} | {processes} | {metric.text} | {alerts} |")
    return "\n".join([_HEAD, *rows, ""])


def main(argv: list[str]) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m docs.metrics", description="Write docs/reference/metrics.md.")
    parser.add_argument("--of", metavar="PACKAGE", help="only print what a package defines, as JSON")
    args = parser.parse_args(argv)
    if args.of:
        sys.stdout.buffer.write(msgspec.json.encode(defined(args.of)))
    else:
        TARGET.write_text(page(everywhere()))


if __name__ == "__main__":
    main(sys.argv[1:])
