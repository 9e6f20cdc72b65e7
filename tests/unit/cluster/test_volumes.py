"""Pods whose volumes are in one place: narrowed to nodes that reach them, and held up by no volume."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.api.base.objects import Metadata, Node
from dradriver.api.base.pods import (
    NodeRequirement,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    Volume,
    VolumeClaimName,
)
from dradriver.api.base.storage import PersistentVolume, PersistentVolumeSpec, VolumeNodeAffinity
from dradriver.cluster.nodes.expressions import holds
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.nodes.pod_demands import ask_of
from dradriver.cluster.nodes.selector_classes import ELSEWHERE
from dradriver.cluster.pods.volumes import MOST_CLAIMS, claims_of, where_of
from dradriver.kube.client import ApiError, Unreachable
from dradriver.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, STORAGE_CLASSES, Resource
from tests.fakes.commands import CommandLine
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.troubles import working

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
PLACES = (ZONE, REGION, OLD_ZONE, OLD_REGION)


def zones(cluster: GpuCluster, *, each: int = 3) -> None:
    """Nodes of three zones, of which the first is preferred: it has least room."""
    for number in range(3 * each):
        cluster.node(f"n{number}", labels={ZONE: f"z{number // each}"})
    cluster.pod("filler", 4)


def volume(cluster: GpuCluster, name: str, zone: str, **metadata: Any) -> None:
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
    spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
    cluster.put(PERSISTENT_VOLUMES, {"metadata": {"name": name} | metadata, "spec": spec})


def storage_class(cluster: GpuCluster, name: str, mode: str, **changes: Any) -> None:
    cluster.put(STORAGE_CLASSES, {"metadata": {"name": name}, "volumeBindingMode": mode} | changes)


def topology(*zones: str) -> dict[str, Any]:
    return {"matchLabelExpressions": [{"key": ZONE, "values": list(zones)}] if zones else []}


def claim(cluster: GpuCluster, name: str, bound_to: str | None, *, kind: str = "", **status: Any) -> None:
    spec = {"storageClassName": kind} | ({} if bound_to is None else {"volumeName": bound_to})
    phase = {"phase": "Pending" if bound_to is None else "Bound"}
    metadata = {"name": name, "namespace": "default"}
    cluster.put(PERSISTENT_VOLUME_CLAIMS, {"metadata": metadata, "spec": spec, "status": phase | status})


def uses(*claims: str) -> list[dict[str, Any]]:
    return [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": name}} for i, name in enumerate(claims)]


def allowed(cluster: GpuCluster, name: str) -> set[str]:
    affinity = cluster.get_pod(name)["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return {term["matchFields"][0]["values"][0] for term in terms}


async def test_a_pod_is_narrowed_to_nodes_that_reach_its_volume() -> None:
    cluster = GpuCluster()
    zones(cluster)
    volume(cluster, "disk", "z2")
    claim(cluster, "data", "disk")
    cluster.pod("p", 2, volumes=uses("data"))
    await cluster.settle()
    assert allowed(cluster, "p") == {"n6", "n7", "n8"}


async def test_a_claim_that_kubernetes_makes_of_the_pods_own_volume_counts_too() -> None:
    cluster = GpuCluster()
    zones(cluster)
    volume(cluster, "disk", "z1")
    claim(cluster, "p-scratch", "disk")
    cluster.pod("p", 2, volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}])
    await cluster.settle()
    assert allowed(cluster, "p") == {"n3", "n4", "n5"}


async def test_volumes_of_two_zones_are_nowhere_and_the_pod_is_told() -> None:
    cluster = GpuCluster()
    zones(cluster)
    for zone in ("z0", "z1"):
        volume(cluster, f"disk-{zone}", zone)
        claim(cluster, f"data-{zone}", f"disk-{zone}")
    cluster.pod("p", 2, volumes=uses("data-z0", "data-z1"))
    await cluster.settle()
    assert cluster.claim("p") is None
    assert ELSEWHERE in (cluster.note("p", "reason") or "")


@pytest.mark.parametrize("trouble", ["for the first pod", "lost", "no volume"])
async def test_a_claim_without_a_volume_restricts_nothing(trouble: str) -> None:
    cluster = GpuCluster()
    zones(cluster)
    volume(cluster, "disk", "z2")
    match trouble:
        case "for the first pod":
            storage_class(cluster, "late", "WaitForFirstConsumer")
            claim(cluster, "data", None, kind="late")
        case "lost":
            claim(cluster, "data", "disk", phase="Lost")
        case "no volume":
            claim(cluster, "data", "gone")
    cluster.pod("p", 2, volumes=uses("data"))
    await cluster.settle()
    assert cluster.gpus("p")[0] == "n0"


async def test_a_pod_that_needs_a_volume_which_exists_already_may_go_to_any_node() -> None:
    cluster = GpuCluster()
    zones(cluster)
    storage_class(cluster, "local", "WaitForFirstConsumer", provisioner="kubernetes.io/no-provisioner")
    claim(cluster, "data", None, kind="local")
    cluster.pod("p", 2, volumes=uses("data"))
    await cluster.settle()
    assert cluster.claim("p") is not None
    assert "affinity" not in cluster.get_pod("p")["spec"]


@pytest.mark.parametrize(
    ("topologies", "nodes"),
    [
        ([topology("z1"), topology("z3")], {"n3", "n4", "n5"}),
        ([topology("z1", "z2"), topology()], {"n3", "n4", "n5", "n6", "n7", "n8"}),
        ([topology()], set()),
        ([topology(*map(str, range(300)))], {"n0", "n1", "n2", "n3", "n4", "n5", "n6", "n8"}),  # left to the scheduler
    ],
)
async def test_a_volume_that_is_made_for_the_pod_is_made_where_its_class_allows(
    topologies: list[Any], nodes: set[str]
) -> None:
    cluster = GpuCluster()
    zones(cluster)
    storage_class(cluster, "late", "WaitForFirstConsumer", allowedTopologies=topologies)
    claim(cluster, "data", None, kind="late")
    cluster.pod("p", 2, volumes=uses("data"))
    await cluster.settle()
    if nodes:
        assert allowed(cluster, "p") == nodes
    else:
        assert cluster.claim("p") is None
        assert ELSEWHERE in (cluster.note("p", "reason") or "")


@pytest.mark.slow
@pytest.mark.looptime
@pytest.mark.parametrize("trouble", ["is not there", "is not bound", "is not bound to it", "has no class"])
async def test_a_pod_stays_at_its_gate_until_its_claim_has_what_it_has_not_to_wait_for(trouble: str) -> None:
    """Kubernetes makes a volume of the class Immediate anywhere, soon after the claim; the pod would be elsewhere."""
    cluster = GpuCluster()
    zones(cluster)
    volume(cluster, "disk", "z2")
    storage_class(cluster, "at-once", "Immediate")
    match trouble:
        case "is not bound":
            claim(cluster, "data", None, kind="at-once")
        case "is not bound to it":
            claim(cluster, "data", "disk", phase="Pending")
        case "has no class":
            claim(cluster, "data", None, kind="gone")
    cluster.pod("p", 2, volumes=uses("data"))
    cluster.pod("other", 2)
    async with working(cluster):
        await asyncio.sleep(30)
        assert cluster.claim("p") is None
        assert "Waiting for PersistentVolumeClaim 'data', which " in (cluster.note("p", "reason") or "")
        assert cluster.claim("other") is not None
        claim(cluster, "data", "disk")
        await asyncio.sleep(61)
        assert allowed(cluster, "p") == {"n6", "n7", "n8"}


@pytest.mark.parametrize(
    "error", [ApiError(403, "Forbidden", "no"), ApiError(500, "InternalError", "broken"), Unreachable("gone")]
)
async def test_what_cannot_be_read_holds_up_no_pod(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    cluster = GpuCluster()
    zones(cluster)
    answer = cluster.client.get

    async def get(resource: Resource, name: str, **more: Any) -> Any:
        if resource is PERSISTENT_VOLUME_CLAIMS:
            raise error
        return await answer(resource, name, **more)

    cluster.client.get = get  # type: ignore[method-assign]
    for name in ("p", "q"):
        cluster.pod(name, 2, volumes=uses(f"data-{name}"))
    await cluster.settle()
    assert (cluster.gpus("p")[0], cluster.gpus("q")[0]) == ("n0", "n0")
    told = [record.getMessage() for record in caplog.records if "volume" in record.getMessage()]
    if isinstance(error, ApiError) and error.forbidden:  # a right that is missing is told once
        assert len(told) == 1


@pytest.mark.parametrize("name", ["", "a/b", "..", ".", "x" * 300])
async def test_a_name_that_no_claim_can_have_is_left_to_the_scheduler(name: str) -> None:
    cluster = GpuCluster()
    zones(cluster)
    volume(cluster, "disk", "z2")
    claim(cluster, "data", "disk")
    cluster.pod("p", 2, volumes=[*uses(name), {"name": "w", "persistentVolumeClaim": {"claimName": "data"}}])
    await cluster.settle()
    assert allowed(cluster, "p") == {"n6", "n7", "n8"}


def test_of_very_many_volumes_the_first_count() -> None:
    volumes = [Volume(persistent_volume_claim=VolumeClaimName(f"c{i % 40}")) for i in range(1000)]
    pod = Pod(Metadata(name="p", namespace="a"), PodSpec(volumes=volumes))
    assert claims_of(pod) == tuple(("a", f"c{i}") for i in range(MOST_CLAIMS))


@pytest.mark.slow
@pytest.mark.looptime
async def test_a_claim_that_is_bound_while_its_pod_waits_is_noticed() -> None:
    cluster = GpuCluster()
    cluster.node("n0", labels={ZONE: "z0"}, unschedulable=True)
    storage_class(cluster, "late", "WaitForFirstConsumer")
    claim(cluster, "data", None, kind="late")
    cluster.pod("p", 2, volumes=uses("data"))
    async with working(cluster):
        await asyncio.sleep(100)
        volume(cluster, "disk", "z1")
        claim(cluster, "data", "disk")
        await asyncio.sleep(61)
        cluster.node("n0", labels={ZONE: "z0"})
        await asyncio.sleep(1)
        assert cluster.claim("p") is None
        assert ELSEWHERE in (cluster.note("p", "reason") or "")
        cluster.node("n1", labels={ZONE: "z1"})
        await asyncio.sleep(1)
        assert allowed(cluster, "p") == {"n1"}


def hang(cluster: GpuCluster, *names: str, for_s: float) -> None:
    """Let the server answer late about some claims of storage."""
    answer = cluster.client.get

    async def get(resource: Resource, name: str, **more: Any) -> Any:
        found = answer(resource, name, **more)
        if resource is PERSISTENT_VOLUME_CLAIMS and name in names:
            try:
                return await found  # as it is now
            finally:
                await asyncio.sleep(for_s)
        return await found

    cluster.client.get = get  # type: ignore[method-assign]


@pytest.mark.looptime
async def test_reads_that_hang_hold_up_their_own_pods_alone_and_not_for_long() -> None:
    cluster = GpuCluster()
    zones(cluster)
    volume(cluster, "disk", "z2")
    claim(cluster, "good", "disk")
    hanging = [f"h{number}" for number in range(3)]
    hang(cluster, *hanging, for_s=30)
    async with working(cluster):
        for name in hanging:
            cluster.pod(name, 1, volumes=uses(name))
        cluster.pod("p", 1, volumes=uses("good"))
        await asyncio.sleep(3 * 2 + 1)
        assert allowed(cluster, "p") == {"n6", "n7", "n8"}
        assert all(cluster.claim(name) is not None for name in hanging)


@pytest.mark.slow
@pytest.mark.looptime
async def test_a_first_read_never_stands_behind_those_that_are_made_again() -> None:
    cluster = GpuCluster()
    cluster.node("n0", labels={ZONE: "z0"})
    volume(cluster, "far", "z1")
    volume(cluster, "near", "z0")
    elsewhere = [f"e{number}" for number in range(60)]
    for name in elsewhere:
        claim(cluster, name, "far")
    claim(cluster, "good", "near")
    hang(cluster, *elsewhere, for_s=1)
    async with working(cluster):
        for name in elsewhere:
            cluster.pod(name, 1, volumes=uses(name))
        await asyncio.sleep(90)
        cluster.pod("p", 1, volumes=uses("good"))
        await asyncio.sleep(1)
        assert cluster.claim("p") is not None


@pytest.mark.looptime
async def test_a_promise_ends_in_time_while_a_new_leader_reads_where_volumes_are() -> None:
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    zones(cluster)
    volume(cluster, "disk", "z0")
    claim(cluster, "data", "disk")
    cluster.pod("p", 2, volumes=uses("data"))
    async with working(cluster):
        await asyncio.sleep(1)
    first = cluster.claim("p")
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pod = cluster.get_pod("p")
    cluster.put(PODS, pod | {"status": pod["status"] | {"conditions": [refused]}})
    cluster.restart()
    hang(cluster, "data", for_s=30)
    async with working(cluster):
        await asyncio.sleep(7)
        now = cluster.claim("p")
        assert first is not None
        assert now is None or now["metadata"]["uid"] != first["metadata"]["uid"]


@pytest.mark.looptime
async def test_an_answer_that_was_asked_for_before_is_not_for_the_next_pod() -> None:
    cluster = GpuCluster()
    zones(cluster)
    storage_class(cluster, "late", "WaitForFirstConsumer")
    claim(cluster, "data", None, kind="late")
    hang(cluster, "data", for_s=1)
    async with working(cluster):
        cluster.pod("p", 2, volumes=uses("data"))
        await asyncio.sleep(0.5)
        cluster.remove(PODS, "p", "default")
        await asyncio.sleep(0.1)
        volume(cluster, "disk", "z2")
        claim(cluster, "data", "disk")
        cluster.pod("again", 2, volumes=uses("data"))
        await asyncio.sleep(5)
        assert allowed(cluster, "again") == {"n6", "n7", "n8"}


@pytest.mark.slow
@pytest.mark.looptime
async def test_what_was_read_is_not_forgotten_for_a_server_in_trouble() -> None:
    cluster = GpuCluster()
    cluster.node("n0", labels={ZONE: "z0"})
    volume(cluster, "disk", "z1")
    claim(cluster, "data", "disk")
    cluster.pod("p", 2, volumes=uses("data"))
    async with working(cluster):
        await asyncio.sleep(1)
        answer = cluster.client.get

        async def get(resource: Resource, name: str, **more: Any) -> Any:
            raise Unreachable("gone")

        cluster.client.get = get  # type: ignore[method-assign]
        await asyncio.sleep(100)
        cluster.client.get = answer  # type: ignore[method-assign]
        assert cluster.claim("p") is None
        assert ELSEWHERE in (cluster.note("p", "reason") or "")


@pytest.mark.looptime
async def test_a_pod_that_comes_again_has_its_claim_read_again_at_once() -> None:
    cluster = GpuCluster()
    zones(cluster)
    storage_class(cluster, "late", "WaitForFirstConsumer")
    claim(cluster, "data", None, kind="late")
    async with working(cluster):
        cluster.pod("p", 2, volumes=uses("data"))
        await asyncio.sleep(1)
        assert cluster.gpus("p")[0] == "n0"
        cluster.schedule()
        await asyncio.sleep(1)
        volume(cluster, "disk", "z2")
        claim(cluster, "data", "disk")
        cluster.pod("again", 2, volumes=uses("data"))
        await asyncio.sleep(1)
        assert allowed(cluster, "again") == {"n6", "n7", "n8"}


async def test_a_pod_without_claims_of_storage_costs_no_request() -> None:
    cluster = GpuCluster()
    cluster.node("n0")
    asked = []
    answer = cluster.client.get

    async def get(resource: Resource, name: str, **more: Any) -> Any:
        asked.append(resource.plural)
        return await answer(resource, name, **more)

    cluster.client.get = get  # type: ignore[method-assign]
    cluster.pod("p", 2, volumes=[{"name": "kube-api-access", "projected": {"sources": []}}, {"name": "e"}])
    await cluster.settle()
    assert cluster.claim("p") is not None
    assert not {"persistentvolumeclaims", "persistentvolumes"} & set(asked)


async def test_explain_knows_where_volumes_are_or_says_that_it_does_not(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.node("n0", labels={ZONE: "z0"})
    volume(cluster, "disk", "z1")
    claim(cluster, "data", "disk")
    cluster.pod("next", 2, volumes=uses("data"))
    await cluster.settle()
    assert ELSEWHERE in (await shell.data("explain next"))["reason"]
    shell.api.fail(path="/persistentvolumes", status=403, reason="Forbidden", message="no", times=9)
    result = await shell.run("explain", "next")
    assert (result.exit_code, "There is a place for the pod on n0" in result.stdout) == (0, True)
    assert "verb get on persistentvolumeclaims, persistentvolumes and storageclasses" in result.stderr
    claim(cluster, "data", None)
    reason = "Waiting for PersistentVolumeClaim 'data', which is not bound to a volume yet."
    assert (await shell.data("explain next"))["reason"] == reason


def reaches(labels: Mapping[str, str], node: Mapping[str, str]) -> bool:
    """Whether the scheduler's plugin VolumeZone lets a volume of these labels be used on a node of those."""
    if not any(place in node for place in PLACES):
        return True
    for place in PLACES:
        wanted = [value.strip() for value in labels.get(place, "").split("__")]
        if not all(wanted):
            continue
        general = {OLD_ZONE: ZONE, OLD_REGION: REGION}.get(place, place)
        if node.get(place, node.get(general)) not in wanted:
            return False
    return True


PLACED = st.dictionaries(st.sampled_from(PLACES), st.sampled_from(["a", "b", "a__b", "", "__", "a__ b"]))
EXPRESSIONS = st.builds(
    NodeRequirement,
    key=st.sampled_from([ZONE, REGION]),
    operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    values=st.lists(st.sampled_from(["a", "b"]), max_size=2),
)


@given(
    labels=PLACED,
    nodes=st.lists(st.dictionaries(st.sampled_from(PLACES), st.sampled_from(["a", "b", "c"])), min_size=1, max_size=6),
    terms=st.none() | st.lists(st.lists(EXPRESSIONS, max_size=2), max_size=2),
)
def test_nodes_are_those_that_the_scheduler_takes(
    labels: dict[str, str], nodes: list[dict[str, str]], terms: list[list[NodeRequirement]] | None
) -> None:
    selector = None if terms is None else NodeSelector([NodeSelectorTerm(match_expressions=each) for each in terms])
    spec = PersistentVolumeSpec(node_affinity=VolumeNodeAffinity(required=selector))
    table = NodeTable()
    for number, own in enumerate(nodes):
        table.set_node(f"n{number}", _ready(f"n{number}", own))
        table.offer(f"n{number}", True)
    ask = ask_of(Pod(Metadata(name="p")), where_of(PersistentVolume(Metadata(labels=labels), spec)))
    found = {table.name(int(row)) for row in table.open(ask).nonzero()[0]}

    def chosen(own: Mapping[str, str]) -> bool:
        return not terms or any(
            each and all(holds(own.get(one.key), one.operator, one.values) for one in each) for each in terms
        )

    assert found == {f"n{number}" for number, own in enumerate(nodes) if chosen(own) and reaches(labels, own)}


@pytest.mark.parametrize(
    "term",
    [
        NodeSelectorTerm(match_expressions=[NodeRequirement(OLD_ZONE, "In", ["a"])]),
        NodeSelectorTerm(match_fields=[NodeRequirement("metadata.name", "In", ["n1"])]),
    ],
)
def test_what_the_scheduler_reads_in_another_way_is_left_to_it(term: NodeSelectorTerm) -> None:
    """Older names of zones it writes anew for volumes of CSI drivers, and a volume's fields it does not read."""
    spec = PersistentVolumeSpec(node_affinity=VolumeNodeAffinity(required=NodeSelector([term])))
    assert where_of(PersistentVolume(Metadata(), spec)) == ()


def test_a_volumes_terms_are_about_labels_alone() -> None:
    zone, name = NodeRequirement(ZONE, "In", ["a"]), NodeRequirement("metadata.name", "In", ["n1"])
    required = NodeSelector([NodeSelectorTerm(match_expressions=[zone], match_fields=[name])])
    (terms,) = where_of(PersistentVolume(Metadata(), PersistentVolumeSpec(node_affinity=VolumeNodeAffinity(required))))
    assert [(term.labels, term.fields) for term in terms] == [(((ZONE, "In", ("a",)),), ())]


def _ready(name: str, labels: dict[str, str]) -> Node:
    ready = {
        "metadata": {"name": name, "labels": labels},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    return msgspec.convert(ready, Node)
