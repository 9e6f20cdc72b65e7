"""What is read back of claims: of ours what they are pinned to, and of all what the scheduler gave them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.allocator.request import Amount, MigPart, Part, PartChoice, SharePart
from dradriver.api.base import names
from dradriver.api.base.objects import Metadata
from dradriver.api.base.pods import Pod, PodClaim, PodSpec
from dradriver.api.claims import claim_builder
from dradriver.api.claims.pins import Claim, MigSlice, allocated, pin
from dradriver.kube import codec

POD = Pod(
    metadata=Metadata(name="p", namespace="n", uid="u"),
    spec=PodSpec(resource_claims=[PodClaim(name=names.POD_CLAIM, resource_claim_name="gpus-1")]),
)
SHARE = SharePart(gpu=0, amount=Amount(25, 20480))
SLICE = MigPart(gpu=1, profile="3g.40gb", start=4, size=4)
A, B = ("n", "gpu-a"), ("n", "gpu-b")
Object = dict[str, Any]


def made(*parts: Part, placed: tuple[str, ...] = ()) -> Object:
    choice = PartChoice(containers=(parts,), node="n")
    uuids = {f"r{number}": [("GPU-a", "GPU-b")[part.gpu]] for number, part in enumerate(parts)}
    return claim_builder.pinned(POD, choice, uuids=uuids, compute={"3g.40gb": 3}, placed=placed)


def read(claim: Object) -> Claim:
    return msgspec.json.decode(msgspec.json.encode(claim), type=Claim)


def exactly(claim: Object, number: int = 0) -> Object:
    found: Object = claim["spec"]["devices"]["requests"][number]["exactly"]
    return found


@pytest.mark.parametrize("placed", [(), ("GPU-b",)])
def test_a_claim_of_parts_says_what_it_is_pinned_to(placed: tuple[str, ...]) -> None:
    found = pin(read(made(SHARE, SLICE, SHARE, placed=placed)))
    assert found is not None
    assert found.taken == {A: (Amount(25, 20480), Amount(25, 20480)), B: (MigSlice("3g.40gb", 4, 4),)}
    assert found.numbers() == {0: "GPU-a", 1: "GPU-b"}


@pytest.mark.parametrize("placed", [(), ("GPU-b",)])
def test_a_claim_of_parts_says_all_that_it_takes(placed: tuple[str, ...]) -> None:
    """The admission policy refuses it else, also where a slice is a device of its own."""
    claim = made(SHARE, SLICE, placed=placed)
    asked = [exactly(claim, number)["capacity"]["requests"] for number in (0, 1)]
    assert asked == [{"cores": "25", "memory": "20480Mi"}, {"memorySlices": "4", "computeSlices": "3"}]


def test_the_servers_form_of_a_quantity_is_the_same() -> None:
    claim = made(SHARE)
    exactly(claim)["capacity"]["requests"] = {"cores": "25", "memory": "20Gi"}
    assert pin(read(claim)) is not None


def _amount(claim: Object) -> None:
    exactly(claim)["capacity"]["requests"]["cores"] = "50"


def _no_quantity(claim: Object) -> None:
    exactly(claim)["capacity"]["requests"]["memory"] = "much"


def _size(claim: Object) -> None:
    exactly(claim, 1)["capacity"]["requests"]["memorySlices"] = "1"


def _all_of_it(claim: Object) -> None:
    del exactly(claim)["capacity"]


def _start(claim: Object) -> None:
    claim["spec"]["devices"]["config"][0]["opaque"]["parameters"]["mig"]["r1"]["starts"] = {"GPU-b": 0}


def _another_gpu(claim: Object) -> None:
    claim["spec"]["devices"]["config"][0]["opaque"]["parameters"]["mig"]["r1"]["starts"] = {"GPU-a": 4}


def _fewer_parts(claim: Object) -> None:
    claim["metadata"]["annotations"][names.CHOICE] = msgspec.json.encode(
        PartChoice(containers=((SHARE,),), node="n")
    ).decode()


def _other_kind(claim: Object) -> None:
    claim["metadata"]["annotations"][names.CHOICE] = '{"kind":"parts","containers":[[7]]}'


def _fewer_requests(claim: Object) -> None:
    claim["spec"]["devices"]["requests"].pop()


def _no_slice(claim: Object) -> None:
    del claim["spec"]["devices"]["config"][0]["opaque"]["parameters"]["mig"]


@pytest.mark.parametrize(
    "change",
    [
        _amount, _no_quantity, _size, _all_of_it, _start, _another_gpu, _fewer_parts, _other_kind, _fewer_requests,
        _no_slice,
    ],
)  # fmt: skip
def test_a_claim_that_says_two_things_is_not_ours(change: Callable[[Object], None]) -> None:
    claim = made(SHARE, SLICE)
    assert pin(read(claim)) is not None
    change(claim)
    assert pin(read(claim)) is None


def test_a_placement_that_is_not_the_selectors_is_not_ours() -> None:
    claim = made(SLICE, placed=("GPU-b",))
    text = exactly(claim)["selectors"][0]["cel"]["expression"]
    assert pin(read(claim)) is not None
    exactly(claim)["selectors"][0]["cel"]["expression"] = text.replace("== 4", "== 0")
    assert pin(read(claim)) is None


@pytest.mark.parametrize("placed", [(), ("GPU-b",)])
@pytest.mark.parametrize(("start", "size"), [(4, 10**9), (4, 3), (4, 0), (4, -1), (64, 4), (-1, 4), (10**12, 4)])
def test_a_slice_that_no_gpu_has_is_not_ours(start: int, size: int, placed: tuple[str, ...]) -> None:
    claim = made(MigPart(gpu=1, profile="3g.40gb", start=start, size=4), placed=placed)
    choice = msgspec.json.decode(claim["metadata"]["annotations"][names.CHOICE])
    choice["containers"][0][0]["size"] = size
    claim["metadata"]["annotations"][names.CHOICE] = msgspec.json.encode(choice).decode()
    assert pin(read(claim)) is None


def test_no_text_breaks_out_of_its_quotes() -> None:
    part = msgspec.structs.replace(SLICE, profile='" || true || "')
    text = claim_builder.placement_selector('GPU-"\\n', part)
    assert r'== "GPU-\"\\n" &&' in text
    assert r'== "\" || true || \"" &&' in text


@pytest.mark.parametrize(
    ("consumed", "taken"),
    [
        ({}, None),
        ({"cores": "25", "memory": "20Gi"}, (Amount(25, 20480),)),
        ({"cores": "12500m", "memory": "1000000"}, (Amount(13, 1),)),
        ({"cores": "100", "memory": "80Gi"}, None),
        ({"cores": "x", "memory": "80Gi"}, None),
        ({"memory": "80Gi"}, None),
        ({"memorySlices": "1", "computeSlices": "1"}, None),
    ],
)
def test_what_the_scheduler_gave_a_claim(consumed: dict[str, str], taken: object) -> None:
    result = {"request": "r", "driver": names.DRIVER, "pool": "n", "device": "gpu-a", "consumedCapacity": consumed}
    claim = {"metadata": {"name": "x"}, "status": {"allocation": {"devices": {"results": [result]}}}}
    assert allocated(read(claim)) == {A: taken}


def test_two_shares_of_one_gpu_add_up_and_a_slice_of_ours_is_where_its_pin_says() -> None:
    claim = made(SHARE, SHARE, SLICE)
    results = [
        {"request": f"r{n}", "driver": names.DRIVER, "pool": "n", "device": device, "consumedCapacity": consumed}
        for n, (device, consumed) in enumerate(
            [
                ("gpu-a", {"cores": "25", "memory": "20Gi"}),
                ("gpu-a", {"cores": "25", "memory": "20Gi"}),
                ("gpu-b", {"memorySlices": "4", "computeSlices": "3"}),
            ]
        )
    ]
    claim["status"] = {"allocation": {"devices": {"results": results}}}
    found = pin(read(claim))
    assert found is not None
    assert allocated(read(claim)) == found.taken


TOLD = {"uuid": "MIG-1", "parentUUID": "GPU-a", "request": "r", "type": "mig", "profile": "1g.10gb", "placement": 6}
ONE = {"memorySlices": "1", "computeSlices": "1"}


def elsewhere(
    told: object, *, consumed: dict[str, str] | None = None, entry: Object | None = None, slices: int = 1
) -> Object:
    """Return a claim without a pin that has slices of a GPU, of the last of which the node agent told this."""
    shared = {"driver": names.DRIVER, "pool": "n", "device": "gpu-a"}
    results = [
        shared | {"request": f"r{n}", "shareID": f"s{n}", "consumedCapacity": consumed or ONE} for n in range(slices)
    ]
    devices: list[Object] = [shared | {"shareID": f"s{n}", "data": TOLD | {"placement": n}} for n in range(slices - 1)]
    devices.append(shared | {"shareID": f"s{slices - 1}", "data": told} | (entry or {}))
    return {
        "metadata": {"name": "x"},
        "status": {"allocation": {"devices": {"results": results}}, "devices": devices},
    }


def test_a_slice_without_a_pin_lies_where_its_claims_status_says() -> None:
    assert allocated(read(elsewhere(TOLD))) == {A: (MigSlice("1g.10gb", 6, 1, 1),)}
    two = elsewhere(TOLD, slices=2)
    assert allocated(read(two)) == {A: (MigSlice("1g.10gb", 0, 1, 1), MigSlice("1g.10gb", 6, 1, 1))}
    del two["status"]["devices"][0]
    assert allocated(read(two)) == {A: None}, "of one of them nobody knows it yet"


@pytest.mark.parametrize(
    "entry",
    [
        {"driver": "gpu.example.com"}, {"pool": "m"}, {"device": "gpu-b"}, {"shareID": "other"}, {"shareID": None},
        {"data": None},
    ],
)  # fmt: skip
def test_what_is_said_of_another_device_or_not_at_all_says_nothing_of_this_one(entry: Object) -> None:
    assert allocated(read(elsewhere(TOLD, entry=entry))) == {A: None}


@pytest.mark.parametrize(
    "told",
    [
        {}, [], "1g.10gb@6", 7, TOLD | {"type": "share"}, TOLD | {"placement": -1}, TOLD | {"placement": 64},
        TOLD | {"placement": 10**30}, TOLD | {"placement": True}, TOLD | {"placement": 1.5}, TOLD | {"placement": "6"},
        TOLD | {"profile": 1}, TOLD | {"profile": "\x1b[2J"}, TOLD | {"profile": "1c.3g.40gb"},
    ],
)  # fmt: skip
def test_nonsense_in_a_status_is_no_place(told: object) -> None:
    assert allocated(read(elsewhere(told))) == {A: None}


@pytest.mark.parametrize("consumed", [{"memorySlices": "x"}, {"memorySlices": "1"}, ONE | {"memorySlices": "0"}])
def test_amounts_that_are_none_are_no_place(consumed: dict[str, str]) -> None:
    assert allocated(read(elsewhere(TOLD, consumed=consumed))) == {A: None}


def test_a_status_nested_deeper_than_anybody_reads_is_no_place() -> None:
    text = msgspec.json.encode(elsewhere("HERE")).replace(b'"HERE"', b'{"type":' + b"[" * 4000 + b"]" * 4000 + b"}")
    assert allocated(codec.decode(text, Claim)) == {A: None}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*TOLD, "x"]), inner, max_size=6),
    )
)
def test_any_status_is_read(told: object) -> None:
    (found,) = allocated(read(elsewhere(told))).values()
    assert found is None or (isinstance(found[0], MigSlice) and 0 <= found[0].start < 64)


def test_a_pin_stands_above_what_a_status_says() -> None:
    claim = made(SLICE)
    claim["status"] = elsewhere(TOLD, consumed={"memorySlices": "4", "computeSlices": "3"})["status"]
    for one in (*claim["status"]["allocation"]["devices"]["results"], *claim["status"]["devices"]):
        one["device"] = "gpu-b"
    assert allocated(read(claim)) == {B: (MigSlice("3g.40gb", 4, 4),)}
