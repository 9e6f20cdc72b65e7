"""Claims of other shapes on a real cluster: by a template, by the scheduler alone, handed over, by a limit alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.topology import profiles
from tests import deploy
from tests.cluster import Cluster
from tests.e2e.kubectl import Namespace, eventually, no_gpu_is_owned_twice, owners, pod
from tests.e2e.test_placement import NVLINK, QUADS, minors

Object = dict[str, Any]
STATIC = {names.PLACEMENT: "static"}
PAIRS = ({0, 3}, {1, 2}, {4, 7}, {5, 6})  # node-a's nvlinkGroup2: each of two links


def template(name: str, *requests: Object) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": list(requests)}}},
    }


def request(name: str, count: int) -> Object:
    return {"name": name, "exactly": {"deviceClassName": "gpu.topology", "count": count}}


def seen(namespace: Namespace, name: str) -> set[int]:
    return {int(device.removeprefix("/dev/nvidia")) for device in namespace.devices(name)}


def unchanged(namespace: Namespace, *manifests: Object) -> None:
    """Apply manifests again: nothing may change, nor be refused."""
    before = [namespace.get("pod", one["metadata"]["name"])["spec"] for one in manifests if one["kind"] == "Pod"]
    namespace.apply(*manifests)
    assert [
        namespace.get("pod", one["metadata"]["name"])["spec"] for one in manifests if one["kind"] == "Pod"
    ] == before


def test_a_template_with_words_is_placed_once_it_is_there(namespace: Namespace) -> None:
    by_template = pod("train", words=NVLINK, node="node-a")
    by_template["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "split"}]
    by_template["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpus"}]
    namespace.apply(by_template)
    reason = eventually("the reason stands on the pod", lambda: namespace.annotation("train", names.REASON))
    assert "Waiting for ResourceClaimTemplate 'split'" in reason

    namespace.apply(template("split", request("left", 1), request("right", 3)))
    namespace.wait_running("train")
    assert seen(namespace, "train") in QUADS
    assert namespace.devices("train") == minors("node-a", str(namespace.annotation("train", names.ALLOCATED)))
    assert namespace.annotation("train", names.LEVEL) == "nvlink"
    unchanged(namespace, by_template)


def test_static_pods_are_the_schedulers_and_share_a_template(namespace: Namespace) -> None:
    product = profiles.load(deploy.MACHINES["node-a"], seed="node-a").gpus[0].product
    words = STATIC | NVLINK | {names.PRODUCT: f"{product[:-2]}*", names.MIN_MEMORY: "1Gi", names.MIN_BANDWIDTH: "10"}
    quads = [pod(name, gpus=4, words=words, node="node-a") for name in ("first", "second")]
    ladder = pod("ladder", gpus={"a": 1, "b": 2}, words=STATIC | {names.ARCHITECTURE: "hopper"})
    namespace.apply(*quads, ladder)
    namespace.wait_running("first", "second", "ladder")

    assert seen(namespace, "first") | seen(namespace, "second") == set(range(8))
    assert seen(namespace, "first") in QUADS
    assert namespace.get("pod", "ladder")["spec"]["nodeName"] == "node-b"
    assert namespace.devices("ladder", "a").isdisjoint(namespace.devices("ladder", "b"))
    assert len(namespace.list("resourceclaimtemplates")) == 2
    assert no_gpu_is_owned_twice(namespace.cluster)
    unchanged(namespace, *quads, ladder)

    placed = pod("placed", gpus=4, words=NVLINK, node="node-a")
    namespace.apply(placed)
    eventually("the controller counts what static pods have", lambda: namespace.annotation("placed", names.REASON))
    namespace.delete("first")
    namespace.wait_running("placed")


def test_links_that_a_static_pod_demands_are_between_all_its_gpus(namespace: Namespace) -> None:
    """Of the eight of a DGX-1 no five that the scheduler may take are known to have a ring; all of an HGX's have."""
    words = STATIC | NVLINK
    sizes = {"three": (3, "node-a"), "five": (5, "node-a"), "switched": (5, "node-b")}
    namespace.apply(*(pod(name, gpus=gpus, words=words, node=node) for name, (gpus, node) in sizes.items()))
    namespace.wait_running("three", "switched")
    assert any(seen(namespace, "three") < quad for quad in QUADS)
    eventually("the scheduler finds no five", lambda: unschedulable(namespace, "five"))


def unschedulable(namespace: Namespace, name: str) -> bool:
    conditions = namespace.get("pod", name)["status"].get("conditions", [])
    return any(one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable" for one in conditions)


def test_a_pod_without_a_place_is_handed_over_and_bound_when_there_is_room(namespace: Namespace) -> None:
    namespace.apply(pod("full", gpus=8, words=NVLINK, node="node-a"))
    namespace.wait_running("full")
    namespace.apply(pod("next", gpus=4, words=NVLINK | {names.WHEN_FULL: "hand-over"}, node="node-a"))
    eventually("the scheduler says that there is no room", lambda: unschedulable(namespace, "next"))
    assert "Handed over to the scheduler" in str(namespace.annotation("next", names.REASON))

    namespace.delete("full")
    namespace.wait_running("next")
    assert seen(namespace, "next") in QUADS
    eventually("the reason is gone", lambda: namespace.annotation("next", names.REASON) is None)


def test_pods_that_name_one_claim_share_its_set(namespace: Namespace) -> None:
    claim = template("set", request("gpus", 4))["spec"]
    claim["spec"]["devices"]["constraints"] = [{"requests": ["gpus"], "matchAttribute": "gpu.topology/nvlinkGroup4"}]
    shared = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "set"}} | claim
    pods = [pod(name) for name in ("trainer", "sampler")]
    for one in pods:
        one["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": "set"}]
        one["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpus"}]
    namespace.apply(shared, *pods)
    namespace.wait_running("trainer", "sampler")

    assert namespace.devices("trainer") == namespace.devices("sampler")
    assert seen(namespace, "trainer") in QUADS
    namespace.delete("trainer", "sampler")
    namespace.kubectl("delete", "resourceclaim", "set")


EXTENDED = "deviceClass.extendedResourceName"


def device_class(cluster: Cluster) -> Object:
    found: Object = json.loads(cluster.kubectl("get", "deviceclass", names.DEVICE_CLASS, "-o", "json").stdout)
    spec: Object = found["spec"]
    return spec


UNTIL_TOLD = ("sh", "-c", "while [ ! -e /tmp/end ]; do sleep 0.2; done")


def users(namespace: Namespace) -> list[str]:
    return sorted(user["name"] for user in namespace.get("resourceclaim", "duo")["status"].get("reservedFor", ()))


def test_pods_that_say_one_name_share_a_set_that_outlives_each_of_them(namespace: Namespace) -> None:
    words = NVLINK | {names.SHARED_CLAIM: "duo"}
    trainer = pod("trainer", gpus=4, words=words, node="node-a")
    sampler = pod("sampler", gpus={"main": 4, "side": 4}, words=words, command=UNTIL_TOLD)
    namespace.apply(trainer, sampler)
    namespace.wait_running("trainer", "sampler")
    assert seen(namespace, "trainer") in QUADS
    assert namespace.devices("trainer") == namespace.devices("sampler") == namespace.devices("sampler", "side")
    assert namespace.devices("sampler") == minors("node-a", str(namespace.annotation("sampler", names.ALLOCATED)))
    assert len(owners(namespace.cluster)) == 4
    unchanged(namespace, trainer, sampler)
    renamed = namespace.kubectl("annotate", "pod", "sampler", f"{names.SHARED_CLAIM}=trio", "--overwrite", check=False)
    assert "a pod's claim cannot change" in renamed.stderr

    uid = namespace.get("resourceclaim", "duo")["metadata"]["uid"]
    namespace.delete("trainer")
    eventually("the claim is the sampler's alone", lambda: users(namespace) == ["sampler"])
    namespace.apply(pod("standby", gpus=4, words=words, command=UNTIL_TOLD))
    namespace.wait_running("sampler", "standby")
    assert namespace.devices("standby") == namespace.devices("sampler") == namespace.devices("sampler", "side")
    assert namespace.get("resourceclaim", "duo")["metadata"]["uid"] == uid

    for name, container in (("sampler", "main"), ("sampler", "side"), ("standby", "main")):
        namespace.kubectl("exec", name, "-c", container, "--", "touch", "/tmp/end")
    eventually("the set ends with its pods", lambda: not namespace.list("resourceclaims"))
    assert {one["status"]["phase"] for one in namespace.list("pods")} == {"Succeeded"}


@pytest.fixture
def extended(driver: Cluster) -> Iterator[None]:
    """The chart with ``deviceClass.extendedResourceName: nvidia.com/gpu``, and afterwards without it again."""
    before = device_class(driver)
    deploy.change(driver, f"{EXTENDED}={names.GPU_RESOURCE}")
    yield
    deploy.change(driver, f"{EXTENDED}=")
    assert device_class(driver) == before


def test_a_limit_alone_gets_gpus_that_are_neighbours_and_is_counted(extended: None, namespace: Namespace) -> None:
    for name, gpus, sets in (("quad", 4, QUADS), ("pair", 2, PAIRS)):
        namespace.apply(pod(name, gpus=gpus, node="node-a"))
        namespace.wait_running(name)
        assert seen(namespace, name) in sets
        assert names.PREFIX not in json.dumps(namespace.get("pod", name)["metadata"])
    assert len(owners(namespace.cluster)) == 6

    namespace.apply(pod("placed", gpus=2, words=NVLINK, node="node-a"))
    namespace.wait_running("placed")
    assert seen(namespace, "placed") in PAIRS
    namespace.apply(pod("more", gpus=1, words=NVLINK, node="node-a"))
    assert eventually("the books count all", lambda: namespace.annotation("more", names.REASON))
    namespace.delete("quad")
    namespace.wait_running("more")
    assert no_gpu_is_owned_twice(namespace.cluster)


def test_taking_the_name_back_leaves_the_gpus_of_pods_that_run(extended: None, namespace: Namespace) -> None:
    namespace.apply(pod("before", gpus=2, node="node-a"))
    namespace.wait_running("before")
    held = owners(namespace.cluster)
    deploy.change(namespace.cluster, f"{EXTENDED}=")

    namespace.apply(pod("after", gpus=2, node="node-a"), pod("placed", gpus=8, words=NVLINK, node="node-a"))
    eventually("nobody has such a resource any more", lambda: unschedulable(namespace, "after"))
    eventually("the books count the one before", lambda: namespace.annotation("placed", names.REASON))
    assert owners(namespace.cluster) == held
    namespace.delete("after", "before")
    namespace.wait_running("placed")
