"""Gangs of pods on a fake cluster, and how far they have come."""

from __future__ import annotations

from collections.abc import Iterable

from tests.fakes.gpucluster import GpuCluster


def nodes(called: Iterable[str], **times: float) -> GpuCluster:
    """Return a cluster of nodes of eight GPUs each."""
    cluster = GpuCluster(**times)
    for node in called:
        cluster.node(node)
    return cluster


def gang(cluster: GpuCluster, size: int, *, name: str = "train", gpus: int = 8, there: int | None = None) -> list[str]:
    """Create pods of a gang; ``there`` says how many of them."""
    pods = [f"{name}-{i}" for i in range(size if there is None else there)]
    for pod in pods:
        cluster.pod(pod, gpus, wishes={"gang": name, "gang-size": str(size)})
    return pods


def lifted(cluster: GpuCluster, pods: list[str]) -> list[str]:
    return [pod for pod in pods if not cluster.get_pod(pod)["spec"].get("schedulingGates")]


def claims(cluster: GpuCluster, pods: list[str]) -> list[str]:
    return [pod for pod in pods if cluster.claim(pod) is not None]


def bound(cluster: GpuCluster, pods: list[str]) -> list[str]:
    return [pod for pod in pods if cluster.get_pod(pod)["spec"].get("nodeName")]


async def running(called: str) -> tuple[GpuCluster, list[str]]:
    """Return a cluster of some nodes, and the two pods of a gang that runs on two of them."""
    cluster = nodes(called)
    pods = gang(cluster, 2)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    return cluster, pods
