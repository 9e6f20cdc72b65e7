"""Words and limits that ask for a part of a GPU: read as the field means them, or refused with what to write."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.allocator.request import Amount, Mig, Share, Strategy
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.pod.annotations import Annotations
from dradriver.api.pod.resolved import Resolved, read, write
from dradriver.api.vocabulary import container_limits
from dradriver.api.vocabulary.container_requests import Asked, count, described, request_names

HALF = Amount(cores=50)
WHERE = "container 'c': limits"


def asked(**amounts: object) -> Asked:
    """Return what limits ask for; ``nvidia`` and ``aliyun`` come before an underscore."""
    return container_limits.asked(WHERE, {name.replace("_", ".com/", 1): value for name, value in amounts.items()})


def own(**words: str) -> dict[str, str]:
    return {names.PREFIX + key.replace("_", "-"): value for key, value in words.items()}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ({"share": "0.5"}, HALF),
        ({"share": ".5"}, HALF),
        ({"share": " 0.500 "}, HALF),
        ({"share": "0.05"}, Amount(cores=5)),
        ({"cores": "25"}, Amount(cores=25)),
        ({"cores": "100", "memory": "10Gi"}, Amount(cores=100, memory_mib=10240)),
        ({"memory": "10Gi"}, Amount(memory_mib=10240)),
        ({"memory": "10G"}, Amount(memory_mib=9537)),  # the API server rounds such a quantity up, too
        ({"memory": "1500Ki"}, Amount(memory_mib=2)),
    ],
)
def test_words_ask_for_a_share_of_each_container_with_a_gpu(words: dict[str, str], wanted: Amount) -> None:
    assert Annotations(own(**words)).request({"a": 1, "b": 1}) == Share(amounts=(wanted, wanted))


def test_words_ask_for_as_many_mig_slices_as_gpus() -> None:
    slices = Annotations(own(mig_profile="1g.10gb")).request({"a": 1, "b": 2})
    assert slices == Mig(profiles=(("1g.10gb",), ("1g.10gb", "1g.10gb")))
    assert Annotations(own(mig_profile="2g.20gb", gpus="3")).request({"a": 3}) == Mig(profiles=(("2g.20gb",) * 3,))


def test_what_a_part_shares_with_whole_gpus_stays() -> None:
    words = own(share="0.5", strategy="pack", product="NVIDIA A100*", architecture="ampere", min_memory="40Gi")
    assert Annotations(words | own(policy="best-effort", require_nvlink="false", nccl="off")).request(
        {"a": 1}
    ) == Share(
        amounts=(HALF,), strategy=Strategy.PACK, product="NVIDIA A100*", architecture="ampere", min_memory_mib=40960
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            {"share": "0"},
            "gpu.topology/share: '0' is not a share of a GPU. Write a number from 0.01 to 0.99 with at most two "
            "decimals, for example 0.5",
        ),
        ({"share": "0.00"}, "at most two decimals"),
        ({"share": "1"}, "For whole GPUs, set a GPU limit"),
        ({"share": "1.5"}, "'1.5' is not a share"),
        ({"share": "0.125"}, "'0.125' is not a share"),
        ({"share": "-0.5"}, "is not a share"),
        ({"share": "50%"}, "is not a share"),
        ({"share": "\u0660.\u0665"}, "is not a share"),
        ({"memory": "0"}, "gpu.topology/memory: '0' is not an amount of GPU memory"),
        ({"memory": "lots"}, "is not an amount of GPU memory"),
        (
            {"cores": "0"},
            "gpu.topology/cores: '0' is not a percentage of a GPU's compute. Write a whole number from 1 to",
        ),
        ({"cores": "101"}, "is not a percentage"),
        ({"cores": "2.5"}, "is not a percentage"),
        ({"mig_profile": "1g"}, "gpu.topology/mig-profile: '1g' is not a MIG profile. Write slices and memory"),
        ({"mig_profile": "1c.3g.20gb"}, "is not a MIG profile"),
        ({"mig_profile": '1g.10gb" || true'}, "is not a MIG profile"),
        (
            {"share": "0.5", "memory": "10Gi"},
            "gpu.topology/share: '0.5' contradicts gpu.topology/memory. Write only one of",
        ),
        ({"share": "0.5", "cores": "50"}, "contradicts gpu.topology/cores"),
        ({"share": "0.5", "mig_profile": "1g.10gb"}, "gpu.topology/mig-profile: '1g.10gb' contradicts gpu.topology/sh"),
        ({"mig_profile": "1g.10gb", "cores": "5"}, "contradicts gpu.topology/cores"),
    ],
)
def test_bad_words_of_parts_are_refused(words: dict[str, str], told: str) -> None:
    for read_words in (Annotations.check, lambda annotations: annotations.request({"a": 1})):
        with pytest.raises(WordError) as refusal:
            read_words(Annotations(own(**words)))
        assert told in str(refusal.value)


@pytest.mark.parametrize(
    ("words", "asks", "told"),
    [
        (
            {"share": "0.5", "gpus": "4"},
            {"a": 4},
            "gpu.topology/share: '0.5' contradicts container 'a', which requests 4 GPUs. Write",
        ),
        ({"share": "0.5"}, {"a": 1, "b": 2}, "contradicts container 'b', which requests 2 GPUs"),
        ({"share": "0.5", "gpus": "4"}, {"a": 1}, "gpu.topology/gpus: '4' contradicts the containers' limits"),
        ({"share": "0.5", "policy": "nvlink"}, {"a": 1}, "gpu.topology/policy: 'nvlink' is about sets of whole GPUs"),
        (
            {"share": "0.5", "required": "same-numa"},
            {"a": 1},
            "contradicts gpu.topology/share. Write only one of the two",
        ),
        ({"memory": "1Gi", "preferred": "nvlink"}, {"a": 1}, "contradicts gpu.topology/memory"),
        ({"mig_profile": "1g.5gb", "require_nvlink": "true"}, {"a": 1}, "contradicts gpu.topology/mig-profile"),
        ({"min_busbw": "100"}, {"a": HALF}, "contradicts the containers' limits, which request fractions of a GPU"),
        (
            {"share": "0.25"},
            {"a": HALF},
            "'0.25' contradicts container 'a', which requests 50 % of a GPU's compute. Write only one of",
        ),
        ({"share": "0.25"}, {"a": ("1g.5gb",)}, "contradicts container 'a', which requests MIG 1g.5gb"),
        ({"mig_profile": "1g.5gb"}, {"a": ("2g.10gb",)}, "contradicts container 'a', which requests MIG 2g.10gb"),
        (
            {},
            {"a": 1, "b": HALF},
            "(container 'a': 1 GPU, container 'b': 50 % of a GPU's compute). All containers of "
            "a pod must request whole",
        ),
        ({}, {"a": ("1g.5gb",), "b": HALF}, "se one pod for each kind"),
        ({}, {"a": ("1g.5gb",) * 20, "b": ("1g.5gb",) * 13}, "The pod requests 33 GPUs"),
        ({"mig_profile": "1g.5gb"}, {"a": 33}, "The pod requests 33 GPUs"),
    ],
)
def test_what_does_not_go_together_is_refused(words: dict[str, str], asks: dict[str, Asked], told: str) -> None:
    with pytest.raises(WordError) as refusal:
        Annotations(own(**words)).request(asks)
    assert told in str(refusal.value)


@pytest.mark.parametrize(
    ("amounts", "wanted"),
    [
        ({"nvidia_gpu": "4"}, 4),
        ({"nvidia_gpu": "1", "nvidia_gpumem": 3000, "nvidia_gpucores": 30}, Amount(30, 3000)),
        ({"nvidia_gpumem": "3000"}, Amount(0, 3000)),
        ({"nvidia_gpumem": "10Gi"}, Amount(0, 10240)),
        ({"nvidia_gpu-memory": "8Gi"}, Amount(0, 8192)),
        ({"nvidia_gpu-memory": 4096, "nvidia_gpucores": "25"}, Amount(25, 4096)),
        ({"nvidia_gpucores": 25}, Amount(25, 0)),
        ({"nvidia_gpucores": "0", "nvidia_gpumem": 0, "nvidia_gpu": 2}, 2),
        ({"aliyun_gpu-mem": 8}, Amount(0, 8192)),
        ({"aliyun_gpu-mem": "5.5", "aliyun_gpu-core.percentage": "25"}, Amount(25, 5632)),
        ({"aliyun_gpu-mem": 4096, "aliyun_gpu-core": 25}, Amount(25, 4096)),  # a cluster that counts in MiB
        ({"nvidia_mig-1g.5gb": 1}, ("1g.5gb",)),
        ({"nvidia_mig-3g.40gb": "1", "nvidia_mig-1g.10gb": "2"}, ("1g.10gb", "1g.10gb", "3g.40gb")),
        ({"nvidia_mig-1g.10gb.me": 1}, ("1g.10gb+me",)),
        ({"nvidia_mig-1g.24gb.me.all": 1}, ("1g.24gb+me.all",)),
        ({"nvidia_mig-1g.24gb-me": 1}, ("1g.24gb-me",)),
        ({"nvidia_mig-1g.10gb": 0}, 0),
        ({"example_gpu": "7", "nvidia_gpu": "0"}, 0),
        ({}, 0),
    ],
)
def test_limits_mean_what_they_mean_to_their_own_drivers(amounts: dict[str, object], wanted: Asked) -> None:
    assert (asked(**amounts) or 0) == wanted


@pytest.mark.parametrize(
    ("amounts", "told"),
    [
        ({"nvidia_gpu": 2, "nvidia_gpumem": 3000}, "nvidia.com/gpu: 2 contradicts 3000 MiB of a GPU"),
        ({"nvidia_gpu": 1, "nvidia_mig-1g.5gb": 1}, "MIG 1g.5gb contradicts 1 GPU. Write only one of the two"),
        ({"nvidia_gpumem": 1, "nvidia_mig-1g.5gb": 1}, "MIG 1g.5gb contradicts 1 MiB of a GPU"),
        ({"nvidia_gpumem": 1, "aliyun_gpu-mem": 1}, "several limits on a GPU's memory contradict each other"),
        ({"nvidia_gpucores": 10, "aliyun_gpu-core": 20}, "several limits on a GPU's compute"),
        ({"nvidia_gpucores": 101}, "nvidia.com/gpucores: '101' is not a percentage"),
        ({"nvidia_gpucores": "half"}, "is not a percentage"),
        ({"nvidia_gpumem": "-1"}, "nvidia.com/gpumem: '-1' is not an amount of GPU memory"),
        ({"nvidia_gpumem": "1E"}, "is not an amount of GPU memory"),
        ({"nvidia_gpu": "1500m"}, "nvidia.com/gpu: '1500m' is not a number of GPUs"),
        ({"nvidia_mig-1g": 1}, "'nvidia.com/mig-1g' is not a MIG resource. Write slices and memory"),
        ({"nvidia_mig-1g.5gb": 33}, "nvidia.com/mig-1g.5gb: '33' is not a number of GPUs"),
        ({"nvidia_vgpu": 1}, "nvidia.com/vgpu: '1': vGPUs are for virtual machines and need NVIDIA's licence server"),
    ],
)
def test_limits_that_cannot_be_meant_are_refused(amounts: dict[str, object], told: str) -> None:
    with pytest.raises(WordError) as refusal:
        asked(**amounts)
    assert WHERE in str(refusal.value)
    assert told in str(refusal.value)


RESOURCES = st.sampled_from(
    (
        "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpu-memory", "nvidia.com/gpucores", "aliyun.com/gpu-mem",
        "aliyun.com/gpu-core", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-", "nvidia.com/vgpu", "cpu",
    )
)  # fmt: skip
VALUES = st.integers(-1, 1 << 40) | st.integers(0, 40) | st.sampled_from(("1Gi", "0.5", "x", "", "9" * 400, "1e99"))


@given(st.dictionaries(RESOURCES, VALUES, max_size=4), st.sampled_from(({}, own(share="0.5"), own(policy="nvlink"))))
def test_any_limits_are_a_request_whose_note_is_read_back_or_are_refused(
    amounts: dict[str, Any], words: dict[str, str]
) -> None:
    try:
        found = container_limits.asked(WHERE, amounts)
        request = Annotations(words).request({"a": found} if found else {})
    except WordError as refusal:
        assert str(refusal).isprintable()
        assert len(str(refusal)) < 600
    else:
        noted = Resolved(containers=("a",), request=request)
        again = read({names.REQUEST: write(noted)})
        assert again == noted
        assert Annotations(words).request(again.asked) == request  # as when a copy of the pod is admitted
        assert count(again.asked["a"])
        assert described(again.asked["a"])


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"a": 4, "b": 1}, {"a": ("a",), "b": ("b",)}),
        ({"a": Amount(cores=25)}, {"a": ("a",)}),
        ({"a": ("1g.10gb",)}, {"a": ("a",)}),
        ({"a": ("1g.10gb",) * 2, "b": ("3g.40gb",)}, {"a": ("a-1", "a-2"), "b": ("b",)}),
        ({"a": ("1g.10gb",) * 2, "a-1": ("3g.40gb",)}, {"a": ("a-2", "a-3"), "a-1": ("a-1",)}),
    ],
)
def test_every_request_of_a_claim_has_a_name_of_its_own(
    asked: dict[str, Asked], wanted: dict[str, tuple[str, ...]]
) -> None:
    assert request_names(asked) == wanted


def test_long_names_of_containers_make_requests_that_are_labels_and_differ() -> None:
    long = ["x" * 58 + end for end in ("aaaaa", "bbbbb", "-1", "-3")]
    found = [name for own in request_names(dict.fromkeys(long, ("1g.10gb",) * 9)).values() for name in own]
    assert len(set(found)) == len(found) == 36
    assert all(re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) for name in found)


@pytest.mark.parametrize(
    ("amount", "memory_mib", "wanted"),
    [
        (Amount(cores=50), 81920, Amount(50, 40960)),
        (Amount(cores=25), 81559, Amount(25, 20389)),
        (Amount(memory_mib=10240), 81920, Amount(12, 10240)),
        (Amount(memory_mib=1), 81920, Amount(1, 1)),
        (Amount(cores=1), 50, Amount(1, 1)),
        (Amount(30, 3000), 81920, Amount(30, 3000)),
        (Amount(memory_mib=90000), 81920, Amount(109, 90000)),  # more than there is: does not fit
    ],
)
def test_an_amount_comes_to_percent_and_mib_of_a_gpu(amount: Amount, memory_mib: int, wanted: Amount) -> None:
    assert amount.of(memory_mib) == wanted


@given(st.integers(100, 300_000), st.integers(1, 100))
def test_equal_parts_fill_a_gpu_whenever_what_was_asked_does(memory_mib: int, parts: int) -> None:
    for amount in (Amount(cores=100 // parts), Amount(memory_mib=memory_mib // parts)):
        one = amount.of(memory_mib)
        assert one.cores * parts <= 100
        assert one.memory_mib * parts <= memory_mib
