"""Pods that ask for GPUs of another vendor, by limits or by the word: what is noted, warned of and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dradriver.allocator.request import Constraint, Whole
from dradriver.api.base import names
from dradriver.api.base.allocating_driver import NVIDIA
from dradriver.api.base.errors import WordError
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.vocabulary import container_limits
from dradriver.process.policies_file import PoliciesFile
from dradriver.topology.vendors import VENDORS
from tests.fakes.admission import Object, admit, applied, defaulted, lifted, pod, stored
from tests.unit.webhook.test_policies import Admin

LINKED = {names.REQUIRED: "linked"}


def noted(sent: Object, policies: PoliciesFile | None = None) -> Whole:
    """Return what is noted of a pod that is let in, whose limits on GPUs are gone."""
    verdict = admit(defaulted(sent), policies=policies or PoliciesFile())
    assert verdict.allowed, verdict.message
    assert verdict.pod is not None
    for container in verdict.pod["spec"]["containers"]:
        assert not any(map(container_limits.is_ours, container["resources"].get("limits", {})))
    request = resolved.read(verdict.pod["metadata"]["annotations"]).request
    assert isinstance(request, Whole)
    return request


def refused(sent: Object, **more: Any) -> str:
    verdict = admit(defaulted(sent), **more)
    assert not verdict.allowed
    return verdict.message


@pytest.mark.parametrize(
    ("resource", "vendor", "product"),
    [
        ("nvidia.com/gpu", "nvidia", ""),
        ("amd.com/gpu", "amd", ""),
        ("huawei.com/npu", "ascend", ""),
        ("huawei.com/Ascend910", "ascend", "*910*"),
        ("huawei.com/Ascend310P", "ascend", "*310P*"),
        ("huawei.com/Ascend310", "ascend", "*310"),
        ("huawei.com/Ascend910A", "ascend", "*910A"),
        ("huawei.com/Ascend910B2", "ascend", "*910B2"),
        ("huawei.com/Ascend910B3", "ascend", "*910B3"),
        ("huawei.com/Ascend910B4", "ascend", "*910B4"),
        ("huawei.com/Ascend910B4-1", "ascend", "*910B4-1"),
        ("huawei.com/Ascend910C", "ascend", "*910C"),
    ],
)
def test_a_limit_asks_for_whole_gpus_of_its_vendor(resource: str, vendor: str, product: str) -> None:
    asked = noted(pod(4, annotations=LINKED, resource=resource))
    assert asked == Whole(containers=(4,), vendor=vendor, product=product, required=(Constraint.NVLINK,))


@pytest.mark.parametrize("none", ["0", "0k", "0.0", "0e3", "00"])
def test_a_number_of_none_names_no_product_however_it_is_written(none: str) -> None:
    said = {"huawei.com/Ascend910": none, "huawei.com/Ascend910B3": "2", "cpu": "8"}
    assert container_limits.product("here", said) == "*910B3"
    assert container_limits.product("here", {"nvidia.com/gpu.A100-SXM4-40GB": none, "nvidia.com/gpu": "1"}) == ""
    assert container_limits.asked("here", said | {"huawei.com/Ascend910B3-memory": none}) == 2
    assert container_limits.asked("here", {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": none}) == 1


def test_every_resource_that_a_vendor_has_is_a_limit() -> None:
    for vendor in VENDORS.values():
        for resource in vendor.resources:
            assert container_limits.vendor("here", {resource: "1"}) == vendor.word
            assert container_limits.asked("here", {resource: "3"}) == 3


def test_the_word_says_it_where_no_limit_does() -> None:
    words = {names.VENDOR: "amd", names.GPUS: "2"}
    assert noted(pod(None, annotations=words)).vendor == "amd"
    assert noted(pod(2, annotations={names.VENDOR: "nvidia"})).vendor == "nvidia"
    assert noted(pod(2, annotations={names.VENDOR: "amd"}, resource="amd.com/gpu")).vendor == "amd"


def test_a_policy_may_say_it(tmp_path: Path) -> None:
    admin = Admin(tmp_path, "policies: {hives: {vendor: amd, required: linked}}")
    words = {names.POLICY: "hives"}
    assert noted(pod(4, annotations=words, resource="amd.com/gpu"), admin.file).vendor == "amd"
    assert noted(pod(None, annotations=words | {names.GPUS: "4"}), admin.file).vendor == "amd"
    message = refused(pod(4, annotations=words), policies=admin.file)
    assert "vendor: 'amd' contradicts the containers' limits, which request GPUs of nvidia" in message


def test_a_note_that_says_another_vendor_is_one_that_older_controllers_refuse() -> None:
    for words, version in (({}, 2), ({names.VENDOR: "nvidia"}, 2), ({names.VENDOR: "amd"}, 6)):
        found = resolved.resolve(Annotations(words), {"main": 4})
        assert found.version == version
        assert ('"vendor"' in resolved.write(found)) == (version > 2)


@pytest.mark.parametrize(
    ("resource", "words", "says"),
    [
        ("nvidia.com/gpu", {"vendor": "amd"}, "'amd' contradicts the containers' limits, which request GPUs of nvidia"),
        ("amd.com/gpu", {"vendor": "nvidia"}, "'nvidia' contradicts the containers' limits, which request GPUs of amd"),
        ("amd.com/gpu", {"vendor": "adm"}, "is not allowed (did you mean amd?). Write one of: nvidia, amd, ascend"),
        ("amd.com/gpu", {"share": "0.5"}, "vendor: amd: only NVIDIA's GPUs have shares and MIG slices"),
        ("amd.com/gpu", {"mig-profile": "1g.10gb"}, "vendor: amd: only NVIDIA's GPUs have shares and MIG slices"),
        ("huawei.com/npu", {"memory": "10Gi"}, "Write the limit huawei.com/npu to request whole GPUs"),
        (
            "amd.com/gpu",
            {"min-busbw": "100"},
            "min-busbw: the driver cannot predict the bandwidth that RCCL reaches over xGMI. Write "
            "gpu.topology/min-bandwidt",
        ),
        (
            "huawei.com/npu",
            {"min-busbw": "100"},
            "min-busbw: the driver cannot predict the bandwidth that HCCL reaches over HCCS. Write "
            "gpu.topology/required: li",
        ),
        ("huawei.com/npu", {"min-bandwidth": "20"}, "min-bandwidth: the bandwidth of HCCS links is not published"),
        ("amd.com/gpu", {"min-cuda": "12.4"}, "min-cuda: GPUs of amd have no CUDA. Write gpu.topology/min-driv"),
        ("amd.com/gpu", {"max-cross-nvswitch-gpus": "1"}, "GPUs of amd have no NVSwitch"),
        ("amd.com/gpu", {"gpus": "2"}, "which request 1 amd.com/gpu. Write only one of the two."),
        ("huawei.com/Ascend910B3-memory", {}, "this driver does not allocate shares of an NPU. Write huawei.c"),
    ],
)
def test_what_another_vendor_does_not_have_is_refused_with_the_cure(
    resource: str, words: dict[str, str], says: str
) -> None:
    said = {names.PREFIX + word: text for word, text in words.items()} or LINKED
    assert says in refused(pod(1, annotations=said, resource=resource))


@pytest.mark.parametrize(
    ("resource", "says"),
    [
        (
            "amd.com/cpx_nps4",
            "'2': this driver does not allocate partitions of a GPU. Write amd.com/gpu: 1 for a",
        ),
        ("amd.com/dpx_nps1", "this driver does not allocate partitions of a GPU"),
        ("amd.com/spx_nps1", "'2': this driver uses another name for the limit of whole GPUs. Write amd.com/gpu"),
        ("amd.com/gpus", "this is not a known GPU limit (did you mean amd.com/gpu?). Known limits: amd.com/gpu"),
        ("nvidia.com/gpus", "did you mean nvidia.com/gpu?"),
        ("nvdia.com/gpu", "did you mean nvidia.com/gpu?"),
        ("nvidia.com/GPU", "did you mean nvidia.com/gpu?"),
        (
            "nvidia.com/gpu-h100",
            "Known limits: nvidia.com/gpu, nvidia.com/gpu-memory, nvidia.com/gpu.<product>, ",
        ),
        ("nvidia.com/mig1g.5gb", "did you mean nvidia.com/mig-<profile>?"),
        ("nvdia.com/mig-1g.5gb", "did you mean nvidia.com/mig-1g.5gb?"),
        ("huawei.com/Ascend910b3", "this is not a known GPU limit (did you mean huawei.com/Ascend910B3?)"),
        ("huawei.com/Ascend", "this is not a known GPU limit (did you mean huawei.com/Ascend"),
        (
            "huawei.com/Ascend910-4c",
            "this driver does not allocate shares of an NPU. Write huawei.com/Ascend910: 1",
        ),
        (
            "huawei.com/Ascend910B3-core",
            "this driver does not allocate shares of an NPU. Write huawei.com/Ascend910B",
        ),
        ("huawei.com/Ascend310P-2c.1cpu", "Write huawei.com/Ascend310P: 1 for a whole NPU"),
        ("huawei.com/Ascend910B5-memory", "Write huawei.com/npu: 1 for a whole NPU"),
        ("huawei.com/npu-core", "Write huawei.com/npu: 1 for a whole NPU"),
        (
            "huawei.com/Ascend910B5",
            "this product has no limit of its own. Write huawei.com/npu and the annotation gpu.topology/product: "
            "'*910B5', or write one",
        ),
    ],
)
def test_a_limit_that_asks_for_nothing_here_is_named_with_the_reason(resource: str, says: str) -> None:
    message = refused(pod(2, annotations=LINKED, resource=resource))
    assert f"container 'c0': limits {resource}: " in message
    assert says in message


def test_of_limits_by_the_thousand_a_few_are_compared_with_names_that_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []

    def alike(name: str, *_: object, **__: object) -> list[str]:
        compared.append(name)
        return []

    monkeypatch.setattr("dradriver.api.vocabulary.container_limits.difflib.get_close_matches", alike)
    sent = pod(None, annotations=LINKED)
    sent["spec"]["containers"] = [
        {"name": f"c{at}", "image": "x", "resources": {"limits": {f"example.com/{at}-{n}": "1" for n in range(200)}}}
        for at in range(4)
    ]
    assert "requests no GPU" in refused(sent)
    assert compared.count("example.com") == container_limits.MOST_UNREAD


@pytest.mark.parametrize(
    "resource",
    [
        "nvidia.com/hostdev", "nvidia.com/hca", "rdma/hca", "example.com/fpga", "baidu.com/gpu", "huawei.com/dpu",
        "huawei.com/hccn", "amd.com/cpu", "aliyun.com/gpu-count", "nvdia.com/hca", "nvidia.com/gpudirect",
        "nvidia.com/migration", "nvidia.com/gpu-memory-percentage", "/", "gpu", "nvidia.com/", "",
    ],
)  # fmt: skip
def test_a_limit_of_something_else_is_no_limit_of_gpus(resource: str) -> None:
    message = refused(pod(2, annotations=LINKED, resource=resource))
    assert "requests no GPU. Give a container the limit nvidia.com/gpu: <count>" in message


@pytest.mark.parametrize(
    "resource", ["amd.com/cpx_nps4", "huawei.com/Ascend910-4c", "huawei.com/Ascend910B5", "amd.com/gpus"]
)
def test_a_limit_that_is_not_read_is_left_where_the_pod_asks_for_gpus_or_has_no_word(resource: str) -> None:
    mixed = pod(1, annotations=LINKED)
    mixed["spec"]["containers"][0]["resources"]["limits"][resource] = "1"
    verdict = admit(defaulted(mixed))
    assert verdict.allowed
    assert verdict.pod is not None
    assert resource in verdict.pod["spec"]["containers"][0]["resources"]["limits"]
    none = pod(None, annotations=LINKED | {names.GPUS: "1"})
    none["spec"]["containers"][0]["resources"] = {"limits": {resource: "0"}}
    assert admit(defaulted(none)).allowed
    assert admit(defaulted(pod(1, resource=resource))).allowed


@pytest.mark.parametrize(
    ("resource", "product", "count", "counts"),
    [
        ("huawei.com/Ascend910A", "", 3, "1, 2, 4 or 8"),
        ("huawei.com/Ascend910C", "", 5, "1, 2, 4, 6, 8, 10, 12, 14 or 16"),
        ("huawei.com/npu", "Ascend 910A", 6, "1, 2, 4 or 8"),
        ("huawei.com/Ascend910A", "", 4, ""),
        ("huawei.com/Ascend910B3", "", 3, ""),
        ("huawei.com/Ascend910", "", 3, ""),
        ("huawei.com/npu", "", 3, ""),
    ],
)
def test_a_count_that_machines_of_the_product_never_give_is_warned_of(
    resource: str, product: str, count: int, counts: str
) -> None:
    words = LINKED | ({names.PRODUCT: product} if product else {})
    verdict = admit(defaulted(pod(count, annotations=words, resource=resource)))
    assert verdict.allowed
    said = [one for one in verdict.warnings if "The usual machine with this product gives a pod" in one]
    assert len(said) == bool(counts)
    if counts:
        assert f"{count} GPUs of product " in said[0]
        assert f"gives a pod {counts} GPUs. Write one of these numbers" in said[0]


def test_what_the_word_contradicts_is_refused_on_what_makes_pods_too() -> None:
    with pytest.raises(WordError, match="GPUs of amd have no CUDA"):
        Annotations({names.VENDOR: "amd", names.MIN_CUDA: "12.4"}).check()
    with pytest.raises(WordError, match="only NVIDIA's GPUs have shares and MIG slices"):
        Annotations({names.VENDOR: "ascend", names.SHARE: "0.5"}).check()
    Annotations({names.VENDOR: "amd", names.MIN_BANDWIDTH: "50"}).check()


def test_two_vendors_in_one_pod_are_refused_by_name() -> None:
    both = pod(1, annotations=LINKED)
    both["spec"]["containers"][0]["resources"]["limits"]["amd.com/gpu"] = 2
    assert "amd.com/gpu (amd) and nvidia.com/gpu (nvidia). All GPUs of a pod must be of one vendor" in refused(both)
    apart = pod(1, 1, annotations=LINKED)
    apart["spec"]["containers"][1]["resources"]["limits"] = {"amd.com/gpu": 1}
    assert "(container 'c0': nvidia, container 'c1': amd). All GPUs of a pod must be of one vendor" in refused(apart)
    mixed = pod(1, annotations=LINKED, resource="amd.com/gpu")
    mixed["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = 1000
    assert "All GPUs of a pod must be of one vendor" in refused(mixed)


def test_an_unchanged_manifest_changes_nothing_and_other_words_keep_the_vendor() -> None:
    manifest = pod(2, annotations=LINKED, resource="huawei.com/Ascend910B3")
    live = stored(admit(defaulted(manifest)).admitted)
    assert names.REQUEST in live["metadata"]["annotations"]
    again = admit(applied(manifest, live), old=live)
    assert again.allowed
    assert again.admitted["metadata"]["annotations"][names.REQUEST] == live["metadata"]["annotations"][names.REQUEST]
    other = pod(2, annotations={names.REQUIRED: "same-numa"}, resource="huawei.com/Ascend910B3")
    changed = admit(applied(other, live), old=live).admitted
    request = resolved.read(changed["metadata"]["annotations"]).request
    assert (request.vendor, request.product) == ("ascend", "*910B3")
    assert request.required == (Constraint.SAME_NUMA,)  # type: ignore[union-attr]


@pytest.mark.parametrize(("resource", "to"), [("nvidia.com/gpu", "amd"), ("amd.com/gpu", "nvidia")])
def test_a_pod_keeps_the_vendor_that_it_was_created_with(resource: str, to: str) -> None:
    live = stored(admit(defaulted(pod(2, annotations=LINKED, resource=resource))).admitted)
    other = pod(2, annotations=LINKED | {names.VENDOR: to}, resource=resource)
    verdict = admit(applied(other, live), old=live)
    assert not verdict.allowed
    assert names.VENDOR in verdict.message


def test_a_copy_of_a_pod_has_its_vendor() -> None:
    live = lifted(stored(admit(defaulted(pod(2, annotations=LINKED, resource="amd.com/gpu"))).admitted))
    made = admit(defaulted({"metadata": live["metadata"], "spec": live["spec"]})).admitted
    assert resolved.read(made["metadata"]["annotations"]).request.vendor == "amd"


def test_none_of_another_vendors_is_no_second_vendor() -> None:
    sent = pod(2, annotations=LINKED, resource="amd.com/gpu")
    sent["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = 0
    assert noted(sent).vendor == "amd"


@pytest.mark.parametrize("variable", ["NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES"])
def test_variables_by_which_runtimes_add_devices_are_warned_of(variable: str) -> None:
    """Trap 16 of what is known of the vendors: their own runtimes add devices beside those of a claim."""

    def told(value: str) -> list[str]:
        sent = pod(1, annotations=LINKED)
        sent["spec"]["containers"][0]["env"] = [{"name": variable, "value": value}]
        return [text for text in admit(defaulted(sent)).warnings if variable in text]

    assert told("all") == [
        f"container 'c0': {variable}: this variable can add GPUs that belong to other pods. Remove it."
    ]
    assert told("void") == []


@pytest.mark.parametrize(
    "variable", ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"]
)
def test_variables_that_hide_gpus_are_warned_of(variable: str) -> None:
    sent = pod(1, annotations=LINKED)
    sent["spec"]["containers"][0]["env"] = [{"name": variable, "value": "0"}]
    told = [text for text in admit(defaulted(sent)).warnings if variable in text]
    assert told == [f"container 'c0': {variable}: this variable can hide GPUs that the pod has. Remove it."]


@pytest.mark.parametrize("vendor", VENDORS)
def test_whose_gpus_they_are_is_for_a_template_to_say(vendor: str) -> None:
    sent = pod(
        None,
        annotations={names.VENDOR: vendor},
        spec={"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "quad"}]},
    )
    sent["spec"]["containers"][0]["resources"] = {"claims": [{"name": "g"}]}
    assert "the device class in the claim's template decides the vendor" in refused(sent)


def test_that_rccl_reads_which_network_cards_are_near_is_known() -> None:
    def told(value: str) -> list[str]:
        sent = pod(2, annotations=LINKED | {names.NCCL: value}, resource="amd.com/gpu")
        return [text for text in admit(defaulted(sent)).warnings if names.NCCL in text]

    assert told("near-nics") == []
    assert told("file")


def test_as_an_add_on_only_the_other_drivers_vendor_is_handed_out() -> None:
    message = refused(pod(1, annotations=LINKED, resource="amd.com/gpu"), ledger=NVIDIA)
    assert (
        "In this cluster gpu.nvidia.com allocates the GPUs, and the pod requests GPUs of another vendor (amd)"
        in message
    )
    assert admit(defaulted(pod(1, annotations=LINKED)), ledger=NVIDIA).allowed
