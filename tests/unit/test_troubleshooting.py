"""docs/reference/messages.md and docs/runbooks/troubleshooting.md quote what the code says, and miss nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from docs import message_cures
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

pytestmark = pytest.mark.slow

DOCUMENT: Final = (REPO / "docs" / "runbooks" / "troubleshooting.md").read_text()
MODULES: Final = [path.relative_to(REPO) for path in (REPO / "dradriver").rglob("*.py")]
SOURCES: Final = {path: (REPO / path).read_text() for path in MODULES if "protos" not in path.parts}
REASONS: Final = [*message_cures.REASONS, *message_cures.GANG_REASONS]
SHARED: Final = Mode(shared="time-slicing")


def form(quoted: str) -> re.Pattern[str]:
    """Return the pattern of the texts that the page quotes by a part, in which ``OPEN`` stands for any text."""
    return re.compile(".+".join(map(re.escape, quoted.split(said.OPEN))), re.IGNORECASE)


Scenario = Callable[[GpuCluster], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def says(text: str) -> Callable[[Scenario], Scenario]:
    """Let a scenario be what leads to a reason on pod ``p``."""

    def add(scenario: Scenario) -> Scenario:
        SCENARIOS[text] = scenario
        return scenario

    return add


@says("Waiting for PersistentVolumeClaim")
async def _without_its_volume(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])


def _next_to_nics(cluster: GpuCluster, *, classes: bool = True, **devices: Any) -> None:
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


@says("no eligible node has enough free NICs")
async def _no_nics(cluster: GpuCluster) -> None:
    _next_to_nics(cluster)


@says("no NIC of any node has the same … as a GPU. Remove this constraint from the template")
async def _no_common_root(cluster: GpuCluster) -> None:
    _next_to_nics(cluster, constraints=[{"matchAttribute": names.PCIE_ROOT}])
    cluster.put(RESOURCE_SLICES, nics.published("a", nics.of_machine(cluster.machines["a"])))


@says("Waiting for DeviceClass")
async def _no_class_of_nics(cluster: GpuCluster) -> None:
    _next_to_nics(cluster, classes=False)


@says("Waiting until the slices of drivers")
async def _nics_not_read(cluster: GpuCluster) -> None:
    _next_to_nics(cluster)
    cluster.nics_are_read = False


@says("quota: tenant … may use")
async def _capped(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.worker.follow(Policies(tenants={"a": Tenant(namespaces=("default",), cap=(Cap(gpus=3),))}))
    cluster.pod("p")


@says("The tenant of the namespace is not known yet")
async def _whose(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.worker.follow(Policies(tenants={"a": Tenant(namespace_labels={"team": "a"})}))
    cluster.pod("p")


@says("no eligible node has such a free set")
async def _taken(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.rival("rival", "a", range(8))
    cluster.pod("p")


@says("no node of this cluster has such a set, even if all its GPUs are free")
async def _impossible(cluster: GpuCluster) -> None:
    cluster.node("a", "rtx4090-x8")
    cluster.pod("p", wishes={"required": "nvlink"})


@says("no node has GPUs of vendor …, only of")
async def _of_another_vendor(cluster: GpuCluster) -> None:
    cluster.node("a", "mi210-x8")
    cluster.pod("p")


@says("no eligible node has room for it")
async def _full(cluster: GpuCluster) -> None:
    cluster.node("a", mode=SHARED)
    cluster.rival("rival", "a", range(8))
    cluster.pod("p", Amount(cores=50))


@says("Another namespace uses fractions of GPUs with room for it")
async def _another_namespaces(cluster: GpuCluster) -> None:
    cluster.node("a", mode=Mode(shared="time-slicing", exclusive_to="namespace"))
    cluster.rival("rival", "a", range(1, 8))
    cluster.pod("q", Amount(cores=25), namespace="other")
    await cluster.settle()
    cluster.pod("p", Amount(cores=50))


@says("no GPU that nodes offer as … has room for it, even if the GPU is empty")
async def _too_large(cluster: GpuCluster) -> None:
    cluster.node("a", mode=SHARED)
    cluster.pod("p", Amount(memory_mib=1 << 20))


@says("no node of this cluster has room for all of it, even if the node is empty")
async def _more_than_a_node_has(cluster: GpuCluster) -> None:
    cluster.node("a", mode=SHARED)
    cluster.pod("p", {f"c{number}": Amount(cores=60) for number in range(9)})


@says("Only GPUs in the partition of tenant … can be used")
async def _outside_its_partition(cluster: GpuCluster) -> None:
    cluster.worker.follow(read(b"tenants: {a: {namespaces: [default], partition: {nodes: [b]}}}", source="x"))
    cluster.node("a")
    cluster.pod("p")


@says("GPUs in the exclusive partition of another tenant are left out")
async def _in_anothers_partition(cluster: GpuCluster) -> None:
    text = b"tenants: {a: {namespaces: [other], partition: {nodes: [a]}, exclusive: true}}"
    cluster.worker.follow(read(text, source="x"))
    cluster.node("a")
    cluster.pod("p")


@says("no node offers GPUs as shares")
async def _no_shares(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p", Amount(cores=50))


@says("no node offers GPUs as MIG slices")
async def _no_slices(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p", ("1g.10gb",))


@says("No node offers GPUs of this driver")
async def _no_gpus(cluster: GpuCluster) -> None:
    cluster.node("a", None)
    cluster.pod("p")


@says("No node with GPUs can run this pod")
async def _cordoned(cluster: GpuCluster) -> None:
    cluster.node("a", unschedulable=True)
    cluster.pod("p")


@says("Unhealthy GPUs are left out")
async def _unhealthy(cluster: GpuCluster) -> None:
    cluster.node("a", "dgx-a100")
    for piece in cluster.all(RESOURCE_SLICES):
        piece["spec"]["devices"][0]["taints"] = [{"key": "gpu.topology/xid", "value": "79", "effect": "NoSchedule"}]
        cluster.put(RESOURCE_SLICES, piece)
    cluster.pod("p", 8)


@says("Nodes left out:")
async def _half(cluster: GpuCluster) -> None:
    cluster.node("a", unschedulable=True)
    cluster.node("b")
    cluster.rival("rival", "b", range(8))
    cluster.pod("p")


@says("The pod was placed before and can use only the nodes of that placement")
async def _narrowed(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p", 8)
    await cluster.settle()
    cluster.rival("rival", "a", range(8))


@says("The scheduler finds no room for pod")
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


@says("has not bound pod …. If there is no such scheduler, delete the pod")
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


@says("The scheduler tries no pod of PodGroup")
async def _next_to_a_gated_one(cluster: GpuCluster) -> None:
    await _in_a_group(cluster, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")


@says("The scheduler finds no room for another pod of PodGroup")
async def _next_to_a_refused_one(cluster: GpuCluster) -> None:
    await _in_a_group(cluster, "Unschedulable", "minCount (2) cannot be satisfied: 0 scheduled, 1 remaining")


@says("Waiting until another controller removes scheduling gate")
async def _gated(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p", schedulingGates=[{"name": names.GATE}, {"name": "example.com/other"}])


@says("Waiting until the earlier claim")
async def _deleting(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p")
    await cluster.settle()
    cluster.schedule()
    pod = cluster.get_pod("p")
    del pod["spec"]["nodeName"]  # as if the binding had failed
    cluster.put(PODS, pod | {"status": {"phase": "Pending"}})
    cluster.remove(RESOURCE_CLAIMS, claim_of("p"), "default")


@says("Claim … does not belong to this pod")
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


@says("Waiting for pod …, which gets a place for the shared claim … first")
async def _behind(cluster: GpuCluster) -> None:
    cluster.node("a")
    _sharing(cluster, "first", "p")


@says("The shared claim … was chosen for")
async def _other_set(cluster: GpuCluster) -> None:
    await _a_set_in_use(cluster)
    _sharing(cluster, "p", gpus=2)


@says("The shared claim … is on node …, which cannot run this pod")
async def _no_room_next_to_it(cluster: GpuCluster) -> None:
    await _a_set_in_use(cluster)
    _sharing(cluster, "p", requests={"cpu": "65"})


@says("The shared claim … is in use by … pods, the limit of Kubernetes")
async def _too_many(cluster: GpuCluster) -> None:
    await _a_set_in_use(cluster)
    claim = cluster.find(RESOURCE_CLAIMS, "duo", "default")
    assert claim is not None
    more = [{"resource": "pods", "name": f"q{n}", "uid": f"q{n}"} for n in range(255)]
    status = claim["status"] | {"reservedFor": [*claim["status"]["reservedFor"], *more]}
    cluster.put(RESOURCE_CLAIMS, claim | {"status": status})
    _sharing(cluster, "p")


@says("Waiting until claim … is gone, all its pods have ended")
async def _ended(cluster: GpuCluster) -> None:
    await _a_set_in_use(cluster)
    cluster.put(PODS, cluster.get_pod("first") | {"status": {"phase": "Succeeded"}})
    cluster.collect()
    _sharing(cluster, "p")
    cluster.deliver()
    await cluster.worker.rest()
    cluster.grace_s = 1000.0
    cluster.restart()


@says("Waiting until the deleted claim … and its pods are gone")
async def _going(cluster: GpuCluster) -> None:
    await _a_set_in_use(cluster)
    cluster.remove(RESOURCE_CLAIMS, "duo", "default")
    _sharing(cluster, "p")


@says("Claim … exists, but the driver did not create it for sharing")
async def _not_to_share(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": "duo", "namespace": "default"}, "spec": {}})
    _sharing(cluster, "p")


@says("gpu.topology/request has no shared claim")
async def _renamed(cluster: GpuCluster) -> None:
    cluster.pod("p")
    pod = cluster.get_pod("p")
    pod["spec"]["resourceClaims"][0]["resourceClaimName"] = "duo"
    cluster.put(PODS, pod)


@says("Claim … of this pod is used by another pod")
async def _shared(cluster: GpuCluster) -> None:
    claim = await _left_behind(cluster)
    used = {"reservedFor": [{"resource": "pods", "name": "copy", "uid": "other"}]}
    cluster.put(RESOURCE_CLAIMS, claim | {"status": used})


@says("Claim … was allocated while … had its scheduling gate")
async def _meddled(cluster: GpuCluster) -> None:
    claim = await _left_behind(cluster)
    cluster.put(RESOURCE_CLAIMS, claim | {"status": {"allocation": {"devices": {"results": []}}}})


@says("The annotation gpu.topology/request was changed")
async def _damaged(cluster: GpuCluster) -> None:
    cluster.pod("p")
    pod = cluster.get_pod("p")
    pod["metadata"]["annotations"][names.REQUEST] = "{"
    cluster.put(PODS, pod)


@says("The annotation gpu.topology/request, which the webhook writes, is missing")
async def _gone(cluster: GpuCluster) -> None:
    cluster.pod("p")
    pod = cluster.get_pod("p")
    del pod["metadata"]["annotations"][names.REQUEST]
    cluster.put(PODS, pod)


@says("The API server refuses …: exceeded quota")
async def _quota(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p")
    cluster.client.refuse["create"] = [ApiError(403, "Forbidden", "exceeded quota: gpus, requested: …")]


@says("The API server refuses")
async def _policy(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p")
    denied = "ValidatingAdmissionPolicy 'x' with binding 'y' denied request: no"
    cluster.client.refuse["create"] = [ApiError(422, "Invalid", denied)]


def _gang(cluster: GpuCluster, *pods: str, size: int | None = None, gpus: int = 8, **words: str) -> None:
    for name in pods:
        cluster.pod(name, gpus, wishes={"gang": "train", "gang-size": str(size or len(pods)), **words})


@says("Waiting for more pods of the gang")
async def _fewer_than_its_size(cluster: GpuCluster) -> None:
    cluster.node("a")
    _gang(cluster, "p", size=2)


@says("gpu.topology/gang-size is missing. Write the number of pods of the gang")
async def _without_a_size(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p", 8, wishes={"gang": "train"})


@says("write the size of the gang as gpu.topology/gang-size")
async def _with_an_unread_owner(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p", 8, wishes={"gang": "auto"})
    pod = cluster.get_pod("p")
    pod["metadata"]["ownerReferences"] = owned("batch/v1", "Job", "train")
    cluster.put(PODS, pod)


@says("It is not known which pods belong to the gang")
async def _of_no_known_maker(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.pod("p", 8, wishes={"gang": "auto"})


@says("eligible nodes have no place for all of them at once")
async def _with_room_for_a_part(cluster: GpuCluster) -> None:
    cluster.node("a")
    cluster.node("b")
    cluster.rival("rival", "b", range(8))
    _gang(cluster, "p", "q")


@says("this cluster has no place for all of them, even if all its GPUs are free")
async def _too_large_a_gang(cluster: GpuCluster) -> None:
    cluster.node("a")
    _gang(cluster, "p", "q")


@says("No plan with the free GPUs meets the rules of the gang's pods about each other")
async def _in_more_zones_than_there_are(cluster: GpuCluster) -> None:
    for name in "ab":
        cluster.node(name, labels={"topology.kubernetes.io/zone": "only"})
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {}}]}}  # fmt: skip
    for name in "pq":
        cluster.pod(name, 8, wishes={"gang": "train", "gang-size": "2"}, affinity=affinity)


@says("has room for … of …, even if it is empty")
async def _too_large_for_a_leaf(cluster: GpuCluster) -> None:
    for name in "ab":
        cluster.node(name, labels={"topology.kubernetes.io/zone": f"zone-{name}"})
    _gang(cluster, "p", "q", near="zone")


@says("This cluster has no network level")
async def _near_nothing_that_is_known(cluster: GpuCluster) -> None:
    cluster.node("a")
    _gang(cluster, "p", near="rack")


@says("there is no place now for … of the pods")
async def _without_a_place_next_to_the_others(cluster: GpuCluster) -> None:
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


@says("Only … of … pods of the gang had a place in time")
async def _given_back(cluster: GpuCluster) -> None:
    cluster.promise_s = 1.0
    cluster.restart()
    for name in "ab":
        cluster.node(name)
    _gang(cluster, "p", "q")
    await cluster.settle()
    await asyncio.sleep(2)


PARTS: Final = {"allocator", "api", "cluster", "controller", "queue"}
IN_THE_CODE: Final = (  # what takes minutes, or a bug, to come about
    "Waiting until the pod's scheduler has bound other pods of this namespace",
    "no scheduler with the pod's schedulerName has bound a pod with a claim yet",
    "Waiting for answers to earlier writes in this namespace. A webhook may delay them",
    "Waiting to create the claim: other programs change the quota of this namespace too often",
    "The controller failed because of a bug, see its log",
    "GPUs tainted by DeviceTaintRule … are left out",
    "GPUs that are reserved for a workload that has waited longer are left out",
    "GPUs on … are reserved for this workload",
    "Waiting until the GPUs of node … are assessed",
    "no node with free GPUs was found yet",
    "Not all combinations that the claim allows were tried",
    "The pod was bound to node",
    "Waiting for the preemption of",
    "The pods that must end for this one need longer than its tentative placement lasts",
    "The pod is not handed over to kube-scheduler",
    "Pod … did not end in time to release its GPUs",
    "Handed over to the scheduler",
    "Some pods of the gang can use only the nodes of an earlier plan",
    "Waiting for ResourceClaimTemplate",
    "Maintenance of node … begins before this pod would end",
    "cannot start as one gang",
    "no place was found for all of them at once",
    "The PodGroup has the policy basic, which starts pods one by one",
    "has no number of pods with GPUs",
    "Waiting until the gang has been restarted",
    "Waiting until the GPUs of the lost pod are free",
    "The placement of this pod was revoked several times",
)


def test_every_reason_is_produced_here_or_stands_in_the_code() -> None:
    assert sorted(REASONS) == sorted([*SCENARIOS, *IN_THE_CODE])
    sources = [source for path, source in SOURCES.items() if PARTS & {*path.parts}]
    for text in IN_THE_CODE:
        assert any(all(part in source for part in text.split(said.OPEN)) for source in sources), text


def test_every_reason_that_is_made_has_a_row() -> None:
    made = said.reasons(source for path, source in SOURCES.items() if "cli" not in path.parts)
    assert len(made) > 25
    made.discard("No place was free.")  # only after "Handed over to the scheduler"
    made.discard("Only the scheduler knows ….")  # an answer to the controller, which writes it on no pod
    assert [text for text in sorted(made) if not any(form(row).search(text) for row in REASONS)] == []


@pytest.mark.looptime
@pytest.mark.parametrize("text", SCENARIOS)
async def test_the_pod_says_what_the_page_quotes(text: str) -> None:
    cluster = GpuCluster()
    await SCENARIOS[text](cluster)
    await cluster.settle()
    told = cluster.note("p", "reason") or ""
    assert re.search(rf"(?<!\w){form(text).pattern}", told, re.IGNORECASE), "the page quotes whole words"
    expected = next(cause for cause, texts in CAUSES.items() if text in texts)
    if text != "Nodes left out:":  # it stands at the end of another reason
        assert cluster.worker.reasons.counted()[expected]


@pytest.mark.looptime
async def test_a_gang_is_told_of_unhealthy_gpus() -> None:
    cluster = GpuCluster()
    await _unhealthy(cluster)
    _gang(cluster, "q", "r", gpus=4)
    await cluster.settle()
    assert " Unhealthy GPUs are left out" in (cluster.note("q", "reason") or "")


CAUSES: Final[dict[Cause, tuple[str, ...]]] = {
    Cause.GPUS: (
        "Handed over to the scheduler",
        "Some pods of the gang can use only the nodes of an earlier plan",
        "no eligible node has such a free set",
        "no eligible node has room for it",
        "The pod was placed before and can use only the nodes of that placement",
        "Waiting for pod …, which gets a place for the shared claim … first",
        "GPUs tainted by DeviceTaintRule … are left out",
        "Unhealthy GPUs are left out",
        "no eligible node has enough free NICs",
        "no node with free GPUs was found yet",
        "Not all combinations that the claim allows were tried",
        "eligible nodes have no place for all of them at once",
        "no place was found for all of them at once",
        "No plan with the free GPUs meets the rules of the gang's pods about each other",
        "there is no place now for … of the pods",
        "Waiting until the GPUs of the lost pod are free",
    ),
    Cause.NEVER: (
        "no node of this cluster has such a set, even if all its GPUs are free",
        "no node has GPUs of vendor …, only of",
        "no GPU that nodes offer as … has room for it, even if the GPU is empty",
        "no node of this cluster has room for all of it, even if the node is empty",
        "no node offers GPUs as shares",
        "no node offers GPUs as MIG slices",
        "No node offers GPUs of this driver",
        "no NIC of any node has the same … as a GPU. Remove this constraint from the template",
        "this cluster has no place for all of them, even if all its GPUs are free",
        "has room for … of …, even if it is empty",
    ),
    Cause.RESERVED: (
        "Another namespace uses fractions of GPUs with room for it",
        "GPUs that are reserved for a workload that has waited longer are left out",
        "The pod is not handed over to kube-scheduler",
        "Only GPUs in the partition of tenant … can be used",
        "GPUs in the exclusive partition of another tenant are left out",
    ),
    Cause.NODES: (
        "Maintenance of node … begins before this pod would end",
        "No node with GPUs can run this pod",
        "Nodes left out:",
        "Waiting until the GPUs of node … are assessed",
        "The shared claim … is on node …, which cannot run this pod",
    ),
    Cause.ENDING: (
        "GPUs on … are reserved for this workload",
        "Waiting for the preemption of",
        "The pods that must end for this one need longer than its tentative placement lasts",
        "Pod … did not end in time to release its GPUs",
    ),
    Cause.SCHEDULER: (
        "The scheduler finds no room for pod",
        "has not bound pod …. If there is no such scheduler, delete the pod",
        "The scheduler tries no pod of PodGroup",
        "The scheduler finds no room for another pod of PodGroup",
        "The pod was bound to node",
        "Waiting until the pod's scheduler has bound other pods of this namespace",
        "no scheduler with the pod's schedulerName has bound a pod with a claim yet",
    ),
    Cause.GATE: ("Waiting until another controller removes scheduling gate",),
    Cause.POD: (
        "Waiting for ResourceClaimTemplate",
        "The placement of this pod was revoked several times",
        "Waiting until the earlier claim",
        "The shared claim … was chosen for",
        "The shared claim … is in use by … pods, the limit of Kubernetes",
        "Waiting until claim … is gone, all its pods have ended",
        "Waiting until the deleted claim … and its pods are gone",
        "Claim … exists, but the driver did not create it for sharing",
        "gpu.topology/request has no shared claim",
        "Claim … does not belong to this pod",
        "Claim … of this pod is used by another pod",
        "Claim … was allocated while … had its scheduling gate",
        "The annotation gpu.topology/request was changed",
        "The annotation gpu.topology/request, which the webhook writes, is missing",
        "Waiting until the slices of drivers",
        "Waiting for DeviceClass",
        "This cluster has no network level",
        "The API server refuses",
    ),
    Cause.CAP: (
        "The API server refuses …: exceeded quota",
        "quota: tenant … may use",
        "The tenant of the namespace is not known yet",
        "Waiting to create the claim: other programs change the quota of this namespace too often",
    ),
    Cause.STORAGE: ("Waiting for PersistentVolumeClaim",),
    Cause.SERVER: (
        "Waiting for answers to earlier writes in this namespace. A webhook may delay them",
        "The controller failed because of a bug, see its log",
    ),
    Cause.GANG: (
        "Waiting for more pods of the gang",
        "gpu.topology/gang-size is missing. Write the number of pods of the gang",
        "write the size of the gang as gpu.topology/gang-size",
        "It is not known which pods belong to the gang",
        "has no number of pods with GPUs",
        "cannot start as one gang",
        "The PodGroup has the policy basic, which starts pods one by one",
        "Waiting until the gang has been restarted",
        "Only … of … pods of the gang had a place in time",
    ),
}
"""Each documented reason by the cause that the metric of waiting pods has for it."""


def test_every_reason_has_a_cause_for_metrics() -> None:
    assert sorted(REASONS) == sorted(text for texts in CAUSES.values() for text in texts)


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
    told = set(message_cures.CAUSES)
    assert {text for text in told if not text.startswith("too little ")} == known
    assert told - known


def test_what_the_node_says_stands_in_the_code() -> None:
    node = "\n".join(source for path, source in SOURCES.items() if "node" in path.parts)
    for text in message_cures.ON_NODE:
        assert all(part in node for part in text.split(said.OPEN)), text


def test_all_events_are_there() -> None:
    assert sorted(message_cures.EVENTS) == sorted(said.recorded(SOURCES))


def test_all_that_explain_and_free_say_is_described() -> None:
    told = (REPO / "docs" / "reference" / "gputopo.md").read_text()
    for title, kinds in (("explain", (Subject, Verdict)), ("free", (FreeGpus,))):
        (section,) = re.findall(rf"(?ms)^### {title}\n(.*?)(?=^#|\Z)", told)
        named = set(
            re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in section.splitlines() if "|" in line))
        )
        assert named == {field for kind in kinds for field in kind.__struct_encode_fields__}, title


@pytest.mark.parametrize(
    "text",
    [
        "There is a place for the pod",
        "not placed by this driver",
        "But the controller's last try failed",
        "has a tentative placement",
        "failed calling webhook",
    ],
)
def test_what_explain_says_is_quoted_right(text: str) -> None:
    (section,) = re.findall(r"(?ms)^## By symptom\n(.*?)(?=^## |\Z)", DOCUMENT)
    assert f"`{text}`" in section
    if text != "failed calling webhook":  # the API server's own words
        assert any(text in source for path, source in SOURCES.items() if "explainer" in path.parts)
