"""Pods and Jobs in a queue of Kueue's, which charges limits and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import NVIDIA
from tests.fakes.admission import NVLINK, Verdict, admit, create, defaulted, pod, stored
from webhook import pod_view

Object = dict[str, Any]
QUEUE = {pod_view.QUEUE: "team"}
ADMITTED = {pod_view.PODSET: "main"}
BY_WORD = [({names.GPUS: "2"}, "2 instead"), ({names.SHARE: "0.5"}, "1 in addition")]


def asked(*gpus: object, words: dict[str, str], labels: dict[str, str]) -> Verdict:
    return admit(defaulted(pod(*gpus, annotations=words, labels=labels)))


def job(gpus: int | None, *, words: dict[str, str], labels: dict[str, str]) -> Object:
    metadata = {"name": "w", "annotations": words, "labels": labels}
    return {"kind": "Job", "metadata": metadata, "spec": {"template": {"spec": pod(gpus)["spec"]}}}


def of_job(sent: Object, *, old: Object | None = None) -> Verdict:
    return admit(sent, old=old, kind="Job", path="/mutate-workloads")


@pytest.mark.parametrize("labels", [QUEUE, ADMITTED])
@pytest.mark.parametrize(("words", "cure"), BY_WORD)
def test_gpus_that_stand_in_an_annotation_only_are_refused(
    words: dict[str, str], cure: str, labels: dict[str, str]
) -> None:
    for sent in (asked(None, words=words, labels=labels), asked(0, words=words, labels=labels)):
        assert (
            f"Kueue charges limits, so it would charge nothing for this pod. Write the limit nvidia.com/gpu: {cure}"
            in sent.message
        )
    assert asked(None, words=words, labels={"a": "b"}).allowed


@pytest.mark.parametrize("labels", [QUEUE, ADMITTED])
def test_limits_are_charged(labels: dict[str, str]) -> None:
    assert asked(2, words={names.GPUS: "2"}, labels=labels).allowed
    assert asked(1, words={names.SHARE: "0.5"}, labels=labels).allowed
    assert asked(None, 2, words=NVLINK, labels=labels).allowed


def test_a_second_pass_of_an_admitted_pod_is_not_refused_for_want_of_limits() -> None:
    made = create(2, annotations={names.GPUS: "2"}, labels=QUEUE)
    assert admit(made).allowed


def template_of(placed: Object) -> Object:
    """Return a placed pod as its author sends it again, or a Job's controller, of whose template it was made."""
    copied = {key: value for key, value in placed["metadata"].items() if key != "managedFields"}
    return defaulted(placed | {"metadata": copied})


@pytest.mark.parametrize("labels", [QUEUE, ADMITTED, QUEUE | ADMITTED])
@pytest.mark.parametrize("words", [{}, NVLINK, NVLINK | {names.PLACEMENT: "static"}, {names.SHARED_CLAIM: "set"}])
def test_a_note_that_was_sent_is_no_limit(words: dict[str, str], labels: dict[str, str]) -> None:
    """A copy of a placed pod, or one that somebody made up, has a note of GPUs that no limit asks for."""
    placed = create(8, annotations=words | {names.REQUIRED: "nvlink"})
    placed["metadata"]["labels"] |= labels
    refused = admit(template_of(placed))
    assert "a copied pod with this annotation has none" in refused.message
    assert "Remove the annotation and set the limit nvidia.com/gpu in each container" in refused.message
    placed["metadata"]["labels"] = {names.LABEL: names.LABEL_PLACED}
    assert admit(template_of(placed)).allowed


@pytest.mark.parametrize("managed", [None, [], [{}], [{"fieldsV1": {"f:metadata": {}}}, {"fieldsV1": None}]])
def test_without_a_list_of_what_was_sent_a_note_counts_as_sent(managed: list[Object] | None) -> None:
    made = create(2, annotations=NVLINK, labels=ADMITTED)
    made["metadata"]["managedFields"] = managed
    assert admit(made).allowed is bool(managed)
    made["metadata"]["managedFields"] = "none"
    assert "metadata.managedFields" in admit(made).message


def test_the_cure_of_a_copy_in_a_queue_is_admitted() -> None:
    placed = create(8, annotations=NVLINK, labels=ADMITTED)
    del placed["metadata"]["annotations"][names.REQUEST]
    placed["spec"]["containers"][0]["resources"] |= {"limits": {names.GPU_RESOURCE: 8}}
    assert admit(template_of(placed)).allowed


def test_a_queued_pod_whose_note_is_lost_gets_no_gpus_by_words_later() -> None:
    live = stored(create(1, annotations={names.GPUS: "1"}, labels=ADMITTED))
    live["metadata"]["annotations"] |= {names.GPUS: "8", names.REQUEST: "lost"}
    sent = copy.deepcopy(live)
    sent["metadata"]["annotations"][names.STRATEGY] = "pack"
    assert admit(sent, old=live).admitted["metadata"]["annotations"][names.REQUEST] == "lost"


def test_a_plain_pod_that_kueue_never_admits_is_warned_of() -> None:
    (told,) = asked(2, words=NVLINK, labels=QUEUE).warnings
    assert "Create a Job instead, or write gpu.topology/placement: static and a required gpu.topology/policy" in told
    (told,) = admit(defaulted(pod(2, annotations=NVLINK, labels=QUEUE)), ledger=NVIDIA).warnings
    assert told.endswith("Create a Job instead."), "beside NVIDIA's driver static is refused"
    assert not asked(2, words=NVLINK, labels=ADMITTED).warnings
    assert not asked(2, words=NVLINK | {pod_view.PARENT: "statefulset"}, labels=QUEUE).warnings, (
        "charged by its template"
    )
    assert not asked(2, words=NVLINK | {names.PLACEMENT: "static"}, labels=QUEUE).warnings


@pytest.mark.parametrize(("words", "cure"), BY_WORD)
def test_a_job_is_refused_before_its_pods_would_be(words: dict[str, str], cure: str) -> None:
    assert cure in of_job(job(None, words=words, labels=QUEUE)).message
    assert of_job(job(None, words=words, labels={})).allowed
    assert of_job(job(2, words=words, labels=QUEUE)).allowed


def test_a_job_that_comes_into_a_queue_is_asked_and_one_that_is_in_it_is_not() -> None:
    before, after = (job(None, words={names.GPUS: "2"}, labels=labels) for labels in ({}, QUEUE))
    assert "2 instead" in of_job(after, old=before).message
    assert of_job(after, old=after).allowed
    before, after = (job(None, words={names.GPUS: "a\nb"}, labels=labels) for labels in ({}, QUEUE))
    assert "<count> instead" in of_job(after, old=before).message
