"""``gputopo verify`` where Kubernetes does not create node agents."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from dradriver.api.base.pod_security import ENFORCE
from dradriver.kube.resources import DAEMON_SETS, EVENTS, NAMESPACES, PODS
from tests.fakes.commands import CommandLine
from tests.fakes.gpucluster import GpuCluster
from tests.unit.cli.test_verify import DENIED, OURS, REVIEWS, part

LABEL = f"kubectl label namespace {OURS} {ENFORCE}=privileged --overwrite"
VIOLATES = 'Error creating: pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged'
QUOTA = "Error creating: insufficient quota to match these scopes: [{PriorityClass In [system-node-critical]}]"


async def findings(shell: CommandLine, *checks: str) -> list[dict[str, Any]]:
    listed = json.loads((await shell.run("verify", "-o", "json")).stdout)["findings"]
    return [one for one in listed if one["check"] in checks]


def refused(cluster: GpuCluster, name: str, message: str, at: str) -> None:
    """Write the Event that a pod of the DaemonSet is not created, and have an agent be missing."""
    labels = {"app.kubernetes.io/component": "node", "app.kubernetes.io/part-of": "gpu-topology"}
    metadata = {"name": "gpu-topology-node", "namespace": OURS, "labels": labels}
    cluster.put(DAEMON_SETS, {"metadata": metadata, "status": {"desiredNumberScheduled": 2}})
    about = {"kind": "DaemonSet", "namespace": OURS, "name": "gpu-topology-node"}
    event = {"metadata": {"name": name, "namespace": OURS}, "involvedObject": about, "reason": "FailedCreate"}
    cluster.put(EVENTS, event | {"message": message, "lastTimestamp": at})


@pytest.fixture
def installed(cluster: GpuCluster, shell: CommandLine) -> GpuCluster:
    cluster.node("n1")
    shell.api.fail(times=math.inf, method="POST", path=REVIEWS, status=201, body=b'{"status":{"allowed":true}}')
    shell.api.fail(times=math.inf, method="POST", path="/pods$", status=400, message=DENIED)
    cluster.put(PODS, part("node"))
    return cluster


@pytest.mark.parametrize(("level", "forbids"), [("restricted", True), ("baseline", True), ("privileged", False)])
async def test_a_standard_that_the_namespace_enforces(
    installed: GpuCluster, shell: CommandLine, level: str, forbids: bool
) -> None:
    installed.put(NAMESPACES, {"metadata": {"name": OURS, "labels": {ENFORCE: level}}})
    installed.put(NAMESPACES, {"metadata": {"name": "other", "labels": {ENFORCE: "restricted"}}})
    found = await findings(shell, "pod-security")
    assert [(one["status"], one["cure"]) for one in found] == ([("FAIL", LABEL)] if forbids else [])
    assert all(f'"{level}"' in one["message"] for one in found)


async def test_a_standard_that_the_api_server_itself_enforces(installed: GpuCluster, shell: CommandLine) -> None:
    refused(installed, "a", QUOTA, "2026-01-01T00:00:00Z")
    refused(installed, "b", VIOLATES, "2026-01-01T01:00:00Z")
    (found,) = await findings(shell, "pod-security")
    assert (found["message"], found["cure"]) == (VIOLATES, LABEL)


async def test_another_refusal_is_shown_while_an_agent_is_missing(installed: GpuCluster, shell: CommandLine) -> None:
    refused(installed, "a", QUOTA, "2026-01-01T00:00:00Z")
    assert any(QUOTA in one["message"] for one in await findings(shell, "agents"))
    installed.put(PODS, part("node", "n2"))
    assert not any(QUOTA in one["message"] for one in await findings(shell, "agents"))


async def test_a_namespace_that_may_not_be_read(installed: GpuCluster, shell: CommandLine) -> None:
    shell.api.fail(times=math.inf, path="/namespaces$", status=403, reason="Forbidden")
    (found,) = await findings(shell, "pod-security")
    assert found["status"] == "WARN"
