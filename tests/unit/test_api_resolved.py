"""The note of the resolved request: what the webhook writes is read back, and what it never writes is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.allocator.request import Constraint, Weights
from dradriver.api import names, resolved, values
from dradriver.api.errors import WordError
from dradriver.api.resolved import Resolved

GOOD = resolved.resolve({names.POLICY: "nvlink,pack", names.MIN_MEMORY: "40Gi"}, {"main": 2, "side": 1})


def test_a_note_is_read_back() -> None:
    assert resolved.read({names.REQUEST: resolved.write(GOOD)}) == GOOD


def test_a_note_is_plain_json_with_its_version() -> None:
    plain = msgspec.json.decode(resolved.write(GOOD))
    assert (plain["version"], plain["containers"]) == (1, {"main": 2, "side": 1})
    assert plain["request"]["required"] == ["nvlink"]


@pytest.mark.parametrize(("words", "said"), [({}, None), ({names.NCCL: "auto"}, None), ({names.NCCL: "off"}, "off")])
def test_what_nccl_is_told_is_noted_where_the_author_says_it(words: dict[str, str], said: str | None) -> None:
    note = resolved.write(resolved.resolve(words, {"main": 1}))
    assert msgspec.json.decode(note).get("nccl") == said
    assert resolved.read({names.REQUEST: note}).nccl == (said or msgspec.UNSET)


def test_a_note_with_something_else_for_nccl_is_refused() -> None:
    note = resolved.write(GOOD).replace('"version":1', '"version":1,"nccl":"x\\n"')
    with pytest.raises(WordError, match="it has something for NCCL that is none"):
        resolved.read({names.REQUEST: note})


def test_a_missing_note_is_said() -> None:
    with pytest.raises(WordError, match="missing; create the pod anew"):
        resolved.read({})


@pytest.mark.parametrize(
    "changes",
    [
        {"containers": (3,)},
        {"min_busbw_gbps": -1.0},
        {"min_memory_mib": -1},
        {"min_memory_mib": values.MOST_MEMORY_MIB + 1},
        {"max_cross_nvswitch_gpus": 100},
        {"product": "A100' || true"},
        {"architecture": "hop'per"},
        {"required": (Constraint.NVLINK,) * 5},
        {"include": (0,)},
        {"exclude": (7,)},
        {"weights": Weights(nvlink=1)},
    ],
)
def test_a_request_that_no_words_give_is_refused(changes: dict[str, Any]) -> None:
    note = resolved.write(msgspec.structs.replace(GOOD, request=msgspec.structs.replace(GOOD.request, **changes)))
    with pytest.raises(WordError, match=r"was changed: .*; create the pod anew"):
        resolved.read({names.REQUEST: note})


@pytest.mark.parametrize(
    "counts", [{}, {"main": 0, "side": 3}, {"main": -1, "side": 4}, {"main": 33}, {"a": 1, "b": 2}]
)
def test_counts_that_are_none_or_not_the_requests_are_refused(counts: dict[str, int]) -> None:
    note = resolved.write(msgspec.structs.replace(GOOD, containers=counts))
    with pytest.raises(WordError, match="no number of GPUs"):
        resolved.read({names.REQUEST: note})


@pytest.mark.parametrize("text", ["", "null", "[" * 100_000, "\ud800", "x" * 20_000, '{"version":2}', "1e999"])
def test_a_hostile_note_is_refused(text: str) -> None:
    with pytest.raises(WordError, match="create the pod anew"):
        resolved.read({names.REQUEST: text})


def test_a_refusal_shows_little_of_a_hostile_note() -> None:
    with pytest.raises(WordError) as refusal:
        resolved.read({names.REQUEST: '{"' + "\\n\u202e" * 2000 + '":1}'})
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 300


@given(st.text(max_size=200))
def test_any_note_is_read_or_refused(text: str) -> None:
    try:
        found = resolved.read({names.REQUEST: text})
    except WordError as refusal:
        assert names.REQUEST in str(refusal)
    else:
        assert isinstance(found, Resolved)
