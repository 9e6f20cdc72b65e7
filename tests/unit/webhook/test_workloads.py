"""Words on a Job or a Deployment go into its pod templates, and only where these have none."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dradriver.api import names
from tests.fakes.admission import Verdict, admit
from webhook import workloads

Object = dict[str, Any]
WORDS = {names.POLICY: "nvlink", names.MAX_NODES: "2"}
OTHER = {names.POLICY: "pcie"}


def template(gpus: int = 0, **metadata: Any) -> Object:
    resources = {"limits": {names.GPU_RESOURCE: gpus}} if gpus else {}
    found: Object = {"spec": {"containers": [{"name": "main", "image": "busybox", "resources": resources}]}}
    return found | ({"metadata": metadata} if metadata else {})


def workload(kind: str, *templates: Object, words: dict[str, str] | None = None) -> Object:
    """Return an object with its templates where its kind has them."""
    one = templates[0]
    by_role = {f"R{i}": {"template": each} for i, each in enumerate(templates)}
    roles = dict(zip(("workerTemplate", "leaderTemplate"), templates, strict=False))
    specs: dict[str, Object] = {
        "CronJob": {"jobTemplate": {"spec": {"template": one}}},
        "JobSet": {"replicatedJobs": [{"template": {"spec": {"template": each}}} for each in templates]},
        "LeaderWorkerSet": {"leaderWorkerTemplate": {"size": 4} | roles},
        "MPIJob": {"mpiReplicaSpecs": by_role},
        "PyTorchJob": {"pytorchReplicaSpecs": by_role},
    }
    spec = copy.deepcopy(specs.get(kind, {"template": one}))
    return {"kind": kind, "metadata": {"name": "w", "annotations": words or {}}, "spec": spec}


def asked(sent: Object, *, old: Object | None = None) -> Verdict:
    return admit(sent, old=old, kind=sent["kind"], path="/mutate-workloads")


@pytest.mark.parametrize("kind", workloads.TEMPLATES)
def test_words_go_into_the_template(kind: str) -> None:
    made = asked(workload(kind, template(4), words=WORDS | {"example.com/a": "b"})).admitted
    assert made == workload(kind, template(4, annotations=WORDS), words=WORDS | {"example.com/a": "b"})
    assert asked(made).patch == [], "a second pass"


def test_other_annotations_of_a_template_stay() -> None:
    made = asked(workload("Job", template(4, labels={"a": "b"}, annotations={"example.com/a": "b"}), words=WORDS))
    expected = template(4, labels={"a": "b"}, annotations={"example.com/a": "b"} | WORDS)
    assert made.admitted["spec"]["template"] == expected


def test_what_a_template_has_not_or_has_as_null_is_nothing() -> None:
    """As a manifest has it that gputopo lint reads."""
    for metadata in ({"labels": {"a": "b"}}, {"labels": {"a": "b"}, "annotations": None}):
        one = template(4) | {"metadata": metadata}
        made = asked(workload("Job", one, words=WORDS)).admitted["spec"]["template"]["metadata"]
        assert made == {"labels": {"a": "b"}, "annotations": WORDS}
    for one in ({"metadata": None, "spec": None}, {"spec": {"containers": None, "initContainers": None}}):
        made = asked(workload("Job", one, words=WORDS)).admitted["spec"]["template"]
        assert made == one | {"metadata": {"annotations": WORDS}}
    sent = workload("Job", template(4)) | {"metadata": {"annotations": None, "labels": None}}
    assert asked(sent).patch == []


def test_a_template_with_words_of_its_own_stays() -> None:
    assert asked(workload("Job", template(4, annotations=OTHER), words=WORDS)).patch == []
    assert asked(workload("Job", template(4))).patch == []
    assert asked(workload("ReplicaSet", template(4), words=WORDS)).patch == [], "its Deployment's, and others' business"


@pytest.mark.parametrize("kind", ["JobSet", "MPIJob", "PyTorchJob", "LeaderWorkerSet"])
def test_of_several_templates_those_get_words_that_ask_for_gpus(kind: str) -> None:
    made = asked(workload(kind, template(4), template(), words=WORDS)).admitted
    assert made == workload(kind, template(4, annotations=WORDS), template(), words=WORDS)
    none = asked(workload(kind, template(), template(), words=WORDS)).admitted
    assert none == workload(kind, *[template(annotations=WORDS)] * 2, words=WORDS)


def test_words_that_change_above_change_below_where_they_were_copied() -> None:
    live = asked(workload("Deployment", template(4), words=WORDS)).admitted
    changed = copy.deepcopy(live)
    changed["metadata"]["annotations"] = OTHER
    assert asked(changed, old=live).admitted == workload("Deployment", template(4, annotations=OTHER), words=OTHER)
    own = workload("Deployment", template(4, annotations=OTHER), words=WORDS)
    assert asked(own | {"metadata": {"annotations": {names.POLICY: "nvlink"}}}, old=own).patch == []


def test_a_manifest_that_is_replaced_unchanged_changes_nothing() -> None:
    sent = workload("Deployment", template(4), words=WORDS)
    live = asked(sent).admitted
    assert asked(sent, old=live).admitted == live


def test_words_that_move_into_the_template_stay_there() -> None:
    live = asked(workload("Deployment", template(4), words=WORDS)).admitted
    assert asked(workload("Deployment", template(4, annotations=WORDS)), old=live).patch == []


def test_a_bad_word_is_refused_above_already_and_holds_up_nothing_later() -> None:
    bad = workload("Job", template(4), words={"gpu.topology/polcy": "nvlink"})
    assert "did you mean gpu.topology/policy?" in asked(bad).message
    assert asked(bad, old=bad).allowed


def test_results_and_notes_are_no_words() -> None:
    noted = {names.REQUEST: "{}", names.ALLOCATED: "GPU-0"}
    assert asked(workload("Job", template(4), words=noted)).patch == []


@pytest.mark.parametrize("spec", [None, [], 3, {"template": 3}, {"template": {"metadata": []}}, {"template": None}])
def test_what_is_none_is_refused_or_left_to_the_api_server(spec: Any) -> None:
    verdict = asked({"kind": "Job", "metadata": {"annotations": WORDS}, "spec": spec})
    assert verdict.patch == []
    assert verdict.allowed or "this is no Job" in verdict.message
