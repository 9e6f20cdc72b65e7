"""Pods that share one set: what a test makes of them on a cluster, and sees."""

from __future__ import annotations

from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Object
from tests.fakes.gpucluster import GpuCluster

SHARED = {"shared-claim": "duo", "policy": "nvlink"}


def cluster_of(*pods: str, nodes: str = "a", **more: float) -> GpuCluster:
    cluster = GpuCluster(**more)
    for node in nodes:
        cluster.node(node)
    for name in pods:
        cluster.pod(name, wishes=SHARED)
    return cluster


def the_claim(cluster: GpuCluster) -> Object:
    found = cluster.find(RESOURCE_CLAIMS, "duo", "default")
    assert found is not None
    return found


def owners(cluster: GpuCluster) -> list[str]:
    return [owner["name"] for owner in the_claim(cluster)["metadata"].get("ownerReferences", ())]


def gates(cluster: GpuCluster, pod: str) -> list[Object]:
    found: list[Object] = cluster.get_pod(pod)["spec"].get("schedulingGates", [])
    return found


def nodes_of(cluster: GpuCluster, pod: str) -> list[str]:
    terms = cluster.get_pod(pod)["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [v for t in terms["nodeSelectorTerms"] for e in t["matchFields"] for v in e["values"]]


def finish(cluster: GpuCluster, pod: str) -> None:
    cluster.put(PODS, cluster.get_pod(pod) | {"status": {"phase": "Succeeded"}})


def drop(cluster: GpuCluster, pod: str) -> None:
    cluster.remove(PODS, pod, "default")


async def settled(cluster: GpuCluster) -> None:
    """Let everybody act in turns until nothing changes."""
    for _ in range(12):
        before = cluster.store.version
        await cluster.settle()
        cluster.schedule()
        cluster.collect()
        if cluster.store.version == before:
            return
    raise AssertionError("no end of it")
