"""Pods that say nothing in our words and ask for GPUs by limits, in namespaces where such pods are translated."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from dradriver.allocator.request import Amount, Mig, Share, Whole
from dradriver.api.base import names
from dradriver.api.pod import resolved
from dradriver.api.pod.resolved import Resolved
from tests import schema
from tests.fakes.admission import Verdict, admit, applied, defaulted, lifted, pod, sidecar, stored
from tests.paths import SHARED_DATA

GPU = names.GPU_RESOURCE
Object = dict[str, Any]


def translated(sent: Object) -> Verdict:
    return admit(defaulted(sent), path="/translate-pods")


def limited(*limits: Object, **more: Any) -> Object:
    made = pod(*[None] * len(limits), **more)
    for container, own in zip(made["spec"]["containers"], limits, strict=True):
        container["resources"] = {"limits": own}
    return made


def noted(made: Object) -> Resolved:
    return resolved.read(made["metadata"]["annotations"])


@pytest.mark.parametrize(
    ("limits", "request_of"),
    [
        ({GPU: 4}, Whole(containers=(4,))),
        ({"nvidia.com/gpu.NVIDIA-A100-SXM4-40GB": 2}, Whole(containers=(2,), product="NVIDIA[ -]A100[ -]SXM4[ -]40GB")),
        ({"nvidia.com/gpu.A10": 1, GPU: 1}, Whole(containers=(1,), product="*A10")),
        ({"nvidia.com/mig-1g.5gb": 2}, Mig(profiles=(("1g.5gb", "1g.5gb"),))),
        ({"nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}, Share(amounts=(Amount(30, 3000),))),
        ({GPU: 1, "nvidia.com/gpu-memory": "10Gi"}, Share(amounts=(Amount(0, 10240),))),
        ({"aliyun.com/gpu-mem": 4096, "aliyun.com/gpu-core": 25}, Share(amounts=(Amount(25, 4096),))),
    ],
)
def test_limits_alone_make_a_pod_ours(limits: Object, request_of: Any) -> None:
    sent = limited(limits | {"cpu": "1"})
    made = translated(sent).admitted
    schema.check(made)
    assert noted(made).request == request_of
    assert made["spec"]["schedulingGates"] == [{"name": names.GATE}]
    assert made["metadata"]["labels"] == {names.LABEL: names.LABEL_PLACED}
    assert made["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "1"}
    assert admit(defaulted(sent)).patch == [], "elsewhere it is nobody's business"


def test_a_claim_of_a_translated_pod_is_not_for_its_gpus() -> None:
    """A network card's, say: without a word of ours no template is meant."""
    nic = {"name": "nic", "resourceClaimTemplateName": "rdma"}
    sent = pod(None, spec={"resourceClaims": [nic], "initContainers": [sidecar(2, restart=None)]})
    sent["spec"]["containers"][0]["resources"] = {"claims": [{"name": "nic"}]}
    made = translated(sent).admitted
    assert made["spec"]["resourceClaims"][0] == nic
    assert made["spec"]["resourceClaims"][1]["name"] == names.POD_CLAIM
    assert noted(made).containers == ("init",)


def test_a_pod_without_gpu_limits_stays_as_it_is() -> None:
    for sent in (limited({"cpu": "1"}), pod(None), pod("0")):
        verdict = translated(sent)
        assert (verdict.allowed, verdict.patch, verdict.warnings) == (True, [], [])


def test_words_count_there_as_everywhere() -> None:
    made = translated(pod(4, annotations={names.POLICY: "nvlink"})).admitted
    assert noted(made) == noted(admit(defaulted(pod(4, annotations={names.POLICY: "nvlink"}))).admitted)
    assert "did you mean" in translated(pod(4, annotations={"gpu.topology/polcy": "nvlink"})).message


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}, "in MiB, for example nvidia.com/gpumem: 8192"),
        ({"nvidia.com/vgpu": 1}, "vGPUs are for virtual machines and need NVIDIA's licence server"),
        (
            {"nvidia.com/gpu.shared": 1},
            "known only to the configuration of a device plugin. Write the limit nvidia.com/gpu: 1 and the annotation "
            "gpu",
        ),
        ({"nvidia.com/mig-1g.5gb.shared": 1}, "known only to the configuration of a device plugin"),
        ({GPU: 2, "nvidia.com/gpu.A10": 1}, "nvidia.com/gpu: 2, nvidia.com/gpu.A10: 1 contradict each other"),
        ({"nvidia.com/gpu.A10": 1, "nvidia.com/gpu.L4": 1}, "the limits name 2 products: 'A10', 'L4'. All GPUs"),
        (
            {"nvidia.com/gpu." + "a-" * 30 + "b": 1},
            "is not the resource of a GPU product. Write the product's name with - instead of blanks",
        ),
        ({"nvidia.com/gpu.A10": "some"}, "nvidia.com/gpu.A10: 'some' is not a number of GPUs"),
        ({GPU: 1, "nvidia.com/mig-1g.5gb": 1}, "MIG 1g.5gb contradicts 1 GPU"),
        ({GPU: "-1"}, "is not a number of GPUs"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_reason(limits: Object, told: str) -> None:
    verdict = translated(limited(limits))
    assert not verdict.allowed
    assert told in verdict.message


def test_all_containers_of_a_pod_have_gpus_of_one_product() -> None:
    a10, l4 = {"nvidia.com/gpu.A10": 1}, {"nvidia.com/gpu.L4": 1}
    assert noted(translated(limited(a10, a10)).admitted).request == Whole(containers=(1, 1), product="*A10")
    assert (
        "(container 'c0': *A10, container 'c1': *L4). All GPUs of a pod must be of one"
        in translated(limited(a10, l4)).message
    )
    said = translated(limited(a10, annotations={names.PRODUCT: "NVIDIA L4"}))
    assert (
        "gpu.topology/product: 'NVIDIA L4' contradicts the containers' limits, which name the product *A10"
        in said.message
    )


def test_a_product_of_limits_stays_when_words_change_and_in_a_copy() -> None:
    live = stored(translated(limited({"nvidia.com/gpu.A10": 2})).admitted)
    changed = copy.deepcopy(live)
    changed["metadata"]["annotations"][names.STRATEGY] = "pack"
    made = admit(changed, old=live).admitted
    assert (noted(made).request.product, noted(made).request.strategy) == ("*A10", "pack")
    assert noted(admit(lifted(live)).admitted).request == noted(live).request


def test_a_translated_pod_lives_as_every_other() -> None:
    sent = pod(4)
    live = stored(translated(sent).admitted)
    for now in (live, lifted(live)):
        assert admit(applied(sent, now), old=now).admitted == now


def test_a_pod_on_a_chosen_node_stays_with_a_warning() -> None:
    verdict = translated(pod(1, spec={"nodeName": "n1"}))
    assert (verdict.allowed, verdict.patch) == (True, [])
    assert "spec.nodeName: 'n1': a pod that names its node" in verdict.warnings[0]


def test_what_harms_is_warned_of() -> None:
    sent = pod(1)
    sent["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert "sees all GPUs" in translated(sent).warnings[0]


def test_a_limit_that_a_limit_range_puts_back_goes_again() -> None:
    """It is run again after a webhook changed the pod, and then so are the webhooks that were asked before."""
    first = translated(pod(4, None)).admitted
    again = copy.deepcopy(first)
    for container in again["spec"]["containers"]:
        container["resources"] |= {"limits": {GPU: "1"}, "requests": {GPU: "1"}}
    second = admit(again, path="/translate-pods").admitted
    second["spec"]["resourceClaims"] = first["spec"]["resourceClaims"]
    assert second["spec"]["containers"][0] == first["spec"]["containers"][0]
    assert not second["spec"]["containers"][1]["resources"]
    assert noted(second) == noted(first)


def test_sidecars_and_init_containers_have_their_gpus() -> None:
    made = translated(pod(2, spec={"initContainers": [sidecar(1)]})).admitted
    assert noted(made).asked == {"c0": 2, "init": 1}
    made = translated(pod(2, spec={"initContainers": [sidecar(2, restart=None)]})).admitted
    assert noted(made).asked == {"c0": 2}
    assert made["spec"]["initContainers"][0]["resources"]["claims"] == [{"name": names.POD_CLAIM, "request": "c0"}]


def test_where_only_init_containers_have_limits_they_share_the_largest_ones_gpus() -> None:
    init = [sidecar(count, restart=None) | {"name": f"i{n}"} for n, count in enumerate((None, 2, 2))]
    init[0]["resources"] = {}
    made = translated(pod(None, spec={"initContainers": init})).admitted
    schema.check(made)
    assert noted(made).asked == {"i1": 2}
    users = [container["resources"].get("claims") for container in made["spec"]["initContainers"]]
    assert users == [None, *[[{"name": names.POD_CLAIM, "request": "i1"}]] * 2]
    assert admit(made).admitted["spec"]["initContainers"] == made["spec"]["initContainers"], "a copy, and a second pass"


def template(name: str) -> tuple[Object, str]:
    """Return the pod of a manifest as its controller creates it, once its own admission is over, and its path."""
    found = yaml.safe_load((SHARED_DATA / "manifests" / f"{name}.yaml").read_text())
    if found["kind"] != "Pod":
        made = admit(found, path="/mutate-workloads", kind=found["kind"]).admitted["spec"]["template"]
        found = {"apiVersion": "v1", "kind": "Pod", **made, "metadata": {"name": "p"} | made["metadata"]}
    ours = any(key.startswith((names.PREFIX, names.ALIAS_PREFIX)) for key in found["metadata"].get("annotations", {}))
    return found, "/mutate-pods" if ours else "/translate-pods"


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "asked", "warned"),
    [
        ("plain-gpu-pod", {"cuda-container": 1}, ["privileged", "NVIDIA_VISIBLE_DEVICES"]),
        ("mig-pod", {"cuda-container": ("1g.5gb",)}, []),
        ("gpushare-deployment", {"model-server": Amount(25, 4096)}, []),
        ("ddp-rdma-job", {"pytorch-trainer": 8}, ["gpu-topology: nothing reads this annotation", "privileged"]),
        ("distributed-job", {"trainer": 4}, ["multi-node-policy", "max-nodes", "min-gpus-per-node"]),
        ("required-preferred-pod", {"trainer": 8}, ["NCCL_TOPO_FILE", "NCCL_ALGO"]),
    ],
)
def test_every_manifest_of_the_field_is_admitted_as_it_stands(name: str, asked: Object, warned: list[str]) -> None:
    sent, path = template(name)
    verdict = admit(defaulted(sent), path=path)
    schema.check(verdict.admitted)
    assert noted(verdict.admitted).asked == asked
    assert len(verdict.warnings) == len(warned)
    assert all(word in told for word, told in zip(warned, verdict.warnings, strict=True))
    assert verdict.admitted["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.shared_data
def test_a_vgpu_is_refused_with_the_reason() -> None:
    sent, path = template("vgpu-pod")
    assert "licence server" in admit(defaulted(sent), path=path).message
