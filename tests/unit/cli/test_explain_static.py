"""``gputopo explain`` of pods that the scheduler alone places: static ones, and those that were handed over to it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.api.pod import claim_alternatives, resolved
from dradriver.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tests.fakes.admission import admit, defaulted, stored
from tests.fakes.admission import pod as manifest
from tests.fakes.commands import CommandLine
from tests.fakes.control_plane.devices import result
from tests.fakes.gpucluster import GpuCluster

Object = dict[str, Any]
STATIC = {names.PLACEMENT: "static"}
REFUSED = "0/1 nodes are available: 1 cannot allocate all claims."


def create(cluster: GpuCluster, gpus: object = 4, name: str = "next", **words: str) -> Object:
    """Create a static pod, by the webhook."""
    annotations = STATIC | {names.PREFIX + key: text for key, text in words.items()}
    sent = defaulted(manifest(gpus, annotations=annotations), namespace="default")
    made = stored(admit(sent).admitted, uid=f"uid-{name}")
    made["metadata"]["name"] = name
    return cluster.put(PODS, made)


def template_of(pod: Object) -> str:
    return str(pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"])


def make_template(cluster: GpuCluster, pod: Object) -> None:
    """Do what the controller does."""
    note = pod["metadata"]["annotations"][names.REQUEST]
    cluster.put(
        RESOURCE_CLAIM_TEMPLATES, claim_alternatives.template("default", note, resolved.read({names.REQUEST: note}))
    )


def make_claim(cluster: GpuCluster, pod: Object, entry: str = names.POD_CLAIM, name: str = "next-gpus") -> None:
    """Do what Kubernetes does once the template is there."""
    template = cluster.find(RESOURCE_CLAIM_TEMPLATES, template_of(pod), "default")
    assert template is not None
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "next", "uid": pod["metadata"]["uid"], "controller": True}
    metadata = {
        "name": name,
        "namespace": "default",
        "creationTimestamp": "2026-01-01T00:00:02Z",
        "annotations": {"resource.kubernetes.io/pod-claim-name": entry},
        "ownerReferences": [owner],
    }
    cluster.put(RESOURCE_CLAIMS, {"metadata": metadata, "spec": template["spec"]["spec"]})


def allocate(cluster: GpuCluster, indices: list[int], name: str = "next-gpus", **more: Any) -> None:
    """Do what the scheduler does."""
    claim = cluster.find(RESOURCE_CLAIMS, name, "default")
    assert claim is not None
    uuids = [cluster.machines["n1"].gpus[index].uuid for index in indices]
    results = [result("n1", uuid) | more for uuid in uuids]
    cluster.put(RESOURCE_CLAIMS, claim | {"status": {"allocation": {"devices": {"results": results}}}})


def refuse(cluster: GpuCluster, name: str = "next") -> None:
    pod = cluster.get_pod(name)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": REFUSED}
    cluster.put(PODS, pod | {"status": {"phase": "Pending", "conditions": [condition]}})


def bind(cluster: GpuCluster, name: str = "next") -> None:
    pod = cluster.get_pod(name)
    cluster.put(PODS, pod | {"spec": pod["spec"] | {"nodeName": "n1"}, "status": {"phase": "Running"}})


async def test_a_static_pod_is_told_how_far_its_claim_is(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.rival("old", "n1", [0, 4])
    pod = create(cluster, policy="nvlink")
    template = template_of(pod)

    async def told() -> tuple[str, bool, str, bool]:
        found = await shell.data("explain next")
        assert (found["state"], found["request_text"], found["missing"]) == ("static", "4 GPUs with nvlink", [])
        static = found["static"]
        assert static["template"] == template
        return found["reason"], static["exists"], static["claim"], static["allocated"]

    reason, *rest = await told()
    assert f"The controller has not created ResourceClaimTemplate {template} yet." in reason
    assert rest == [False, "", False]
    make_template(cluster, pod)
    assert await told() == (
        f"Kubernetes has not created the claim from ResourceClaimTemplate {template} yet.",
        True,
        "",
        False,
    )
    make_claim(cluster, pod)
    assert await told() == ("The scheduler has not bound it yet.", True, "next-gpus", False)
    refuse(cluster)
    assert await told() == (f"The scheduler finds no room for it: {REFUSED}", True, "next-gpus", False)
    allocate(cluster, [1, 2, 3, 7])
    assert await told() == (
        f"The claim of the pod is allocated. The scheduler finds no room for it: {REFUSED}",
        True,
        "next-gpus",
        True,
    )


async def test_what_is_free_is_said_and_who_is_no_claim_of_its_own_is_not_taken_for_it(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.node("n1")
    cluster.rival("old", "n1", [0, 1, 2, 3, 4])
    pod = create(cluster, policy="nvlink")
    make_template(cluster, pod)
    make_claim(cluster, pod, entry="network", name="next-network")
    found = await shell.data("explain next")
    assert found["static"]["claim"] == ""
    (room,) = found["free"]["best"]
    assert (found["free"]["gpus"], room["free"], room["largest"]) == (3, [5, 6, 7], 3)
    said = (await shell.run("explain", "next")).stdout
    assert "state     static: the scheduler alone places it" in said
    assert f"template  {template_of(pod)}\nclaim     none yet" in said


@pytest.mark.parametrize(("indices", "level", "score"), [([0, 1, 2, 3], "nvlink", 100), ([0, 5], "node", None)])
async def test_a_static_pod_that_is_bound_is_told_what_the_scheduler_gave_it(
    cluster: GpuCluster, shell: CommandLine, indices: list[int], level: str, score: int | None
) -> None:
    cluster.node("n1")
    pod = create(cluster, len(indices))
    make_template(cluster, pod)
    make_claim(cluster, pod)
    allocate(cluster, indices)
    bind(cluster)
    found = await shell.data("explain next")
    assert (found["state"], found["node"], found["reason"], found["static"]) == ("placed", "n1", "", None)
    place = found["place"]
    assert (place["node"], place["gpus"], place["level"]) == ("n1", indices, level)
    assert place["uuids"] == [cluster.machines["n1"].gpus[index].uuid for index in indices]
    assert score is None or place["score"] == score
    assert [(one["about"], one["message"]) for one in found["events"]] == [("pod", ""), ("claim", "")]
    cluster.begin_deletion("next")
    found = await shell.data("explain next")
    assert (found["state"], found["node"], found["place"]) == ("deleting", "n1", place)
    assert found["reason"].startswith("The pod is being deleted. Its grace period ends at ")


async def test_a_share_of_a_static_pod_is_a_part(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    pod = create(cluster, 1, memory="8Gi", cores="25")
    make_template(cluster, pod)
    make_claim(cluster, pod)
    assert (await shell.data("explain next"))["free"] is None
    allocate(cluster, [3], consumedCapacity={"cores": "25", "memory": "8Gi"})
    bind(cluster)
    place = (await shell.data("explain next"))["place"]
    assert (place["gpus"], place["fractions"], place["score"]) == ([3], ["25%/8192Mi"], None)


async def test_what_may_not_be_read_is_not_guessed(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    create(cluster)
    shell.api.fail(path="/resourceclaimtemplates", status=403, reason="Forbidden", message="no", times=math.inf)
    result = await shell.run("explain", "next")
    assert (result.exit_code, "which you may not read" in result.stdout) == (0, True)
    assert "you may not read resourceclaimtemplates" in result.stderr
    refuse(cluster)
    shell.api.fail(path="/resourceclaims", status=403, reason="Forbidden", message="no", times=math.inf)
    result = await shell.run("explain", "next")
    assert (result.exit_code, f"finds no room for it: {REFUSED}" in result.stdout) == (0, True)
    damaged = cluster.get_pod("next")
    damaged["metadata"]["annotations"][names.REQUEST] = "{"
    cluster.put(PODS, damaged)
    assert "was changed" in (await shell.run("explain", "next")).stdout


async def test_a_template_that_no_part_makes_is_not_waited_for(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    pod = create(cluster)
    pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "gpus-of-somebody"
    cluster.put(PODS, pod)
    told = (await shell.data("explain next"))["reason"]
    assert (
        told
        == "ResourceClaimTemplate gpus-of-somebody does not match the annotations of the pod. Create the pod again."
    )


async def test_static_pods_are_listed_among_those_that_wait(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.rival("old", "n1", range(8))
    create(cluster)
    create(cluster, 2, "other")
    create(cluster, 2, "bound")
    bind(cluster, "bound")
    refuse(cluster, "other")
    cluster.pod("ours", 2)
    await cluster.settle()
    found = {one["pod"]: (one["state"], one["scheduler_message"]) for one in await shell.data("explain", "-A")}
    assert found == {"next": ("static", ""), "other": ("static", REFUSED), "ours": ("waits", "")}
    said = (await shell.run("explain", "-A")).stdout
    assert "static: left to the scheduler\n" in said
    assert f"static: {REFUSED}\n" in said


async def test_a_pod_that_was_handed_over_is_told_what_is_free_and_what_it_got(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.node("n1")
    cluster.rival("old", "n1", range(6))
    cluster.pod("next", 4, wishes={"policy": "nvlink", "when-full": "hand-over"})
    await cluster.settle()
    found = await shell.data("explain next")
    assert "handed over to the scheduler, without a placement" in found["reason"]
    assert (found["free"]["gpus"], found["place"]) == (2, None)
    cluster.remove(RESOURCE_CLAIMS, "old", "default")
    allocate(cluster, [4, 5, 6, 7], "gpus-next")
    found = await shell.data("explain next")
    assert (found["free"], found["place"]["gpus"]) == (None, [4, 5, 6, 7])
    bind(cluster)
    found = await shell.data("explain next")
    assert (found["state"], found["place"]["gpus"], found["place"]["level"]) == ("placed", [4, 5, 6, 7], "nvlink")


async def test_what_a_pod_has_is_said_though_its_template_is_gone(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    request = {"name": "gpus", "exactly": {"deviceClassName": names.DEVICE_CLASS, "count": 4}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    cluster.put(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "quad", "namespace": "default"}, "spec": spec})
    claims = [{"name": "g", "resourceClaimName": "gpus-next"}]
    cluster.pod("next", 1, wishes={"policy": "nvlink", "template": "g/quad"}, resourceClaims=claims)
    await cluster.settle()
    cluster.remove(RESOURCE_CLAIM_TEMPLATES, "quad", "default")
    for state in ("tentative", "placed"):
        found = await shell.data("explain next")
        assert (found["state"], len(found["place"]["gpus"])) == (state, 4)
        assert "does not exist" not in found["reason"]
        cluster.schedule()


async def test_what_a_static_pod_takes_of_its_node_counts_once(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1", allocatable={"cpu": "6"})
    pod = create(cluster, 1, "other")
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "2"}
    cluster.put(PODS, pod)
    bind(cluster, "other")
    cluster.pod("next", 2, requests={"cpu": "4"})
    assert (await shell.data("explain next"))["reason"] == "There is a place for the pod on n1 now."
    cluster.pod("more", 2, requests={"cpu": "5"})
    assert "too little cpu" in (await shell.data("explain more"))["reason"]
