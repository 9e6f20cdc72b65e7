"""The benchmark measures what it says, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.bench.throughput.chart import Chart
from tests.bench.throughput.numbers import percentile
from tests.cluster.nodeless import Nodeless
from tests.cluster.processes import ProcessId
from tests.cluster.waiting import wait_for
from tests.paths import REPO

COMMAND = [sys.executable, "-m", "tests.bench.throughput", "--name", "bench-test"]


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(1, 201)]
    assert (percentile(values, 50), percentile(values, 99), percentile([7.0], 99), percentile([], 50)) == (
        100,
        198,
        7,
        0,
    )


def test_a_part_gets_the_arguments_that_its_pod_would() -> None:
    chart = Chart(
        """
kind: Deployment
metadata: {labels: {app.kubernetes.io/component: webhook}}
spec: {template: {spec: {containers: [{args: [webhook, --namespace=$(NAMESPACE), --port=8443]}]}}}
---
kind: Service
metadata: {name: hooks, namespace: somewhere}
spec: {selector: {a: b}, ports: [{name: https, port: 443}]}
"""
    )
    assert chart.arguments == {"webhook": ["webhook", "--namespace=gpu-topology", "--port=8443"]}
    assert [each["kind"] for each in chart.objects] == ["Namespace", "Service", "EndpointSlice"]
    assert chart.objects[2]["ports"] == [{"name": "https", "port": 8443, "protocol": "TCP"}]


@pytest.mark.extended
@pytest.mark.cluster
def test_all_variants_bind_every_pod(tmp_path: Path) -> None:
    needs.real_cluster()
    file = tmp_path / "figures.json"
    size = ["--nodes", "5", "--pods", "10", "--rounds", "1", "--rate", "5", "--seconds", "2", "--machine", "dgx1-v100"]
    variants = ["--variants", "ours", "match", "count", "plain", "pin2"]
    subprocess.run([*COMMAND, "--mode", "all", *size, *variants, "--json", str(file)], cwd=REPO, check=True)
    figures = json.loads(file.read_text())
    assert {each["variant"]: each["bound"] for each in figures["burst"]} == dict.fromkeys(variants[1:], 10)
    assert figures["burst"][0]["requests_a_pod"]["POST pods"] == 1
    assert {each["variant"]: each["bound"] for each in figures["steady"]} == {"ours": 10, "count": 10}
    assert figures["start"][0]["ready"]["rss_mib"] > 0
    assert all(each["cpu_ms"]["apiserver"] > 0 for each in figures["writes"])
    written = [each["write"].split()[0] for each in figures["writes"]]
    assert written == ["POST", "POST", "POST", "PATCH", "PATCH", "POST", "PATCH", "POST"]
    assert not Nodeless("bench-test").folder.exists()


@pytest.mark.extended
@pytest.mark.cluster
def test_nothing_is_left_when_it_is_ended() -> None:
    needs.real_cluster()
    plane = Nodeless("bench-test")
    with subprocess.Popen([*COMMAND, "--nodes", "2000"], cwd=REPO, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "without nodes is up" in process.stdout.readline()
        holder = ProcessId.read(plane.folder / "sandbox" / "holder")
        assert holder is not None
        inside = os.readlink(f"/proc/{holder.pid}/ns/net")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not plane.folder.exists()
    wait_for("end of all processes inside", lambda: inside not in _networks(), seconds=20)


def _networks() -> set[str]:
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(link))
        except OSError:  # gone meanwhile
            continue
    return found
