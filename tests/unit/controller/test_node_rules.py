"""Rules that keep a pod from nodes are known before it is narrowed: after that it can have no other node."""

from __future__ import annotations

from typing import Any

import pytest

from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.nodes.selector_classes import NAMELESS
from dradriver.cluster.pods.neighbours import ALONE, PORTS
from dradriver.controller.placing.claim_limit import OUT_OF_REACH
from dradriver.controller.placing.ranking import eligible
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS
from dradriver.queue.placement_request import read_wish
from tests.fakes.gpucluster import GpuCluster, Killed, claim_of

HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


def node_affinity(**expression: Any) -> Any:
    terms = [{"matchExpressions": [expression]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


IN_POOL = node_affinity(key="pool", operator="In", values=["gpus"])


def without_hostname(cluster: GpuCluster, name: str) -> None:
    cluster.node(name, labels={"pool": "gpus"})
    cluster.store.edit(NODES, ("", name), lambda node: node["metadata"]["labels"].pop(HOSTNAME))


def port(number: int = 8080, **more: Any) -> Any:
    return [{"name": "main", "ports": [{"containerPort": number, "hostPort": number} | more]}]


def with_port(cluster: GpuCluster, name: str, gpus: int = 1, **more: Any) -> None:
    pod = cluster.admitted(name, gpus)
    pod["spec"]["containers"][0]["ports"] = port(**more)[0]["ports"]
    cluster.put(PODS, pod)


def foreign(cluster: GpuCluster, name: str, node: str, labels: Any = None, **spec: Any) -> None:
    containers = [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]
    metadata = {"name": name, "namespace": "default", "labels": labels or {}}
    spec = {"nodeName": node, "containers": containers} | spec
    cluster.put(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})


def near(key: str, **labels: str) -> Any:
    terms = [{"topologyKey": key, "labelSelector": {"matchLabels": labels}}]
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def allowed(cluster: GpuCluster, name: str) -> set[str]:
    affinity = cluster.get_pod(name)["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return {term["matchFields"][0]["values"][0] for term in terms}


def zones(cluster: GpuCluster, *, each: int = 3) -> None:
    for number in range(3 * each):
        cluster.node(f"n{number}", labels={ZONE: f"z{number // each}"})


def other_claim(cluster: GpuCluster, name: str, zone: str | None = None, **more: Any) -> None:
    """Store a claim of another driver; allocated where a zone is said, empty for one that all nodes can use."""
    status: Any = {}
    if zone is not None:
        terms = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}]
        selector = {"nodeSelector": {"nodeSelectorTerms": terms}} if zone else {}
        results = [{"request": "r", "driver": "fpga.example.com", "pool": "shared", "device": "d"}]
        status = {"allocation": {"devices": {"results": results}} | selector}
    metadata = {"name": name, "namespace": "default"} | more
    cluster.put(RESOURCE_CLAIMS, {"metadata": metadata, "spec": {"devices": {}}, "status": status})


def with_claim(cluster: GpuCluster, name: str, claim: str) -> None:
    pod = cluster.admitted(name, 2)
    pod["spec"]["resourceClaims"].append({"name": "fpga", "resourceClaimName": claim})
    cluster.put(PODS, pod)


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
        assert cluster.note("p", "reason") == f"No node with GPUs can run this pod: {NAMELESS}."
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


async def test_replicas_with_a_host_port_have_a_node_each() -> None:
    cluster = GpuCluster()
    for number in range(4):
        cluster.node(f"n{number}")
    foreign(cluster, "agent", "n2", containers=port())
    foreign(cluster, "other-port", "n1", containers=port(8081))
    for replica in range(4):
        with_port(cluster, f"web-{replica}")
        await cluster.settle()
    cluster.schedule()
    assert {bound_to(cluster, f"web-{replica}") for replica in range(3)} == {"n0", "n1", "n3"}
    assert cluster.claim("web-3") is None
    assert cluster.note("web-3", "reason") == f"No node with GPUs can run this pod: {PORTS}."
    cluster.remove(PODS, "agent", "default")
    await cluster.settle()
    assert allowed(cluster, "web-3") == {"n2"}


async def test_a_host_port_of_another_address_or_protocol_is_another_port() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    foreign(cluster, "agent", "a", containers=port(hostIP="10.0.0.1"))
    with_port(cluster, "everywhere")
    with_port(cluster, "elsewhere", hostIP="10.0.0.2")
    with_port(cluster, "udp", protocol="UDP")
    await cluster.settle()
    assert [cluster.claim(name) is None for name in ("everywhere", "elsewhere", "udp")] == [True, False, False]


async def test_the_pods_own_place_does_not_keep_it_from_its_host_port() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    with_port(cluster, "p")
    cluster.client.kill_at = 2  # after the claim, before the gate is removed
    with pytest.raises(Killed):
        await cluster.settle()
    cluster.restart()
    await cluster.settle()
    cluster.schedule()
    assert bound_to(cluster, "p") == "a"


async def test_a_pod_goes_to_the_zone_of_the_foreign_pods_that_its_affinity_selects() -> None:
    cluster = GpuCluster()
    zones(cluster)
    cluster.node("cpu-only", None, labels={ZONE: "z1"})
    foreign(cluster, "other", "n8", {"app": "web"})
    foreign(cluster, "db-0", "cpu-only", {"app": "db"})
    cluster.pod("p", 2, affinity=near(ZONE, app="db"))
    await cluster.settle()
    assert allowed(cluster, "p") == {"n3", "n4", "n5"}


async def test_without_a_pod_that_its_affinity_selects_it_waits_and_is_placed_once_there_is_one() -> None:
    cluster = GpuCluster()
    zones(cluster)
    cluster.pod("p", 2, affinity=near(ZONE, app="db"))
    await cluster.settle()
    assert cluster.note("p", "reason") == f"No node with GPUs can run this pod: {ALONE}."
    foreign(cluster, "db-0", "n7", {"app": "db"})
    await cluster.settle()
    assert allowed(cluster, "p") == {"n6", "n7", "n8"}


async def test_a_pod_waits_for_one_of_ours_that_its_affinity_selects() -> None:
    cluster = GpuCluster()
    zones(cluster)
    cluster.pod("p", 2, affinity=near(ZONE, app="db"))
    await cluster.settle()
    assert cluster.claim("p") is None
    db = cluster.admitted("db", 2, nodeSelector={ZONE: "z2"})
    db["metadata"]["labels"]["app"] = "db"
    cluster.put(PODS, db)
    await cluster.settle()
    assert allowed(cluster, "p") == {"n6", "n7", "n8"}


@pytest.mark.parametrize(("key", "nodes"), [(ZONE, 3), (HOSTNAME, 1)])
async def test_pods_that_are_to_be_together_are_in_the_place_of_the_first(key: str, nodes: int) -> None:
    cluster = GpuCluster()
    zones(cluster)
    for number in range(3):
        pod = cluster.admitted(f"p{number}", 2, affinity=near(key, app="x"))
        pod["metadata"]["labels"]["app"] = "x"
        cluster.put(PODS, pod)
    await cluster.settle()
    first, *others = (allowed(cluster, f"p{number}") for number in range(3))
    assert len(first) == nodes, "it stays where the others follow it"
    assert others == [first, first]


async def test_pods_that_would_end_count_as_gone() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    with_port(cluster, "low")
    await cluster.settle()
    picture = cluster.worker.picture
    with_port(cluster, "high")
    await cluster.settle()
    wish = read_wish(picture.pods["default", "high"])
    snapshot = Snapshot(picture, "default")
    assert not eligible(snapshot, wish).any()
    assert eligible(snapshot.without([("default", claim_of("low"))]), wish).any()


async def test_a_pod_is_narrowed_to_nodes_that_can_use_its_allocated_claim_of_another_driver() -> None:
    cluster = GpuCluster()
    zones(cluster)
    other_claim(cluster, "fpga", "z1")
    with_claim(cluster, "p", "fpga")
    await cluster.settle()
    assert allowed(cluster, "p") == {"n3", "n4", "n5"}
    assert cluster.worker.picture.only_scheduler_knows(cluster.worker.picture.pods["default", "p"]) is None


async def test_a_claim_of_another_driver_that_no_node_with_gpus_can_use_is_a_reason_until_it_is_given_back() -> None:
    cluster = GpuCluster()
    zones(cluster)
    other_claim(cluster, "fpga", "z7")
    with_claim(cluster, "p", "fpga")
    await cluster.settle()
    assert cluster.note("p", "reason") == f"No node with GPUs can run this pod: {OUT_OF_REACH}."
    other_claim(cluster, "fpga", "z2")
    await cluster.settle()
    assert allowed(cluster, "p") == {"n6", "n7", "n8"}


@pytest.mark.parametrize("zone", [None, ""])
async def test_a_claim_of_another_driver_that_is_not_allocated_or_anywhere_leaves_all_nodes(zone: str | None) -> None:
    """Of one that is not allocated the controller does not know the nodes, so the pod is confined to none."""
    cluster = GpuCluster()
    zones(cluster, each=2)
    other_claim(cluster, "fpga", zone)
    with_claim(cluster, "p", "fpga")
    await cluster.settle()
    if zone is None:
        assert "affinity" not in cluster.get_pod("p")["spec"]
    else:
        assert len(allowed(cluster, "p")) == 6
    unknown = cluster.worker.picture.only_scheduler_knows(cluster.worker.picture.pods["default", "p"])
    assert (unknown is not None) == (zone is None)


async def test_a_claim_that_is_allocated_elsewhere_meanwhile_makes_a_placement_invalid() -> None:
    cluster = GpuCluster()
    zones(cluster)
    other_claim(cluster, "fpga")
    with_claim(cluster, "p", "fpga")
    cluster.client.kill_at = 2  # after the claim, before the gate is removed
    with pytest.raises(Killed):
        await cluster.settle()
    assert cluster.gpus("p")[0] == "n0"
    other_claim(cluster, "fpga", "z1")
    cluster.restart()
    for _ in range(3):
        await cluster.settle()
        cluster.collect()
    assert allowed(cluster, "p") == {"n3", "n4", "n5"}


async def test_of_claims_that_kubernetes_makes_for_other_pods_nothing_is_kept() -> None:
    cluster = GpuCluster()
    owner = {"kind": "Pod", "name": "q", "uid": "uid-q", "controller": True, "apiVersion": "v1"}
    other_claim(cluster, "made", "z1", ownerReferences=[owner])
    cluster.store.edit(
        RESOURCE_CLAIMS,
        ("default", "made"),
        lambda claim: claim["status"].update(reservedFor=[{"resource": "pods", "name": "q", "uid": "uid-q"}]),
    )
    other_claim(cluster, "shared", "z1")
    await cluster.settle()
    assert list(cluster.worker.picture.claims) == [("default", "shared")]
    assert await cluster.audit() == 0
