"""Quantities, opaque configuration, affinity, results."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import jsonpatch
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kubernetes.utils import parse_quantity

from dradriver.api.base import affinity, names, quantity
from dradriver.api.base.errors import WordError
from dradriver.api.base.jsonpatch import Patch
from dradriver.api.base.pods import NodeSelector, Pod
from dradriver.api.claims import opaque_config

UUID = "GPU-01234567-89ab-cdef-0123-456789abcdef"
SUFFIXES = ["", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "n", "u", "e3", "E2"]


@given(st.decimals(0, 10**6, places=3), st.sampled_from(SUFFIXES))
@example(Decimal("0.5"), "")
@example(Decimal("1.5"), "Gi")
def test_quantities_agree_with_the_official_client(number: Decimal, suffix: str) -> None:
    text = f"{number}{suffix}"
    expected = parse_quantity(text)

    assert quantity.whole(text) == expected.to_integral_value(rounding="ROUND_CEILING")
    assert quantity.milli(text) == (expected * 1000).to_integral_value(rounding="ROUND_CEILING")


@pytest.mark.parametrize("text", ["", "four", "1 Gi", "1gi", "--1", "1e999", "٣", "1Kib", "9" * 5000, "1e999999"])
def test_no_quantity(text: str) -> None:
    with pytest.raises(WordError, match="Write a number"):
        quantity.whole(text)


def test_config_round_trip() -> None:
    made = opaque_config.make({"trainer": [UUID]}, ["NCCL_ALGO"])

    for form in (made, json.dumps(made).encode(), msgspec.Raw(json.dumps(made).encode())):
        assert opaque_config.read(form).order == {"trainer": [UUID]}
        assert opaque_config.read(form).keep_env == ["NCCL_ALGO"]
        assert opaque_config.read(form).nccl == "auto"


def test_what_nccl_is_told_stands_in_a_configuration_only_where_it_is_said() -> None:
    sorted_by_the_server = opaque_config.make({"b": [UUID], "a": [UUID]}, [], "env")
    assert json.dumps(sorted_by_the_server) == json.dumps(sorted_by_the_server, sort_keys=True)
    assert "nccl" not in opaque_config.make({}, [])  # agents of before that field take what has it for a mistake
    assert opaque_config.read(opaque_config.make({}, [], "env")).nccl == "env"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "GpuConfig"}, "Write apiVersion: gpu.topology/v1alpha1, kind: ClaimConfig"),
        ({"apiVersion": "gpu.topology/v9"}, "is unknown"),
        ({"sharing": {}}, r"unknown field `sharing`. Known fields: apiVersion, kind, order, keepEnv, nccl, mig\.$"),
        ({"ncl": "off"}, r"\(did you mean nccl\?\)\.$"),
        (
            {"mig": {"a": {"profile": "1g.10gb", "start": {}}}},
            r"Known fields: profile, starts \(did you mean "
            r"starts\?\)\.$",
        ),
        ({"order": {"a": ["0"]}}, "Write the uuid attributes of the devices"),
        ({"order": {"a": ["GPU 0"]}}, "Write the uuid attributes of the devices"),
        ({"order": 3}, "order"),
        ({"nccl": "on"}, "nccl: 'on' is not allowed. Write one of: auto, file, env, near-nics, off"),
    ],
)
def test_config_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(WordError, match=message):
        opaque_config.read(opaque_config.make({}, []) | change)


@given(st.binary(max_size=100))
def test_any_config_is_read_or_refused(text: bytes) -> None:
    with pytest.raises(WordError):
        opaque_config.read(text)


def gated(spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "p", "annotations": {}}, "spec": spec}


def terms(pod: dict[str, Any]) -> list[dict[str, Any]]:
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    found: list[dict[str, Any]] = required["nodeSelectorTerms"]
    return found


def typed(pod: dict[str, Any]) -> Pod:
    return msgspec.convert(pod, Pod)


def narrowed_to_hosts(pod: dict[str, Any]) -> dict[str, Any]:
    patch = Patch()
    affinity.narrow(typed(pod), HOSTS, patch)
    made: dict[str, Any] = jsonpatch.apply_patch(pod, patch.ops)
    return made


HOSTS = {"n1": "host1", "n2": "host2"}
PREFERRED = [{"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"affinity": {"podAntiAffinity": {}}},
        {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": PREFERRED}}},
    ],
)
def test_a_pod_without_required_affinity_gets_one_term_a_node(spec: dict[str, Any]) -> None:
    pod = gated(spec)
    narrowed = narrowed_to_hosts(pod)

    assert terms(narrowed) == [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in HOSTS
    ]
    for key, value in spec.get("affinity", {}).items():
        assert value.items() <= narrowed["spec"]["affinity"][key].items()


def test_every_term_of_the_author_is_tightened_and_none_added() -> None:
    mine = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]},
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": mine}}
    pod = gated({"affinity": {"nodeAffinity": required}})
    narrowed = narrowed_to_hosts(pod)
    host = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["host1", "host2"]}

    assert terms(narrowed) == [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}, host]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}], "matchExpressions": [host]},
    ]


@pytest.mark.parametrize(
    "required",
    [
        None,
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]},
        {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]},
    ],
)
def test_a_copy_of_a_narrowed_pod_gets_its_affinity_back(required: dict[str, Any] | None) -> None:
    own = {"requiredDuringSchedulingIgnoredDuringExecution": required} if required else {}
    pod = gated({"affinity": {"nodeAffinity": own}})
    narrowed = narrowed_to_hosts(pod)
    noted = affinity.note(typed(pod))
    written = {names.ALLOCATED: "GPU-1"} | ({} if noted is None else {names.AFFINITY: noted})
    assert affinity.is_narrowed(written, affinity.required(typed(narrowed)))
    selector = affinity.authors(written)
    back = Patch()
    members = narrowed["spec"]["affinity"]
    affinity.put_required(back, members, members["nodeAffinity"], selector and affinity.plain(selector))
    restored = jsonpatch.apply_patch(narrowed, back.ops)

    assert restored["spec"] == ({"affinity": {"nodeAffinity": own}} if own else {})


@pytest.mark.parametrize("spec", [{}, {"affinity": {}}, {"affinity": {"podAffinity": {}, "nodeAffinity": {}}}])
def test_an_affinity_is_put_where_no_affinity_exists_and_taken_away_with_what_is_left_empty(
    spec: dict[str, Any],
) -> None:
    def put(pod: dict[str, Any], value: object) -> dict[str, Any]:
        patch = Patch()
        members = pod["spec"].get("affinity")
        affinity.put_required(patch, members, (members or {}).get("nodeAffinity"), value)
        made: dict[str, Any] = jsonpatch.apply_patch(pod, patch.ops)
        return made

    pod = gated(spec)
    assert put(pod, None) == pod
    made = put(pod, {"nodeSelectorTerms": [{}]})
    assert terms(made) == [{}]
    assert put(made, None)["spec"] == {k: {"podAffinity": {}} for k, v in spec.items() if "podAffinity" in v}


@given(st.text(max_size=60))
def test_any_affinity_note_is_read_or_refused(text: str) -> None:
    try:
        selector = affinity.read_note(text)
    except WordError as refusal:
        assert names.AFFINITY in str(refusal)
    else:
        assert selector == msgspec.json.decode(text, type=NodeSelector | None)


@pytest.mark.parametrize("text", ["\ud800", "[" * 100_000, "9" * 300_000])
def test_a_hostile_affinity_note_is_refused(text: str) -> None:
    with pytest.raises(WordError, match="Remove it"):
        affinity.read_note(text)
