"""The words of a pod: its annotations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.allocator.request import Constraint, Strategy, Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.pod.resolved import Resolved
from dradriver.api.vocabulary import annotation_words

FOUR = {"trainer": 4}


@pytest.mark.parametrize(
    ("words", "required", "preferred"),
    [
        ({"gpu.topology/policy": "nvlink"}, (Constraint.NVLINK,), ()),
        ({"gpu.topology/policy": "best-effort"}, (), ()),
        ({"gpu.topology/policy": "single-numa"}, (Constraint.SAME_NUMA,), ()),
        ({"gpu.topology/required": "nvlink-domain"}, (Constraint.NVLINK,), ()),
        ({"gpu.topology/required": "nvlink, same-numa"}, (Constraint.NVLINK, Constraint.SAME_NUMA), ()),
        ({"gpu.topology/require-nvlink": "true"}, (Constraint.NVLINK,), ()),
        ({"gpu.topology/require-nvlink": "false"}, (), ()),
        ({"gpu.topology/policy": "nvlink", "gpu.topology/required": "nvlink"}, (Constraint.NVLINK,), ()),
        (
            {"gpu.topology/preferred": "same-pcie-switch,same-numa"},
            (),
            (Constraint.SAME_PCIE_SWITCH, Constraint.SAME_NUMA),
        ),
        (
            {"gpu-topology.example.com/required": "nvlink-domain", "gpu-topology.example.com/preferred": "same-numa"},
            (Constraint.NVLINK,),
            (Constraint.SAME_NUMA,),
        ),
        ({"example.org/other": "x"}, (), ()),
    ],
)
def test_words(words: dict[str, str], required: tuple[Constraint, ...], preferred: tuple[Constraint, ...]) -> None:
    expected = Whole(containers=(4,), required=required, preferred=preferred)

    assert expected == Annotations(words).request(FOUR)


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ({"policy": "nvlink,pack"}, {"required": (Constraint.NVLINK,), "strategy": Strategy.PACK}),
        ({"policy": "best-effort, spread"}, {"strategy": Strategy.SPREAD}),
        ({"strategy": "first-fit"}, {"strategy": Strategy.FIRST_FIT}),
        ({"policy": "best-effort,pack", "strategy": "pack"}, {"strategy": Strategy.PACK}),
        ({"min-bandwidth": "100"}, {"min_bandwidth_gbps": 100.0}),
        ({"min-bandwidth": "37.5GB/s", "min-busbw": "40 GB/s"}, {"min_bandwidth_gbps": 37.5, "min_busbw_gbps": 40.0}),
        ({"product": "NVIDIA A100*"}, {"product": "NVIDIA A100*"}),
        ({"architecture": "hopper", "min-memory": "40Gi"}, {"architecture": "hopper", "min_memory_mib": 40960}),
        ({"min-memory": "40G"}, {"min_memory_mib": 38147}),
        ({"min-driver": "580.95.05", "min-cuda": " 12.4 "}, {"min_driver": "580.95.05", "min_cuda": "12.4"}),
        ({"max-cross-nvswitch-gpus": "0"}, {"max_cross_nvswitch_gpus": 0}),
        ({"prefer-same-numa": "true"}, {"prefer_same_numa": True}),
    ],
)
def test_words_of_kinds_and_figures(words: dict[str, str], fields: dict[str, Any]) -> None:
    parsed = Annotations({f"gpu.topology/{key}": value for key, value in words.items()}).request(FOUR)

    assert parsed == Whole(containers=(4,), **fields)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"gpu.topology/policy": "nvlink,pakc"}, "strategy (best-fit, pack, spread, first-fit)"),
        ({"gpu.topology/policy": "pack"}, "Write best-effort,pack"),
        ({"gpu.topology/policy": " spread "}, "Write best-effort,spread"),
        ({"gpu.topology/policy": "best-effort,pack", "gpu.topology/strategy": "spread"}, "'spread' contradicts"),
        ({"gpu.topology/strategy": "packed"}, "did you mean pack?"),
        ({"gpu.topology/min-bandwidth": "100Gb/s"}, "Write a number of GB/s above zero, for example 100 or 100GB/s"),
        ({"gpu.topology/min-busbw": "0"}, "above zero"),
        ({"gpu.topology/min-busbw": "1e3"}, "not a bandwidth"),
        ({"gpu.topology/product": ""}, "not the name of a GPU product"),
        ({"gpu.topology/product": "A100' || true"}, "not the name of a GPU product"),
        ({"gpu.topology/product": "A" * 101}, "not the name of a GPU product"),
        ({"gpu.topology/product": "A\n100"}, "not the name of a GPU product"),
        ({"gpu.topology/architecture": "hop,per"}, "Write one name, for example hopper"),
        ({"gpu.topology/min-memory": "forty"}, "gpu.topology/min-memory: 'forty' is not an amount of GPU memory"),
        ({"gpu.topology/min-memory": "80"}, "at least 1Mi, for example 40Gi"),
        (
            {"gpu.topology/min-driver": "R580"},
            "'R580' is not a driver version. Write it as nvidia-smi prints it, for example 580",
        ),
        (
            {"gpu.topology/min-cuda": "12.x"},
            "'12.x' is not a CUDA version. Write it as nvidia-smi prints it, for example 12.4",
        ),
        ({"gpu.topology/max-cross-nvswitch-gpus": "-1"}, "from 0 to 99"),
        ({"gpu.topology/prefer-same-numa": "yes"}, "Write one of: true, false"),
        ({"gpu.topology/nccl": "on"}, "Write one of: auto, file, env, near-nics, off"),
        ({"gpu.topology/polcy": "nvlink"}, "did you mean gpu.topology/policy?"),
        (
            {"gpu.topology/policy": "nvlnk"},
            "'nvlnk' is not a known policy (did you mean nvlink?). Write one of: best-effort, nvlink",
        ),
        ({"gpu.topology/required": ""}, "gpu.topology/required: '' is not allowed"),
        ({"gpu.topology/required": "nvlink,,same-numa"}, "''"),
        ({"gpu.topology/preferred": "Same-Numa"}, "did you mean same-numa?"),
        ({"gpu.topology/required": "NVLINK"}, "did you mean nvlink?"),
        ({"gpu.topology/policy": "NVLink"}, "did you mean nvlink?"),
        ({"gpu.topology/polcy": "nvlink"}, "is unknown (did you mean gpu.topology/policy?). Known annotations:"),
        (
            {"gpu.topology/idle-timeout": "30"},
            "'30' is not a duration. Write hours, minutes and seconds, for example 30m or 1h30m",
        ),
        ({"gpu.topology/idle-timeout": "0s"}, "not a duration"),
        ({"gpu.topology/require-nvlink": "yes"}, "Write one of: true, false"),
        ({"gpu.topology/gpus": "four"}, "Write a whole number from 1 to 32"),
        ({"gpu.topology/gpus": "²"}, "Write a whole number"),
        ({"gpu.topology/gpus": "9" * 100}, "Write a whole number"),
        ({"gpu.topology/min-memory": "9" * 250}, "is not an amount of GPU memory"),
        ({"gpu.topology/min-memory": "1e99"}, "is not an amount of GPU memory"),
        ({"gpu.topology/min-memory": "٤Gi"}, "is not an amount of GPU memory"),
        ({"gpu.topology/min-memory": "NaN"}, "is not an amount of GPU memory"),
        ({"gpu.topology/min-busbw": "1" + "\x00"}, "is not a bandwidth"),
        ({"gpu.topology/gpus": "2"}, "contradicts the containers' limits, which request 4"),
        ({"gpu-topology.example.com/policy": "nvlink"}, "unknown"),
        (
            {"gpu.topology/required": "nvlink", "gpu-topology.example.com/required": "same-numa"},
            "gpu-topology.example.com/required: 'same-numa' contradicts gpu.topology/required: 'nvlink'",
        ),
        (
            {"gpu-topology.example.com/required": "same-numa", "gpu.topology/required": "nvlink"},
            "gpu-topology.example.com/required: 'same-numa' contradicts gpu.topology/required: 'nvlink'",
        ),
    ],
)
def test_refused_with_what_to_write_instead(words: dict[str, str], message: str) -> None:
    with pytest.raises(WordError) as refusal:
        Annotations(words).request(FOUR)

    assert message in str(refusal.value)
    assert next(iter(words)) in str(refusal.value) or "gpu.topology/" in str(refusal.value)


def test_a_wish_without_gpus_says_where_to_ask_for_them() -> None:
    with pytest.raises(WordError, match=r"limit nvidia\.com/gpu: <count>"):
        Annotations({"gpu.topology/policy": "nvlink"}).request({})


def test_more_gpus_than_a_claim_holds() -> None:
    with pytest.raises(WordError, match="at most 32"):
        Annotations({}).request({"a": 20, "b": 20})


def test_the_pods_containers_keep_their_order() -> None:
    assert Annotations({}).request({"b": 2, "a": 1}) == Whole(containers=(2, 1))


def test_results_and_notes_are_no_wishes() -> None:
    words = dict.fromkeys((*names.RESULTS, *names.FORMER_RESULTS, *names.NOTES), "anything")

    assert Whole(containers=(4,)) == Annotations(words).request(FOUR)


@pytest.mark.parametrize("key", [*annotation_words.KEYS, names.ALIAS_PREFIX + "required"])
def test_a_long_value_is_refused_before_it_is_read(key: str) -> None:
    for text in ("9" * 257, "9" * 5000, "nvlink," * 10_000):
        with pytest.raises(
            WordError,
            match=rf"^{key}: the value has {len(text)} characters\. At most 256 are "
            rf"allowed\.$",
        ):
            Annotations({key: text}).request(FOUR)


def test_words_are_checked_without_containers() -> None:
    Annotations({names.GPUS: "3", names.POLICY: "nvlink"}).check()
    with pytest.raises(WordError, match="did you mean nvlink"):
        Annotations({names.POLICY: "nvlnk"}).check()


# What trips readers of numbers: digits of other scripts, exponents, what is no number, halves of characters, signs.
ODD = st.text(alphabet="0123456789.eE+-kKMGTPi٣²½\ud800\x00\n\u202e GBs/nan∞", max_size=300) | st.text(max_size=300)


@given(
    st.dictionaries(st.sampled_from([*annotation_words.KEYS, names.PREFIX + "x", names.ALIAS_PREFIX + "required"]), ODD)
)
def test_any_text_is_read_or_refused_on_one_line(words: dict[str, str]) -> None:
    try:
        request = Annotations(words).request(FOUR)
    except WordError as refusal:
        assert str(refusal).isprintable()
        assert len(str(refusal)) < 1500
    else:
        noted = {names.REQUEST: resolved.write(Resolved(containers=tuple(FOUR), request=request))}
        assert resolved.read(noted).request == request


@pytest.mark.parametrize(
    ("key", "ours"),
    [("gpu.topology/x", True), ("gpu-topology.example.com/x", True), ("gpu.topology", False)],
)
def test_a_key_is_ours_by_its_prefix(key: str, ours: bool) -> None:
    assert names.is_ours(key) is ours
