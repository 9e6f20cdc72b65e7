"""Manifests as the field writes them, on the real cluster, in a namespace where pods are translated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dradriver.api import names
from tests import needs
from tests.cluster import Cluster
from tests.e2e import field
from tests.e2e.kubectl import Namespace, eventually, pod

GPU = names.GPU_RESOURCE
NVLINK = "nvlink"


@pytest.fixture(scope="module")
def a100s(driver: Cluster) -> Iterator[Cluster]:
    if not field.FOLDER.is_dir():
        needs.missing(f"no such folder: {field.FOLDER}")
    with field.supplied(driver):
        yield driver


@pytest.fixture
def labelled(namespace: Namespace) -> Namespace:
    words = (f"{key}={value}" for key, value in field.LABELLED.items())
    namespace.cluster.kubectl("label", "namespace", namespace.name, *words)
    return namespace


@pytest.fixture
def supplied(a100s: Cluster, labelled: Namespace) -> Namespace:
    return labelled


def why(namespace: Namespace, name: str) -> str:
    return eventually(f"{name} says why it waits", lambda: namespace.annotation(name, names.REASON))


def allocated(namespace: Namespace, name: str) -> list[str]:
    return (namespace.annotation(name, names.ALLOCATED) or "").split(",")


def node_of(namespace: Namespace, name: str) -> str:
    found: str = namespace.get("pod", name)["spec"]["nodeName"]
    return found


def test_every_manifest_is_admitted_as_it_stands(supplied: Namespace) -> None:
    for path in sorted(field.FOLDER.glob("*.yaml")):
        tried = supplied.kubectl("apply", "--dry-run=server", "-f", str(path), check=False)
        assert (tried.returncode == 0) is (path.stem != "vgpu-pod"), tried.stderr
        assert ("licence server" in tried.stderr) is (path.stem == "vgpu-pod")


def test_a_plain_gpu_pod(supplied: Namespace) -> None:
    applied = supplied.apply(field.load("plain-gpu-pod"))
    assert "privileged" in applied.stderr
    assert "NVIDIA_VISIBLE_DEVICES" in applied.stderr
    supplied.wait_running("gpu-pod")
    assert len(allocated(supplied, "gpu-pod")) == 1
    assert node_of(supplied, "gpu-pod") == "node-a"
    diff = supplied.kubectl("diff", "-f", "-", stdin=json.dumps(field.load("plain-gpu-pod")), check=False)
    assert diff.returncode == 0, diff.stdout


def test_a_mig_pod(supplied: Namespace) -> None:
    supplied.apply(field.load("mig-pod"))
    supplied.wait_running("mig-pod")
    assert (supplied.annotation("mig-pod", names.PART) or "").startswith("1g.5gb@")
    assert node_of(supplied, "mig-pod") == "node-a"
    assert supplied.devices("mig-pod", "cuda-container")


def test_a_deployment_of_shares(supplied: Namespace) -> None:
    supplied.apply(field.load("gpushare-deployment"))
    replicas = field.pods(supplied, 3)
    supplied.wait_running(*replicas)
    assert {supplied.annotation(name, names.PART) for name in replicas} == {"25%/4096Mi"}
    assert len({supplied.annotation(name, names.ALLOCATED) for name in replicas}) == 1


def test_a_job_with_network_cards(supplied: Namespace) -> None:
    supplied.apply(field.load("ddp-rdma-job"))
    (name,) = field.pods(supplied, 1)
    supplied.wait_running(name)
    assert len(allocated(supplied, name)) == 8
    assert supplied.annotation(name, names.LEVEL) == NVLINK
    assert supplied.get("pod", name)["spec"]["containers"][0]["resources"]["limits"] == {"rdma/hca": "2"}


def test_a_job_whose_words_stand_above_its_pods(supplied: Namespace) -> None:
    applied = supplied.apply(field.load("distributed-job"))
    assert applied.stderr == ""
    both = field.pods(supplied, 2)
    supplied.wait_running(*both)
    assert {node_of(supplied, name) for name in both} == {"node-a", "node-b"}
    for name in both:
        assert len(supplied.devices(name, "trainer")) == 4
        assert supplied.annotation(name, names.LEVEL) == NVLINK
        note = json.loads(str(supplied.annotation(name, names.REQUEST)))
        assert note["gang"] == {"strategy": "pack", "max_nodes": 2, "min_gpus_per_node": 4}
        assert note["request"]["min_bandwidth_gbps"] == 100


def test_a_pod_with_words_under_the_articles_prefix(supplied: Namespace) -> None:
    supplied.kubectl("create", "configmap", "nccl-topology-config")
    applied = supplied.apply(field.load("required-preferred-pod"))
    assert "NCCL_ALGO" in applied.stderr
    supplied.wait_running("distributed-trainer")
    assert len(supplied.devices("distributed-trainer", "trainer")) == 8


def test_a_slice_that_no_gpu_has_and_a_product_that_no_node_has_wait_with_the_reason(labelled: Namespace) -> None:
    odd = [
        pod("slice") | {"limits": {"nvidia.com/mig-9g.99gb": 1}},
        pod("product") | {"limits": {"nvidia.com/gpu.NVIDIA-B9000": 1}},
    ]
    for manifest in odd:
        manifest["spec"]["containers"][0]["resources"] = {"limits": manifest.pop("limits")}
    labelled.apply(*odd)
    assert "9g.99gb" in why(labelled, "slice")
    assert "of product NVIDIA[ -]B9000: no" in why(labelled, "product")


def test_a_product_is_asked_for_by_a_limit(labelled: Namespace) -> None:
    manifest = pod("hopper")
    manifest["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu.H100-80GB-HBM3": 2}}
    labelled.apply(manifest)
    labelled.wait_running("hopper")
    assert node_of(labelled, "hopper") == "node-b"
    assert len(labelled.devices("hopper")) == 2


def test_a_limit_range_gives_every_container_a_gpu_and_nobody_a_second(labelled: Namespace) -> None:
    limits: dict[str, Any] = {"type": "Container", "default": {GPU: 1}, "defaultRequest": {GPU: 1}}
    metadata = {"name": "gpus"}
    labelled.apply({"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": [limits]}})
    labelled.apply(pod("default"), pod("own", gpus=2), pod("words", gpus=2, words={names.POLICY: NVLINK}))
    labelled.wait_running("default", "own", "words")
    for name, count in (("default", 1), ("own", 2), ("words", 2)):
        assert len(labelled.devices(name)) == count
        resources = labelled.get("pod", name)["spec"]["containers"][0]["resources"]
        assert GPU not in {**resources.get("limits", {}), **resources.get("requests", {})}


def test_a_request_without_a_limit_is_refused_as_ever(labelled: Namespace) -> None:
    manifest = pod("wrong")
    manifest["spec"]["containers"][0]["resources"] = {"requests": {GPU: 1}}
    assert "Limit must be set for non overcommitable resources" in labelled.apply(manifest, check=False).stderr


def test_only_labelled_namespaces_are_translated(namespace: Namespace) -> None:
    namespace.apply(pod("plain", gpus=1))
    got = namespace.get("pod", "plain")
    assert not got["spec"].get("schedulingGates")
    assert not got["spec"].get("resourceClaims")


def test_an_ephemeral_container_asks_for_nothing(labelled: Namespace) -> None:
    labelled.apply(pod("steady", gpus=1))
    labelled.wait_running("steady")
    path = f"/api/v1/namespaces/{labelled.name}/pods/steady"

    def debug(**more: Any) -> str:
        got = json.loads(labelled.cluster.kubectl("get", "--raw", path).stdout)
        container = {"name": "debug", "image": "busybox", "command": ["sleep", "1"], "imagePullPolicy": "IfNotPresent"}
        got["spec"]["ephemeralContainers"] = [container | more]
        sent = json.dumps(got)
        done = labelled.cluster.kubectl(
            "replace", "--raw", f"{path}/ephemeralcontainers", "-f", "-", input=sent, check=False
        )
        return done.stderr

    assert "cannot be set for an Ephemeral Container" in debug(resources={"limits": {GPU: "1"}})
    assert debug() == ""


def test_words_of_a_deployment_follow_into_its_pods(namespace: Namespace) -> None:
    template = {"metadata": {"labels": {"app": "d"}}, "spec": pod("d", gpus=2)["spec"] | {"restartPolicy": "Always"}}
    manifest: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "annotations": {names.POLICY: NVLINK}},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "d"}}, "template": template},
    }
    namespace.apply(manifest)
    (name,) = field.pods(namespace, 1)
    namespace.wait_running(name)
    assert namespace.annotation(name, names.POLICY) == NVLINK
    for arguments in ((), ("--server-side", "--force-conflicts")):
        before = namespace.get("deployment", "d")["metadata"]["generation"]
        namespace.kubectl("apply", *arguments, "-f", "-", stdin=json.dumps(manifest))
        assert namespace.get("deployment", "d")["metadata"]["generation"] == before, "nothing is rolled out"
    misspelt = manifest | {"metadata": {"name": "d", "annotations": {names.POLICY: "nvlnk"}}}
    assert "did you mean nvlink" in namespace.apply(misspelt, check=False).stderr
    namespace.kubectl("annotate", "deployment", "d", f"{names.POLICY}=best-effort", "--overwrite")
    template = namespace.get("deployment", "d")["spec"]["template"]
    assert template["metadata"]["annotations"][names.POLICY] == "best-effort"
