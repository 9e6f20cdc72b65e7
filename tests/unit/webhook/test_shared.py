"""``shared-claim``: pods that say one name reference one claim, all containers all of it."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from dradriver.allocator.request import Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.pod import resolved
from tests import schema
from tests.fakes.admission import (
    NVLINK,
    admit,
    applied,
    create,
    defaulted,
    lifted,
    pod,
    refusal,
    running,
    sidecar,
    stored,
)

Object = dict[str, Any]
SHARED = NVLINK | {names.SHARED_CLAIM: "duo"}
USES = {"claims": [{"name": names.POD_CLAIM, "request": names.SET_REQUEST}]}


def whole(found: resolved.Resolved) -> Whole:
    assert isinstance(found.request, Whole)
    return found.request


def test_all_containers_with_gpus_use_the_one_request_of_the_named_claim() -> None:
    made = create(4, None, 4, annotations=SHARED)
    schema.check(made)
    assert made["spec"]["resourceClaims"] == [{"name": names.POD_CLAIM, "resourceClaimName": "duo"}]
    first, without, last = made["spec"]["containers"]
    assert first["resources"] == last["resources"] == USES
    assert "claims" not in without.get("resources", {})
    assert made["spec"]["schedulingGates"] == [{"name": names.GATE}]
    found = resolved.read(made["metadata"]["annotations"])
    assert found.shared == "duo"
    assert whole(found).gpus == 4
    assert found.asked == {"c0": 4, "c2": 4}


def test_pods_with_more_or_fewer_containers_ask_for_the_same() -> None:
    one, two = (resolved.read(create(*gpus, annotations=SHARED)["metadata"]["annotations"]) for gpus in ((4,), (4, 4)))
    assert one.request == two.request


def test_the_word_for_a_number_says_how_many_the_set_has() -> None:
    made = create(4, 4, annotations=SHARED | {names.GPUS: "4"})
    assert whole(resolved.read(made["metadata"]["annotations"])).gpus == 4
    alone = create(None, annotations=SHARED | {names.GPUS: "2"})
    assert alone["spec"]["containers"][0]["resources"] == USES


def test_init_containers_and_sidecars_use_the_set_too() -> None:
    init = [sidecar(4), sidecar(4, restart=None) | {"name": "before"}]
    made = create(4, annotations=SHARED, spec={"initContainers": init})
    assert [one["resources"] for one in made["spec"]["initContainers"]] == [USES, USES]
    refused = refusal(4, 4, annotations=SHARED, spec={"initContainers": [sidecar(8, restart=None)]})
    assert "Write 4, or remove the limit" in refused


@pytest.mark.parametrize(
    ("gpus", "words", "told"),
    [
        (
            (4, 2),
            {},
            "the limits differ (container 'c0': 4 GPUs, container 'c1': 2 GPUs). Write the same limit in each",
        ),
        ((1,), {names.SHARE: "0.5"}, "only whole GPUs can be shared by pods. Write the limit nvidia.com/gpu"),
        ((1,), {names.MIG_PROFILE: "1g.10gb"}, "only whole GPUs can be shared by pods"),
        ((4,), {names.PLACEMENT: "static"}, f"Remove {names.PLACEMENT}"),
        ((4,), {names.WHEN_FULL: "hand-over"}, f"Remove {names.WHEN_FULL}"),
        ((4,), {names.GANG: "train"}, f"Remove the annotation {names.GANG}"),
        (
            (4,),
            {names.SHARED_CLAIM: "gpus-abcdefghij"},
            "must not begin with gpus-, which the driver uses for its own claims",
        ),
        ((4,), {names.SHARED_CLAIM: "Trainer_1"}, "'Trainer_1' is not a name for a shared claim. Write up to 63"),
        ((4,), {names.SHARED_CLAIM: ""}, "is not a name for a shared claim"),
        ((4,), {names.SHARED_CLAIM: "a" * 64}, "is not a name for a shared claim"),
    ],
)
def test_what_cannot_be_shared_is_refused(gpus: tuple[int, ...], words: dict[str, str], told: str) -> None:
    base = {names.SHARED_CLAIM: "duo"} if names.SHARE in words or names.MIG_PROFILE in words else SHARED
    message = refusal(*gpus, annotations=base | words)
    assert told in message
    assert names.SHARED_CLAIM in message


def test_a_misspelt_word_is_found() -> None:
    assert f"did you mean {names.SHARED_CLAIM}" in refusal(4, annotations={f"{names.PREFIX}share-claim": "duo"})


def test_a_claim_by_a_template_is_not_shared() -> None:
    sent = pod(None, annotations=SHARED, spec={"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "quad"}]})
    sent["spec"]["containers"][0]["resources"] = {"claims": [{"name": "g"}]}
    message = admit(sent).message
    assert "a claim from a template belongs to one pod and cannot be shared" in message


def test_who_names_a_claim_is_told_of_the_word() -> None:
    sent = pod(None, annotations=NVLINK, spec={"resourceClaims": [{"name": "g", "resourceClaimName": "duo"}]})
    sent["spec"]["containers"][0]["resources"] = {"claims": [{"name": "g"}]}
    assert names.SHARED_CLAIM in admit(sent).message


def test_a_second_pass_changes_nothing() -> None:
    made = create(4, 4, annotations=SHARED)
    assert admit(made).patch == []


def test_a_copy_of_a_placed_pod_joins_the_set() -> None:
    made = create(4, 4, annotations=SHARED)
    original = running(lifted(stored(made)))
    original["metadata"]["name"] = "copy"
    copied = admit(original).admitted
    assert copied["spec"]["resourceClaims"] == made["spec"]["resourceClaims"]
    assert copied["spec"]["schedulingGates"] == [{"name": names.GATE}]
    assert copied["spec"]["containers"] == made["spec"]["containers"]
    assert copied["metadata"]["annotations"] == made["metadata"]["annotations"]


def test_a_copy_with_another_name_joins_that_set() -> None:
    original = running(lifted(stored(create(4, annotations=SHARED))))
    original["metadata"]["annotations"][names.SHARED_CLAIM] = "trio"
    copied = admit(original).admitted
    assert copied["spec"]["resourceClaims"] == [{"name": names.POD_CLAIM, "resourceClaimName": "trio"}]
    assert resolved.read(copied["metadata"]["annotations"]).shared == "trio"


def test_init_containers_of_a_copy_use_what_its_own_claim_has() -> None:
    """A shared set has other requests than a claim of one pod, and a container without its request never starts."""
    init = {"initContainers": [sidecar(4, restart=None) | {"name": "before"}]}
    for before, after in ((SHARED, NVLINK), (NVLINK, SHARED), (NVLINK, NVLINK), (SHARED, SHARED)):
        original = running(lifted(stored(create(4, 4, annotations=before, spec=init))))
        for key in before:
            del original["metadata"]["annotations"][key]
        original["metadata"]["annotations"] |= after
        copied = admit(original).admitted
        requests = resolved.read(copied["metadata"]["annotations"]).requests
        used = copied["spec"]["initContainers"][0]["resources"]["claims"]
        assert used == [{"name": names.POD_CLAIM, "request": request} for request in requests["c0"]]
        assert admit(copied).admitted["spec"]["initContainers"] == copied["spec"]["initContainers"]


@pytest.mark.parametrize("stage", [lambda live: live, lifted, lambda live: running(lifted(live))])
def test_an_unchanged_apply_gives_back_the_live_pod(stage: Any) -> None:
    manifest = pod(4, 4, annotations=SHARED)
    live = stage(stored(admit(defaulted(manifest)).admitted))
    verdict = admit(applied(manifest, live), old=live)
    assert verdict.admitted == live
    assert verdict.warnings == []


@pytest.mark.parametrize("stage", [lambda live: live, lifted])
@pytest.mark.parametrize("name", [None, "trio"])
def test_another_name_or_none_is_refused_later(stage: Any, name: str | None) -> None:
    live = stage(stored(create(4, 4, annotations=SHARED | {names.GPUS: "4"})))
    sent = copy.deepcopy(live)
    sent["metadata"]["annotations"] |= {names.SHARED_CLAIM: name}
    if name is None:
        del sent["metadata"]["annotations"][names.SHARED_CLAIM]
    message = admit(sent, old=live).message
    assert f"{names.SHARED_CLAIM}: a pod's claim cannot change. Delete the pod and create it again." in message


def test_the_word_is_refused_on_a_pod_that_has_a_claim_of_its_own() -> None:
    live = stored(create(4, annotations=NVLINK))
    sent = copy.deepcopy(live)
    sent["metadata"]["annotations"][names.SHARED_CLAIM] = "duo"
    assert "create it again" in admit(sent, old=live).message


def test_other_words_change_while_it_waits() -> None:
    live = stored(create(4, 4, annotations=SHARED))
    sent = copy.deepcopy(live)
    sent["metadata"]["annotations"][names.STRATEGY] = "pack"
    found = resolved.read(admit(sent, old=live).admitted["metadata"]["annotations"])
    assert found.request.strategy == "pack"
    assert found.shared == "duo"


@pytest.mark.parametrize(
    "change",
    [
        {"shared": "gpus-abcdefghij"},
        {"shared": ""},
        {"shared": "duo", "placement": "static"},
        {"shared": "duo", "when_full": "hand-over"},
        {"shared": "duo", "containers": []},
        {"shared": "duo", "request": {"type": "whole", "containers": [4, 4]}},
        {"shared": "duo", "request": {"type": "share", "amounts": [{"cores": 50}]}},
    ],
)
def test_a_note_that_no_word_makes_is_refused(change: dict[str, Any]) -> None:
    made = create(4, annotations=SHARED)["metadata"]["annotations"]
    noted = msgspec.json.decode(made[names.REQUEST]) | change
    with pytest.raises(WordError, match="was changed"):
        resolved.read({names.REQUEST: msgspec.json.encode(noted).decode()})
