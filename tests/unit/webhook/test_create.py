"""CREATE of pods: what the webhook makes of limits and annotations."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dradriver.allocator.request import Constraint, Whole
from dradriver.api.base import names, other_schedulers
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.pod.resolved import Resolved
from dradriver.api.policies.policies_reader import read
from dradriver.api.vocabulary import annotation_words
from dradriver.process.policies_file import PoliciesFile
from tests import schema
from tests.fakes.admission import (
    NVLINK,
    admit,
    affine,
    create,
    defaulted,
    lifted,
    pod,
    refusal,
    running,
    sidecar,
    stored,
)
from tests.paths import SHARED_DATA

GPU = names.GPU_RESOURCE


def noted(made: dict[str, Any]) -> Resolved:
    return resolved.read(made["metadata"]["annotations"])


def claim_of(made: dict[str, Any]) -> str:
    (entry,) = [entry for entry in made["spec"]["resourceClaims"] if entry["name"] == names.POD_CLAIM]
    return str(entry["resourceClaimName"])


def test_limits_become_a_claim_and_a_gate() -> None:
    sent = defaulted(pod(4, annotations=NVLINK))
    made = admit(sent).admitted
    schema.check(made)
    assert made["spec"]["containers"][0]["resources"] == {"claims": [{"name": "gpu-topology", "request": "c0"}]}
    assert made["spec"]["schedulingGates"] == [{"name": "gpu.topology/placement"}]
    assert re.fullmatch("gpus-[a-z0-9]{10}", claim_of(made))
    assert made["metadata"]["labels"] == {"gpu.topology/placement": "placed"}
    assert noted(made) == Resolved(containers=("c0",), request=Whole(containers=(4,), required=(Constraint.NVLINK,)))
    rest = copy.deepcopy(made)
    for key in ("resourceClaims", "schedulingGates"):
        del rest["spec"][key]
    del rest["metadata"]["labels"], rest["metadata"]["annotations"][names.REQUEST]
    rest["spec"]["containers"][0]["resources"] = sent["spec"]["containers"][0]["resources"]
    assert rest == sent


def test_each_container_has_a_request_of_its_own() -> None:
    made = create(2, None, 1)
    assert [c["resources"].get("claims") for c in made["spec"]["containers"]] == [
        [{"name": "gpu-topology", "request": "c0"}],
        None,
        [{"name": "gpu-topology", "request": "c2"}],
    ]
    assert noted(made).asked == {"c0": 2, "c2": 1}


def test_other_limits_claims_gates_and_labels_stay() -> None:
    sent = pod(2, annotations=NVLINK, labels={"app": "x"})
    sent["spec"] |= {
        "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "nics"}],
        "schedulingGates": [{"name": "example.com/quota"}],
    }
    sent["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "4"
    sent["spec"]["containers"][0]["resources"]["claims"] = [{"name": "nic"}]
    made = admit(defaulted(sent)).admitted
    schema.check(made)
    resources = made["spec"]["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"] == {"cpu": "4"}
    assert resources["claims"] == [{"name": "nic"}, {"name": "gpu-topology", "request": "c0"}]
    assert made["spec"]["resourceClaims"][0] == {"name": "nic", "resourceClaimTemplateName": "nics"}
    assert [gate["name"] for gate in made["spec"]["schedulingGates"]] == ["example.com/quota", names.GATE]
    assert made["metadata"]["labels"]["app"] == "x"


@pytest.mark.parametrize("annotations", [None, {"example.com/gpu-topology": "nvlink", "example.com/gpu": "1"}])
def test_a_pod_without_our_words_is_not_touched(annotations: dict[str, str] | None) -> None:
    spec = {"nodeName": "n1", "schedulerName": "gpu-scheduler"}
    verdict = admit(defaulted(pod(4, annotations=annotations, spec=spec)))
    assert (verdict.allowed, verdict.patch, verdict.warnings) == (True, [], [])


def test_our_label_alone_marks_a_pod() -> None:
    made = create(1, annotations=None, labels={names.LABEL: "placed"})
    assert claim_of(made)


def test_the_gpus_annotation_stands_for_the_limit_of_the_first_container() -> None:
    made = create(None, None, annotations={names.GPUS: "3"})
    assert made["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpu-topology", "request": "c0"}]
    assert noted(made).asked == {"c0": 3}


@pytest.mark.parametrize("name", ["gpu-topology-scheduler", "gpu-scheduler"])
def test_invented_schedulers_become_the_default_one(name: str) -> None:
    assert create(1, spec={"schedulerName": name})["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize("name", other_schedulers.TABLE)
def test_schedulers_that_choose_gpus_stay_and_are_warned_of(name: str) -> None:
    sent = pod(1, annotations=NVLINK, spec={"schedulerName": name})
    for verdict in (admit(sent), admit(pod(1, spec={"schedulerName": name}), path="/translate-pods")):
        assert verdict.admitted["spec"]["schedulerName"] == name
        assert verdict.warnings == [other_schedulers.warning(name)]
    policies = PoliciesFile()
    policies.in_force = read(f"schedulers: [{name}]".encode(), source="policies.yaml")
    verdict = admit(sent, policies=policies)
    assert (verdict.admitted["spec"]["schedulerName"], verdict.warnings) == ("default-scheduler", [])


def test_a_scheduler_that_follows_claims_is_not_warned_of() -> None:
    for name in ("default-scheduler", "bin-packing-scheduler"):
        verdict = admit(pod(1, annotations=NVLINK, spec={"schedulerName": name}))
        assert (verdict.admitted["spec"]["schedulerName"], verdict.warnings) == (name, [])


def test_a_pod_without_a_name_is_placed_too() -> None:
    sent = defaulted(pod(1, annotations=NVLINK, generateName="job-"))
    del sent["metadata"]["name"]
    assert claim_of(admit(sent).admitted)


@pytest.mark.parametrize("value", [4, "4", "4000m"])
def test_a_count_may_be_a_number_or_text(value: object) -> None:
    sent = pod(value, annotations=NVLINK)
    assert noted(admit(sent).admitted).asked == {"c0": 4}


@pytest.mark.parametrize("value", ["0.5", "500m", 1.5, "-1", "four", "1.5Gi" + "9" * 99])
def test_a_bad_count_is_refused(value: object) -> None:
    message = refusal(value)
    assert "container 'c0': limits nvidia.com/gpu" in message
    assert "Write a whole number from 1 to 32" in message


def test_zero_is_no_request() -> None:
    assert "requests no GPU" in refusal("0")
    made = create(2, "0")
    assert "claims" not in made["spec"]["containers"][1]["resources"]


def test_a_request_that_differs_from_the_limit_is_refused() -> None:
    sent = pod(4, annotations=NVLINK)
    sent["spec"]["containers"][0]["resources"]["requests"] = {GPU: "2"}
    message = admit(sent).message
    assert "requests 2 GPUs but limits 4 GPUs. Requests and limits of GPUs must be equal" in message
    del sent["spec"]["containers"][0]["resources"]["limits"]
    assert "requests 2 GPUs but limits none" in admit(sent).message


def test_a_sidecar_has_a_request_of_its_own() -> None:
    made = create(2, spec={"initContainers": [sidecar(1)]})
    assert made["spec"]["initContainers"][0]["resources"] == {"claims": [{"name": "gpu-topology", "request": "init"}]}
    assert noted(made).asked == {"c0": 2, "init": 1}


@pytest.mark.parametrize(
    ("count", "entry"),
    [
        (2, {"name": "gpu-topology", "request": "c0"}),
        (1, {"name": "gpu-topology", "request": "c1"}),
        (3, {"name": "gpu-topology"}),
    ],
)
def test_an_init_container_borrows_gpus(count: int, entry: dict[str, str]) -> None:
    made = create(2, 1, spec={"initContainers": [sidecar(count, restart=None)]})
    schema.check(made)
    assert made["spec"]["initContainers"][0]["resources"] == {"claims": [entry]}
    assert noted(made).asked == {"c0": 2, "c1": 1}


def test_an_init_container_with_another_number_is_refused() -> None:
    message = refusal(2, 1, spec={"initContainers": [sidecar(4, restart=None)]})
    assert "init container 'init' requests 4 GPUs" in message
    assert "Write 1 or 2 or 3" in message


@pytest.mark.parametrize(
    ("annotations", "parts"),
    [
        ({"gpu.topology/polcy": "nvlink"}, ["'gpu.topology/polcy'", "did you mean gpu.topology/policy?"]),
        ({names.POLICY: "nvlnk"}, [names.POLICY, "'nvlnk'", "best-effort", "did you mean nvlink?"]),
        ({names.GPUS: "2"}, [names.GPUS, "contradicts"]),
        ({names.POLICY: "nvlink", "gpu.topology/vgpu": "1"}, ["'gpu.topology/vgpu'", "Known"]),
    ],
)
def test_a_bad_annotation_is_refused_with_what_to_write(annotations: dict[str, str], parts: list[str]) -> None:
    message = refusal(4, annotations=annotations)
    for part in parts:
        assert part in message


def test_a_word_without_effect_is_noted_and_warned_of_and_no_other() -> None:
    of_gangs = {
        names.GANG: "auto",
        names.GANG_SIZE: "4-8",
        names.NEAR: "leaf",
        names.MAX_NODES: "2",
        names.MIN_GPUS_PER_NODE: "4",
        names.MIN_NETWORK_BANDWIDTH: "50",
        names.MULTI_NODE_POLICY: "pack",
        names.ON_MEMBER_LOSS: "restart",
    }
    assert of_gangs.keys() == {word.key for word in annotation_words.EVERY if word.about is annotation_words.About.GANG}
    verdict = admit(pod(4, annotations=of_gangs | {names.IDLE_TIMEOUT: "30m"}))
    assert verdict.warnings == []
    assert noted(verdict.admitted).idle_timeout_s == 1800
    assert admit(pod(4, annotations=NVLINK)).warnings == []
    static = admit(pod(4, annotations={names.IDLE_TIMEOUT: "30m", names.PLACEMENT: "static"}))
    assert static.warnings == ["gpu.topology/idle-timeout has no effect on a pod with gpu.topology/placement: static."]


def test_a_pod_that_asks_for_nothing_or_too_much_is_refused() -> None:
    assert "nvidia.com/gpu: <count>" in refusal(None)
    assert "at most 32" in refusal(33)


def test_a_node_name_is_refused_in_our_words() -> None:
    message = refusal(1, spec={"nodeName": "n1"})
    assert "spec.nodeName: 'n1'" in message
    assert "nodeSelector" in message


def test_the_name_of_our_claim_is_reserved() -> None:
    foreign = {"resourceClaims": [{"name": "gpu-topology", "resourceClaimName": "mine"}]}
    assert "spec.resourceClaims: the name 'gpu-topology' is reserved" in refusal(1, spec=foreign)
    sent = pod(1, None, annotations=NVLINK)
    sent["spec"]["containers"][1]["resources"] = {"claims": [{"name": "gpu-topology", "request": "c0"}]}
    assert "container 'c1': resources.claims: only the driver writes the entry 'gpu-topology'" in admit(sent).message


@pytest.mark.parametrize("again", ["as it is", "with a LimitRange's default"])
def test_a_second_pass_changes_nothing_but_the_claims_name(again: str) -> None:
    first = create(4, None, spec={"initContainers": [sidecar(4, restart=None)]})
    second_sent = copy.deepcopy(first)
    if again != "as it is":
        for container in (*second_sent["spec"]["containers"], *second_sent["spec"]["initContainers"]):
            container["resources"] |= {"limits": {GPU: "1"}, "requests": {GPU: "1"}}
    verdict = admit(second_sent)
    second = verdict.admitted
    assert claim_of(second) != claim_of(first)
    assert verdict.warnings == []
    second["spec"]["resourceClaims"] = first["spec"]["resourceClaims"]
    assert second == first


TERMS = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]


@pytest.mark.parametrize(
    "spec",
    [{}, affine(TERMS), {"affinity": {"podAntiAffinity": {}}}],
    ids=["no affinity", "required affinity", "another affinity"],
)
@pytest.mark.parametrize(
    "written", [{}, {names.AFFINITY: "null", names.NODE: "n1", names.SCORE: "100"}], ids=["now", "before"]
)
def test_a_copy_of_a_placed_pod_gets_a_claim_and_a_choice_of_its_own(
    spec: dict[str, Any], written: dict[str, str]
) -> None:
    made = create(4, 2, spec=spec)
    original = running(lifted(stored(made)))
    original["metadata"]["annotations"] = written | original["metadata"]["annotations"]
    original["metadata"]["name"] = "copy"
    verdict = admit(original)
    copied = verdict.admitted
    schema.check(copied)
    assert claim_of(copied) != claim_of(made)
    assert "nodeName" not in copied["spec"]
    assert copied["spec"]["schedulingGates"] == [{"name": names.GATE}]
    assert copied["spec"].get("affinity") == spec.get("affinity")
    assert copied["metadata"]["annotations"] == made["metadata"]["annotations"]
    assert copied["spec"]["containers"] == made["spec"]["containers"]
    assert verdict.warnings == []


def test_an_author_who_writes_a_result_keeps_the_affinity() -> None:
    sent = pod(4, annotations=NVLINK | {names.ALLOCATED: "GPU-1"}, spec=affine(TERMS))
    made = admit(sent).admitted
    assert made["spec"]["affinity"] == sent["spec"]["affinity"]


def test_a_copy_with_another_limit_is_warned_that_the_note_counts() -> None:
    original = lifted(stored(create(4)))
    original["spec"]["containers"][0]["resources"]["limits"] = {GPU: "2"}
    verdict = admit(original)
    assert noted(verdict.admitted).asked == {"c0": 4}
    assert "its limit (2 GPUs) is ignored" in verdict.warnings[0]


@pytest.mark.parametrize(
    ("note", "part"),
    [
        (
            resolved.write(resolved.resolve(Annotations({}), {"other": 4})),
            "container 'other', which the pod does not have",
        ),
        ("nonsense", "emove this annotation"),
        (
            resolved.write(resolved.resolve(Annotations({}), {"c0": 4})).replace("4", "99"),
            "its number of GPUs is not from 1 to 32",
        ),
    ],
)
def test_a_damaged_note_is_refused(note: str, part: str) -> None:
    original = lifted(stored(create(4)))
    original["metadata"]["annotations"][names.REQUEST] = note
    assert part in admit(original).message


def test_a_damaged_affinity_note_is_refused() -> None:
    original = lifted(stored(create(4)))
    original["metadata"]["annotations"][names.AFFINITY] = "{"
    assert names.AFFINITY in admit(original).message


def test_results_and_notes_of_a_templates_author_are_dropped() -> None:
    made = create(1, annotations=NVLINK | {names.ALLOCATED: "GPU-1", names.AFFINITY: "null", names.REQUEST: "{}"})
    assert set(made["metadata"]["annotations"]) == {*NVLINK, names.REQUEST}
    assert noted(made).asked == {"c0": 1}


@pytest.mark.shared_data
def test_the_articles_pod_is_admitted_as_it_stands() -> None:
    path = SHARED_DATA / "manifests" / "required-preferred-pod.yaml"
    verdict = admit(defaulted(yaml.safe_load(path.read_text())))
    schema.check(verdict.admitted)
    assert verdict.admitted["spec"]["schedulerName"] == "default-scheduler"
    assert noted(verdict.admitted).asked == {"trainer": 8}
    assert [warning.split(":")[1].strip() for warning in verdict.warnings] == ["NCCL_TOPO_FILE", "NCCL_ALGO"]


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["plain-gpu-pod", "mig-pod", "vgpu-pod"])
def test_manifests_without_our_words_pass_untouched(name: str) -> None:
    path = SHARED_DATA / "manifests" / f"{name}.yaml"
    assert admit(defaulted(yaml.safe_load(path.read_text()))).patch == []


def test_a_near_miss_next_to_a_word_of_ours_is_warned_of() -> None:
    keys = {"gpu.topologi/strategy": "pack", "nvidia.com/gpu": "x", "gpu-topology": "nvlink"}
    told = admit(defaulted(pod(2, annotations=NVLINK | keys, labels={names.STRATEGY: "pack"}))).warnings
    assert [one.partition(":")[0] for one in told] == [
        "gpu.topologi/strategy",
        "gpu-topology",
        "label gpu.topology/strategy",
    ]


@pytest.mark.parametrize(
    ("words", "has", "ends_s"),
    [
        ({names.MAX_DURATION: "1h30m"}, None, 5400),
        ({names.MAX_DURATION: "1h"}, 7200, 3600),
        ({names.MAX_DURATION: "1h"}, 60, 60),
        ({names.POLICY: "nvlink"}, 60, 60),
        ({names.POLICY: "nvlink"}, None, None),
        ({names.POLICY: "short"}, None, 900),
        ({names.POLICY: "short", names.MAX_DURATION: "1h"}, None, 3600),
        ({names.MAX_DURATION: "1h", names.PLACEMENT: "static"}, None, 3600),
    ],
)
def test_a_pod_is_ended_after_the_smallest_of_what_it_declares(
    words: dict[str, str], has: int | None, ends_s: int | None, tmp_path: Path
) -> None:
    (tmp_path / "policies.yaml").write_text("policies: {short: {max-duration: 15m}}")
    spec = {} if has is None else {"activeDeadlineSeconds": has}
    file = PoliciesFile(tmp_path / "policies.yaml")
    made = admit(defaulted(pod(4, annotations=words, spec=spec)), policies=file).admitted
    assert made["spec"].get("activeDeadlineSeconds") == ends_s
    assert "max_duration" not in made["metadata"]["annotations"][names.REQUEST], "older controllers refuse it"
