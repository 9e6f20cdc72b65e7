"""GPUs whose parts are of one namespace at a time: who asks the scheduler for parts is refused, or keeps off them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.api.claims import exclusive
from dradriver.process.policies_file import PoliciesFile
from tests.fakes.admission import Verdict, admit, defaulted, pod, stored

Object = dict[str, Any]
SHARES = "gpus: [{nodes: [a], shared: mps, exclusiveTo: namespace}]"
MIXED = "gpus: [{nodes: [a], shared: mps, exclusiveTo: namespace}, {shared: mps}]"
SLICES = "gpus: [{mig: static, exclusiveTo: namespace}, {nodes: [b], shared: mps}]"
WHOLE = "gpus: [{nodes: [a], shared: mps}, {mig: dynamic}]"
HAND_OVER = {names.WHEN_FULL: "hand-over"}
SHARE = {names.SHARE_CORES: "25", names.SHARE_MEMORY: "4Gi"}
ELSEWHERE = {"selectors": [{"cel": {"expression": "true"}}, {"cel": {"expression": f" {exclusive.ELSEWHERE}\n"}}]}


def amounts(**said: str) -> Object:
    return {"capacity": {"requests": said}}


A_SHARE = {"deviceClassName": names.SHARE_CLASS} | amounts(cores="25", memory="4Gi")
A_SLICE = {"deviceClassName": names.MIG_CLASS} | amounts(memorySlices="1", computeSlices="1")
A_GPU = {"deviceClassName": names.DEVICE_CLASS, "count": 2}


def file(folder: Path, text: str) -> PoliciesFile:
    (folder / "policies.yaml").write_text(text)
    return PoliciesFile(folder / "policies.yaml")


def said(folder: Path, text: str, *requests: object, kind: str = "ResourceClaim", **metadata: Any) -> Verdict:
    """What is said of a claim with such requests: each alone, or a list of alternatives."""
    asked = [{"firstAvailable": one} if isinstance(one, list) else {"exactly": one} for one in requests]
    spec: Object = {"devices": {"requests": [{"name": f"r{at}"} | one for at, one in enumerate(asked)]}}
    spec = {"spec": spec} if kind == "ResourceClaimTemplate" else spec
    sent = {"kind": kind, "metadata": {"name": "c"} | metadata, "spec": spec}
    return admit(sent, kind=kind, path="/validate-claims", policies=file(folder, text))


@pytest.mark.parametrize(
    ("text", "requests", "at"),
    [
        (SHARES, [A_SHARE], 0),
        (MIXED, [A_GPU, A_SHARE | ELSEWHERE, A_SHARE], 2),
        (SHARES, [A_GPU, [A_GPU | {"name": "a"}, A_SHARE | {"name": "b"}]], 1),
        (SHARES, [A_GPU | amounts(cores="25")], 0),
        (SHARES, [{"deviceClassName": names.SHARE_CLASS}], 0),
        (SLICES, [A_SLICE], 0),
        (SLICES, [A_GPU | amounts(memorySlices="1")], 0),
        (SLICES, [A_GPU | amounts(computeSlices="1", memory="1Gi")], 0),
    ],
)
def test_a_claim_that_may_get_a_part_of_such_a_gpu_is_refused(
    tmp_path: Path, text: str, requests: list[object], at: int
) -> None:
    message = said(tmp_path, text, *requests).message
    assert message.startswith(f"spec.devices.requests[{at}]: kube-scheduler does not know that the policies file")
    assert f"cel.expression: {exclusive.ELSEWHERE}" in message
    assert said(tmp_path, WHOLE, *requests).allowed


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        (SHARES, [A_SHARE | ELSEWHERE]),
        (SHARES, [[A_SHARE | ELSEWHERE | {"name": "a"}, A_GPU | {"name": "b"}]]),
        (SHARES, [A_SLICE]),
        (SHARES, [A_GPU, A_GPU | amounts(memory="40Gi")]),
        (SHARES, [A_SHARE | {"adminAccess": True}]),
        (SHARES, [{"deviceClassName": "gpu.nvidia.com"} | amounts(cores="1")]),
        (SLICES, [A_SHARE]),
        (SLICES, [A_SLICE | ELSEWHERE]),
    ],
)
def test_who_cannot_get_one_or_keeps_off_them_is_let_in(tmp_path: Path, text: str, requests: list[object]) -> None:
    verdict = said(tmp_path, text, *requests)
    assert (verdict.allowed, verdict.warnings) == (True, [])


def test_what_the_controller_chose_is_let_in_and_what_it_hands_over_is_not(tmp_path: Path) -> None:
    marks: Mapping[str, bool] = {names.LABEL_PLACED: True, names.LABEL_HANDED_OVER: False, "other": False}
    for mark, allowed in marks.items():
        assert said(tmp_path, SHARES, A_SHARE, labels={names.LABEL: mark}).allowed is allowed


def test_of_a_template_it_is_a_warning_because_the_controller_may_make_its_claims(tmp_path: Path) -> None:
    verdict = said(tmp_path, SHARES, A_SHARE, kind="ResourceClaimTemplate", labels={names.LABEL: "placed"})
    assert verdict.allowed
    (warning,) = verdict.warnings
    assert warning.startswith(
        "spec.spec.devices.requests[0]: claims from this template are refused unless the driver places the pod"
    )
    assert warning.endswith(f"cel.expression: {exclusive.ELSEWHERE}"), "it is not cut off"


@pytest.mark.parametrize("words", [{names.PLACEMENT: "static"}, HAND_OVER])
def test_a_share_is_left_to_the_scheduler_where_some_gpus_are_anybodys_and_never_on_others(
    tmp_path: Path, words: dict[str, str]
) -> None:
    sent = defaulted(pod(1, annotations=SHARE | words))
    assert admit(sent, policies=file(tmp_path, MIXED)).allowed
    verdict = admit(sent, policies=file(tmp_path, SHARES))
    (word,) = words.items()
    assert verdict.message.startswith(f"{word[0]}: {word[1]} lets kube-scheduler place the share")
    whole = defaulted(pod(1, annotations=words))
    assert admit(whole, policies=file(tmp_path, SHARES)).allowed


def test_a_waiting_pod_whose_words_become_such_is_refused_and_one_that_had_them_before_is_left(tmp_path: Path) -> None:
    had, has_not = (
        stored(admit(defaulted(pod(1, annotations=words)), policies=file(tmp_path, WHOLE)).admitted)
        for words in (SHARE | HAND_OVER, SHARE)
    )
    assert admit(had, old=had, policies=file(tmp_path, SHARES)).allowed
    annotations = has_not["metadata"]["annotations"] | HAND_OVER
    changed = has_not | {"metadata": has_not["metadata"] | {"annotations": annotations}}
    assert "lets kube-scheduler place the share" in admit(changed, old=has_not, policies=file(tmp_path, SHARES)).message
