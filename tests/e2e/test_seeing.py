"""The page as a Deployment, and ``gputopo verify`` with its Job, on a real cluster with the accounts of the chart."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from dradriver.api.base import names
from tests import deploy
from tests.cluster import Cluster
from tests.e2e.kubectl import Namespace, eventually, gputopo, pod
from tests.e2e.parts import parts

pytestmark = pytest.mark.chart("page.enabled=true")


@contextlib.contextmanager
def forwarded(cluster: Cluster, name: str, port: int) -> Iterator[str]:
    """Forward a port of a pod of ours, as the API server lets those do who may; gives the address."""
    command = [str(cluster.kubectl_command), "-n", deploy.NAMESPACE, "port-forward", f"pod/{name}", f":{port}"]
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            (local,) = re.findall(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
            yield f"http://127.0.0.1:{local}"
        finally:
            process.terminate()


def test_the_page_shows_the_cluster_by_its_own_account(driver: Cluster, namespace: Namespace) -> None:
    namespace.apply(pod("seen", gpus=2, words={names.POLICY: "best-effort"}, node="node-a"))
    namespace.wait_running("seen")
    (page,) = parts(driver, "page")
    with forwarded(driver, page["name"], 8321) as url:

        def state() -> str:
            with urllib.request.urlopen(f"{url}/api/state", timeout=10) as answer:
                return gzip.decompress(answer.read()).decode()

        eventually("the page tells of both nodes and of the pod", lambda: all(
            text in state() for text in ("node/node-a", "node/node-b", "seen")
        ))  # fmt: skip
        told: Any = json.loads(state())
        assert "may not" not in json.dumps(told), "its account has all that it reads"


def test_verify_finds_nothing_wrong_and_its_job_looks_at_a_node(driver: Cluster) -> None:
    done = gputopo(driver.kubeconfig, "verify", "-o", "json")
    failed = [one for one in json.loads(done.stdout)["findings"] if one["status"] == "FAIL"]
    assert (failed, done.returncode) == ([], 0), done.stderr
    made = gputopo(driver.kubeconfig, "verify", "--job", "node-a")
    assert made.returncode == 0, made.stderr
    name = driver.kubectl("create", "-f", "-", "-o", "name", input=made.stdout).stdout.strip()
    try:
        ours = ("-n", deploy.NAMESPACE)

        def ended() -> dict[str, Any]:
            status: dict[str, Any] = json.loads(driver.kubectl(*ours, "get", name, "-o", "json").stdout)["status"]
            return status if status.get("succeeded") or status.get("failed") else {}

        eventually("the job has ended", ended, timeout_s=90)
        log = driver.kubectl(*ours, "logs", name).stdout
        assert "slices" in log
        assert re.search(r"(?m)^ *(PASS|WARN|FAIL) ", log), log
        assert "token" not in log, "it can ask the API server"
    finally:
        driver.kubectl(*ours, "delete", name)
