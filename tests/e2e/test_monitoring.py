"""A real Prometheus scrapes the driver on a real cluster: every query of the dashboard has something to show.

Beside it the monitors and rules of the chart, taken by an API server that has the Prometheus operator's kinds.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from docs import questions
from dradriver.api.base import names
from dradriver.topology import profiles
from tests import deploy, needs
from tests.cluster import Cluster, build
from tests.cluster.settings import PROMETHEUS_OPERATOR
from tests.e2e.installation import Installation
from tests.e2e.kubectl import Namespace, eventually, pod
from tests.e2e.parts import agent, kill
from tests.e2e.test_node_health import gputopo
from tests.fakes.ports import kept_port

RULES: Final = deploy.CHART / "monitoring" / "rules.yaml"
KINDS: Final = ("podmonitors", "servicemonitors", "prometheusrules")
SCRAPE_S: Final = 2
TEAM: Final = "t-monitored"
_METRICS: Final = ("service", "podMonitor", "serviceMonitor", "dashboard", "prometheusRule")
pytestmark = pytest.mark.chart(
    *(f"metrics.{part}.enabled=true" for part in _METRICS),
    f"policies.tenants.team.namespaces[0]={TEAM}",
    "policies.tenants.team.cap[0].gpus=16",
    "policies.prices.currency=EUR",
    "policies.prices.gpus[0].perHour=2",
)


class Prometheus:
    """One that scrapes every part of the driver through the API server, and evaluates the chart's rules."""

    def __init__(self, cluster: Cluster, folder: Path, port: int) -> None:
        self._folder = folder
        self.port = port
        user = json.loads(cluster.kubeconfig.read_text())
        (server,) = (one["cluster"] for one in user["clusters"])
        (credentials,) = (one["user"] for one in user["users"])
        ca = folder / "ca.crt"
        ca.write_bytes(base64.b64decode(server["certificate-authority-data"]))
        address = urllib.parse.urlsplit(server["server"])
        pods = cluster.api.objects("pods", namespace=deploy.NAMESPACE)
        found = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]  # others end
        scrapes = []
        for one in found:
            ports = {port["name"]: port["containerPort"] for port in one["spec"]["containers"][0]["ports"]}
            name = f"{one['metadata']['name']}:{ports['health']}"
            scrapes.append(
                {
                    "job_name": name,
                    "scheme": address.scheme,
                    "metrics_path": f"/api/v1/namespaces/{deploy.NAMESPACE}/pods/{name}/proxy/metrics",
                    "honor_labels": True,
                    "tls_config": {"ca_file": str(ca)},
                    "authorization": {"credentials": credentials["token"]},
                    "static_configs": [
                        {"targets": [address.netloc], "labels": {"instance": name, "node": one["spec"]["nodeName"]}}
                    ],
                }
            )
        config = {
            "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
            "rule_files": [str(RULES)],
            "scrape_configs": scrapes,
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = [
            str(needs.prometheus() / "prometheus"), f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn",
        ]  # fmt: skip
        self.log = (folder / "log").open("w")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        self.log.close()

    def ask(self, path: str, **words: str) -> Any:
        """Return what the HTTP API answers."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def ready(self) -> bool:
        """Whether it answers, and every target was scraped."""
        assert self.process.poll() is None, (self._folder / "log").read_text()
        try:
            targets = self.ask("targets")["activeTargets"]
        except OSError:
            return False
        return bool(targets) and all(target["health"] == "up" for target in targets)


@pytest.fixture(scope="module", autouse=True)
def _kinds(cluster: Cluster, installation: Installation) -> Iterator[None]:
    """The Prometheus operator's kinds are there before the chart that has objects of them, and go after it."""
    folder = build.source(PROMETHEUS_OPERATOR) / "example" / "prometheus-operator-crd"
    for kind in KINDS:
        cluster.kubectl("apply", "--server-side", "-f", str(folder / f"monitoring.coreos.com_{kind}.yaml"))
        path = f"/apis/monitoring.coreos.com/v1/{kind}"
        eventually(f"{kind} are served", lambda path=path: cluster.api.get(path))  # type: ignore[misc]
    yield
    installation.install()
    for kind in KINDS:
        cluster.kubectl("delete", f"crd/{kind}.monitoring.coreos.com")


@pytest.fixture
def team(driver: Cluster) -> Iterator[Namespace]:
    """The namespace of a tenant that has a cap."""
    team = Namespace(driver, TEAM)
    driver.kubectl("create", "namespace", TEAM)
    yield team
    team.kubectl("delete", "pods", "--all", "--timeout=120s")
    driver.kubectl("delete", "namespace", TEAM, "--timeout=120s")


@pytest.fixture
def prometheus(driver: Cluster, tmp_path: Path) -> Iterator[Prometheus]:
    """One that scrapes the driver."""
    with kept_port() as port:
        made = Prometheus(driver, tmp_path, port)
        yield made
        made.stop()


def test_every_query_of_the_dashboard_has_something_to_show(prometheus: Prometheus, team: Namespace) -> None:
    cluster = team.cluster
    node, gpus = cluster.nodes["node-a"], profiles.load(deploy.MACHINES["node-a"], seed="node-a").gpus
    work = deploy.state_dir(node) / "simulated" / "work"
    work.parent.mkdir(parents=True, exist_ok=True)
    work.write_text("".join(f"{gpu.uuid} {50 * (gpu.index % 2)}\n" for gpu in gpus))
    eventually("every part is scraped", prometheus.ready)
    team.apply(
        pod("across", gpus=8, words={names.PREFERRED: "same-numa,nvlink"}, node="node-a"),
        pod("share", words={names.SHARE: "0.5"}),
        pod("never", gpus=8, words={names.POLICY: "nvlink", names.PRODUCT: "none"}),
    )
    team.wait_running("across", "share")
    gputopo(node, "fail", "gpu-7", "--xid", "79")  # no other test's: a fault that comes again stays for longer
    try:
        queries = {query for one in questions.QUESTIONS for panel in one.panels for query, _ in panel.queries}

        def silent() -> list[str]:
            return sorted(query for query in queries if not prometheus.ask("query", query=query)["result"])

        eventually("all show something", lambda: not silent(), timeout_s=150, why=silent)
        faults = "gpu_topology:gpu_faults:by_pod"
        (fault,) = eventually("the fault", lambda: prometheus.ask("query", query=faults)["result"])
        assert fault["metric"]["pod"] == "across"

        def alerts() -> set[str]:
            return {one["labels"]["alertname"] for one in prometheus.ask("alerts")["alerts"]}

        these = {
            "GpuTopologyGpuUnhealthy",
            "GpuTopologyImpossiblePods",
        }  # one more may come and go where a scrape is late
        eventually("these wait for their time, and no others", lambda: alerts() == these, why=alerts)
    finally:
        gputopo(node, "heal")
        kill(cluster, agent(cluster, node.name)["name"])  # else the taint stays for a minute
        work.unlink()
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []


def test_the_prometheus_operators_kinds_take_what_the_chart_makes(driver: Cluster) -> None:
    made = driver.kubectl("-n", deploy.NAMESPACE, "get", ",".join((*KINDS, "configmaps")), "-o", "name").stdout
    assert len(re.findall("podmonitor.monitoring", made)) == 3
    assert len(re.findall("servicemonitor.monitoring|prometheusrule.monitoring|-dashboard", made)) == 3
