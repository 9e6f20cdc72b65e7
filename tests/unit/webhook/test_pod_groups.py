"""Pods of PodGroups at admission: which of them kube-scheduler may place one by one."""

from __future__ import annotations

from typing import Any

import pytest

from dradriver.api.base import names
from tests.fakes import owners
from tests.fakes.admission import Object, admit, applied, defaulted, pod, running, stored

GROUP = owners.JOB_GROUP
FIELD = "schedulingGroup"


def of_job(words: dict[str, str] | None = None, *, group: str = GROUP, gpus: Any = 4) -> Object:
    """Return a pod of a Job to which the Job controller gave a PodGroup."""
    references = owners.job_pod(0)["metadata"]["ownerReferences"]
    spec = {FIELD: {"podGroupName": group}}
    return defaulted(pod(gpus, annotations=words, spec=spec, ownerReferences=references))


@pytest.mark.parametrize("path", ["/mutate-pods", "/translate-pods"])
@pytest.mark.parametrize("words", [{names.POLICY: "nvlink"}, {names.GANG: "auto"}, {names.SHARED_CLAIM: "duo"}])
def test_a_gated_pod_of_a_job_leaves_the_group_of_the_job_controller(path: str, words: dict[str, str]) -> None:
    sent = of_job(words)
    made = admit(sent, path=path).admitted
    assert FIELD not in made["spec"]
    assert {"name": names.GATE} in made["spec"]["schedulingGates"]
    assert made["metadata"]["annotations"][names.POD_GROUP] == GROUP, "the controller finds it by that"
    again = admit(made, path=path).admitted
    assert FIELD not in again["spec"]
    assert again["metadata"]["annotations"][names.POD_GROUP] == GROUP, "a second call changes nothing"


def test_a_pod_with_nothing_but_gpu_limits_leaves_it_too() -> None:
    assert FIELD not in admit(of_job(), path="/translate-pods").admitted["spec"]


def test_a_group_that_another_program_made_is_kept() -> None:
    """Its pods without GPUs count for it, and none of them would start without these."""
    written = {FIELD: {"podGroupName": "train"}}
    for sent in (
        of_job({names.GANG: "auto"})
        | {"metadata": defaulted(pod(4))["metadata"] | {"annotations": {names.GANG: "auto"}}},
        defaulted(pod(4, annotations={names.POLICY: "nvlink"}, spec=written)),
    ):
        made = admit(sent).admitted
        assert made["spec"][FIELD] == sent["spec"][FIELD]
        assert names.POD_GROUP not in made["metadata"]["annotations"]


def test_pods_that_are_not_gated_keep_it() -> None:
    static = of_job({names.PLACEMENT: "static", names.POLICY: "nvlink"})
    for sent in (static, of_job(), of_job(gpus=None)):
        assert admit(sent).admitted["spec"][FIELD] == {"podGroupName": GROUP}


def test_the_name_of_a_group_that_an_author_notes_is_dropped() -> None:
    for words in ({names.POD_GROUP: "all"}, {names.POD_GROUP: GROUP}):
        made = admit(defaulted(pod(4, annotations={names.POLICY: "nvlink"} | words))).admitted
        assert names.POD_GROUP not in made["metadata"]["annotations"]


@pytest.mark.parametrize("odd", [7, "x", {"a": 1}, [7], [{"name": 7}]])
def test_owners_that_are_none_are_refused(odd: Any) -> None:
    sent = of_job({names.POLICY: "nvlink"})
    sent["metadata"]["ownerReferences"] = odd
    verdict = admit(sent)
    assert not verdict.allowed
    assert "metadata.ownerReferences" in verdict.message


@pytest.mark.parametrize("odd", [7, "x", [], {"podGroupName": 7}])
def test_an_invalid_group_is_refused(odd: Any) -> None:
    sent = of_job({names.POLICY: "nvlink"})
    sent["spec"][FIELD] = odd
    verdict = admit(sent)
    assert not verdict.allowed
    assert "spec.schedulingGroup" in verdict.message


def test_a_manifest_that_is_applied_again_does_not_bring_it_back() -> None:
    sent = of_job({names.POLICY: "nvlink"})
    live = stored(admit(sent).admitted)
    for now in (live, running(live)):
        updated = admit(applied(sent, now), old=now)
        assert updated.allowed
        assert FIELD not in updated.admitted["spec"]
    kept = stored(sent | {"spec": live["spec"] | {FIELD: {"podGroupName": GROUP}}, "metadata": live["metadata"]})
    assert admit(applied(sent, kept), old=kept).admitted["spec"][FIELD] == {"podGroupName": GROUP}
