"""Requests as claims that the scheduler fills by itself."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from dradriver.allocator.request import Amount
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.claims import exclusive
from dradriver.api.pod import claim_alternatives, resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.vocabulary.container_requests import Asked
from tests import schema
from tests.fakes.admission import NVLINK

Object = dict[str, Any]
P = names.PREFIX


def built(words: dict[str, str], asked: dict[str, Asked] | None = None) -> Object:
    """The devices of such a claim, valid for every server that we know."""
    found = resolved.resolve(Annotations({P + key: text for key, text in words.items()}), asked or {"main": 4})
    spec = claim_alternatives.spec(found)
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "x"}, "spec": spec}
    schema.check(claim, minors=("1.34", "1.36", "1.37"))
    devices: Object = spec["devices"]
    return devices


def rungs(devices: Object) -> list[tuple[str, str | None]]:
    """The alternatives of the only request, with the attribute that each matches."""
    (request,) = devices["requests"]
    scoped = {one["requests"][0]: one["matchAttribute"] for one in devices.get("constraints", ())}
    return [(sub["name"], scoped.get(f"{request['name']}/{sub['name']}")) for sub in request["firstAvailable"]]


def hard(devices: Object) -> list[str]:
    assert all("exactly" in request for request in devices["requests"])
    return [one["matchAttribute"] for one in devices.get("constraints", ())]


def test_the_best_set_that_is_free_is_a_ladder() -> None:
    devices = built({"policy": "best-effort"})
    assert rungs(devices) == [
        ("nvlink", "gpu.topology/nvlinkGroup4"),
        ("same-numa", "resource.kubernetes.io/numaNode"),
        ("any", None),
    ]
    for rung in devices["requests"][0]["firstAvailable"]:
        assert (rung["count"], rung["deviceClassName"]) == (4, "gpu.topology")


@pytest.mark.parametrize(
    ("gpus", "attribute"),
    [(2, "nvlinkGroup2"), (3, "nvlinkGroup4"), (4, "nvlinkGroup4"), (5, "nvlinkGroup8"), (9, "nvlinkDomain")],
)
def test_a_hard_wish_is_a_constraint_of_one_exact_request(gpus: int, attribute: str) -> None:
    devices = built({"policy": "nvlink"}, {"main": gpus})
    assert hard(devices) == [f"gpu.topology/{attribute}"]
    assert devices["requests"][0]["exactly"]["count"] == gpus


@pytest.mark.parametrize(("gpus", "group"), [(2, 0), (3, 4), (4, 0), (5, 8), (7, 8), (8, 0), (9, 0)])
def test_of_a_larger_group_each_two_must_have_a_link(gpus: int, group: int) -> None:
    told = [f'device.attributes["gpu.topology"].?nvlinkGroup{group}AnyGBps.orValue(0) >= 1'] if group else []
    assert selectors(built({"policy": "nvlink"}, {"main": gpus})) == told


def test_one_gpu_needs_no_company() -> None:
    assert hard(built({"policy": "nvlink", "preferred": "same-numa", "min-bandwidth": "50"}, {"main": 1})) == []


def test_preferences_stand_in_their_order_and_what_is_required_is_no_rung() -> None:
    devices = built({"required": "nvlink", "preferred": "same-pcie-root, nvlink, same-numa"})
    assert rungs(devices) == [
        ("same-pcie-root", "resource.kubernetes.io/pcieRoot"),
        ("same-numa", "resource.kubernetes.io/numaNode"),
        ("any", None),
    ]
    assert {"requests": ["main"], "matchAttribute": "gpu.topology/nvlinkGroup4"} in devices["constraints"]


def test_containers_have_requests_of_their_own_and_constraints_hold_over_all() -> None:
    devices = built({"preferred": "nvlink"}, {"a": 1, "b": 3})
    assert [(one["name"], one["firstAvailable"][0]["count"]) for one in devices["requests"]] == [("a", 1), ("b", 3)]
    assert devices["constraints"] == [
        {"requests": ["a/nvlink", "b/nvlink"], "matchAttribute": "gpu.topology/nvlinkGroup4"}
    ]


def selectors(devices: Object) -> list[str]:
    (request,) = devices["requests"]
    (one,) = [request["exactly"]] if "exactly" in request else request["firstAvailable"][:1]
    return [selector["cel"]["expression"] for selector in one.get("selectors", ())]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"product": "NVIDIA H100 80GB HBM3"}, '.productName == "NVIDIA H100 80GB HBM3"'),
        ({"product": "NVIDIA A100*(?.)"}, r'.productName.matches("^NVIDIA\\ A100.*\\(.\\.\\)$")'),
        ({"architecture": "Hopper"}, '.architecture.lowerAscii() == "hopper"'),
        ({"min-memory": "40Gi"}, '.compareTo(quantity("40960Mi")) >= 0'),
        ({"min-driver": "580.65.06"}, '.driverVersion.compareTo(semver("580.65.6")) >= 0'),
        ({"min-cuda": "12.4"}, '.cudaDriverVersion.compareTo(semver("12.4.0")) >= 0'),
        ({"min-bandwidth": "50.5"}, ".?nvlinkGroup4GBps.orValue(0) >= 51"),
    ],
)
def test_kinds_of_gpus_are_selectors(words: dict[str, str], told: str) -> None:
    (text,) = selectors(built({"policy": "nvlink"} | words))
    assert told in text


def test_functions_work_on_texts_whose_length_the_server_knows() -> None:
    """What ``?.`` gives may be of any length to it, and what works on that costs too much for any claim (1.36.3)."""
    for text in selectors(built({"product": "A*", "architecture": "hopper"})):
        assert text.startswith('has(device.attributes["gpu.topology"].')
        assert "orValue" not in text


def test_a_share_says_both_of_its_amounts() -> None:
    devices = built({"cores": "25", "memory": "10Gi"}, {"main": 1})
    assert devices["requests"][0]["exactly"]["capacity"] == {"requests": {"cores": "25", "memory": "10240Mi"}}
    assert devices["requests"][0]["exactly"]["deviceClassName"] == "share.gpu.topology"
    assert devices["requests"][0]["exactly"]["selectors"] == [{"cel": {"expression": exclusive.ELSEWHERE}}]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"min-busbw": "50"}, "Write gpu.topology/min-bandwidth"),
        ({"max-cross-nvswitch-gpus": "1"}, "Write gpu.topology/required: nvlink"),
        ({"required": "same-pcie-switch"}, "Write same-pcie-root"),
        ({"preferred": "same-pcie-switch"}, "Write same-pcie-root"),
        ({"product": "A[14]0"}, "reads only * and ?"),
    ],
)
def test_what_no_claim_can_say_is_refused(words: dict[str, str], told: str) -> None:
    with pytest.raises(WordError) as raised:
        built(words)
    assert told in str(raised.value)


@pytest.mark.parametrize("words", [{"share": "0.5"}, {"memory": "10Gi"}, {"mig-profile": "1g.10gb"}])
def test_parts_that_depend_on_the_gpu_are_refused(words: dict[str, str]) -> None:
    with pytest.raises(WordError):
        built(words, {"main": 1})


def test_bandwidth_among_more_gpus_than_a_group_has_is_refused() -> None:
    with pytest.raises(WordError, match="min-bandwidth of 9 GPUs"):
        built({"min-bandwidth": "50"}, {"main": 9})


def test_nccl_and_variables_are_in_the_configuration() -> None:
    found = resolved.resolve(Annotations(NVLINK | {names.NCCL: "off"}), {"main": 2})
    (entry,) = claim_alternatives.spec(found, keep_env=("NCCL_ALGO",))["devices"]["config"]
    assert entry["opaque"]["parameters"] == {
        "apiVersion": "gpu.topology/v1alpha1",
        "keepEnv": ["NCCL_ALGO"],
        "kind": "ClaimConfig",
        "nccl": "off",
        "order": {},
    }


def test_equal_notes_name_one_template_and_other_notes_another() -> None:
    notes = [resolved.write(resolved.resolve(Annotations(NVLINK), {"main": gpus})) for gpus in (2, 2, 4)]
    one, same, other = map(claim_alternatives.template_name, notes)
    assert one == same != other
    assert len(one) == 21


SAID: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({}, {"main": 4}),
    ({}, {"main": 1}),
    (NVLINK, {"main": 2, "more": 2}),
    ({names.REQUIRED: "same-numa", names.PREFERRED: "nvlink,same-pcie-root"}, {"main": 8}),
    ({names.MIN_BANDWIDTH: "50", names.PRODUCT: "NVIDIA*", names.MIN_MEMORY: "40Gi"}, {"main": 2}),
    ({names.ARCHITECTURE: "hopper", names.MIN_DRIVER: "550", names.NCCL: "off"}, {"main": 3}),
    ({names.REQUIRED: "nvlink"}, {"main": 9}),
    ({}, {"main": Amount(25, 10240)}),
    ({names.MIN_BANDWIDTH: "50"}, {"main": 3}),
    (NVLINK, {"main": 5}),
    ({names.VENDOR: "amd", names.PRODUCT: "AMD Instinct MI300X"}, {"main": 2}),
]
DIGESTS = {
    1: "f2b4579a7df777a6",
    2: "71d571d5b65908c0",
    3: "1bded027ae6bdc25",
    4: "99e00cb069c0520c",
    5: "18dd191184470039",
}


def test_another_ladder_is_another_version() -> None:
    """Where this fails and the change is meant, raise ``claim_alternatives.VERSION`` and add the new digest."""
    every = [
        claim_alternatives.spec(resolved.resolve(Annotations(words), asked), keep_env=("NCCL_ALGO",))
        for words, asked in SAID
    ]
    text = msgspec.json.encode(every, order="deterministic")
    assert DIGESTS[claim_alternatives.VERSION] == hashlib.sha256(text).hexdigest()[:16]


def test_a_note_of_another_ladder_names_another_template() -> None:
    found = resolved.resolve(Annotations(NVLINK | {names.PLACEMENT: "static"}), {"main": 2})
    notes = [resolved.write(msgspec.structs.replace(found, ladder=version)) for version in (msgspec.UNSET, 1, 2, 3)]
    assert len(set(map(claim_alternatives.template_name, notes))) == 4
    assert [resolved.read({names.REQUEST: note}).ladder for note in notes] == [msgspec.UNSET, 1, 2, 3]
    bad = notes[1].replace('"ladder":1', '"ladder":0')
    with pytest.raises(WordError, match="its list of alternatives is not valid"):
        resolved.read({names.REQUEST: bad})
