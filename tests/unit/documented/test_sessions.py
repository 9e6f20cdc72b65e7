"""What runbooks and other pages show of ``gputopo`` is what it prints in that situation."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from dradriver.kube.resources import PODS
from tests.consoles import commands, differs
from tests.fakes.commands import CommandLine
from tests.fakes.gpucluster import GpuCluster
from tests.paths import REPO
from tests.unit.cli.test_agents_gone import unpublish
from tests.unit.cli.test_health import taint
from tests.unit.cli.test_lost_gpus import lose
from tests.unit.cli.test_verify import part, well

__all__ = ["well"]

NO_WEBHOOK = (
    'Internal error occurred: failed calling webhook "create.pods.gpu.topology": failed to call webhook: Post '
    '"https://gpu-topology-webhook.gpu-topology.svc:443/mutate-pods?timeout=5s": no endpoints available for service '
    '"gpu-topology-webhook"'
)
CUT = re.compile(r"…")


async def check(shell: CommandLine, page: str, command: str, tmp_path: Path) -> None:
    """Run a command of a page; where a line of its output has an ellipsis, what stands around that is in one line."""
    text = (REPO / "docs" / page).read_text("utf-8").replace("```text\n$ ", "```console\n$ ")
    (copy := tmp_path / "page.md").write_text(text)
    (shown,) = [session for session in commands(copy) if session.text == f"gputopo {command}"]
    printed = (await shell.run(command)).stdout
    output = []
    for line in shown.output:
        parts = [" ".join(part.split()) for part in CUT.split(line)]
        form = re.compile(".*".join(map(re.escape, parts)))
        output.append(next((row for row in printed.splitlines() if form.fullmatch(" ".join(row.split()))), line))
    assert not differs(shown._replace(output=tuple(output)), printed), printed


async def test_a_node_agent_is_gone(cluster: GpuCluster, shell: CommandLine, tmp_path: Path) -> None:
    cluster.node("node-a")
    cluster.node("node-b")
    cluster.rival("old", "node-b", [0, 1])
    unpublish(cluster, "node-b")
    cluster.put(PODS, part("node", "node-a"))
    await check(shell, "runbooks/agent-gone.md", "health", tmp_path)
    await check(shell, "tasks/cluster.md", "topo --cluster", tmp_path)


async def test_two_gpus_have_faults(cluster: GpuCluster, shell: CommandLine, tmp_path: Path) -> None:
    cluster.node("node-a")
    cluster.node("node-b", "hgx-h100")
    taint(cluster, "node-a", 3, "xid", "79")
    taint(cluster, "node-b", 5, "thermal")
    cluster.put(PODS, part("node", "node-a"))
    cluster.put(PODS, part("node", "node-b"))
    await check(shell, "tasks/cluster.md", "health", tmp_path)


async def test_a_gpu_is_lost(cluster: GpuCluster, shell: CommandLine, tmp_path: Path) -> None:
    cluster.node("node-a")
    lose(cluster, "node-a", 2)
    cluster.put(PODS, part("node", "node-a"))
    await check(shell, "runbooks/gpu-lost.md", "health", tmp_path)


@pytest.fixture
def no_webhook(shell: CommandLine) -> None:
    """The API server cannot call the webhook: this answer comes before that of ``well``."""
    shell.api.fail(times=math.inf, method="POST", path="/pods$", status=500, reason="InternalError", message=NO_WEBHOOK)


async def test_no_webhook_answers(no_webhook: None, well: GpuCluster, shell: CommandLine, tmp_path: Path) -> None:
    well.put(PODS, part("webhook", ready="False"))
    await check(shell, "runbooks/webhook-down.md", "verify", tmp_path)


@pytest.fixture
def older_policies(shell: CommandLine) -> None:
    """The webhook's metrics have the digest of other policies: this answer comes before that of ``well``."""
    shell.api.fail(times=math.inf, path="/webhook-n1:8081/proxy", body=b"gpu_topology_policies_digest 7.0\n")


async def test_a_pod_uses_older_policies(
    older_policies: None, well: GpuCluster, shell: CommandLine, tmp_path: Path
) -> None:
    await check(shell, "runbooks/wrong-policies.md", "verify", tmp_path)


async def test_all_is_well(well: GpuCluster, shell: CommandLine, tmp_path: Path) -> None:
    await check(shell, "tasks/verify.md", "verify", tmp_path)
