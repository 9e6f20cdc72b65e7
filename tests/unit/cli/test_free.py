"""``gputopo free``: what is free, counted as pods would get it."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from dradriver.allocator.request import Amount
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.kube.resources import DEVICE_TAINT_RULES, NODES, RESOURCE_SLICES
from tests.fakes.commands import CommandLine, run_all
from tests.fakes.gpucluster import GpuCluster
from tests.unit.cli.test_explain_gangs import seat


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4, 8])
async def test_as_many_sets_are_counted_as_pods_find_a_place(
    cluster: GpuCluster, shell: CommandLine, size: int
) -> None:
    cluster.node("n1")
    cluster.node("n2", "dgx-h100")
    cluster.rival("old", "n1", [0, 5, 6])
    cluster.rival("older", "n2", [1])
    found = await shell.data("free")
    counted: dict[tuple[str, str, float], int] = {}
    for one in found["sets"]:
        if one["size"] == size:
            counted[one["node"], one["level"], one["busbw_gbps"]] = one["sets"]
    for number in range(16):
        cluster.pod(f"pod-{number}", size)
    await run_all(cluster)
    got: dict[tuple[str, str, float], int] = {}
    for number in range(16):
        if cluster.claim(f"pod-{number}") is not None:
            node, _ = cluster.gpus(f"pod-{number}")
            level = cluster.note(f"pod-{number}", "level") or ""
            busbw = cluster.note(f"pod-{number}", "busbw") or "0GB/s"
            key = node, level if size > 1 else "", float(busbw.removesuffix("GB/s"))
            got[key] = got.get(key, 0) + 1
    assert got == {(node, level, round(busbw, 1)): count for (node, level, busbw), count in counted.items()}


async def test_the_sum_says_how_much_is_free_and_where_nothing_can_go(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.node("n2", taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}])
    cluster.node("n3", ready="False")
    cluster.node("n4", unschedulable=True)
    cluster.pod("one", 3)
    await run_all(cluster)
    found = await shell.data("free")
    assert (found["nodes"], found["unavailable_nodes"], found["gpus"], found["free"]) == (2, 2, 16, 13)
    said = (await shell.run("free")).stdout
    assert said.startswith("13 of 16 GPUs are free on 2 nodes; 2 more nodes are not ready or cordoned\n")
    assert "Sets of whole GPUs:\n  PRODUCT" in said


async def test_what_is_left_for_shares(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1", mode=Mode(shared="time-slicing"))
    cluster.pod("part", Amount(cores=60))
    await run_all(cluster)
    (left,) = (await shell.data("free"))["shares"]
    assert (left["gpus"], left["cores"], left["largest"], left["quarters"]) == (8, 740, 100, 29)
    assert left["memory_mib"] == 7 * 32768 + 32768 - 32768 * 60 // 100
    assert "Free for shares" in (await shell.run("free")).stdout


async def test_what_is_left_for_mig_slices(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1", "dgx-h100", mode=Mode(mig="dynamic"))
    cluster.pod("slice", ("3g.40gb",))
    await run_all(cluster)
    left = {one["profile"]: one["slices"] for one in (await shell.data("free"))["slices"]}
    assert left["3g.40gb"] == 15
    assert left["7g.80gb"] == 7
    assert left["1g.10gb"] == 7 * 7 + 4


async def test_the_largest_gang_by_level_where_a_network_is_known(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1", "dgx-h100")
    assert "gangs" not in await shell.data("free")
    for number in range(2, 6):
        rack = "network.topology.nvidia.com/leaf"
        cluster.node(f"n{number}", "dgx-h100", labels={rack: f"l{number // 3}", "topology.kubernetes.io/zone": "z"})
    cluster.node("n1", "dgx-h100", labels={rack: "l0", "topology.kubernetes.io/zone": "z"})
    cluster.rival("old", "n2", [0])
    found = [(one["level"], one["gpus"], one["pods"], one["domain"]) for one in (await shell.data("free"))["gangs"]]
    assert found == [("leaf", 8, 3, "z/l1"), ("zone", 8, 4, "z"), ("cluster", 8, 4, "")]
    assert "Largest gang by network level:" in (await shell.run("free")).stdout


async def test_what_a_gang_has_before_it_runs_is_not_free(cluster: GpuCluster, shell: CommandLine) -> None:
    for number in range(3):
        leaf = {"network.topology.nvidia.com/leaf": "l"}
        cluster.node(f"n{number}", labels=leaf)
    for number in range(2):
        cluster.pod(f"train-{number}", 8, wishes={"gang": "train", "gang-size": "2"})
    assert "tentative" not in await shell.data("free")
    await cluster.settle()
    seat(cluster, "train-0")  # the scheduler has given it its GPUs: these are held
    found = await shell.data("free")
    assert (found["free"], found["tentative"], found["gangs"][0]["pods"]) == (8, 8, 1)
    said = (await shell.run("free")).stdout
    assert said.startswith("8 of 24 GPUs are free on 3 nodes; 8 GPUs have a tentative placement\n")


async def test_pictures(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    for output in ("svg", "html"):
        result = await shell.run("free", "-o", output)
        assert ET.fromstring(result.stdout).tag.endswith(f"}}{output}")
    cluster.rival("all", "n1", range(8))
    for output in ("svg", "html", "table"):
        assert (await shell.run("free", "-o", output)).exit_code == 0


async def test_a_user_who_may_not_read_is_told(cluster: GpuCluster, shell: CommandLine) -> None:
    result = await shell.run("free")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no ResourceSlice of driver gpu.topology" in result.stderr
    cluster.node("n1")
    shell.api.fail(path=NODES.path(), status=403, reason="Forbidden", message="no")
    result = await shell.run("free")
    assert "you may not list nodes in all namespaces" in result.stderr


async def test_what_is_left_of_gpus_of_one_namespace_is_left_for_that_one(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.node("n1", mode=Mode(shared="time-slicing", exclusive_to="namespace"))
    cluster.pod("part", Amount(cores=60))
    await run_all(cluster)
    for namespace, gpus in (("default", 8), ("team-b", 7)):
        (left,) = (await shell.data("free", "-n", namespace))["shares"]
        assert left["gpus"] == gpus


async def test_what_an_administrators_rule_taints_is_not_free_and_explain_names_the_rule(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.node("n1")
    cluster.pod("whole", 8)
    shell.api.optional = {DEVICE_TAINT_RULES[1]}
    device = resource_slices.device_name(cluster.machines["n1"].gpus[0].uuid)
    taint = {"key": "example.com/maintenance", "effect": "NoSchedule"}
    spec = {"deviceSelector": {"pool": "n1", "device": device}, "taint": taint}
    shell.api.put(DEVICE_TAINT_RULES[1], {"metadata": {"name": "drain"}, "spec": spec})
    assert (await shell.data("free"))["free"] == 7
    (node,) = await shell.data("topo --cluster")
    assert (node["free"], node["gpus"][0]["state"]) == ([1, 2, 3, 4, 5, 6, 7], "blocked")
    assert node["gpus"][0]["blocked"] == "tainted example.com/maintenance:NoSchedule by DeviceTaintRule drain"
    assert "GPUs tainted by DeviceTaintRule drain are left out" in (await shell.run("explain", "whole")).stdout
    shell.api.remove(DEVICE_TAINT_RULES[1], "drain")
    assert (await shell.data("free"))["free"] == 8
    shell.api.fail(times=2, path="devicetaintrules", status=403, reason="Forbidden", message="no")
    for command in ("free", "topo --cluster"):
        assert "Ask for the verb list" in (await shell.run(command)).stderr


async def test_a_machine_that_cannot_be_used_is_told_of(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.node("n2")
    for piece in cluster.all(RESOURCE_SLICES):
        if piece["spec"]["nodeName"] == "n2":
            cluster.put(RESOURCE_SLICES, piece | {"spec": piece["spec"] | {"nodeName": "n3"}})
    said = await shell.run("free")
    assert said.stdout.startswith("8 of 8 GPUs are free on 1 node")
    assert "Pool n2: its slices do not belong to the node of that name. No pod is placed on its GPUs." in said.stderr
