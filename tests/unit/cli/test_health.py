"""``gputopo health``: what is wrong with which GPU, the repair, and which nodes lack their agent."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.api.slices import lost_gpus, resource_slices
from dradriver.kube.resources import DAEMON_SETS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dradriver.node.discovery.simulated_machine import without
from dradriver.node.faults import KINDS
from dradriver.node.repairs import XIDS, located
from tests.fakes.commands import CommandLine
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.installed import agents, uninstall
from tests.fakes.serving import served
from tests.unit.cli.test_agents_gone import unpublish
from tests.unit.cli.test_serve import pieces
from tests.unit.cli.test_verify import DENIED, OURS, REVIEWS, part


@pytest.fixture
def cluster() -> GpuCluster:
    """Two nodes; pod ``old`` holds GPU1 of the first."""
    made = GpuCluster()
    made.node("n1")
    made.node("n2")
    made.rival("old", "n1", [1])
    return made


def taint(cluster: GpuCluster, node: str, index: int, kind: str, value: str = "") -> None:
    """Have a node's agent taint a GPU."""
    piece = cluster.find(RESOURCE_SLICES, resource_slices.slice_name(0, node))
    assert piece is not None
    name = resource_slices.device_name(cluster.machines[node].gpus[index].uuid)
    (device,) = [each for each in piece["spec"]["devices"] if each["name"] == name]
    effect = KINDS[kind].effect if kind in KINDS else "NoSchedule"
    device.setdefault("taints", []).append({"key": names.PREFIX + kind, "value": value, "effect": effect})
    cluster.put(RESOURCE_SLICES, piece)


async def seen(shell: CommandLine, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return exit status and JSON of ``gputopo health``."""
    result = await shell.run("health", *arguments, "-o", "json")
    return result.exit_code, json.loads(result.stdout)


async def test_all_is_well(shell: CommandLine) -> None:
    assert await seen(shell) == (
        0,
        {
            "healthy": True, "installed": True, "nodes": 2, "gpus": 16, "unhealthy": 0, "faults": [], "agents": [],
            "orphans": 0, "left_over": [], "undeleted": [],
        },
    )  # fmt: skip
    assert (await shell.run("health")).stdout == "0 of 16 GPUs on 2 nodes are unhealthy\nno node agent is missing\n"


async def test_slices_that_an_uninstallation_left_over_are_no_driver(cluster: GpuCluster, shell: CommandLine) -> None:
    uninstall(cluster.store)
    status, found = await seen(shell)
    assert (status, found["healthy"], found["installed"], found["agents"]) == (1, False, False, [])
    assert (found["left_over"], found["undeleted"]) == (["n1", "n2"], [])
    shown = (await shell.run("health")).stdout
    assert shown.startswith("No driver is installed: namespace gpu-topology has no DaemonSet of node agents. ")
    assert "the kubelet of a node deletes them about 30 seconds after the node agent has ended" in shown
    assert "kubectl delete" not in shown
    assert "no node agent is missing" not in shown


async def test_only_slices_that_no_kubelet_deletes_are_to_be_deleted(cluster: GpuCluster, shell: CommandLine) -> None:
    uninstall(cluster.store)
    cluster.node("n2", ready="Unknown")
    cluster.node("n1", ready="False")
    assert (await seen(shell))[1]["undeleted"] == ["n2"]
    shown = (await shell.run("health")).stdout
    selector = "--field-selector spec.driver=gpu.topology,spec.nodeName="
    assert "the kubelet of n2 does not report, so its ResourceSlices stay until it starts again. " in shown
    assert shown.count(f"kubectl delete resourceslices {selector}") == shown.count(f"{selector}n2") == 1


async def test_an_uninstalled_driver_is_a_result_also_if_nothing_is_left(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    uninstall(cluster.store)
    for node in ("n1", "n2"):
        unpublish(cluster, node)
    cluster.remove(RESOURCE_CLAIMS, "old", "default")
    status, found = await seen(shell)
    assert (status, found["installed"], found["gpus"], found["agents"]) == (1, False, 0, [])


async def test_pods_that_an_uninstallation_left_over_are_counted(cluster: GpuCluster, shell: CommandLine) -> None:
    uninstall(cluster.store)
    for node in ("n1", "n2"):
        unpublish(cluster, node)
        cluster.remove(NODES, node)
    cluster.pod("p", 1)
    cluster.pod("q", 1, namespace="team-a")
    status, found = await seen(shell)
    assert (status, found["installed"], found["gpus"], found["orphans"]) == (1, False, 0, 2)
    assert (await seen(shell, "-n", "team-a"))[1]["orphans"] == 1
    shown = (await shell.run("health")).stdout
    assert "Install the chart.\n\nno node publishes GPUs\n2 pods need the driver." in shown
    assert "2 pods need the driver. gputopo uninstall lists them and says what to do" in shown


async def test_if_no_agent_runs_no_gpu_is_called_healthy(cluster: GpuCluster, shell: CommandLine) -> None:
    for node in ("n1", "n2"):
        unpublish(cluster, node)
    cluster.remove(RESOURCE_CLAIMS, "old", "default")
    cluster.put(DAEMON_SETS, agents(wanted=2))
    result = await shell.run("health")
    assert result.exit_code == 1
    assert result.stdout.startswith("no node publishes GPUs\nnode agents are missing or not ready. On their nodes, ")
    assert f"kubectl -n {OURS} describe daemonset" in result.stdout


async def test_whether_the_driver_is_installed_is_not_guessed(cluster: GpuCluster, shell: CommandLine) -> None:
    uninstall(cluster.store)
    shell.api.fail(times=math.inf, path="mutatingwebhookconfigurations", status=403, reason="Forbidden")
    status, found = await seen(shell)
    assert (status, found["healthy"], found["installed"]) == (0, True, None)


async def test_the_slice_of_gang_barrier_devices_is_no_node(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.barrier()
    result = await shell.run("health")
    assert (result.exit_code, result.stderr) == (0, "")


async def test_a_fault_is_named_with_its_gpu_and_its_repair(cluster: GpuCluster, shell: CommandLine) -> None:
    taint(cluster, "n1", 1, "xid", "79")
    status, found = await seen(shell)
    gpu = cluster.machines["n1"].gpus[1]
    assert (status, found["healthy"], found["unhealthy"]) == (1, False, 1)
    assert found["faults"] == [
        {
            "node": "n1", "index": 1, "pci": gpu.pci, "uuid": gpu.uuid, "fault": "xid=79",
            "description": XIDS["79"].words, "repair": located(XIDS["79"].repair, node="n1"),
            "keeps_pods_off": True, "namespaces": ["default"],
            "used_by": ["default/old, a claim without pod"],
        }
    ]  # fmt: skip
    shown = (await shell.run("health")).stdout
    assert shown.startswith("1 of 16 GPUs on 2 nodes is unhealthy\n")
    assert all(text in shown for text in (f"n1    GPU1  {gpu.pci}", gpu.uuid, "kubectl drain n1 "))


async def test_a_fault_that_keeps_no_pod_off_is_listed_and_no_more(cluster: GpuCluster, shell: CommandLine) -> None:
    taint(cluster, "n2", 3, "thermal")
    status, found = await seen(shell)
    assert (status, found["healthy"], found["unhealthy"]) == (0, True, 0)
    assert [(one["fault"], one["keeps_pods_off"]) for one in found["faults"]] == [("thermal", False)]


async def test_a_change_of_mode_is_no_fault(cluster: GpuCluster, shell: CommandLine) -> None:
    taint(cluster, "n2", 3, "mode-changes")
    assert (await seen(shell))[1]["faults"] == []


async def test_what_another_taints_is_named_by_its_key(cluster: GpuCluster, shell: CommandLine) -> None:
    taint(cluster, "n2", 3, "rust", "deep")
    _, found = await seen(shell)
    assert [(one["fault"], one["description"]) for one in found["faults"]] == [
        ("rust=deep", "a taint that is no fault known to this driver")
    ]


async def test_a_lost_gpu(cluster: GpuCluster, shell: CommandLine) -> None:
    whole = cluster.machines["n2"]
    built = resource_slices.build(without(whole, {"5"}), node="n2", node_uid="n")
    lost_gpus.note(built, [lost_gpus.of(whole.gpus[5])])
    for piece in built:
        piece["spec"]["pool"]["generation"] = 2
        cluster.put(RESOURCE_SLICES, piece)
    status, found = await seen(shell)
    assert (status, found["gpus"], found["unhealthy"]) == (1, 16, 1)
    (fault,) = found["faults"]
    assert (fault["index"], fault["uuid"], fault["fault"]) == (5, whole.gpus[5].uuid, "lost")
    assert fault["repair"] == located(KINDS["lost"].advice, node="n2", uuid=whole.gpus[5].uuid)


async def test_a_node_without_its_agent(cluster: GpuCluster, shell: CommandLine) -> None:
    unpublish(cluster, "n1")
    cluster.put(PODS, part("node", "n2", ready="False"))
    cluster.put(DAEMON_SETS, agents(wanted=2))
    status, found = await seen(shell)
    assert (status, found["healthy"], found["unhealthy"]) == (1, False, 0)
    assert [(one["node"], one["why"].partition(":")[0]) for one in found["agents"]] == [
        ("n1", "agent gone"),
        ("n2", "its pod node-n2 is not ready"),
        ("", "0 of 2 pods that the DaemonSet wants are ready"),
    ]
    assert all("kubectl" in one["repair"] for one in found["agents"])
    shown = (await shell.run("health")).stdout
    assert "\nnode agents are missing or not ready. On their nodes, pods with GPUs cannot start or end. " in shown


async def test_of_a_namespace_only_its_gpus(cluster: GpuCluster, shell: CommandLine) -> None:
    taint(cluster, "n1", 1, "xid", "79")
    taint(cluster, "n1", 2, "xid", "79")
    status, found = await seen(shell, "-n", "default")
    assert (status, found["gpus"], found["nodes"], found["unhealthy"]) == (1, 1, 1, 1)
    assert [one["index"] for one in found["faults"]] == [1]
    status, found = await seen(shell, "-n", "team-a")
    assert (status, found["gpus"], found["faults"]) == (0, 0, [])
    assert (await shell.run("health", "-A", "-n", "a")).exit_code == 2


async def test_what_cannot_be_looked_at_has_an_exit_status_of_its_own(cluster: GpuCluster, shell: CommandLine) -> None:
    for node in ("n1", "n2"):
        unpublish(cluster, node)
        cluster.remove(NODES, node)
    result = await shell.run("health")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no ResourceSlice of driver gpu.topology" in result.stderr
    shell.api.fail(times=math.inf, path="/resourceslices$", status=403, reason="Forbidden")
    assert (await shell.run("health")).exit_code == 2


async def test_agents_that_may_not_be_read_are_said_and_faults_are_shown(shell: CommandLine) -> None:
    shell.api.fail(times=math.inf, path="/daemonsets$", status=403, reason="Forbidden")
    result = await shell.run("health")
    assert result.exit_code == 0
    assert "warning: whether all node agents are ready is not known: " in result.stderr


async def test_page_topo_and_verify_say_the_same(cluster: GpuCluster, shell: CommandLine) -> None:
    taint(cluster, "n1", 1, "xid", "79")
    taint(cluster, "n2", 2, "row-remap-failed")
    _, found = await seen(shell)
    assert found["unhealthy"] == 2
    assert "16 GPUs, 14 free, 2 unhealthy" in (await shell.run("topo --cluster")).stdout
    async with served(cluster.store) as made:
        assert pieces(made)["summary"]["unhealthy"] == 2
    shell.api.fail(times=math.inf, method="POST", path=REVIEWS, status=201, body=b'{"status":{"allowed":true}}')
    shell.api.fail(times=math.inf, method="POST", path="/pods$", status=400, message=DENIED)
    findings = json.loads((await shell.run("verify", "-o", "json")).stdout)["findings"]
    cures = [one["cure"] for one in findings if one["check"] == "taints"]
    assert [cure.partition(". ")[0] for cure in cures] == [one["description"] for one in found["faults"]]
