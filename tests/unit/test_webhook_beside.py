"""Pods where NVIDIA's driver hands out the GPUs."""

from __future__ import annotations

import pytest

from dradriver.api import names
from dradriver.api.ledger import NVIDIA
from tests.fakes.admission import admit, defaulted, pod, stored

PARTS = (
    {names.SHARE: "0.5"},
    {names.MIG_PROFILE: "1g.10gb"},
    {names.SHARE_MEMORY: "10Gi"},
)


def test_whole_gpus_are_admitted_as_ever() -> None:
    sent = defaulted(pod(4, annotations={names.POLICY: "nvlink"}))
    there, here = admit(sent, ledger=NVIDIA), admit(sent)
    assert there.allowed
    assert there.warnings == here.warnings
    assert {op["path"] for op in there.patch} == {op["path"] for op in here.patch}


@pytest.mark.parametrize("words", PARTS, ids=str)
def test_a_part_of_a_gpu_is_refused_with_what_to_write_instead(words: dict[str, str]) -> None:
    sent = defaulted(pod(1, annotations=words))
    assert admit(sent).allowed
    verdict = admit(sent, ledger=NVIDIA)
    assert not verdict.allowed
    assert "gpu.nvidia.com hands out the GPUs" in verdict.message
    assert "write a ResourceClaimTemplate of that driver" in verdict.message


@pytest.mark.parametrize("word", [{names.PLACEMENT: "static"}, {names.WHEN_FULL: "hand-over"}], ids=str)
def test_what_the_scheduler_alone_would_have_to_know_is_refused(word: dict[str, str]) -> None:
    sent = defaulted(pod(2, annotations=word))
    assert admit(sent).allowed
    verdict = admit(sent, ledger=NVIDIA)
    assert not verdict.allowed
    assert f"{next(iter(word))}: " in verdict.message


def test_a_pod_of_before_the_change_stays_changeable() -> None:
    live = stored(admit(defaulted(pod(1, annotations={names.SHARE: "0.5"}))).admitted)
    changed = live | {"metadata": live["metadata"] | {"labels": live["metadata"].get("labels", {}) | {"a": "b"}}}
    assert admit(changed, old=live, ledger=NVIDIA).allowed


@pytest.mark.parametrize(("told", "warned"), [("file", True), ("env", True), ("off", False), ("auto", False)])
def test_what_nccl_would_be_told_is_warned_of(told: str, warned: bool) -> None:
    verdict = admit(defaulted(pod(2, annotations={names.NCCL: told})), ledger=NVIDIA)
    assert verdict.allowed
    assert any("NCCL is told nothing" in warning for warning in verdict.warnings) == warned


def test_pods_without_our_words_are_nobodys_business() -> None:
    verdict = admit(defaulted(pod(2)), ledger=NVIDIA)
    assert (verdict.allowed, verdict.patch, verdict.warnings) == (True, [], [])
