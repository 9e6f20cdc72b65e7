"""Words on a Job or a Deployment go into its pod templates, and only where these have none."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dradriver.api.base import names, other_schedulers
from dradriver.api.gangs import gang_size_of_owner
from tests.fakes import owners
from tests.fakes.admission import Verdict, admit, defaulted
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
        **{kind: {field: by_role} for kind, field in gang_size_of_owner.REPLICAS.items()},
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


def test_a_scheduler_that_chooses_gpus_is_told_where_its_author_looks() -> None:
    of_volcano = template(4)
    of_volcano["spec"]["schedulerName"] = "volcano"
    assert asked(workload("Job", of_volcano, words=OTHER)).warnings == [other_schedulers.warning("volcano")]
    assert asked(workload("Job", of_volcano)).warnings == [], "nothing says that its pods are the driver's"
    assert asked(workload("Job", template(4), words=OTHER)).warnings == []


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


@pytest.mark.parametrize("kind", ["JobSet", "LeaderWorkerSet", *gang_size_of_owner.REPLICAS])
def test_of_several_templates_those_get_words_that_ask_for_gpus(kind: str) -> None:
    made = asked(workload(kind, template(4), template(), words=WORDS)).admitted
    assert made == workload(kind, template(4, annotations=WORDS), template(), words=WORDS)
    zero = template()
    zero["spec"]["containers"][0]["resources"] = {"limits": {names.GPU_RESOURCE: "0"}}
    made = asked(workload(kind, template(4), zero, words=WORDS)).admitted
    assert made == workload(kind, template(4, annotations=WORDS), zero, words=WORDS)
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


@pytest.mark.parametrize("note", [names.RESTART, names.IDLE])
def test_what_the_controller_notes_on_an_owner_is_neither_refused_nor_copied(note: str) -> None:
    before = asked(workload("Job", template(4), words=WORDS)).admitted
    after = copy.deepcopy(before)
    after["metadata"]["annotations"][note] = "{}"
    verdict = asked(after, old=before)
    assert verdict.allowed
    assert verdict.patch == []


@pytest.mark.parametrize("spec", [None, [], 3, {"template": 3}, {"template": {"metadata": []}}, {"template": None}])
def test_an_invalid_spec_is_refused_or_left_to_the_api_server(spec: Any) -> None:
    verdict = asked({"kind": "Job", "metadata": {"annotations": WORDS}, "spec": spec})
    assert verdict.patch == []
    assert verdict.allowed or "The object is not a valid Job" in verdict.message


AUTO = {names.GANG: "auto"}
NAMED = {names.GANG: "train", names.GANG_SIZE: "4"}
SIZED = {names.GANG_SIZE: "4"}


def maker(kind: str, *templates: Object, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    """Return an object without words that has more in its spec."""
    found = workload(kind, *(templates or (template(4),)), words=annotations)
    return found | {"spec": found["spec"] | spec}


def saying(made: Object, words: dict[str, str]) -> Object:
    return made | {"metadata": made["metadata"] | {"annotations": made["metadata"]["annotations"] | words}}


JOBSET = "alpha.jobset.sigs.k8s.io/"
LWS = "leaderworkerset.sigs.k8s.io/"


@pytest.mark.parametrize("words", [AUTO, NAMED, SIZED], ids=["auto", "named", "sized"])
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (maker("StatefulSet"), "Write Parallel"),
        (maker("StatefulSet", podManagementPolicy="OrderedReady"), "Write Parallel"),
        (maker("LeaderWorkerSet", template(4), template(4), startupPolicy="LeaderReady"), "Write LeaderCreated"),
        (maker("LeaderWorkerSet", annotations={LWS + "exclusive-topology": "rack"}), f"write {names.NEAR}"),
        (maker("LeaderWorkerSet", annotations={LWS + "subgroup-exclusive-topology": "rack"}), f"write {names.NEAR}"),
        (maker("JobSet", annotations={JOBSET + "exclusive-topology": "rack"}), f"write {names.NEAR}"),
    ],
)
def test_who_shows_that_its_pods_are_no_gang_is_refused_a_gang(made: Object, told: str, words: dict[str, str]) -> None:
    verdict = asked(saying(made, words))
    assert not verdict.allowed
    assert told in verdict.message
    assert f"the pods of this {made['kind']} cannot form a gang" in verdict.message
    assert len(verdict.message) < 512
    assert not asked(saying(made, words), old=made).allowed, "a word that comes later"
    assert asked(saying(made, words), old=saying(made, words)).allowed, "it was let in before"
    assert asked(saying(made, {names.MAX_NODES: "2"})).allowed, "limits alone ask for none"
    assert asked(made).allowed


@pytest.mark.parametrize("words", [AUTO, NAMED, SIZED], ids=["auto", "named", "sized"])
@pytest.mark.parametrize(
    "made",
    [
        maker("StatefulSet", podManagementPolicy="Parallel"),
        maker("LeaderWorkerSet", template(4), template(4), startupPolicy="LeaderCreated"),
        maker("LeaderWorkerSet", template(4), template(), startupPolicy="LeaderReady"),
        maker("JobSet", annotations={JOBSET + "exclusive-topology": "rack", JOBSET + "node-selector": "true"}),
        maker("Job", parallelism=4, completions=8),
        *(maker(kind) for kind in gang_size_of_owner.REPLICAS),
    ],
    ids=lambda made: made["kind"],
)
def test_any_other_is_admitted_with_a_gang(made: Object, words: dict[str, str]) -> None:
    verdict = asked(saying(made, words))
    assert verdict.allowed, verdict.message
    assert verdict.patch


def test_nothing_says_which_of_a_deployments_pods_belong_together_but_a_name() -> None:
    for words in (AUTO, SIZED):
        assert f"Write a name as {names.GANG}" in asked(saying(maker("Deployment"), words)).message
    assert asked(saying(maker("Deployment"), NAMED)).allowed
    assert asked(saying(maker("Deployment"), WORDS)).allowed


def test_a_replicated_job_that_says_so_alone_is_no_gang_either() -> None:
    """JobSet reads the annotation there, too, and copies it onto its pods."""
    made = maker("JobSet", template(), template(4))
    first, second = (job["template"] for job in made["spec"]["replicatedJobs"])
    first["metadata"] = {"annotations": {JOBSET + "exclusive-topology": "rack"}}
    assert asked(saying(made, AUTO)).allowed, "its pods have no GPUs"
    second["metadata"] = first["metadata"]
    verdict = asked(saying(made, AUTO))
    assert not verdict.allowed
    assert f"write {names.NEAR}" in verdict.message
    second["metadata"] = {"annotations": second["metadata"]["annotations"] | {JOBSET + "node-selector": "true"}}
    assert asked(saying(made, AUTO)).allowed
    second["metadata"] = {"annotations": 3}
    assert asked(saying(made, AUTO)).allowed, "the API server refuses it"


@pytest.mark.parametrize("order", ["InOrder", "dependsOn"])
def test_roles_that_start_one_after_another_are_not_one_gang(order: str) -> None:
    made = maker("JobSet", template(4), template(4))
    if order == "InOrder":
        made["spec"]["startupPolicy"] = {"startupPolicyOrder": order}
    else:
        made["spec"]["replicatedJobs"][1][order] = [{"name": "first", "status": "Ready"}]
    assert f"Write {names.GANG}: auto" in asked(saying(made, NAMED)).message
    assert asked(saying(made, AUTO)).allowed
    made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"] = template()
    assert asked(saying(made, NAMED)).allowed, "only one of them has GPUs"
    assert asked(saying(maker("JobSet", template(4), template(4)), NAMED)).allowed
    odd = maker("JobSet", template(4), template(4), startupPolicy=3)
    assert asked(saying(odd, NAMED)).allowed, "its own controller refuses it"


def test_words_reach_a_launcher_with_gpus_which_is_placed_by_itself_all_the_same() -> None:
    made = asked(workload("MPIJob", template(4), template(1), words=AUTO)).admitted
    roles = made["spec"]["mpiReplicaSpecs"].values()
    assert [role["template"]["metadata"]["annotations"] for role in roles] == [AUTO, AUTO]
    (launcher,) = owners.mpi_job().others
    launcher["metadata"]["annotations"] = AUTO
    assert admit(defaulted(launcher)).allowed
