"""What is forgiven in the API server's JSON, and what is known of an object that cannot be read whole."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.api.base.objects import Metadata
from dradriver.api.claims.pins import Claim
from dradriver.kube import codec

METADATA = {"name": "c", "namespace": "a", "uid": "u"}


class Kept(msgspec.Struct):
    metadata: Metadata
    text: str = ""
    raw: msgspec.Raw = msgspec.Raw(b"")


def decode(text: str | bytes, kind: Any = Kept) -> Any:
    return codec.decode(text.encode() if isinstance(text, str) else text, kind)


@pytest.mark.parametrize(
    ("escapes", "read"),
    [
        (r"\ud800", "\ufffd"),
        (r"\uD800x", "\ufffdx"),
        (r"\udfff", "\ufffd"),
        (r"\uDc00\uDc00", "\ufffd\ufffd"),
        (r"\ud83d\ude00", "\U0001f600"),
        (r"\ud83d\ude00\ud83d", "\U0001f600\ufffd"),
        (r"\ud800\ud83d\ude00", "\ufffd\U0001f600"),
        (r"\\ud800\ud800", "\\ud800\ufffd"),
        (r"\\\ud800", "\\\ufffd"),
        (r"\\ud83d\ude00", "\\ud83d\ufffd"),
        (r"\\\\\ud83d\ude00\ud83d", "\\\\\U0001f600\ufffd"),
    ],
)
def test_half_a_surrogate_pair_is_read_as_go_reads_it(escapes: str, read: str) -> None:
    broken = r"\udc00"  # so that the text itself is never whole
    text = '{"text":"' + escapes + '","metadata":{},"a":"' + broken + '"}'
    assert decode(text).text == read
    assert json.loads(bytes(decode('{"raw":["' + escapes + '"],"metadata":{},"a":"' + broken + '"}').raw)) == [read]


@pytest.mark.parametrize("where", ['{"%s":1}', '["%s"]', '{"a":{"b":["%s"]}}'])
def test_half_a_pair_in_what_is_skipped_hides_nothing(where: str) -> None:
    found = decode('{"skipped":' + where % r"\ud800" + ',"metadata":{"name":"c"}}')
    assert found.metadata.name == "c"


def test_bytes_that_are_no_text_are_read_as_go_reads_them() -> None:
    assert decode(b'{"metadata":{"name":"c"},"text":"a\xffb"}').text == "a\ufffdb"


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": None},
        {"spec": {"devices": None}},
        {"spec": {"devices": {"requests": None, "config": None}}},
        {"spec": {"devices": {"requests": [{"exactly": {"selectors": None, "capacity": None}}]}}},
        {"status": None},
        {"status": {"allocation": None, "reservedFor": None, "devices": None}},
        {"status": {"allocation": {"devices": None}}},
        {"status": {"allocation": {"devices": {"results": None, "config": [{"requests": None, "opaque": None}]}}}},
        {
            "metadata": METADATA
            | {"labels": None, "annotations": None, "ownerReferences": None, "creationTimestamp": None}
        },
    ],
    ids=str,
)
def test_null_is_nothing(changes: Any) -> None:
    found = decode(json.dumps({"metadata": METADATA} | changes), Claim)
    assert found.metadata.name == "c"
    assert not found.results


def test_null_for_a_whole_object_is_an_empty_one() -> None:
    assert decode("null", dict[str, str]) == {}


def test_what_cannot_be_read_costs_nothing_else() -> None:
    results = [{"driver": "gpu.topology", "device": "gpu-1"}, 7, {"driver": "gpu.topology", "device": ["gpu-2"]}]
    claim = {"metadata": METADATA, "status": {"allocation": {"devices": {"results": results}}, "reservedFor": 5}}
    with pytest.raises(codec.BadJson) as raised:
        decode(json.dumps(claim), ResourceClaim)

    assert [result.device for result in raised.value.rest.results] == ["gpu-1", ""]
    assert raised.value.rest.metadata.uid == "u"
    for place in ("devices.results[1]", "devices.results[2].device", "status.reservedFor"):
        assert place in str(raised.value)


@pytest.mark.parametrize("text", ["", "<html>", "[", "5", '"x"', "{}", '{"metadata":[]}', "null"])
def test_without_what_it_must_have_nothing_is_known(text: str) -> None:
    with pytest.raises(codec.BadJson) as raised:
        decode(text)
    assert raised.value.rest is None


def test_an_error_names_few_places() -> None:
    claim = {"metadata": METADATA, "status": {"reservedFor": [7] * 1000}}
    with pytest.raises(codec.BadJson, match="and 996 more") as raised:
        decode(json.dumps(claim), ResourceClaim)
    assert len(str(raised.value)) < 500


def test_a_part_is_kept_and_said_to_be_one() -> None:
    with pytest.raises(codec.PartlyRead) as raised:
        codec.decode_part(b'{"metadata":{"name":"c"},"text":5}', Kept, lambda one: one.metadata.name)
    assert raised.value.kept == "c"
    assert codec.decode_part(b'{"metadata":{"name":"c"}}', Kept, lambda one: one.metadata.name) == "c"


def test_what_is_written_has_no_half_of_a_letter() -> None:
    value = {"a\ud83d": ["\udc00", ("\ud83d\ude00", 1, None, True)], "raw": msgspec.Raw(b"[1]")}
    assert json.loads(codec.encode(value)) == {"a\ufffd": ["\ufffd", ["\U0001f600", 1, None, True]], "raw": [1]}
    assert codec.encode({"b": "\xe9"}) == '{"b":"\xe9"}'.encode()
