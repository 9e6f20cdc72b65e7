"""Rules that keep a pod from nodes are known before it is narrowed: after that it can have no other node."""

from __future__ import annotations

from typing import Any

from dradriver.cluster.nodes.selector_classes import NAMELESS
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS
from tests.fakes.gpucluster import GpuCluster, claim_of

HOSTNAME = "kubernetes.io/hostname"


def node_affinity(**expression: Any) -> Any:
    terms = [{"matchExpressions": [expression]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


IN_POOL = node_affinity(key="pool", operator="In", values=["gpus"])


def without_hostname(cluster: GpuCluster, name: str) -> None:
    cluster.node(name, labels={"pool": "gpus"})
    cluster.store.edit(NODES, ("", name), lambda node: node["metadata"]["labels"].pop(HOSTNAME))


def bound_to(cluster: GpuCluster, name: str) -> str | None:
    node: str | None = cluster.get_pod(name)["spec"].get("nodeName")
    return node


async def test_a_pod_that_is_narrowed_by_the_hostname_label_gets_a_node_that_has_it() -> None:
    cluster = GpuCluster()
    without_hostname(cluster, "a")
    cluster.node("b", labels={"pool": "gpus"})
    cluster.pod(
        "filler", 4, nodeSelector={"pool": "gpus"}
    )  # the fuller node comes first, and this is the first by name
    await cluster.settle()
    assert cluster.gpus("filler")[0] == "a"
    cluster.pod("p", 4, affinity=IN_POOL)
    await cluster.settle()
    cluster.schedule()
    assert bound_to(cluster, "p") == "b"


async def test_without_such_a_node_it_says_so_and_a_new_pod_says_the_same() -> None:
    cluster = GpuCluster()
    without_hostname(cluster, "a")
    for _ in range(2):
        cluster.pod("p", 4, affinity=IN_POOL)
        await cluster.settle()
        assert cluster.claim("p") is None
        assert cluster.note("p", "reason") == f"no node with GPUs can run this pod: {NAMELESS}"
        cluster.remove(PODS, "p", "default")
        await cluster.settle()


async def test_a_pod_without_terms_of_its_own_is_narrowed_by_names_and_keeps_a_node_without_the_label() -> None:
    cluster = GpuCluster()
    without_hostname(cluster, "a")
    cluster.pod("p", 4)
    await cluster.settle()
    cluster.remove(
        RESOURCE_CLAIMS, claim_of("p"), "default"
    )  # its gate is removed: it is placed again on the same node
    await cluster.settle()
    cluster.schedule()
    assert bound_to(cluster, "p") == "a"
