"""Manifests as the field writes them, on the real cluster, in a namespace where pods are translated."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.topology import profiles
from tests.cluster import Cluster
from tests.cluster.settings import minor_of
from tests.e2e import field, gangs
from tests.e2e.kubectl import Namespace, eventually, pod

GPU = names.GPU_RESOURCE
NVLINK = "nvlink"


pytestmark = pytest.mark.chart(*field.A100S)


@pytest.fixture(scope="module", autouse=True)
def _supplied(cluster: Cluster) -> Iterator[None]:
    """What the manifests take for granted is there before the chart is installed: an agent reads it when it starts."""
    with field.supplied(cluster) if field.FOLDER.is_dir() else contextlib.nullcontext():
        yield


@pytest.fixture
def labelled(namespace: Namespace) -> Namespace:
    words = (f"{key}={value}" for key, value in field.LABELLED.items())
    namespace.cluster.kubectl("label", "namespace", namespace.name, *words)
    return namespace


def why(namespace: Namespace, name: str) -> str:
    return eventually(f"{name} says why it waits", lambda: namespace.annotation(name, names.REASON))


def allocated(namespace: Namespace, name: str) -> list[str]:
    return (namespace.annotation(name, names.ALLOCATED) or "").split(",")


def node_of(namespace: Namespace, name: str) -> str:
    found: str = namespace.get("pod", name)["spec"]["nodeName"]
    return found


@pytest.mark.shared_data
def test_every_manifest_is_admitted_as_it_stands(labelled: Namespace) -> None:
    for path in sorted(field.FOLDER.glob("*.yaml")):
        tried = labelled.kubectl("apply", "--dry-run=server", "-f", str(path), check=False)
        assert (tried.returncode == 0) is (path.stem != "vgpu-pod"), tried.stderr
        assert ("licence server" in tried.stderr) is (path.stem == "vgpu-pod")


@pytest.mark.shared_data
def test_pods_that_ask_by_limits_alone(labelled: Namespace) -> None:
    """A whole GPU on the A100s, a slice beside it, and three shares of one H100."""
    applied = labelled.apply(*map(field.load, ("plain-gpu-pod", "mig-pod", "gpushare-deployment")))
    assert "privileged" in applied.stderr
    assert "NVIDIA_VISIBLE_DEVICES" in applied.stderr
    every = field.pods(labelled, 5)
    labelled.wait_running(*every)
    assert {node_of(labelled, name) for name in ("gpu-pod", "mig-pod")} == {"node-a"}
    assert len(allocated(labelled, "gpu-pod")) == 1
    assert (labelled.annotation("mig-pod", names.PART) or "").startswith("1g.5gb@")
    assert labelled.devices("mig-pod", "cuda-container")
    replicas = [name for name in every if name.startswith("model-serving")]
    assert [labelled.annotation(name, names.PART) for name in replicas] == ["25%/4096Mi"] * 3
    assert len({labelled.annotation(name, names.ALLOCATED) for name in replicas}) == 1
    diff = labelled.kubectl("diff", "-f", "-", stdin=json.dumps(field.load("plain-gpu-pod")), check=False)
    assert diff.returncode == 0, diff.stdout


@pytest.mark.shared_data
def test_an_a100_whose_mig_mode_is_off_stays_whole_and_that_is_said(driver: Cluster) -> None:
    gpu = profiles.load("dgx-a100", seed="node-a").gpus[field.MIG_OFF].uuid
    slices = driver.api.objects("resourceslices")
    (device,) = [one for piece in slices for one in piece["spec"]["devices"] if one["name"] == gpu.lower()]
    assert device["attributes"]["type"]["string"] == "gpu"
    assert "allowMultipleAllocations" not in device
    events = driver.api.objects("events.events.k8s.io")
    assert {one["note"].split()[1] for one in events if one["reason"] == "MigModeOff"} == {gpu}


@pytest.mark.shared_data
def test_a_job_with_network_cards(labelled: Namespace) -> None:
    labelled.apply(field.load("ddp-rdma-job"))
    (name,) = field.pods(labelled, 1)
    labelled.wait_running(name)
    assert len(allocated(labelled, name)) == 8
    assert labelled.annotation(name, names.LEVEL) == NVLINK
    assert labelled.get("pod", name)["spec"]["containers"][0]["resources"]["limits"] == {"rdma/hca": "2"}


@pytest.mark.shared_data
def test_a_job_whose_words_stand_above_its_pods(labelled: Namespace) -> None:
    applied = labelled.apply(field.load("distributed-job"))
    assert applied.stderr == ""
    both = field.pods(labelled, 2)
    gangs.run_whole(labelled, both, container="trainer", barrier=minor_of(labelled.cluster.version) >= "1.36")
    assert {labelled.annotation(name, names.RANK_HINT) for name in both} == {"0", "1"}
    assert {node_of(labelled, name) for name in both} == {"node-a", "node-b"}
    for name in both:
        assert len(labelled.devices(name, "trainer")) == 4
        assert labelled.annotation(name, names.LEVEL) == NVLINK
        note = json.loads(str(labelled.annotation(name, names.REQUEST)))
        assert note["gang"] == {"strategy": "pack", "max_nodes": 2, "min_gpus_per_node": 4}
        assert note["request"]["min_bandwidth_gbps"] == 100


@pytest.mark.shared_data
def test_a_pod_with_words_under_the_articles_prefix(labelled: Namespace) -> None:
    labelled.kubectl("create", "configmap", "nccl-topology-config")
    applied = labelled.apply(field.load("required-preferred-pod"))
    assert "NCCL_ALGO" in applied.stderr
    labelled.wait_running("distributed-trainer")
    assert len(labelled.devices("distributed-trainer", "trainer")) == 8


def limited(name: str, **resources: Any) -> dict[str, Any]:
    made = pod(name)
    made["spec"]["containers"][0]["resources"] = resources
    return made


def test_a_product_is_given_by_its_limit_and_a_missing_one_waits_with_the_reason(labelled: Namespace) -> None:
    wishes = {"hopper": "gpu.H100-80GB-HBM3", "slice": "mig-9g.99gb", "product": "gpu.NVIDIA-B9000"}
    labelled.apply(*(limited(name, limits={f"nvidia.com/{wish}": 2}) for name, wish in wishes.items()))
    labelled.wait_running("hopper")
    assert node_of(labelled, "hopper") == "node-b"
    assert len(labelled.devices("hopper")) == 2
    assert "9g.99gb" in why(labelled, "slice")
    assert "of product NVIDIA[ -]B9000: no" in why(labelled, "product")


def test_a_limit_range_gives_every_container_one_gpu(labelled: Namespace) -> None:
    limits: dict[str, Any] = {"type": "Container", "default": {GPU: 1}, "defaultRequest": {GPU: 1}}
    metadata = {"name": "gpus"}
    labelled.apply({"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": [limits]}})
    labelled.apply(pod("default"), pod("own", gpus=2), pod("words", gpus=2, words={names.POLICY: NVLINK}))
    labelled.wait_running("default", "own", "words")
    for name, count in (("default", 1), ("own", 2), ("words", 2)):
        assert len(labelled.devices(name)) == count
        resources = labelled.get("pod", name)["spec"]["containers"][0]["resources"]
        assert GPU not in {**resources.get("limits", {}), **resources.get("requests", {})}


def test_a_queued_pod_is_admitted_in_a_second_pass_and_a_copy_of_it_is_not(labelled: Namespace) -> None:
    """The limit range makes the API server ask twice: the second time the note is there, and was not sent."""
    limits: dict[str, Any] = {"type": "Container", "default": {GPU: 1}, "defaultRequest": {GPU: 1}}
    metadata = {"name": "gpus"}
    labelled.apply({"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": [limits]}})
    charged = pod("charged", gpus=2, words={names.POLICY: NVLINK})
    charged["metadata"]["labels"] = {"kueue.x-k8s.io/podset": "main"}
    labelled.apply(charged)
    stored = labelled.get("pod", "charged")
    kept = {key: stored["metadata"][key] for key in ("annotations", "labels")}
    stored["spec"].pop("nodeName", None)
    copied = labelled.apply(stored | {"metadata": {"name": "copied"} | kept}, check=False)
    assert "a copied pod with this annotation has none" in copied.stderr


def test_only_labelled_namespaces_are_translated(namespace: Namespace) -> None:
    namespace.apply(pod("plain", gpus=1))
    got = namespace.get("pod", "plain")
    assert not got["spec"].get("schedulingGates")
    assert not got["spec"].get("resourceClaims")


def test_the_api_server_refuses_gpus_of_ephemeral_containers_and_requests_without_a_limit(labelled: Namespace) -> None:
    wrong = labelled.apply(limited("wrong", requests={GPU: 1}), check=False)
    assert "Limit must be set for non overcommitable resources" in wrong.stderr
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
