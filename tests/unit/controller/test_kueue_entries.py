"""Units of tenants whose admission is Kueue's are placed in the order in which Kueue lets them in."""

from __future__ import annotations

import pytest

from dradriver.api.base import names
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Object
from tests.fakes.gpucluster import GpuCluster
from tests.unit.controller.test_partitions import follow, place

GATE = "kueue.x-k8s.io/admission"


def held(cluster: GpuCluster, name: str, gpus: int = 8, namespace: str = "default", **wishes: str) -> None:
    gates = [{"name": GATE}, {"name": names.GATE}]
    cluster.pod(name, gpus, namespace=namespace, schedulingGates=gates, wishes=wishes)


def let_in(cluster: GpuCluster, *pods: str, namespace: str = "default") -> None:
    def change(pod: Object) -> None:
        pod["spec"]["schedulingGates"] = [gate for gate in pod["spec"]["schedulingGates"] if gate["name"] != GATE]

    for pod in pods:
        cluster.store.edit(PODS, (namespace, pod), change)


async def release(cluster: GpuCluster) -> None:
    """End whoever holds the GPUs, so that one more workload finds a place."""
    cluster.remove(RESOURCE_CLAIMS, "rival", "default")
    await cluster.settle()


@pytest.mark.parametrize(("admission", "first"), [("kueue", "second"), ("", "first")])
async def test_a_pod_is_as_old_as_the_moment_at_which_kueues_gate_went(admission: str, first: str) -> None:
    cluster = GpuCluster()
    follow(cluster, f"team: {{namespaces: [default], admission: '{admission}'}}")
    cluster.node("a")
    cluster.rival("rival", "a", range(8))
    for pod in ("first", "second"):
        held(cluster, pod)
    await cluster.settle()
    for pod in ("second", "first"):
        let_in(cluster, pod)
        await cluster.settle()
    await release(cluster)
    assert [pod for pod in ("first", "second") if place(cluster, pod, "default")] == [first]


async def test_a_gang_is_as_old_as_the_moment_at_which_the_last_of_its_gates_went() -> None:
    cluster = GpuCluster()
    follow(cluster, "team: {namespaces: [default], admission: kueue}")
    cluster.node("a")
    cluster.rival("rival", "a", range(8))
    for gang in ("one", "two"):
        for index in range(2):
            held(cluster, f"{gang}-{index}", 4, gang=gang, **{"gang-size": "2"})
    await cluster.settle()
    for some in (("one-0",), ("two-0", "two-1"), ("one-1",)):
        let_in(cluster, *some)
        await cluster.settle()
    await release(cluster)
    assert [pod for pod in ("one-0", "two-0", "two-1", "one-1") if place(cluster, pod, "default")] == ["two-0", "two-1"]


@pytest.mark.parametrize(("admission", "first"), [("kueue", "mine"), ("", "other")])
async def test_whom_kueue_let_in_waits_for_no_share(admission: str, first: str) -> None:
    """The namespace default has eight GPUs twice, team once, and counts nine times."""
    cluster = GpuCluster()
    follow(
        cluster,
        f"red: {{namespaces: [default], admission: '{admission}'}}",
        "blue: {namespaces: [team], weight: 9}",
    )
    for node in "abc":
        cluster.node(node)
    cluster.rival("rival", "a", range(8))
    cluster.rival("stays", "b", range(8))
    cluster.pod("used", 8, namespace="team")
    await cluster.settle()
    cluster.pod("other", 8, namespace="team")
    cluster.pod("mine", 8)
    await cluster.settle()
    await release(cluster)
    found = [pod for pod, space in (("other", "team"), ("mine", "default")) if place(cluster, pod, space)]
    assert found == [first]
