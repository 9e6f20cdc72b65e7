"""Pods where NVIDIA's driver allocates the GPUs."""

from __future__ import annotations

import copy

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import AMD, NVIDIA
from dradriver.api.pod import resolved
from tests.fakes import amd
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
    assert "gpu.nvidia.com allocates the GPUs" in verdict.message
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


LATER = (
    {names.PLACEMENT: "static"},
    {names.WHEN_FULL: "hand-over"},
    {names.POLICY: "nvlink", names.WHEN_FULL: "hand-over"},
)


@pytest.mark.parametrize("words", LATER, ids=str)
def test_a_word_that_a_pod_cannot_be_created_with_is_refused_with_the_same_message_later(words: dict[str, str]) -> None:
    live = stored(admit(defaulted(pod(2, annotations={names.STRATEGY: "pack"})), ledger=NVIDIA).admitted)
    changed = copy.deepcopy(live)
    changed["metadata"]["annotations"] |= words
    assert names.PLACEMENT in words or admit(changed, old=live).allowed
    verdict = admit(changed, old=live, ledger=NVIDIA)
    assert not verdict.allowed
    created = admit(defaulted(pod(2, annotations={names.STRATEGY: "pack"} | words)), ledger=NVIDIA)
    assert verdict.message == created.message


def test_a_word_of_before_the_change_of_drivers_holds_up_no_other() -> None:
    live = stored(admit(defaulted(pod(2, annotations={names.WHEN_FULL: "hand-over"}))).admitted)
    changed = copy.deepcopy(live)
    changed["metadata"]["annotations"] |= {names.POLICY: "nvlink"}
    verdict = admit(changed, old=live, ledger=NVIDIA)
    assert verdict.allowed
    assert "has no effect: gpu.topology/when-full: hand-over: in this cluster" in verdict.warnings[0]
    del changed["metadata"]["annotations"][names.WHEN_FULL]
    verdict = admit(changed, old=live, ledger=NVIDIA)
    assert resolved.read(verdict.admitted["metadata"]["annotations"]).when_full is msgspec.UNSET


@pytest.mark.parametrize(
    ("told", "warned"), [("file", True), ("env", True), ("near-nics", True), ("off", False), ("auto", False)]
)
def test_what_nccl_would_be_told_is_warned_of(told: str, warned: bool) -> None:
    verdict = admit(defaulted(pod(2, annotations={names.NCCL: told})), ledger=NVIDIA)
    assert verdict.allowed
    assert any("prepares the GPUs in this cluster" in warning for warning in verdict.warnings) == warned


def test_pods_without_our_words_are_ignored() -> None:
    verdict = admit(defaulted(pod(2)), ledger=NVIDIA)
    assert (verdict.allowed, verdict.patch, verdict.warnings) == (True, [], [])


def test_next_to_amds_driver_whole_gpus_are_admitted_and_parts_refused() -> None:
    sent = defaulted(pod(None, annotations={names.POLICY: "nvlink"}))
    sent["spec"]["containers"][0]["resources"] = {"limits": {amd.LIMIT: "4"}}
    assert admit(sent, ledger=AMD).allowed
    verdict = admit(defaulted(pod(1, annotations={names.SHARE: "0.5"})), ledger=AMD)
    assert not verdict.allowed
    assert "gpu.amd.com allocates the GPUs" in verdict.message


def test_gpus_of_another_vendor_than_the_drivers_are_refused_with_the_limit_to_write() -> None:
    verdict = admit(defaulted(pod(4, annotations={names.POLICY: "nvlink"})), ledger=AMD)
    assert not verdict.allowed
    assert "Write the limit amd.com/gpu" in verdict.message
