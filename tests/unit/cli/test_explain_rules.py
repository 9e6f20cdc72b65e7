"""``gputopo explain`` evaluates the rules of a pod about other pods and claims as the controller does."""

from __future__ import annotations

from typing import Any

from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.commands import CommandLine
from tests.fakes.gpucluster import GpuCluster

ZONE = "topology.kubernetes.io/zone"


def near(**term: Any) -> Any:
    terms = [{"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "db"}}} | term]
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def foreign(cluster: GpuCluster, name: str, node: str, labels: Any = None, ports: Any = ()) -> None:
    spec = {"nodeName": node, "containers": [{"name": "main", "ports": list(ports)}]}
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
        assert (await shell.data("explain p"))["reason"] == "there is a place for it on n2 now"


async def test_it_says_of_host_ports_what_the_controller_says(cluster: GpuCluster, shell: CommandLine) -> None:
    port = {"containerPort": 80, "hostPort": 80}
    for node in ("n1", "n2"):
        cluster.node(node)
    foreign(cluster, "agent", "n1", ports=[port])
    pod = cluster.admitted("p", 4)
    pod["spec"]["containers"][0]["ports"] = [port]
    cluster.put(PODS, pod)
    assert (await shell.data("explain p"))["reason"] == "there is a place for it on n2 now"
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
