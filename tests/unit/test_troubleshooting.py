"""docs/troubleshooting.md is true: what it quotes is said, where it says so, and nothing that is said is missing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from dradriver.allocator.request import Amount
from dradriver.api.base import names
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.policies.policies_reader import read
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Cap, Tenant
from dradriver.cli.cluster.free_gpus import FreeGpus
from dradriver.cli.explainer.model import Subject, Verdict
from dradriver.cluster.nodes import node_table, selector_classes
from dradriver.cluster.pods import neighbours, nvlink_channels
from dradriver.controller.placing import claim_limit, ranking
from dradriver.kube.client import ApiError
from dradriver.kube.resources import (
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from dradriver.reason import Cause
from tests.fakes import nics
from tests.fakes.gpucluster import GpuCluster, Killed, claim_of
from tests.fakes.owners import JOB_GROUP, job_pod, owned
from tests.paths import REPO
from tests.unit.documented import said

DOCUMENT: Final = (REPO / "docs" / "troubleshooting.md").read_text()
SOURCES: Final = {path: path.read_text() for path in (REPO / "dradriver").rglob("*.py") if "protos" not in path.parts}
SHARED: Final = Mode(shared="time-slicing")


def rows(title: str) -> list[str]:
    """Return the first cells of the table under a title."""
    (section,) = re.findall(rf"(?ms)^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", DOCUMENT)
    return [line.split(" | ")[0].removeprefix("| ") for line in re.findall(r"(?m)^\| `.*$", section)]


def quoted(title: str) -> list[str]:
    """Return what these cells quote."""
    return [text for cell in rows(title) for text in re.findall(r"`([^`]+)`", cell)]


Scenario = Callable[[GpuCluster], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def says(text: str) -> Callable[[Scenario], Scenario]:
    """Let a scenario be what leads to a reason on pod ``p``."""

    def add(scenario: Scenario) -> Scenario:
        SCENARIOS[text] = scenario
        return scenario

    return add


@says("waits for PersistentVolumeClaim")
async def _without_its_volume(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])


def _beside_nics(cluster: GpuCluster, *, classes: bool = True, **devices: Any) -> None:
    cluster.node("a", "hgx-h100")
    if classes:
        cluster.put(DEVICE_CLASSES, nics.device_class())
    asked = [("gpu", "gpu.topology"), ("nic", nics.DRANET_CLASS)]
    requests = [{"name": name, "exactly": {"deviceClassName": wanted}} for name, wanted in asked]
    content = {"metadata": {"name": "t", "namespace": "default"}, "spec": {"spec": {"devices": {"requests": requests}}}}
    content["spec"]["spec"]["devices"] |= devices  # type: ignore[index]
    cluster.put(RESOURCE_CLAIM_TEMPLATES, content)
    claims = [{"name": "gpus", "resourceClaimName": claim_of("p")}]
    cluster.pod("p", 1, wishes={"template": "gpus/t"}, resourceClaims=claims)


@says("no eligible node has so many free ones")
async def _no_nics(cluster: GpuCluster) -> None:
    _beside_nics(cluster)


@says("so no claim is given devices by this constraint")
async def _no_common_root(cluster: GpuCluster) -> None:
    _beside_nics(cluster, constraints=[{"matchAttribute": names.PCIE_ROOT}])
    cluster.put(RESOURCE_SLICES, nics.published("a", nics.of_machine(cluster.machines["a"])))


@says("waits for DeviceClass")
async def _no_class_of_nics(cluster: GpuCluster) -> None:
    _beside_nics(cluster, classes=False)


@says("waits until the slices of drivers")
async def _nics_not_read(cluster: GpuCluster) -> None:
    _beside_nics(cluster)
    cluster.nics_are_read = False


@says("its tenant's cap")
async def _capped(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.worker.follow(Policies(tenants={"a": Tenant(namespaces=("default",), cap=(Cap(gpus=3),))}))
    cluster.pod("p")


@says("whose its namespace is, is not known yet")
async def _whose(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.worker.follow(Policies(tenants={"a": Tenant(namespace_labels={"team": "a"})}))
    cluster.pod("p")


@says("no eligible node has such a set free")
async def _taken(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.rival("rival", "a", range(8))
    cluster.pod("p")


@says("no node of this cluster has such a set even when all its GPUs are free")
async def _impossible(cluster: GpuCluster) -> None:
    cluster.node("a", "rtx4090-x8")
    cluster.pod("p", wishes={"required": "nvlink"})


@says("no node has GPUs of")
async def _of_another_vendor(cluster: GpuCluster) -> None:
    cluster.node("a", "mi210-x8")
    cluster.pod("p")


@says("no eligible node has room for that")
async def _full(cluster: GpuCluster) -> None:
    cluster.node("a", mode=SHARED)
    cluster.rival("rival", "a", range(8))
    cluster.pod("p", Amount(cores=50))


@says("another namespace uses fractions of")
async def _another_namespaces(cluster: GpuCluster) -> None:
    cluster.node("a", mode=Mode(shared="time-slicing", exclusive_to="namespace"))
    cluster.rival("rival", "a", range(1, 8))
    cluster.pod("q", Amount(cores=25), namespace="other")
    await cluster.settle()
    cluster.pod("p", Amount(cores=50))


@says("has room for that even when it is empty")
async def _too_large(cluster: GpuCluster) -> None:
    cluster.node("a", mode=SHARED)
    cluster.pod("p", Amount(memory_mib=1 << 20))


@says("left out are all GPUs but those of tenant")
async def _outside_its_partition(cluster: GpuCluster) -> None:
    cluster.worker.follow(read(b"tenants: {a: {namespaces: [default], partition: {nodes: [b]}}}", source="x"))
    cluster.node("a")
    cluster.pod("p")


@says("left out are GPUs that are a tenant's alone")
async def _in_anothers_partition(cluster: GpuCluster) -> None:
    text = b"tenants: {a: {namespaces: [other], partition: {nodes: [a]}, exclusive: true}}"
    cluster.worker.follow(read(text, source="x"))
    cluster.node("a")
    cluster.pod("p")


@says("no node offers GPUs in shares")
async def _no_shares(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p", Amount(cores=50))


@says("no node offers GPUs in MIG slices")
async def _no_slices(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p", ("1g.10gb",))


@says("no node offers GPUs of this driver")
async def _no_gpus(cluster: GpuCluster) -> None:
    cluster.node("a", None)
    cluster.pod("p")


@says("no node with GPUs can run this pod")
async def _cordoned(cluster: GpuCluster) -> None:
    cluster.node("a", unschedulable=True)
    cluster.pod("p")


@says("unhealthy GPUs are left out")
async def _unhealthy(cluster: GpuCluster) -> None:
    cluster.node("a", "dgx-a100")
    for piece in cluster.all(RESOURCE_SLICES):
        piece["spec"]["devices"][0]["taints"] = [{"key": "gpu.topology/xid", "value": "79", "effect": "NoSchedule"}]
        cluster.put(RESOURCE_SLICES, piece)
    cluster.pod("p", 8)


@says("nodes left out:")
async def _half(cluster: GpuCluster) -> None:
    cluster.node("a", unschedulable=True)
    cluster.node("b")
    cluster.rival("rival", "b", range(8))
    cluster.pod("p")


@says("the nodes that this pod was placed for have no other GPUs for it")
async def _narrowed(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p", 8)
    await cluster.settle()
    cluster.rival("rival", "a", range(8))


@says("the scheduler finds no room on its nodes")
async def _refused(cluster: GpuCluster) -> None:
    cluster.unschedulable_s = 1.0
    cluster.restart()
    cluster.node("a")
    cluster.pod("p")
    await cluster.settle()
    pod = cluster.get_pod("p")
    said = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available: x.",
    }
    cluster.put(PODS, pod | {"status": pod["status"] | {"conditions": [said]}})
    await cluster.settle()
    await asyncio.sleep(1.1)


@says("has not bound the pod to its nodes")
async def _overdue(cluster: GpuCluster) -> None:
    cluster.promise_s = 1.0
    cluster.restart()
    cluster.node("a")
    cluster.pod("p")
    await cluster.settle()
    await asyncio.sleep(1.1)


async def _in_a_group(cluster: GpuCluster, reason: str, message: str) -> None:
    """Place a pod that did not leave the PodGroup of its Job, and let the scheduler say this, and nothing more."""
    cluster.promise_s = 1.0
    cluster.restart()
    cluster.node("a")
    groups = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", namespaced=True)
    spec: dict[str, Any] = {"schedulingPolicy": {"basic": {}}}
    cluster.put(groups, {"metadata": {"name": JOB_GROUP, "namespace": "default"}, "spec": spec})
    made = cluster.admitted("p", schedulingGroup={"podGroupName": JOB_GROUP})
    made["metadata"]["ownerReferences"] = job_pod(0)["metadata"]["ownerReferences"]
    cluster.put(PODS, made)
    await cluster.settle()
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    cluster.store.edit(PODS, ("default", "p"), lambda pod: pod["status"].update(conditions=[condition]))
    await cluster.settle()
    await asyncio.sleep(1.1)


@says("it tries no pod of PodGroup")
async def _beside_a_gated_one(cluster: GpuCluster) -> None:
    await _in_a_group(cluster, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")


@says("the scheduler finds no room for another pod of its PodGroup")
async def _beside_a_refused_one(cluster: GpuCluster) -> None:
    await _in_a_group(cluster, "Unschedulable", "minCount (2) cannot be satisfied: 0 scheduled, 1 remaining")


@says("waits for scheduling gate")
async def _gated(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p", schedulingGates=[{"name": names.GATE}, {"name": "example.com/other"}])


@says("waits until its earlier claim")
async def _deleting(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p")
    await cluster.settle()
    cluster.schedule()
    pod = cluster.get_pod("p")
    del pod["spec"]["nodeName"]  # as if the binding had failed
    cluster.put(PODS, pod | {"status": {"phase": "Pending"}})
    cluster.remove(RESOURCE_CLAIMS, claim_of("p"), "default")


@says("belongs to somebody else")
async def _theirs(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": claim_of("p"), "namespace": "default"}, "spec": {}})
    cluster.pod("p")


async def _left_behind(cluster: GpuCluster) -> dict[str, object]:
    cluster.node("a")
    cluster.pod("p")
    cluster.client.kill_at = -1
    with pytest.raises(Killed):
        await cluster.settle()
    cluster.restart()
    claim = cluster.claim("p")
    assert claim is not None
    return claim


def _sharing(cluster: GpuCluster, *pods: str, gpus: int = 4, **more: Any) -> None:
    for name in pods:
        cluster.pod(name, gpus, wishes={"shared-claim": "duo"}, **more)


async def _a_set_in_use(cluster: GpuCluster) -> None:
    cluster.node("a")
    _sharing(cluster, "first")
    await cluster.settle()
    cluster.schedule()


@says("is being placed with pod")
async def _behind(cluster: GpuCluster) -> None:
    cluster.node("a")
    _sharing(cluster, "first", "p")


@says("was chosen for")
async def _other_set(cluster: GpuCluster) -> None:
    await _a_set_in_use(cluster)
    _sharing(cluster, "p", gpus=2)


@says("which cannot run this pod")
async def _no_room_beside(cluster: GpuCluster) -> None:
    await _a_set_in_use(cluster)
    _sharing(cluster, "p", requests={"cpu": "65"})


@says("as many as Kubernetes lets use a claim")
async def _too_many(cluster: GpuCluster) -> None:
    await _a_set_in_use(cluster)
    claim = cluster.find(RESOURCE_CLAIMS, "duo", "default")
    assert claim is not None
    more = [{"resource": "pods", "name": f"q{n}", "uid": f"q{n}"} for n in range(255)]
    status = claim["status"] | {"reservedFor": [*claim["status"]["reservedFor"], *more]}
    cluster.put(RESOURCE_CLAIMS, claim | {"status": status})
    _sharing(cluster, "p")


@says("whose pods have ended, is gone")
async def _ended(cluster: GpuCluster) -> None:
    await _a_set_in_use(cluster)
    cluster.put(PODS, cluster.get_pod("first") | {"status": {"phase": "Succeeded"}})
    cluster.collect()
    _sharing(cluster, "p")
    cluster.deliver()
    await cluster.worker.rest()
    cluster.grace_s = 1000.0
    cluster.restart()


@says("is gone, and its pods with it")
async def _going(cluster: GpuCluster) -> None:
    await _a_set_in_use(cluster)
    cluster.remove(RESOURCE_CLAIMS, "duo", "default")
    _sharing(cluster, "p")


@says("is not one that the driver made for pods to share")
async def _not_to_share(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": "duo", "namespace": "default"}, "spec": {}})
    _sharing(cluster, "p")


@says("says nothing of a shared claim")
async def _renamed(cluster: GpuCluster) -> None:
    cluster.pod("p")
    pod = cluster.get_pod("p")
    pod["spec"]["resourceClaims"][0]["resourceClaimName"] = "duo"
    cluster.put(PODS, pod)


@says("is used by another pod")
async def _shared(cluster: GpuCluster) -> None:
    claim = await _left_behind(cluster)
    used = {"reservedFor": [{"resource": "pods", "name": "copy", "uid": "other"}]}
    cluster.put(RESOURCE_CLAIMS, claim | {"status": used})


@says("was given devices while it was gated")
async def _meddled(cluster: GpuCluster) -> None:
    claim = await _left_behind(cluster)
    cluster.put(RESOURCE_CLAIMS, claim | {"status": {"allocation": {"devices": {"results": []}}}})


@says("was changed")
async def _damaged(cluster: GpuCluster) -> None:
    cluster.pod("p")
    pod = cluster.get_pod("p")
    pod["metadata"]["annotations"][names.REQUEST] = "{"
    cluster.put(PODS, pod)


@says("which the webhook writes, is missing")
async def _gone(cluster: GpuCluster) -> None:
    cluster.pod("p")
    pod = cluster.get_pod("p")
    del pod["metadata"]["annotations"][names.REQUEST]
    cluster.put(PODS, pod)


@says("exceeded quota")
async def _quota(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p")
    cluster.client.refuse["create"] = [ApiError(403, "Forbidden", "exceeded quota: gpus, requested: …")]


def _gang(cluster: GpuCluster, *pods: str, size: int | None = None, gpus: int = 8, **words: str) -> None:
    for name in pods:
        cluster.pod(name, gpus, wishes={"gang": "train", "gang-size": str(size or len(pods)), **words})


@says("pods of its gang are there")
async def _fewer_than_its_size(cluster: GpuCluster) -> None:
    cluster.node("a")
    _gang(cluster, "p", size=2)


@says("gang-size is missing")
async def _without_a_size(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p", 8, wishes={"gang": "train"})


@says("write how many pods the gang has as")
async def _with_an_unread_owner(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p", 8, wishes={"gang": "auto"})
    pod = cluster.get_pod("p")
    pod["metadata"]["ownerReferences"] = owned("batch/v1", "Job", "train")
    cluster.put(PODS, pod)


@says("nothing says which pods belong together")
async def _of_nobodys_making(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p", 8, wishes={"gang": "auto"})


@says("have no place for all of them at once")
async def _with_room_for_a_part(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.node("b")
    cluster.rival("rival", "b", range(8))
    _gang(cluster, "p", "q")


@says("has no place for all of them even when all its GPUs are free")
async def _too_large_a_gang(cluster: GpuCluster) -> None:
    cluster.node("a")
    _gang(cluster, "p", "q")


@says("what the pods of the gang require of each other")
async def _in_more_zones_than_there_are(cluster: GpuCluster) -> None:
    for name in "ab":
        cluster.node(name, labels={"topology.kubernetes.io/zone": "only"})
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {}}]}}  # fmt: skip
    for name in "pq":
        cluster.pod(name, 8, wishes={"gang": "train", "gang-size": "2"}, affinity=affinity)


@says("of them when it is empty")
async def _too_large_for_a_leaf(cluster: GpuCluster) -> None:
    for name in "ab":
        cluster.node(name, labels={"topology.kubernetes.io/zone": f"zone-{name}"})
    _gang(cluster, "p", "q", near="zone")


@says("this cluster's network has the levels")
async def _near_nothing_that_is_known(cluster: GpuCluster) -> None:
    cluster.node("a")
    _gang(cluster, "p", near="rack")


@says("no place now")
async def _without_a_place_beside_the_others(cluster: GpuCluster) -> None:
    for name in "ab":
        cluster.node(name)
    _gang(cluster, "p", "q")
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    node = cluster.gpus("p")[0]
    cluster.remove(PODS, "p", "default")
    cluster.collect()
    cluster.rival("rival", node, range(8))
    await cluster.settle()
    _gang(cluster, "p", size=2)


@says("pods of its gang had their place in time")
async def _given_back(cluster: GpuCluster) -> None:
    cluster.promise_s = 1.0
    cluster.restart()
    for name in "ab":
        cluster.node(name)
    _gang(cluster, "p", "q")
    await cluster.settle()
    await asyncio.sleep(2)


IN_THE_CODE: Final = (  # what takes minutes, or a bug, to come about
    "waits until its scheduler has bound other pods of this namespace",
    "no scheduler of the name that the pod says",
    "a webhook may hold them up",
    "a quota of this namespace is too busy for another claim",
    "an error in the controller, see its log",
    "GPUs are left out that DeviceTaintRule",
    "GPUs are left out that are reserved for one that has waited for longer",
    "are reserved for it",
    "are assessed",
    "none so far beside GPUs that are free",
    "not all were tried that the claim's requests allow",
    "it was bound to node",
    "preempts",
    "need longer than its tentative placement lasts",
    "the pod is not handed over to kube-scheduler",
    "did not end for it in time",
    "handed over to the scheduler",
    "some pods of its gang may go to few nodes only",
    "waits for ResourceClaimTemplate",
    "goes for maintenance before it would end",
    "cannot start as one gang",
    "starts pods one by one",
    "has no number of pods with GPUs",
    "waits until its gang has been started anew",
    "GPUs are not free yet",
    "is taken back again and again",
)


def test_every_reason_is_produced_here_or_stands_in_the_code() -> None:
    assert sorted(quoted("Reasons")) == sorted([*SCENARIOS, *IN_THE_CODE])
    sources = [source for path, source in SOURCES.items() if {"controller", "queue", "cluster", "api"} & {*path.parts}]
    for text in IN_THE_CODE:
        assert any(text in source for source in sources), text


def test_every_reason_that_is_made_has_a_row() -> None:
    made = said.reasons(source for path, source in SOURCES.items() if "cli" not in path.parts)
    assert len(made) > 25
    made -= {"there was no place for it", "it refused … nodes: …"}  # only after "handed over to the scheduler"
    made.discard("only the scheduler knows …")  # an answer to the controller, which writes it on no pod
    assert [text for text in sorted(made) if not any(row in text for row in quoted("Reasons"))] == []


@pytest.mark.looptime
@pytest.mark.parametrize("text", SCENARIOS)
async def test_the_pod_says_what_the_page_quotes(text: str) -> None:
    cluster = GpuCluster()
    await SCENARIOS[text](cluster)
    await cluster.settle()
    told = cluster.note("p", "reason") or ""
    assert text in told
    expected = next(cause for cause, texts in CAUSES.items() if text in texts)
    if text != "nodes left out:":  # it stands at the end of another reason
        assert cluster.worker.reasons.counted()[expected]


@pytest.mark.looptime
async def test_a_gang_is_told_of_unhealthy_gpus() -> None:
    cluster = GpuCluster()
    await _unhealthy(cluster)
    _gang(cluster, "q", "r", gpus=4)
    await cluster.settle()
    assert "; unhealthy GPUs are left out" in (cluster.note("q", "reason") or "")


CAUSES: Final[dict[Cause, tuple[str, ...]]] = {
    Cause.GPUS: (
        "handed over to the scheduler",
        "some pods of its gang may go to few nodes only",
        "no eligible node has such a set free",
        "no eligible node has room for that",
        "the nodes that this pod was placed for have no other GPUs for it",
        "is being placed with pod",
        "GPUs are left out that DeviceTaintRule",
        "unhealthy GPUs are left out",
        "no eligible node has so many free ones",
        "none so far beside GPUs that are free",
        "not all were tried that the claim's requests allow",
        "have no place for all of them at once",
        "what the pods of the gang require of each other",
        "no place now",
        "GPUs are not free yet",
    ),
    Cause.NEVER: (
        "no node of this cluster has such a set even when all its GPUs are free",
        "no node has GPUs of",
        "has room for that even when it is empty",
        "no node offers GPUs in shares",
        "no node offers GPUs in MIG slices",
        "no node offers GPUs of this driver",
        "so no claim is given devices by this constraint",
        "has no place for all of them even when all its GPUs are free",
        "of them when it is empty",
    ),
    Cause.RESERVED: (
        "another namespace uses fractions of",
        "GPUs are left out that are reserved for one that has waited for longer",
        "the pod is not handed over to kube-scheduler",
        "left out are all GPUs but those of tenant",
        "left out are GPUs that are a tenant's alone",
    ),
    Cause.NODES: (
        "goes for maintenance before it would end",
        "no node with GPUs can run this pod",
        "nodes left out:",
        "are assessed",
        "which cannot run this pod",
    ),
    Cause.ENDING: (
        "are reserved for it",
        "preempts",
        "need longer than its tentative placement lasts",
        "did not end for it in time",
    ),
    Cause.SCHEDULER: (
        "the scheduler finds no room on its nodes",
        "has not bound the pod to its nodes",
        "it tries no pod of PodGroup",
        "the scheduler finds no room for another pod of its PodGroup",
        "it was bound to node",
        "waits until its scheduler has bound other pods of this namespace",
        "no scheduler of the name that the pod says",
    ),
    Cause.GATE: ("waits for scheduling gate",),
    Cause.POD: (
        "waits for ResourceClaimTemplate",
        "is taken back again and again",
        "waits until its earlier claim",
        "was chosen for",
        "as many as Kubernetes lets use a claim",
        "whose pods have ended, is gone",
        "is gone, and its pods with it",
        "is not one that the driver made for pods to share",
        "says nothing of a shared claim",
        "belongs to somebody else",
        "is used by another pod",
        "was given devices while it was gated",
        "was changed",
        "which the webhook writes, is missing",
        "waits until the slices of drivers",
        "waits for DeviceClass",
        "this cluster's network has the levels",
    ),
    Cause.CAP: (
        "exceeded quota",
        "its tenant's cap",
        "whose its namespace is, is not known yet",
        "a quota of this namespace is too busy for another claim",
    ),
    Cause.STORAGE: ("waits for PersistentVolumeClaim",),
    Cause.SERVER: (
        "a webhook may hold them up",
        "an error in the controller, see its log",
    ),
    Cause.GANG: (
        "pods of its gang are there",
        "gang-size is missing",
        "write how many pods the gang has as",
        "nothing says which pods belong together",
        "has no number of pods with GPUs",
        "cannot start as one gang",
        "starts pods one by one",
        "waits until its gang has been started anew",
        "pods of its gang had their place in time",
    ),
}
"""Each documented reason by the cause that the metric of waiting pods has for it."""


def test_every_reason_has_a_cause_for_metrics() -> None:
    assert sorted(quoted("Reasons")) == sorted(text for texts in CAUSES.values() for text in texts)


def test_all_causes_are_there() -> None:
    known = {
        node_table.NOT_READY,
        node_table.GOING,
        selector_classes.CORDONED,
        selector_classes.TAINTED,
        selector_classes.UNSELECTED,
        node_table.GONE,
        selector_classes.TOO_MANY,
    }
    known |= {claim_limit.OUT_OF_REACH, neighbours.SAME_KIND, neighbours.ALONE, neighbours.PORTS}
    known |= {ranking.UNKNOWN_KIND, ranking.UNPLACED, selector_classes.ELSEWHERE, selector_classes.NAMELESS}
    known |= {nvlink_channels.LACKING, nvlink_channels.OTHERS, nvlink_channels.TAKEN}
    told = set(quoted("Causes"))
    assert {text for text in told if not text.startswith("too little ")} == known
    assert told - known


def test_what_the_node_says_stands_in_the_code() -> None:
    node = "\n".join(source for path, source in SOURCES.items() if "node" in path.parts)
    for cell in rows("On the node"):
        text = re.findall(r"`([^`]+)`", cell)[0]
        assert text in node, text


def test_all_events_are_there() -> None:
    assert sorted(quoted("Events")) == sorted(said.recorded(SOURCES))


def test_all_that_explain_and_free_say_is_described() -> None:
    told = (REPO / "docs" / "cluster.md").read_text()
    for title, kinds in (("explain", (Subject, Verdict)), ("free", (FreeGpus,))):
        (section,) = re.findall(rf"(?ms)^### {title}\n(.*?)(?=^#|\Z)", told)
        named = set(
            re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in section.splitlines() if "|" in line))
        )
        assert named == {field for kind in kinds for field in kind.__struct_fields__}, title


@pytest.mark.parametrize(
    "text",
    ["there is a place for it", "not placed by this driver", "has GPUs promised", "failed calling webhook"],
)
def test_what_explain_says_is_quoted_right(text: str) -> None:
    (section,) = re.findall(r"(?ms)^## By symptom\n(.*?)(?=^## )", DOCUMENT)
    assert f"`{text}`" in section
    if text != "failed calling webhook":  # the API server's own words
        assert any(text in source for path, source in SOURCES.items() if "explainer" in path.parts)
