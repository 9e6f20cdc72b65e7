"""Pods with our words whose GPUs stand in a ResourceClaimTemplate of their author's."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from dradriver.allocator.request import Constraint, Whole
from dradriver.api.base import names
from dradriver.api.pod import resolved
from tests import schema
from tests.fakes.admission import NVLINK, admit, applied, defaulted, lifted, pod, running, stored

Object = dict[str, Any]
GPUS = {"name": "gpus", "resourceClaimTemplateName": "quad"}
NIC = {"name": "nic", "resourceClaimTemplateName": "rdma"}


def wanting(*uses: Object, claims: list[Object] | None = None, words: dict[str, str] = NVLINK, **spec: Any) -> Object:
    """A pod whose first container uses these claims."""
    made = pod(None, annotations=words, spec={"resourceClaims": claims if claims is not None else [GPUS]} | spec)
    container: Object = {"name": "c0", "image": "busybox", "resources": {"claims": list(uses or ({"name": "gpus"},))}}
    made["spec"]["containers"] = [container]
    return defaulted(made)


def refusal(sent: Object) -> str:
    verdict = admit(sent)
    assert not verdict.allowed
    return verdict.message


def test_a_template_may_have_the_longest_name_of_an_object() -> None:
    sent = wanting(claims=[GPUS | {"resourceClaimTemplateName": "x" * 253}])
    made = admit(sent).admitted
    assert made["metadata"]["annotations"][names.TEMPLATE] == "gpus/" + "x" * 253
    made["metadata"]["annotations"][names.TEMPLATE] += "x"
    assert "is longer than the name of an object can be" in refusal(made), "a copy's note is its author's to write"


def test_the_reference_becomes_a_claims_name_and_the_template_is_noted() -> None:
    sent = wanting(
        {"name": "gpus", "request": "left"}, {"name": "nic"}, claims=[NIC, GPUS], words=NVLINK | claim("gpus")
    )
    made = admit(sent).admitted
    schema.check(made)
    nic, gpus = made["spec"]["resourceClaims"]
    assert nic == NIC
    assert gpus.keys() == {"name", "resourceClaimName"}
    assert gpus["name"] == "gpus"
    assert re.fullmatch("gpus-[a-z0-9]{10}", gpus["resourceClaimName"])
    assert made["spec"]["containers"] == sent["spec"]["containers"]
    assert made["spec"]["schedulingGates"] == [{"name": names.GATE}]
    assert made["metadata"]["labels"] == {names.LABEL: names.LABEL_PLACED}
    notes = made["metadata"]["annotations"]
    assert notes[names.TEMPLATE] == "gpus/quad"
    assert resolved.read(notes).request == Whole(containers=(1,), required=(Constraint.NVLINK,))


def claim(entry: str) -> dict[str, str]:
    return {names.CLAIM: entry}


def test_the_only_template_is_meant_without_a_word() -> None:
    assert admit(wanting()).admitted["metadata"]["annotations"][names.TEMPLATE] == "gpus/quad"


def test_how_many_gpus_a_template_has_is_nothing_to_warn_of() -> None:
    sent = wanting(words=NVLINK | {names.WHEN_FULL: "hand-over"})
    sent["spec"]["containers"] += [sent["spec"]["containers"][0] | {"name": name} for name in ("c1", "c2")]
    verdict = admit(sent)
    assert verdict.allowed
    assert verdict.warnings == []


def test_without_words_a_template_is_the_schedulers() -> None:
    assert admit(wanting(words={})).patch == []


def test_with_a_limit_every_template_is_left_as_it_is() -> None:
    sent = wanting({"name": "nic"}, claims=[NIC])
    sent["spec"]["containers"][0]["resources"]["limits"] = {names.GPU_RESOURCE: "2"}
    made = admit(sent).admitted
    assert NIC in made["spec"]["resourceClaims"]
    assert names.TEMPLATE not in made["metadata"]["annotations"]
    assert resolved.read(made["metadata"]["annotations"]).request.containers == (2,)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (
            wanting({"name": "gpus"}, {"name": "nic"}, claims=[GPUS, NIC]),
            "Choose one of: 'gpus', 'nic'. Write it as the annotation",
        ),
        (
            wanting(words=NVLINK | claim("gpu")),
            "'gpu' is not an entry of spec.resourceClaims with a resourceClaimTemplateName",
        ),
        (
            wanting(words=NVLINK | claim("gpus") | {names.GPUS: "2"}),
            "contradicts limits or annotations that request GPUs",
        ),
        (wanting({"name": "other"}, claims=[GPUS, {"name": "other", "resourceClaimName": "x"}]), "No container uses"),
        (wanting(nodeName="n"), "spec.nodeName"),
        (
            wanting(words={names.MIN_BUSBW: "10", names.WHEN_FULL: "hand-over"}),
            "gpu.topology/when-full: hand-over contradicts another annotation: gpu.topology/min-busbw is not possible",
        ),
        (
            wanting(words={names.REQUIRED: "same-pcie-switch", names.WHEN_FULL: "hand-over"}),
            "Write same-pcie-root",
        ),
        (wanting(claims=[{"name": "gpus", "resourceClaimName": "set"}]), "only by claim 'set'"),
        (
            wanting(claims=[{"name": "gpus", "resourceClaimTemplateName": "x" * 254}]),
            "is longer than the name of an object can be",
        ),
    ],
)
def test_an_unreadable_request_is_refused(sent: Object, told: str) -> None:
    assert told in refusal(sent)


def test_an_init_container_asks_for_no_gpus_of_its_own() -> None:
    init = {"name": "i", "image": "busybox", "resources": {"limits": {names.GPU_RESOURCE: "1"}}}
    assert "init container 'i'" in refusal(wanting(initContainers=[init]))


def test_an_init_container_may_use_the_claim() -> None:
    init = {"name": "i", "image": "busybox", "resources": {"claims": [{"name": "gpus"}]}}
    made = admit(wanting(initContainers=[init])).admitted
    assert resolved.read(made["metadata"]["annotations"]).containers == ("c0", "i")


def test_a_second_pass_and_a_copy_have_a_claim_of_their_own() -> None:
    first = admit(wanting()).admitted
    again = admit(first).admitted
    (one,), (two,) = first["spec"]["resourceClaims"], again["spec"]["resourceClaims"]
    assert one["resourceClaimName"] != two["resourceClaimName"]
    assert again["metadata"] == first["metadata"]
    assert again["spec"] | {"resourceClaims": 0} == first["spec"] | {"resourceClaims": 0}
    copied = lifted(stored(first))
    del copied["status"]
    for key in ("uid", "resourceVersion", "creationTimestamp"):
        del copied["metadata"][key]
    created = admit(copied).admitted
    assert created["metadata"]["annotations"] == first["metadata"]["annotations"]
    assert created["spec"]["schedulingGates"] == [{"name": names.GATE}]


@pytest.mark.parametrize(
    "state", [stored, lambda made: lifted(stored(made)), lambda made: running(lifted(stored(made)))]
)
def test_an_unchanged_manifest_changes_nothing(state: Any) -> None:
    sent = wanting({"name": "gpus"}, {"name": "nic"}, claims=[GPUS, NIC], words=NVLINK | claim("gpus"))
    live = state(admit(sent).admitted)
    again = admit(applied(sent, live), old=live).admitted
    assert again["spec"] == live["spec"]
    assert again["metadata"] | {"creationTimestamp": ""} == live["metadata"] | {"creationTimestamp": ""}
    replaced = sent | {"metadata": live["metadata"] | sent["metadata"], "status": live["status"]}
    assert admit(replaced, old=live).admitted["spec"] == live["spec"]


def test_words_count_until_the_pod_has_its_place_but_not_which_claim() -> None:
    live = stored(admit(wanting()).admitted)
    changed = live | {"metadata": live["metadata"] | {"annotations": live["metadata"]["annotations"] | {}}}
    changed["metadata"]["annotations"][names.MIN_BANDWIDTH] = "100"
    made = admit(changed, old=live).admitted
    assert resolved.read(made["metadata"]["annotations"]).request.min_bandwidth_gbps == 100  # type: ignore[union-attr]
    changed["metadata"]["annotations"][names.CLAIM] = "nic"
    assert "a pod's claim cannot change" in admit(changed, old=live).message
    del changed["metadata"]["annotations"][names.CLAIM]
    changed["metadata"]["annotations"] = {names.SHARE: "0.5"} | {
        names.REQUEST: live["metadata"]["annotations"][names.REQUEST]
    }
    assert not admit(changed, old=live).allowed


def test_a_note_of_the_authors_own_names_no_template() -> None:
    forged = wanting(words=NVLINK | {names.TEMPLATE: "nic/rdma"})
    assert admit(forged).admitted["metadata"]["annotations"][names.TEMPLATE] == "gpus/quad"


@pytest.mark.parametrize("words", [NVLINK, {names.PLACEMENT: "static"}])
def test_a_channel_of_a_compute_domain_next_to_limits_stays_as_it_is(words: dict[str, str]) -> None:
    channel = {"name": "channel", "resourceClaimTemplateName": "job-channel"}
    sent = pod(4, annotations=words, spec={"resourceClaims": [channel]})
    sent["spec"]["containers"][0]["resources"]["claims"] = [{"name": "channel"}]
    made = admit(defaulted(sent)).admitted
    schema.check(made)
    assert made["spec"]["resourceClaims"][0] == channel
    assert made["spec"]["containers"][0]["resources"]["claims"][0] == {"name": "channel"}
    assert names.TEMPLATE not in made["metadata"]["annotations"], "its GPUs are made by no template"
    own = [entry for entry in made["spec"]["resourceClaims"] if entry["name"] == names.POD_CLAIM]
    assert len(own) == 1
    assert admit(made).admitted["spec"]["resourceClaims"][0] == channel, "nor when it is admitted again"


def test_nics_in_a_claim_of_their_own_are_told_to_have_no_choice() -> None:
    near = {names.NEAR_NIC: "required"}
    named = {"name": "more", "resourceClaimName": "fabric"}
    by_limits = pod(2, annotations=near, spec={"resourceClaims": [NIC, named]})
    by_template = wanting({"name": "gpus"}, {"name": "nic"}, claims=[NIC, GPUS], words=near | claim("gpus"))
    for sent, claims in ((by_limits, "'nic', 'more'"), (by_template, "'nic'")):
        (told,) = admit(defaulted(sent)).warnings
        assert told.startswith(f"{names.NEAR_NIC}: NICs of other claims of the pod ({claims}) are not chosen")
    for sent in (
        pod(2, annotations=NVLINK, spec={"resourceClaims": [NIC]}),
        wanting(words=near),
        pod(2, annotations=near),
    ):
        assert not admit(defaulted(sent)).warnings
    many = [{"name": f"n{at}", "resourceClaimTemplateName": "rdma"} for at in range(9)]
    (told,) = admit(defaulted(pod(2, annotations=near, spec={"resourceClaims": many}))).warnings
    assert "'n3' and others)" in told


def test_nics_that_come_to_be_wanted_near_later_are_told_too() -> None:
    made = admit(defaulted(pod(2, annotations=NVLINK, spec={"resourceClaims": [NIC]}))).admitted
    now = copy.deepcopy(made)
    now["metadata"]["annotations"][names.NEAR_NIC] = "preferred"
    assert "are not chosen together with its GPUs" in " ".join(admit(now, old=made).warnings)
