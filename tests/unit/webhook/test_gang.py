"""Pods of a gang at admission: with what they cannot be one, and whose others wait for them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import NVIDIA
from dradriver.api.gangs import gang_support
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.gangs.gang_support import TABLE, Row
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from tests.fakes import owners
from tests.fakes.admission import NVLINK, Object, Verdict, admit, create, defaulted, pod, stored

GANG = {names.GANG: "auto"}
JOBSET = "alpha.jobset.sigs.k8s.io/"
# How a pod has what a row of the table is about.
EXAMPLES: dict[str, dict[str, Any]] = {
    "static": {"words": {names.PLACEMENT: "static"}},
    "hand-over": {"words": {names.WHEN_FULL: "hand-over"}},
    "shared-claim": {"words": {names.SHARED_CLAIM: "duo"}},
    "template": {"template": True},
    "share": {"gpus": 1, "words": {names.SHARE: "0.5"}},
    "MIG": {"gpus": 1, "words": {names.MIG_PROFILE: "1g.10gb"}},
    "add-on": {"ledger": NVIDIA},
    "Kueue": {"labels": {"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/podset": "main"}},
}


def asked(
    *,
    gpus: int = 4,
    words: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    template: bool = False,
    **more: Any,
) -> Verdict:
    sent = defaulted(pod(None if template else gpus, annotations=words or {}, labels=labels or {}))
    if template:
        sent["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimTemplateName": "quad"}]
        sent["spec"]["containers"][0]["resources"] = {"claims": [{"name": "g"}]}
    return admit(sent, **more)


def test_the_table_has_an_example_of_each_row() -> None:
    assert {row.name for row in TABLE} == EXAMPLES.keys()


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_gang_is_admitted_with_what_the_table_says_and_nothing_else(row: Row) -> None:
    example = EXAMPLES[row.name]
    words = example.get("words") or {names.POLICY: "nvlink"}
    assert asked(**example | {"words": words}).allowed, "without a gang it is nothing special"
    for gang in (GANG, {names.GANG: "train", names.GANG_SIZE: "4"}, {names.MAX_NODES: "2"}):
        verdict = asked(**example | {"words": words | gang})
        assert verdict.allowed == row.supported, verdict.message
        if not row.supported:
            assert row.why in verdict.message
            assert len(verdict.message) < 512


def test_a_pod_that_was_admitted_before_goes_on() -> None:
    """Notes of earlier releases may say both; their pods are placed one by one, as they were."""
    for words in ({names.PLACEMENT: "static"}, {names.WHEN_FULL: "hand-over"}, {names.SHARE: "0.5"}):
        wish = resolved.resolve(Annotations(words), {"main": 1})
        both = msgspec.structs.replace(wish, gang=Gang(name="auto"))
        assert resolved.read({names.REQUEST: resolved.write(both)}) == both


@pytest.mark.parametrize(
    ("words", "more", "told"),
    [
        (GANG, {"annotations": {JOBSET + "exclusive-topology": "rack"}}, f"write {names.NEAR}"),
        (GANG, {"annotations": {"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"}}, f"write {names.NEAR}"),
        (GANG, {"annotations": {"leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology": "rack"}}, "each subgroup"),
        (GANG, {"spec": {"schedulerName": "volcano"}}, "spec.schedulerName: volcano"),
        (
            GANG,
            {"spec": {"schedulerName": "kai-scheduler"}},
            "starts the pods of a job together by itself",
        ),
        (GANG, {"spec": {"schedulerName": "yunikorn"}}, "spec.schedulerName: yunikorn"),
        (GANG, {"labels": {"spark-role": "driver"}}, "creates its executors only after it runs"),
        (GANG, {"labels": {"spark-role": "executor"}}, f"Write a name as {names.GANG}"),
        (GANG, {"labels": {"ray.io/cluster": "r"}}, f"Write a name as {names.GANG}"),
        (
            {names.GANG_SIZE: "2"},
            {"labels": {"spark-role": "driver"}},
            f"{names.GANG_SIZE}: the pod cannot be part of a gang",
        ),
    ],
)
def test_a_pod_for_which_the_others_wait_is_refused(words: dict[str, str], more: Object, told: str) -> None:
    spec, labels = more.get("spec"), more.get("labels") or {}

    def sent(words: dict[str, str]) -> Object:
        return defaulted(pod(4, annotations=words | more.get("annotations", {}), spec=spec, labels=labels))

    verdict = admit(sent(NVLINK | words))
    assert not verdict.allowed
    assert told in verdict.message
    assert admit(sent(NVLINK)).allowed, "it is a single pod"


@pytest.mark.parametrize(
    ("labels", "annotations"),
    [
        ({}, {JOBSET + "exclusive-topology": "rack", JOBSET + "node-selector": "true"}),
        ({"ray.io/cluster": "r"}, {}),
        ({"spark-role": "executor"}, {}),
    ],
)
def test_who_waits_for_no_other_or_says_how_many_is_admitted(
    labels: dict[str, str], annotations: dict[str, str]
) -> None:
    words = {names.GANG: "train", names.GANG_SIZE: "4"}
    assert admit(defaulted(pod(4, annotations=words | annotations, labels=labels))).allowed


@pytest.mark.parametrize("labels", [{"spark-role": "driver"}, {"spark-role": "executor"}, {"ray.io/cluster": "r"}])
@pytest.mark.parametrize(
    ("word", "value"), [(names.MAX_NODES, "2"), (names.MULTI_NODE_POLICY, "pack"), (names.MIN_NETWORK_BANDWIDTH, "50")]
)
def test_what_limits_a_gang_makes_none(labels: dict[str, str], word: str, value: str) -> None:
    assert admit(defaulted(pod(4, annotations=NVLINK | {word: value}, labels=labels))).allowed


def test_a_word_that_is_added_later_is_refused_too() -> None:
    sent = defaulted(pod(4, annotations=NVLINK, labels={"spark-role": "driver"}))
    live = stored(admit(sent).admitted)
    changed = live | {"metadata": live["metadata"] | {"annotations": live["metadata"]["annotations"] | GANG}}
    verdict = admit(changed, old=live)
    assert not verdict.allowed
    assert "cannot be part of a gang" in verdict.message


def test_a_gang_without_a_size_is_warned_of() -> None:
    told = f"{names.GANG}: 'train': the number of pods is not known. Write {names.GANG_SIZE}."
    assert told in admit(pod(4, annotations={names.GANG: "train"})).warnings
    for words in (GANG, {names.GANG: "train", names.GANG_SIZE: "4-8"}):
        assert not any("how many" in text for text in admit(pod(4, annotations=words)).warnings)


def test_the_hint_of_a_rank_is_the_drivers_to_write() -> None:
    verdict = admit(defaulted(pod(4, annotations=NVLINK | {names.RANK_HINT: "3"})))
    assert names.RANK_HINT not in verdict.admitted["metadata"]["annotations"]
    assert verdict.warnings == [
        f"{names.RANK_HINT}: only the driver writes this annotation, so your value is dropped. To request it, write "
        f"{names.GANG}: auto."
    ]


@pytest.mark.parametrize("name", owners.STORIES)
def test_pods_of_gangs_are_admitted_as_they_are_and_noted_as_before(name: str) -> None:
    """What made a pod is in no note: the controller finds it, and an older one reads the note."""
    for sent in owners.STORIES[name]().pods:
        said = dict(sent["metadata"].get("annotations") or {})
        sent["metadata"]["annotations"] = said | NVLINK
        made = admit(defaulted(sent)).admitted
        alone = create(4)["metadata"]["annotations"][names.REQUEST]
        container = sent["spec"]["containers"][0]["name"]
        assert made["metadata"]["annotations"][names.REQUEST] == alone.replace('"c0"', f'"{container}"')


def test_the_refusal_names_what_was_said() -> None:
    row = gang_support.STATIC
    verdict = asked(words=GANG | {names.MAX_NODES: "2", names.PLACEMENT: "static"})
    assert verdict.message.startswith(f"{row.written} contradicts {names.PREFIX}gang, max-nodes: kube-scheduler would")
