"""Every word either has an effect on a pod, or its author is told that it has none: over all words there are."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from dradriver.allocator import choose
from dradriver.allocator.request import Choice, NoPlaceError, Request, Whole
from dradriver.api.base import names
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.policies.policies_reader import read
from dradriver.api.policies.workload_words import WORDS
from dradriver.api.vocabulary import annotation_words
from dradriver.process.policies_file import PoliciesFile
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests.fakes.admission import admit, defaulted, pod
from webhook import effects

FILE = b"""\
policies:
  mine: {required: nvlink}
  packed: {strategy: pack}
workloads: {inference-small: packed}
"""
# By word a text of it that is not the default, and a pod (GPUs of each container, further words, further spec) on which
# it has no effect; of words that always have one a pod that says them.
STATIC = {names.PLACEMENT: "static"}
Case = tuple[str, tuple[object, ...], dict[str, str], dict[str, Any]]
WITHOUT: dict[str, Case] = {
    names.POLICY: ("packed", (1,), STATIC, {}),
    names.GPUS: ("2", (2,), {}, {}),
    names.STRATEGY: ("pack", (2,), STATIC, {}),
    names.MIN_BANDWIDTH: ("100", (1,), {}, {}),
    names.MIN_BUSBW: ("100", (1,), {}, {}),
    names.MAX_CROSS_NVSWITCH: ("0", (1,), {}, {}),
    names.PREFER_SAME_NUMA: ("true", (1,), {}, {}),
    names.NEAR_NIC: ("preferred", (1,), STATIC, {}),
    names.WORKLOAD: ("inference-small", (1,), STATIC, {}),
    names.WHEN_FULL: ("hand-over", (1,), STATIC, {}),
    names.SPOT: ("prefer", (1,), STATIC, {}),
    names.MAX_DURATION: ("1h", (1,), {}, {"activeDeadlineSeconds": 60}),
    names.MULTI_NODE_POLICY: ("pack", (1,), {}, {}),
    names.MAX_NODES: ("2", (1,), {}, {}),
    names.MIN_GPUS_PER_NODE: ("1", (1,), {}, {}),
    names.MIN_NETWORK_BANDWIDTH: ("10", (1,), {}, {}),
    names.NEAR: ("leaf", (1,), {}, {}),
    names.ON_MEMBER_LOSS: ("restart", (1,), {}, {}),
    names.IDLE_TIMEOUT: ("1h", (1,), STATIC, {}),
}


def told(text: str, key: str, gpus: tuple[object, ...], words: dict[str, str], spec: dict[str, Any]) -> list[str]:
    """Return what a pod with a word is told of words has no effect."""
    sent = pod(*gpus, annotations={**words, key: text})
    sent["spec"] |= spec
    policies = PoliciesFile()
    policies.in_force = read(FILE, source="x")
    verdict = admit(defaulted(sent), policies=policies)
    assert verdict.allowed, verdict.message
    return [one for one in verdict.warnings if "has no effect" in one]


def test_each_word_there_is_has_a_case_or_always_an_effect() -> None:
    may = set(WITHOUT) | {names.PRODUCT, names.VENDOR, names.NCCL}
    assert may | effects.ALWAYS == set(annotation_words.KEYS), "say of a new word when it has no effect"
    assert not may & effects.ALWAYS
    assert set(effects._RULES) == may - set(effects.NAMES) | set(effects._LEVELS)


@pytest.mark.parametrize("key", WITHOUT)
def test_a_word_without_effect_is_warned_of_and_of_no_other_pod(key: str) -> None:
    text, gpus, words, spec = WITHOUT[key]
    found = told(text, key, gpus, words, spec)
    assert [one for one in found if one.startswith(f"{key} has no effect ")], found
    others = {other: value for other, value in words.items() if other != names.PLACEMENT}
    plain = (None,) if key == names.GPUS else (4,)
    gang = annotation_words.BY_KEY[key].about is annotation_words.About.GANG
    if gang:
        others |= {names.GANG: "train", names.GANG_SIZE: "2"}
    assert told(text, key, plain, others, {}) == []


@pytest.mark.parametrize("key", annotation_words.ASIDE)
def test_what_is_so_anyway_is_not_warned_of(key: str) -> None:
    for value, gpus, words in itertools.product(annotation_words.ASIDE[key][:1], ((1,), (4,)), ({}, STATIC)):
        assert told(value, key, gpus, {other: text for other, text in words.items() if other != key}, {}) == []


def test_names_stand_for_words_that_stand_elsewhere_too() -> None:
    assert told("tensor-parallel", names.WORKLOAD, (4,), {}, {}) == []
    (one,) = told("tensor-parallel", names.WORKLOAD, (4,), {names.POLICY: "mine"}, {})
    assert one.startswith(f"{names.WORKLOAD} has no effect because the pod's other annotations")
    (one,) = told("inference-small", names.WORKLOAD, (4,), {names.STRATEGY: "spread"}, {})
    assert one.startswith(f"{names.WORKLOAD} has no effect")
    both = {names.REQUIRED: "nvlink", names.WORKLOAD: "inference"}
    (one,) = told("mine", names.POLICY, (4,), both, {})
    assert one.startswith(f"{names.POLICY} has no effect because the pod's other annotations")
    assert told("data-parallel", names.WORKLOAD, (4,), {}, {}) == [], "it asks for nothing, and gets that"
    assert told("mine", names.POLICY, (4,), {names.REQUIRED: "same-numa"}, {}) == [], "both count"
    (one,) = told("tensor-parallel", names.WORKLOAD, (1,), {names.SHARE: "0.5"}, {})
    assert one == f"{names.WORKLOAD} has no effect on a fraction of a GPU, because it is about sets of whole GPUs."


def test_idle_pods_that_share_a_claim_are_not_ended() -> None:
    (one,) = told("1h", names.IDLE_TIMEOUT, (2,), {names.SHARED_CLAIM: "pair"}, {})
    assert names.SHARED_CLAIM in one


def test_what_nccl_is_told_is_not_heard_on_gpus_of_another_vendor() -> None:
    for vendor, library in (("amd", "RCCL"), ("ascend", "HCCL")):
        words = {names.GPUS: "4", names.VENDOR: vendor}
        (one,) = told("file", names.NCCL, (None,), words, {})
        assert one == (
            f"{names.NCCL} has no effect on GPUs of {vendor}, because the driver does not configure {library}."
        )
        assert told("auto", names.NCCL, (None,), words, {}) == []
    assert told("file", names.NCCL, (4,), {names.VENDOR: "nvidia"}, {}) == []


def test_a_vendor_that_limits_name_already() -> None:
    assert told("amd", names.VENDOR, (None,), {names.GPUS: "4"}, {}) == []
    assert told("nvidia", names.VENDOR, (4,), {}, {}) == [], "it is so anyway"
    sent = pod(4, annotations={names.VENDOR: "amd"}, resource="amd.com/gpu")
    (one,) = [text for text in admit(defaulted(sent)).warnings if "has no effect" in text]
    assert one == f"{names.VENDOR} has no effect because the containers' limits name the same vendor."


def test_the_alias_of_a_word_is_the_word() -> None:
    (one,) = told("tensor-parallel", names.WORKLOAD, (4,), {names.ALIAS_PREFIX + "required": "nvlink"}, {})
    assert one.startswith(f"{names.WORKLOAD} has no effect because the pod's other annotations")


@pytest.mark.parametrize("profile", ["rtx4090-x8", "hgx-h100-degraded", "h100-x8-flat-vm", "dgx1-v100"])
@pytest.mark.parametrize("key", [names.POLICY, *effects._LEVELS])
def test_a_word_by_which_a_single_gpu_is_chosen_or_refused_is_not_said_to_have_no_effect(
    key: str, profile: str
) -> None:
    machine = profiles.load(profile, seed="n")
    for text in (
        ("true",) if key == names.REQUIRE_NVLINK else ("nvlink", "single-numa" if key == names.POLICY else "same-numa")
    ):
        asked = resolved.resolve(Annotations({key: text}), {"main": 1}).request
        plain = resolved.resolve(Annotations({}), {"main": 1}).request
        frees = [range(len(machine.gpus)), range(1, len(machine.gpus)), [len(machine.gpus) - 1]]
        if any(_choice(machine, free, asked) != _choice(machine, free, plain) for free in frees):
            assert told(text, key, (1,), {}, {}) == []


def _choice(machine: Machine, free: Iterable[int], request: Request) -> tuple[int, ...] | None:
    assert isinstance(request, Whole)
    try:
        found = choose(machine, list(free), request)
    except NoPlaceError:
        return None
    assert isinstance(found, Choice)
    return found.gpus


def test_a_policy_that_keeps_a_workload_from_saying_more_has_an_effect() -> None:
    strict = b"strict: {required: nvlink, min-memory: 40Gi}"
    text = b"policies: {soft: {preferred: nvlink}, %s}\nworkloads: {tensor-parallel: strict}" % strict
    policies = PoliciesFile()
    policies.in_force = read(text, source="x")
    words = {names.POLICY: "soft", names.PREFERRED: "nvlink", names.WORKLOAD: "tensor-parallel"}
    warnings = admit(defaulted(pod(4, annotations=words)), policies=policies).warnings
    assert [one.partition(" ")[0] for one in warnings if "has no effect" in one] == [names.WORKLOAD]


def test_a_product_that_limits_name_already() -> None:
    sent = pod(1, annotations={names.PRODUCT: "NVIDIA-A100"})
    found = effects._RULES[names.PRODUCT]
    assert found(effects._About(None, False, "NVIDIA L4", "", True, None), "NVIDIA L4")  # type: ignore[arg-type]
    assert not found(effects._About(None, False, "", "", True, None), "NVIDIA L4")  # type: ignore[arg-type]
    assert [one for one in admit(defaulted(sent)).warnings if "has no effect" in one] == []


def test_words_of_policies_are_known() -> None:
    assert set(WORDS) <= {key.removeprefix(names.PREFIX) for key in annotation_words.KEYS}
