"""``gputopo explain`` evaluates the rules of a pod about other pods and claims as the controller does."""

from __future__ import annotations

from typing import Any

import pytest

from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.commands import CommandLine
from tests.fakes.gpucluster import GpuCluster

ZONE = "topology.kubernetes.io/zone"


def near(**term: Any) -> Any:
    terms = [{"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "db"}}} | term]
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def foreign(cluster: GpuCluster, name: str, node: str, labels: Any = None, ports: Any = (), cpu: str = "100m") -> None:
    container = {"name": "main", "ports": list(ports), "resources": {"requests": {"cpu": cpu}}}
    spec = {"nodeName": node, "containers": [container]}
    metadata = {"name": name, "namespace": "default", "labels": labels or {}}
    cluster.put(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})


async def test_it_says_of_pod_affinity_what_the_controller_says(cluster: GpuCluster, shell: CommandLine) -> None:
    for node, zone in (("n1", "z1"), ("n2", "z2")):
        cluster.node(node, labels={ZONE: zone})
    cluster.node("cpu-only", None, labels={ZONE: "z2"})
    cluster.pod("p", 4, affinity=near())
    await cluster.settle()
    answer = await shell.data("explain p")
    assert answer["reason"] == cluster.note("p", "reason")
    assert answer["free"]["best"] == []
    for affinity in (near(), near(namespaceSelector={})):
        cluster.pod("p", 4, affinity=affinity)
        foreign(cluster, "db", "cpu-only", {"app": "db"})
        assert (await shell.data("explain p"))["reason"] == "There is a place for the pod on n2 now."


async def test_it_says_of_host_ports_what_the_controller_says(cluster: GpuCluster, shell: CommandLine) -> None:
    port = {"containerPort": 80, "hostPort": 80}
    for node in ("n1", "n2"):
        cluster.node(node)
    foreign(cluster, "agent", "n1", ports=[port])
    pod = cluster.admitted("p", 4)
    pod["spec"]["containers"][0]["ports"] = [port]
    cluster.put(PODS, pod)
    assert (await shell.data("explain p"))["reason"] == "There is a place for the pod on n2 now."
    foreign(cluster, "agent-2", "n2", ports=[port])
    await cluster.settle()
    assert (await shell.data("explain p"))["reason"] == cluster.note("p", "reason")


async def test_it_says_of_another_drivers_claim_what_the_controller_says(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    for node, zone in (("n1", "z1"), ("n2", "z2")):
        cluster.node(node, labels={ZONE: zone})
    terms = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z3"]}]}]
    allocation = {"devices": {"results": []}, "nodeSelector": {"nodeSelectorTerms": terms}}
    metadata = {"name": "fpga", "namespace": "default"}
    cluster.put(RESOURCE_CLAIMS, {"metadata": metadata, "status": {"allocation": allocation}})
    pod = cluster.admitted("p", 4)
    pod["spec"]["resourceClaims"].append({"name": "fpga", "resourceClaimName": "fpga"})
    cluster.put(PODS, pod)
    await cluster.settle()
    answer = await shell.data("explain p")
    assert answer["reason"] == cluster.note("p", "reason")
    assert answer["free"]["best"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "pods"), [(3, 1), (3, 2), (20, 1)])
async def test_it_names_the_causes_on_nodes_without_free_gpus(
    cluster: GpuCluster, shell: CommandLine, nodes: int, pods: int
) -> None:
    port = {"containerPort": 80, "hostPort": 80}
    for number in range(nodes):
        cluster.node(f"n{number}")
        cluster.rival(f"of-n{number}", f"n{number}", range(8))
    foreign(cluster, "agent", "n1", ports=[port])
    foreign(cluster, "large", "n2", cpu="40")
    for number in range(pods):
        wishes = {} if pods == 1 else {"gang": "train", "gang-size": str(pods)}
        pod = cluster.admitted(f"p-{number}", 8, requests={"cpu": "30"}, wishes=wishes)
        pod["spec"]["containers"][0]["ports"] = [port]
        cluster.put(PODS, pod)
    await cluster.settle()
    reason = cluster.note("p-0", "reason")
    assert reason is not None
    assert reason.endswith("a host port of the pod is in use, too little cpu.")
    assert (await shell.data("explain p-0"))["reason"] == reason
    lists = [request for request in shell.api.requests if request.path.endswith("/pods")]
    assert len(lists) <= 2 + nodes % 20, "the pods of many nodes are read at once"


@pytest.mark.parametrize("pods", [1, 2])
async def test_free_gpus_that_a_rule_keeps_away_are_shown_with_the_rule(
    cluster: GpuCluster, shell: CommandLine, pods: int
) -> None:
    port = {"containerPort": 80, "hostPort": 80}
    for node in ("n1", "n2"):
        cluster.node(node)
    cluster.rival("of-n2", "n2", range(8))
    foreign(cluster, "agent", "n1", ports=[port])
    for number in range(pods):
        wishes = {} if pods == 1 else {"gang": "train", "gang-size": str(pods)}
        pod = cluster.admitted(f"p-{number}", 8, wishes=wishes)
        pod["spec"]["containers"][0]["ports"] = [port]
        cluster.put(PODS, pod)
    answer = await shell.data("explain p-0")
    causes = {one["node"]: one["causes"] for one in answer["would_help"] if one["causes"]}
    assert causes == {"n1": ["a host port of the pod is in use"]}
    assert answer["free"]["eligible"] == 1
