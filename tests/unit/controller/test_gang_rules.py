"""Gangs whose pods have rules about each other: the plan keeps them, and the scheduler can follow it in any order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.kube.resources import PODS
from tests.fakes.gang_pods import bound, claims, nodes
from tests.fakes.gpucluster import GpuCluster

Object = dict[str, Any]

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"


def rule(key: str, app: str = "train") -> Object:
    """Return a term of affinity or anti-affinity."""
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}


def apart(key: str, app: str = "train") -> Object:
    """Return a pod's fields for required anti-affinity."""
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule(key, app)]}}}


def together(key: str, app: str = "train") -> Object:
    """Return a pod's fields for required affinity."""
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule(key, app)]}}}


def spread(key: str, skew: int = 1) -> Object:
    """Return a pod's fields for topology spread."""
    return {"topologySpreadConstraints": [rule(key) | {"maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule"}]}


def zones(**called: str) -> GpuCluster:
    """Return a cluster: for each zone its nodes, of eight GPUs each."""
    cluster = GpuCluster()
    for zone, names in called.items():
        for name in names:
            cluster.node(name, labels={ZONE: zone})
    return cluster


def add(
    cluster: GpuCluster, *pods: str, gpus: int = 8, size: str = "", app: str = "train", gang: str = "train", **spec: Any
) -> list[str]:
    """Create pods of a gang with a label and rules."""
    for name in pods:
        words = {"gang": gang, "gang-size": size or str(len(pods))} if gang else {}
        fields = dict(spec)
        host_ports = fields.pop("ports", [])
        pod = cluster.admitted(name, gpus, wishes=words, **fields)
        pod["spec"]["containers"][0]["ports"] = host_ports
        pod["metadata"]["labels"]["app"] = app
        cluster.put(PODS, pod)
    return list(pods)


async def nodes_of(cluster: GpuCluster, pods: list[str]) -> list[str]:
    """Return the nodes on which the pods of a gang have claims; none unless all have."""
    await cluster.settle()
    return [cluster.gpus(pod)[0] for pod in pods] if claims(cluster, pods) == pods else []


def usable(cluster: GpuCluster, pod: str) -> set[str]:
    """Return the nodes that a pod may use since its gate was removed."""
    affinity = cluster.get_pod(pod)["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return {name for term in terms for field in term["matchFields"] for name in field["values"]}


async def test_pods_apart_by_zone_are_in_different_zones() -> None:
    cluster = zones(x="abc", y="d", z="e")
    pods = add(cluster, "p", "q", "r", gpus=4, **apart(ZONE))
    assert len(await nodes_of(cluster, pods)) == 3
    assert {cluster.gpus(pod)[0] for pod in pods} >= {"d", "e"}
    cluster.schedule()
    assert bound(cluster, pods) == pods


async def test_a_zone_with_a_pod_that_must_not_be_near_is_left_out() -> None:
    cluster = zones(x="ab", y="c", z="d")
    add(cluster, "alone", gpus=1, gang="", nodeSelector={HOST: "c"})
    await cluster.settle()
    cluster.schedule()
    pods = add(cluster, "p", "q", **apart(ZONE))
    assert {node if node == "d" else "x" for node in await nodes_of(cluster, pods)} == {"x", "d"}


async def test_a_pod_that_runs_keeps_a_gang_from_its_zone() -> None:
    """It is the running pod that has the rule."""
    cluster = zones(x="ab", y="c")
    add(cluster, "alone", gpus=1, app="other", gang="", nodeSelector={HOST: "c"}, **apart(ZONE))
    await cluster.settle()
    cluster.schedule()
    pods = add(cluster, "p", "q", gpus=4)
    assert set(await nodes_of(cluster, pods)) <= {"a", "b"}


async def test_a_gang_is_spread_evenly_and_each_pod_stays_in_its_zone() -> None:
    """Two pods of one zone may come first: the scheduler compares no other zone if the pods may use none."""
    cluster = zones(x="abc", y="def")
    pods = add(cluster, *"pqrs", gpus=4, **spread(ZONE))
    found = await nodes_of(cluster, pods)
    assert sorted("xy"[node > "c"] for node in found) == ["x", "x", "y", "y"]
    for pod, node in zip(pods, found, strict=True):
        zone = set("abc") if node in "abc" else set("def")
        assert node in usable(cluster, pod) <= zone


async def test_a_gang_with_a_pod_in_each_zone_may_use_all_of_its_nodes() -> None:
    cluster = zones(x="ab", y="cd", z="ef")
    pods = add(cluster, "p", "q", **spread(ZONE))
    assert len(await nodes_of(cluster, pods)) == 2
    assert usable(cluster, "p") == usable(cluster, "q") == set("abcdef")


async def test_pods_that_run_count_for_the_spread_of_a_gang() -> None:
    cluster = zones(x="ab", y="cd")
    add(cluster, "one", "two", gpus=1, gang="", nodeSelector={ZONE: "x"})
    await cluster.settle()
    cluster.schedule()
    pods = add(cluster, *"pqrs", gpus=2, **spread(ZONE))
    assert sorted("xy"[node > "b"] for node in await nodes_of(cluster, pods)) == ["x", "y", "y", "y"]


async def test_pods_spread_over_nodes_get_a_node_each_while_there_are_enough() -> None:
    cluster = nodes("abcde")
    pods = add(cluster, *"pqr", gpus=2, **spread(HOST))
    assert len(set(await nodes_of(cluster, pods))) == 3


async def test_more_pods_than_nodes_fill_all_nodes_evenly() -> None:
    cluster = nodes("ab")
    pods = add(cluster, *"pqrs", gpus=2, **spread(HOST))
    found = await nodes_of(cluster, pods)
    assert sorted(found) == ["a", "a", "b", "b"]
    assert [usable(cluster, pod) for pod in pods] == [{node} for node in found]


async def test_pods_that_want_to_be_in_one_zone_wait_for_one_that_holds_them() -> None:
    cluster = zones(x="ab", y="cde")
    pods = add(cluster, *"pqr", **together(ZONE))
    assert set(await nodes_of(cluster, pods)) == set("cde")


async def test_pods_that_want_to_be_on_one_node_are() -> None:
    cluster = nodes("abc")
    add(cluster, "alone", gpus=5, gang="", app="other", nodeSelector={HOST: "a"})
    await cluster.settle()
    pods = add(cluster, "p", "q", gpus=4, **together(HOST))
    assert len(set(await nodes_of(cluster, pods))) == 1


async def test_pods_go_where_the_pods_run_that_they_want_to_be_with() -> None:
    cluster = zones(x="abc", y="de")
    add(cluster, "data", gpus=1, gang="", app="data", nodeSelector={HOST: "d"})
    await cluster.settle()
    cluster.schedule()
    pods = add(cluster, "p", "q", gpus=4, **together(ZONE, "data"))
    assert set(await nodes_of(cluster, pods)) <= {"d", "e"}


async def test_pods_that_want_to_be_with_others_of_their_gang_come_to_these() -> None:
    cluster = zones(x="a", y="bc", z="d")
    workers = add(cluster, "w1", "w2", size="3", app="worker", **apart(HOST, "worker"))
    (leader,) = add(cluster, "leader", gpus=2, size="3", app="leader", **together(ZONE, "worker"))
    found = await nodes_of(cluster, [*workers, leader])
    assert found, "a zone of a worker has room for the leader"


async def test_gates_of_pods_that_want_to_be_with_others_are_removed_last() -> None:
    """The scheduler refuses a pod that comes before those it must be next to, and nothing wakes it soon."""
    cluster = zones(x="ab", y="cd")
    cluster.barrier()
    add(cluster, "a-leader", gpus=2, size="3", app="leader", **together(ZONE, "worker"))
    add(cluster, "w1", "w2", gpus=4, size="3", app="worker")
    await cluster.settle()
    gates = [name for verb, name in cluster.client.writes if verb == "patch"]
    assert sorted(gates[:2]) == ["w1", "w2"]
    assert gates[2] == "a-leader"


async def test_a_launcher_apart_from_its_workers_gets_a_node_of_its_own() -> None:
    cluster = nodes("abc")
    (launcher,) = add(cluster, "launcher", gpus=1, size="4", app="launcher", **apart(HOST, "worker"))
    workers = add(cluster, "w1", "w2", "w3", gpus=2, size="4", app="worker")
    found = await nodes_of(cluster, [launcher, *workers])
    assert found[0] not in found[1:]
    assert len(set(found[1:])) == 1, "the workers may share a node"


async def test_a_gang_begins_with_as_many_as_there_are_zones() -> None:
    cluster = zones(x="ab", y="c", z="d")
    pods = add(cluster, *"pqrst", size="2-5", gpus=4, **apart(ZONE))
    await cluster.settle()
    await asyncio.sleep(2.1)
    await cluster.settle()
    assert len(claims(cluster, pods)) == 3


async def test_rules_that_no_plan_keeps_are_named_with_a_pod() -> None:
    cluster = zones(x="abc")
    pods = add(cluster, "p", "q", gpus=4, **apart(ZONE))
    assert await nodes_of(cluster, pods) == []
    reason = cluster.note("p", "reason")
    assert reason is not None
    assert "rules of the gang's pods about each other: anti-affinity by topology.kubernetes.io/zone (pod p)" in reason


async def test_what_is_missing_is_said_first_if_there_are_too_few_gpus() -> None:
    cluster = zones(x="a", y="b")
    pods = add(cluster, "p", "q", "r", **spread(ZONE))
    assert await nodes_of(cluster, pods) == []
    assert "require of each other" not in (cluster.note("p", "reason") or "")


async def test_a_pod_that_joins_a_gang_keeps_its_rules() -> None:
    cluster = zones(x="abc", y="d", z="e")
    pods = add(cluster, "p", "q", size="2-3", **apart(ZONE))
    await cluster.settle()
    await asyncio.sleep(2.1)
    first = await nodes_of(cluster, pods)
    assert len(first) == 2
    cluster.schedule()
    await cluster.settle()
    (late,) = add(cluster, "r", size="2-3", **apart(ZONE))
    (node,) = await nodes_of(cluster, [late])
    assert len({"x" if name in "abc" else name for name in (*first, node)}) == 3


def ports(*numbers: int, address: str = "") -> Object:
    """Return a pod's fields for host ports."""
    entries = [{"containerPort": n, "hostPort": n, "protocol": "TCP"} | ({"hostIP": address} if address else {})
               for n in numbers]  # fmt: skip
    return {"hostNetwork": True, "ports": entries}


async def test_pods_with_the_same_host_port_are_on_different_nodes() -> None:
    cluster = nodes("abcdefgh")
    pods = add(cluster, "p", "q", gpus=4, **ports(29500))
    assert len(set(await nodes_of(cluster, pods))) == 2


async def test_pods_with_different_host_ports_share_a_node() -> None:
    cluster = nodes("ab")
    pods = [
        *add(cluster, "p", gpus=4, size="3", **ports(29500)),
        *add(cluster, "q", gpus=4, size="3", **ports(29501)),
        *add(cluster, "r", gpus=4, size="3", **ports(29500, 29501)),
    ]
    first, second, third = await nodes_of(cluster, pods)
    assert first == second != third


async def test_addresses_of_one_port_are_in_conflict_with_all_addresses_only() -> None:
    cluster = nodes("ab")
    pods = [
        *add(cluster, "p", gpus=2, size="3", **ports(80, address="10.0.0.1")),
        *add(cluster, "q", gpus=2, size="3", **ports(80, address="10.0.0.2")),
        *add(cluster, "r", gpus=2, size="3", **ports(80)),
    ]
    first, second, third = await nodes_of(cluster, pods)
    assert first == second != third


async def test_a_node_whose_port_is_in_use_is_left_out() -> None:
    cluster = nodes("abc")
    add(cluster, "alone", gpus=1, gang="", nodeSelector={HOST: "b"}, **ports(29500))
    await cluster.settle()
    pods = add(cluster, "p", "q", gpus=4, **ports(29500))
    assert set(await nodes_of(cluster, pods)) == {"a", "c"}


def refuse(cluster: GpuCluster, pod: str, cause: str) -> None:
    """Have the scheduler refuse a pod on one of its nodes."""
    message = f"0/8 nodes are available: 1 {cause}, 7 node(s) didn't match Pod's node affinity/selector. preemption: no"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    cluster.put(PODS, cluster.get_pod(pod) | {"status": {"phase": "Pending", "conditions": [condition]}})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "used"),
    [
        ("node(s) had volume node affinity conflict", 2),
        ("node(s) didn't have free ports for the requested pod ports", 2),
        ("Insufficient cpu", 1),
    ],
)
async def test_a_gang_that_is_refused_on_one_node_is_planned_on_more(cause: str, used: int) -> None:
    cluster = GpuCluster(unschedulable_s=0.0)
    for name in "abcdefgh":
        cluster.node(name)
    pods = add(cluster, "p", "q", gpus=4)
    before = set(await nodes_of(cluster, pods))
    assert len(before) == 1
    refuse(cluster, "q", cause)
    for _ in range(8):
        await cluster.settle()
        cluster.collect()
        await asyncio.sleep(0.5)
    after = set(await nodes_of(cluster, pods))
    assert len(after) == used
    assert not after & before


@pytest.mark.slow
@pytest.mark.parametrize(("pods", "most"), [(1, 8), (2, 8), (4, 8), (6, 12), (12, 20)])
async def test_a_gang_may_use_eight_nodes_or_twice_its_own(pods: int, most: int) -> None:
    cluster = nodes([f"node-{number:02d}" for number in range(24)])
    names = add(cluster, *(f"p-{number}" for number in range(2 * pods)), gpus=4)
    assert len(set(await nodes_of(cluster, names))) == pods
    assert len(usable(cluster, "p-0")) == most


async def test_a_kind_that_cannot_have_its_nodes_is_named_with_the_cause() -> None:
    cluster = nodes("ab")
    add(cluster, "p", gpus=2, size="3", requests={"cpu": "8"})
    add(cluster, "q", gpus=2, size="3", requests={"cpu": "80"})
    add(cluster, "r", gpus=2, size="3", nodeSelector={"disk": "fast"})
    await cluster.settle()
    reason = cluster.note("p", "reason") or ""
    assert " Nodes left out for pod q: too little cpu. Nodes left out for pod r: " in reason
    assert "pod p" not in reason


async def test_a_rule_that_keeps_a_kind_from_all_nodes_is_named() -> None:
    cluster = nodes("a")
    add(cluster, "alone", gpus=1, gang="", app="other")
    await cluster.settle()
    cluster.schedule()
    add(cluster, "p", gpus=2, size="2")
    add(cluster, "q", gpus=2, size="2", **apart(HOST, "other"))
    await cluster.settle()
    assert "Nodes left out for pod q: excluded by the pod's anti-affinity or topology spread" in (
        cluster.note("p", "reason") or ""
    )


async def test_what_the_scheduler_said_is_not_repeated_when_there_is_no_place_for_another_reason() -> None:
    cluster = GpuCluster(unschedulable_s=0.0)
    for name in "ab":
        cluster.node(name)
    pods = add(cluster, "p", "q")
    assert await nodes_of(cluster, pods)
    refuse(cluster, "q", "node(s) had volume node affinity conflict")
    await cluster.settle()
    assert claims(cluster, pods) == []
    cluster.rival("rival", "a", range(8))
    for _ in range(30):
        await cluster.settle()
        await asyncio.sleep(2)
    reason = cluster.note("p", "reason") or ""
    assert "volume node affinity" not in reason
    assert "can use only the nodes of an earlier plan" in reason


@pytest.mark.parametrize(
    ("more", "fits"),
    [
        ({}, False),
        ({"nodeTaintsPolicy": "Honor"}, True),
        ({"nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"}, False),
    ],
)
async def test_spread_compares_the_nodes_that_the_pods_select(more: Object, fits: bool) -> None:
    cluster = GpuCluster()
    cluster.node("n1", labels={ZONE: "a", "pool": "gpu"})
    cluster.node("closed", labels={ZONE: "b", "pool": "gpu"}, taints=[{"key": "k", "effect": "NoSchedule"}])
    cluster.node("cpu", None, labels={ZONE: "c"})
    (constraint,) = spread(ZONE)["topologySpreadConstraints"]
    pods = add(
        cluster, "train-0", "train-1", gpus=4,
        nodeSelector={"pool": "gpu"}, topologySpreadConstraints=[constraint | more],
    )  # fmt: skip
    await cluster.settle()
    assert claims(cluster, pods) == (pods if fits else [])
