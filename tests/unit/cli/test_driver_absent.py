"""No driver is installed: every command that would show a decision of the controller says so first."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from dradriver.kube.resources import DAEMON_SETS, MUTATING_WEBHOOKS, PODS
from tests.fakes.commands import CommandLine, run_all
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.installed import agents, uninstall, webhook_configuration
from tests.unit.cli.test_agents_gone import unpublish
from tests.unit.cli.test_uninstall import has_its_claim
from tests.unit.cli.test_verify import REVIEWS, part

ABSENT = (
    "No driver is installed: namespace gpu-topology has no DaemonSet of node agents. No controller chooses GPUs for "
    "pods, and no node agent prepares or releases GPUs. Install the chart."
)


@pytest.fixture
async def left(cluster: GpuCluster, shell: CommandLine) -> GpuCluster:
    """A pod with GPUs and one that waits, after the uninstallation; the kubelets have deleted the slices."""
    cluster.node("n1")
    cluster.pod("runs", 4)
    await run_all(cluster)
    has_its_claim(cluster, "runs")
    cluster.pod("waits", 8)
    await cluster.settle()
    uninstall(cluster.store)
    unpublish(cluster, "n1")
    return cluster


async def verified(shell: CommandLine, *arguments: str) -> list[dict[str, str]]:
    """Return what ``gputopo verify`` finds if the user has all rights and nothing refuses a pod, with status 1."""
    shell.api.fail(times=math.inf, method="POST", path=REVIEWS, status=201, body=b'{"status":{"allowed":true}}')
    shell.api.fail(times=math.inf, method="POST", path="/pods$", status=201, body=b"{}")
    result = await shell.run("verify", *arguments, "-o", "json")
    assert result.exit_code == 1, result.output
    findings: list[dict[str, str]] = json.loads(result.stdout)["findings"]
    return findings


async def shown(shell: CommandLine, command: str) -> str:
    result = await shell.run(command)
    assert result.exit_code == 0, result.output
    return result.stdout


async def test_a_gated_pod_stays_gated_and_is_told_how_it_starts(left: GpuCluster, shell: CommandLine) -> None:
    text = await shown(shell, "explain waits")
    assert text.startswith(f"{ABSENT}\n\nPod default/waits\n")
    _, now = text.split("\nNow\n")
    assert "The pod keeps its scheduling gate gpu.topology/placement" in now
    assert "After the next installation the driver places the pod." in now
    assert "delete it: its owner creates it again, without a gate." in now
    assert "There is a place" not in text, "no controller decides"
    assert "Queue" not in text


async def test_a_running_pod_is_told_what_its_deletion_needs(left: GpuCluster, shell: CommandLine) -> None:
    assert "The pod runs on. If you delete it, it stays in Terminating" in await shown(shell, "explain runs")
    left.begin_deletion("runs")
    text = await shown(shell, "explain runs")
    assert "is being deleted on n1" in text
    assert "The pod stays in Terminating until a node agent releases its GPUs. Install the driver again." in text
    assert "kubectl delete pod runs -n default --force" in text


async def test_a_pod_without_devices_of_the_driver_does_not_need_it(left: GpuCluster, shell: CommandLine) -> None:
    has_its_claim(left, "runs", driver="gpu.nvidia.com")
    assert "The pod does not need the driver." in await shown(shell, "explain runs")


async def test_programs_get_a_warning_and_whole_data(left: GpuCluster, shell: CommandLine) -> None:
    result = await shell.run("explain", "waits", "-o", "json")
    found: dict[str, Any] = json.loads(result.stdout)
    assert (found["state"], found["queue"], found["place"]) == ("waits", None, None)
    assert found["reason"].startswith("The pod keeps its scheduling gate")
    assert result.stderr == f"warning: {ABSENT}\n"


@pytest.mark.parametrize("command", ["explain", "queue", "topo --cluster", "health"])
async def test_commands_that_still_have_something_to_show_say_it_first(
    left: GpuCluster, shell: CommandLine, command: str
) -> None:
    assert (await shell.run(command)).stdout.startswith(f"{ABSENT}\n\n")


@pytest.mark.parametrize("command", ["free", "defrag", "plan --gang 1x2"])
async def test_commands_that_need_free_gpus_fail_with_it(left: GpuCluster, shell: CommandLine, command: str) -> None:
    result = await shell.run(command)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == f"Error: {ABSENT}"


@pytest.mark.parametrize("command", ["free", "defrag", "plan --gang 1x2", "tenants"])
async def test_slices_that_are_left_over_do_not_hide_it(cluster: GpuCluster, shell: CommandLine, command: str) -> None:
    cluster.node("n1")
    uninstall(cluster.store)
    assert (await shell.run(command)).stdout.startswith(f"{ABSENT}\n\n")


@pytest.mark.parametrize("node", [(), ("n1",)])
async def test_verify_has_one_failure_and_checks_no_part_of_the_driver(
    left: GpuCluster, shell: CommandLine, node: tuple[str, ...]
) -> None:
    findings = await verified(shell, *node)
    problem, cure = ABSENT.rsplit(". ", 1)
    assert findings[0] == {"check": "installation", "status": "FAIL", "message": f"{problem}.", "cure": cure}
    assert [finding["check"] for finding in findings if finding["status"] == "FAIL"] == ["installation"]
    assert {finding["check"] for finding in findings} <= {
        "installation",
        "kubernetes",
        "cdi",
        "other-drivers",
        "rights",
    }


async def test_verify_checks_a_webhook_that_is_left_over(left: GpuCluster, shell: CommandLine) -> None:
    left.put(MUTATING_WEBHOOKS, webhook_configuration("gpu-topology"))
    findings = await verified(shell)
    assert findings[0]["check"] == "installation"
    assert {"certificates", "webhook-asked"} <= {finding["check"] for finding in findings}
    assert "leader" not in {finding["check"] for finding in findings}


async def test_verify_checks_the_parts_that_run_without_node_agents(left: GpuCluster, shell: CommandLine) -> None:
    left.put(PODS, part("controller"))
    findings = await verified(shell)
    assert findings[0]["check"] == "installation"
    assert ("controller", "PASS") in [(finding["check"], finding["status"]) for finding in findings]


async def test_a_driver_in_the_namespace_of_its_webhook_is_installed(left: GpuCluster, shell: CommandLine) -> None:
    left.put(MUTATING_WEBHOOKS, webhook_configuration("kube-gpu"))
    left.put(DAEMON_SETS, agents(namespace="kube-gpu"))
    assert ABSENT not in (await shell.run("explain waits")).output
