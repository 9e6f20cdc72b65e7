"""Every word is declared once, and what follows from that."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from dradriver.allocator.request import Mig, Share, Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.vocabulary import annotation_words, container_requests
from dradriver.api.vocabulary.annotation_words import About, Values, Word

# A text that each word with a form takes.
TAKEN = {
    names.POLICY: "nvlink", names.REQUIRED: "nvlink,same-numa", names.PREFERRED: "same-numa", names.GPUS: "4",
    names.MIN_BANDWIDTH: "25", names.MIN_BUSBW: "100GB/s", names.PRODUCT: "NVIDIA H100*", names.ARCHITECTURE: "hopper",
    names.MIN_MEMORY: "40Gi", names.MIN_DRIVER: "580.95", names.MIN_CUDA: "12.4", names.MAX_CROSS_NVSWITCH: "2",
    names.SHARE: "0.5", names.SHARE_MEMORY: "10Gi", names.SHARE_CORES: "25", names.MIG_PROFILE: "1g.10gb",
    names.WORKLOAD: "inference", names.CLAIM: "gpus", names.SHARED_CLAIM: "duo", names.IDLE_TIMEOUT: "30m",
    names.MAX_DURATION: "90m",
    names.GANG: "train-1", names.GANG_SIZE: "8", names.MAX_NODES: "2", names.MIN_GPUS_PER_NODE: "4",
    names.MIN_NETWORK_BANDWIDTH: "50", names.MULTI_NODE_POLICY: "pack", names.NEAR: "preferred leaf",
}  # fmt: skip
# What a damaged note could say of a field, and no word does.
UNFIT = {
    "min_bandwidth_gbps": -1.0, "min_busbw_gbps": -0.5, "product": "'", "architecture": "a'b", "min_memory_mib": -1,
    "min_driver": "R580", "min_cuda": " 12", "max_cross_nvswitch_gpus": 100, "required": ("nvlink",) * 9,
    "preferred": ("same-numa",) * 9, "vendor": "intel", "near_nic": "near",
}  # fmt: skip


class Counted(dict[str, str]):
    """Texts of annotations that count how often each is looked up."""

    def __init__(self, texts: dict[str, str]) -> None:
        super().__init__(texts)
        self.looked_up: Counter[str] = Counter()

    def __getitem__(self, key: str) -> str:
        self.looked_up[key] += 1
        return super().__getitem__(key)


def fields(form: type[msgspec.Struct]) -> set[str]:
    return {field.name for field in msgspec.structs.fields(form)}


def test_no_word_is_declared_twice() -> None:
    assert len(annotation_words.BY_KEY) == len(annotation_words.EVERY)


@pytest.mark.parametrize("word", annotation_words.EVERY, ids=lambda word: word.name)
def test_a_word_gives_a_value_that_its_note_may_have(word: Word) -> None:
    for text in word.choices or (TAKEN[word.key],):
        value = word.read(word.key, text)
        assert word.holds(value)
        if word.field and word.about is not About.GANG:
            field = {word.field: value}
            asked = Whole(containers=(1,), **field) if word.field in fields(Whole) else None
            assert asked is not None
            assert annotation_words.unfit(asked) is None


def test_a_text_is_read_once() -> None:
    texts = Counted({names.GPUS: "4", names.SHARE: "half"})
    values = Values(texts)
    assert [values.get(names.GPUS), values.get(names.GPUS), values.get(names.NCCL)] == [4, 4, None]
    with pytest.raises(WordError, match="'half' is not a share"):
        values.get(names.SHARE)
    assert texts.looked_up == {names.GPUS: 1, names.SHARE: 1}


def test_what_is_said_of_each_gpu_can_be_said_of_parts_and_nothing_else() -> None:
    common = fields(Whole) & fields(Share) & fields(Mig)
    assert common == container_requests.COMMON
    assert {word.field for word in annotation_words.EVERY if word.about is About.GANG} == fields(Gang)


@pytest.mark.parametrize(
    "field", sorted({word.field for word in annotation_words.OF_REQUESTS} - {"strategy", "prefer_same_numa"})
)
def test_a_note_that_says_what_no_word_can_is_refused(field: str) -> None:
    note = msgspec.json.decode(resolved.write(resolved.resolve(Annotations({}), {"main": 4})))
    note["request"][field] = UNFIT[field]
    with pytest.raises(WordError, match=r"was changed: .* Delete the pod and create it again"):
        resolved.read({names.REQUEST: msgspec.json.encode(note).decode()})


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ({}, 2),
        ({names.MIN_DRIVER: "580"}, 3),
        ({names.MIN_CUDA: "12"}, 3),
        ({names.NEAR_NIC: "preferred"}, 6),
        ({names.GANG: "auto", names.GANG_SIZE: "8", names.MAX_NODES: "2"}, 2),
        ({names.GANG: "auto", names.MIN_CUDA: "12"}, 3),
        ({names.GANG_SIZE: "4-8"}, 4),
        ({names.NEAR: "leaf"}, 4),
        ({names.ON_MEMBER_LOSS: "restart", names.MIN_CUDA: "12"}, 4),
        ({names.ON_MEMBER_LOSS: "replace", names.MIN_CUDA: "12"}, 3),
        ({names.ON_MEMBER_LOSS: "replace"}, 2),
    ],
)
def test_a_note_has_the_version_of_the_newest_word_in_it(said: dict[str, str], version: int) -> None:
    assert resolved.resolve(Annotations(said), {"main": 4}).version == version
