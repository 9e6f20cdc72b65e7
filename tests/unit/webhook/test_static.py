"""Pods that the scheduler alone places, at once (``placement: static``) or for want of a place (``when-full``)."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.pod import claim_alternatives, resolved
from tests import schema
from tests.fakes.admission import NVLINK, admit, applied, create, defaulted, pod, refusal, running, sidecar, stored

Object = dict[str, Any]
STATIC = NVLINK | {names.PLACEMENT: "static"}


def test_a_static_pod_names_the_template_of_its_note_and_has_no_gate() -> None:
    made = create(4, annotations=STATIC)
    schema.check(made)
    note = made["metadata"]["annotations"][names.REQUEST]
    (claim,) = made["spec"]["resourceClaims"]
    assert claim == {"name": names.POD_CLAIM, "resourceClaimTemplateName": claim_alternatives.template_name(note)}
    assert "schedulingGates" not in made["spec"]
    assert made["metadata"]["labels"] == {names.LABEL: names.LABEL_STATIC}
    assert made["spec"]["containers"][0]["resources"] == {"claims": [{"name": names.POD_CLAIM, "request": "c0"}]}
    assert resolved.read(made["metadata"]["annotations"]).placement == "static"


@pytest.mark.parametrize("words", [{names.PLACEMENT: "static"}, {names.WHEN_FULL: "hand-over"}])
@pytest.mark.parametrize(("gpus", "group"), [(2, None), (3, 4), (4, None), (5, 8), (7, 8), (8, None), (9, None)])
def test_links_that_the_scheduler_finds_on_few_machines_are_warned_of(
    words: dict[str, str], gpus: int, group: int | None
) -> None:
    told = admit(defaulted(pod(gpus, annotations=NVLINK | words))).warnings
    assert len(told) == (group is not None)
    assert all(f"finds {gpus} linked GPUs" in one and f"all {group} GPUs of a group" in one for one in told)
    assert admit(defaulted(pod(gpus, annotations=words))).warnings == []
    assert admit(defaulted(pod(gpus, annotations=NVLINK))).warnings == []


def test_alike_pods_share_a_template_and_others_do_not() -> None:
    def name(*gpus: object, **more: Any) -> str:
        return str(
            create(*gpus, **({"annotations": STATIC} | more))["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
        )

    assert name(4) == name(4)
    assert len({name(4), name(2), name(2, 2), name(4, annotations=STATIC | {names.PRODUCT: "NVIDIA*"})}) == 4


def test_what_the_author_set_is_kept_by_the_template() -> None:
    sent = defaulted(pod(2, None, annotations=STATIC))
    sent["spec"]["containers"][0]["env"] = [{"name": "NCCL_ALGO", "value": "Ring"}, {"name": "HOME", "value": "/"}]
    sent["spec"]["containers"][1]["env"] = [{"name": "NCCL_DEBUG", "value": "INFO"}]
    made = admit(sent).admitted
    found = resolved.read(made["metadata"]["annotations"])
    assert found.keep_env == ("NCCL_ALGO",)
    built = claim_alternatives.template("team", made["metadata"]["annotations"][names.REQUEST], found)
    assert built["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"]["keepEnv"] == ["NCCL_ALGO"]


@pytest.mark.parametrize("words", [{names.PLACEMENT: "static"}, {names.WHEN_FULL: "hand-over"}])
@pytest.mark.parametrize("gpus", [(16,), (4, 4), (1, 1, 1, 1), (2, 2, 2)])
def test_as_much_as_the_scheduler_can_search_for_is_left_to_it(words: dict[str, str], gpus: tuple[int, ...]) -> None:
    assert admit(defaulted(pod(*gpus, annotations=words))).allowed


@pytest.mark.parametrize("words", [{names.PLACEMENT: "static"}, {names.WHEN_FULL: "hand-over"}])
@pytest.mark.parametrize(
    ("gpus", "told"),
    [
        ((17,), "17 GPUs. One request can have at most 16"),
        ((8, 8), "16 GPUs in 2 requests"),
        ((1,) * 9, "9 GPUs in 9 requests"),
        ((2,) * 4, "8 GPUs in 4 requests with 12 alternatives"),
    ],
)
def test_more_than_the_scheduler_can_search_for_is_refused(
    words: dict[str, str], gpus: tuple[int, ...], told: str
) -> None:
    message = admit(defaulted(pod(*gpus, annotations=words))).message
    ((key, value),) = words.items()
    assert message.startswith(f"{key}: {value}: kube-scheduler would search too long for {told}"), message
    assert message.endswith("Remove the annotation to let the driver choose the GPUs.")
    plain = admit(defaulted(pod(*gpus, annotations={names.POLICY: "best-effort"})))
    assert plain.allowed, "the driver's choice leaves nothing to search"


def test_too_many_variables_are_refused() -> None:
    sent = defaulted(pod(2, annotations=STATIC))
    sent["spec"]["containers"][0]["env"] = [{"name": f"NCCL_{n}", "value": ""} for n in range(65)]
    assert "more than 64 variables" in admit(sent).message


@pytest.mark.parametrize(("count", "length", "good"), [(64, 128, True), (65, 20, False), (1, 129, False)])
def test_as_many_variables_are_kept_as_a_note_may_have(count: int, length: int, good: bool) -> None:
    sent = defaulted(pod(2, annotations=STATIC))
    names_ = [f"NCCL_{n}_".ljust(length, "X") for n in range(count)]
    sent["spec"]["containers"][0]["env"] = [{"name": name} for name in names_]
    verdict = admit(sent)
    assert verdict.allowed is good
    if good:
        assert resolved.read(verdict.admitted["metadata"]["annotations"]).keep_env == tuple(sorted(names_))


def test_a_second_pass_changes_nothing() -> None:
    made = create(4, annotations=STATIC)
    assert admit(made).patch == []


def test_a_limit_range_adds_nothing_on_the_second_pass() -> None:
    made = create(4, None, annotations=STATIC)
    again = copy.deepcopy(made)
    again["spec"]["containers"][1]["resources"] = {"limits": {names.GPU_RESOURCE: "1"}}
    verdict = admit(again)
    assert verdict.warnings == []
    assert verdict.admitted["metadata"] == made["metadata"]
    assert not verdict.admitted["spec"]["containers"][1]["resources"].get("limits")


@pytest.mark.parametrize("state", [stored, lambda made: running(stored(made))])
def test_an_unchanged_manifest_changes_nothing(state: Any) -> None:
    sent = defaulted(pod(4, annotations=STATIC))
    live = state(admit(sent).admitted)
    again = admit(applied(sent, live), old=live).admitted
    assert again["spec"] == live["spec"]
    assert again["metadata"]["annotations"] == live["metadata"]["annotations"]
    assert again["metadata"]["labels"] == live["metadata"]["labels"]
    replaced = sent | {"status": live["status"], "spec": sent["spec"] | {"nodeName": live["spec"].get("nodeName")}}
    put = admit(replaced, old=live).admitted
    assert put["metadata"]["labels"] == live["metadata"]["labels"]
    assert put["spec"]["resourceClaims"] == live["spec"]["resourceClaims"]


def test_words_of_a_static_pod_come_too_late() -> None:
    live = stored(create(4, annotations=STATIC))
    changed = copy.deepcopy(live)
    changed["metadata"]["annotations"][names.PLACEMENT] = "placed"
    verdict = admit(changed, old=live)
    assert any("This change has none" in warning for warning in verdict.warnings)
    assert verdict.admitted["spec"] == live["spec"]


def test_a_waiting_pod_stays_the_controllers() -> None:
    live = stored(create(4))
    changed = copy.deepcopy(live)
    changed["metadata"]["annotations"][names.PLACEMENT] = "static"
    assert "cannot be handed over. Delete the pod and create it again" in admit(changed, old=live).message


@pytest.mark.parametrize("word", [{names.PLACEMENT: "static"}, {names.WHEN_FULL: "hand-over"}])
def test_what_the_scheduler_cannot_follow_is_refused(word: dict[str, str]) -> None:
    ((key, value),) = word.items()
    told = refusal(4, annotations={names.MIN_BUSBW: "50"} | word)
    assert told.startswith(
        f"{key}: {value} contradicts another annotation: {names.MIN_BUSBW} is not possible if "
        f"kube-scheduler chooses the GPUs"
    )
    assert "Write gpu.topology/cores and gpu.topology/memory" in refusal(1, annotations={names.SHARE: "0.5"} | word)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [(names.PLACEMENT, "statc", "placed, static"), (names.WHEN_FULL, "handover", "wait, hand-over")],
)
def test_a_misspelt_value_is_refused(key: str, value: str, allowed: str) -> None:
    assert f"Write one of: {allowed}" in refusal(4, annotations={key: value})


def test_defaults_may_be_said() -> None:
    said = {names.PLACEMENT: "placed", names.WHEN_FULL: "wait"}
    made, plain = create(4, annotations=NVLINK | said), create(4)
    assert made["metadata"]["annotations"][names.REQUEST] == plain["metadata"]["annotations"][names.REQUEST]


def test_a_template_of_ones_own_is_not_static() -> None:
    sent = defaulted(pod(None, annotations=STATIC))
    sent["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "quad"}]
    sent["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
    assert "no gpu.topology/ annotations. Remove all" in admit(sent).message


def test_sidecars_and_init_containers_use_the_claim() -> None:
    made = create(2, annotations=STATIC, spec={"initContainers": [sidecar(2, restart=None)]})
    assert made["spec"]["initContainers"][0]["resources"]["claims"] == [{"name": names.POD_CLAIM, "request": "c0"}]


def test_hand_over_is_noted_and_may_change_while_the_pod_waits() -> None:
    live = stored(create(4, annotations=NVLINK | {names.WHEN_FULL: "hand-over"}))
    assert resolved.read(live["metadata"]["annotations"]).when_full == "hand-over"
    assert live["spec"]["schedulingGates"] == [{"name": names.GATE}]
    changed = copy.deepcopy(live)
    del changed["metadata"]["annotations"][names.WHEN_FULL]
    made = admit(changed, old=live).admitted
    assert made["metadata"]["annotations"][names.REQUEST] == create(4)["metadata"]["annotations"][names.REQUEST]


@pytest.mark.parametrize("version", [claim_alternatives.VERSION + 1, None])
def test_a_pod_of_another_releases_webhook_stays_as_it_was_admitted(version: int | None) -> None:
    """In a rolling update, and after a rollback: its manifest is applied again, and its status written."""
    sent = defaulted(pod(4, annotations=STATIC))
    live = stored(admit(sent).admitted)
    note = msgspec.json.decode(live["metadata"]["annotations"][names.REQUEST])
    assert note["ladder"] == claim_alternatives.VERSION
    text = msgspec.json.encode({key: one for key, one in (note | {"ladder": version}).items() if one}).decode()
    live["metadata"]["annotations"][names.REQUEST] = text
    live["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = claim_alternatives.template_name(text)
    verdict = admit(applied(sent, live), old=live)
    assert verdict.warnings == []
    assert verdict.admitted["spec"] == live["spec"]
    assert verdict.admitted["metadata"]["annotations"] == live["metadata"]["annotations"]
    # A copy of it is a pod of today's.
    copied = copy.deepcopy(live)
    del copied["status"]
    made = admit(copied).admitted
    today = made["metadata"]["annotations"][names.REQUEST]
    assert resolved.read({names.REQUEST: today}).ladder == claim_alternatives.VERSION
    assert made["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == claim_alternatives.template_name(today)
