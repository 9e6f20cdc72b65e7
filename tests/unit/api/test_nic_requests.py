"""NICs in templates and claims: what is read of a template, what of it is refused, and what a pin says."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from dradriver.allocator.request import Constraint, Whole
from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import Metadata
from dradriver.api.claims import claim_templates, pins
from dradriver.api.claims.claim_templates import Template, TemplateRequest
from dradriver.api.claims.pins import Claim
from dradriver.api.vocabulary import nic_requests
from dradriver.api.vocabulary.nic_requests import CLASSES, DRANET, SRIOV, Alike, NicAsk, NicDriver, NicRequest
from tests.contract import admitted

Object = dict[str, Any]
ROOT = "resource.kubernetes.io/pcieRoot"


def request(name: str, device_class: str = "dranet.net", **exactly: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": device_class} | exactly}


def read(*requests: Object, words: Whole | None = None, **devices: Any) -> TemplateRequest:
    every = [request("gpu", "gpu.topology", count=2), *requests]
    spec = msgspec.json.encode({"spec": {"devices": {"requests": every} | devices}})
    template = Template(metadata=Metadata(name="t"), spec=spec, nic_classes=CLASSES)
    return claim_templates.read(template, words or Whole(containers=(1,)))


def ask(*requests: Object, **more: Any) -> NicAsk:
    found = read(*requests, **more).nics
    assert found is not None
    return found


def test_requests_for_nics_are_no_requests_for_gpus() -> None:
    found = read(request("nic", count=2), request("vf", SRIOV.name))
    assert (found.requests, found.request) == (("gpu",), Whole(containers=(2,)))
    assert found.nics == NicAsk(
        requests=(
            NicRequest("nic", "dranet.net", DRANET.name, 2),
            NicRequest("vf", SRIOV.name, SRIOV.name, 1),
        )
    )
    assert read().nics is None


def test_the_word_is_about_these_nics_and_not_about_any() -> None:
    found = read(request("nic"), words=Whole(containers=(1,), near_nic="required"))
    assert isinstance(found.request, Whole)
    assert found.nics is not None
    assert (found.request.near_nic, found.nics.near) == ("", "required")
    alone = read(words=Whole(containers=(1,), near_nic="required")).request
    assert isinstance(alone, Whole)
    assert alone.near_nic == "required"


def test_what_gpus_and_nics_have_in_common_the_gpus_have_too() -> None:
    found = read(request("nic"), constraints=[{"requests": ["gpu", "nic"], "matchAttribute": ROOT}])
    assert isinstance(found.request, Whole)
    assert found.request.required == (Constraint.SAME_PCIE_ROOT,)
    assert found.nics is not None
    assert found.nics.alike == (Alike(ROOT, ("gpu", "nic")),)
    assert found.constraints == ({"requests": ["gpu", "nic"], "matchAttribute": ROOT},)
    own = [{"requests": ["gpu"], "matchAttribute": ROOT}]
    assert read(request("nic"), constraints=own).constraints == ()


@pytest.mark.parametrize(
    ("device", "constraints", "why"),
    [
        (request("nic", allocationMode="All"), (), "allocationMode All takes all NICs that fit"),
        (request("nic", adminAccess=True), (), "only kube-scheduler can evaluate the field 'adminAccess'"),
        (
            request("nic", capacity={"requests": {"b": "1"}}),
            (),
            "only kube-scheduler can evaluate the field 'capacity'",
        ),
        (request("nic", count=0), (), "only kube-scheduler can evaluate the field 'count'"),
        (request("nic", count="2"), (), "only kube-scheduler can evaluate the field 'count'"),
        (
            request("nic", selectors=[{"cel": {"expression": "a || b"}}]),
            (),
            "only kube-scheduler can evaluate the selector 'a || b'",
        ),
        (request("nic", selectors=[{"cel": None}]), (), "only kube-scheduler can evaluate the selector ''"),
        (
            {"name": "nic", "firstAvailable": [{"name": "a", "deviceClassName": "dranet"}]},
            (),
            "only kube-scheduler can try the",
        ),
        (
            request("nic"),
            ({"requests": ["nic"], "distinctAttribute": "dra.net/ifName"},),
            "only kube-scheduler can evaluate constraint 'dra.net/ifName'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_read_is_left_and_its_like_too(
    device: Object, constraints: tuple[Object, ...], why: str
) -> None:
    alike = {"requests": ["nic", "twin"], "matchAttribute": "dra.net/numaNode"}
    found = ask(device, request("twin"), request("other"), constraints=[alike, *constraints])
    left = dict(found.left)
    assert left["nic"].startswith(why)
    assert left["twin"] == "it must be equal to another request that is left to the scheduler"
    assert [one.name for one in found.requests] == ["other"]
    assert found.alike == ()
    with pytest.raises(WordError, match="near-nic: required: the driver cannot choose the NICs of request 'nic'"):
        ask(device, constraints=constraints, words=Whole(containers=(1,), near_nic="required"))


@pytest.mark.parametrize(
    ("constraint", "says"),
    [
        ({"matchAttribute": "dra.net/numaNode"}, "is about NICs and GPUs, and GPUs do not have this attribute"),
        ({"requests": ["b", "c", "nic"], "matchAttribute": ROOT}, "is about some of the GPUs"),
    ],
)
def test_a_constraint_that_can_never_be_met_is_refused(constraint: Object, says: str) -> None:
    more = [request(name, "gpu.topology") for name in "bc"]
    with pytest.raises(WordError, match=says):
        ask(*more, request("nic"), constraints=[constraint])


def test_a_claim_holds_so_many_devices() -> None:
    with pytest.raises(WordError, match=r"the claim requests 33 devices\. A claim can have at most 32"):
        ask(request("nic", count=31))


def test_a_class_of_no_driver_is_refused_with_the_cure() -> None:
    with pytest.raises(
        WordError,
        match=r"class 'rails' is neither a GPU class .* nor a NIC class of the policies "
        r"file",
    ):
        read(request("nic", "rails"))


@pytest.mark.parametrize(
    ("driver", "attribute"),
    [
        (
            DRANET,
            'device.attributes["dra.net"]',
        ),
        (SRIOV, 'device.attributes["resource.kubernetes.io"]'),
    ],
)
def test_a_pin_asks_of_no_device_what_it_may_not_have(driver: NicDriver, attribute: str) -> None:
    """One device without the attribute would end the scheduler's attempt for the whole pod."""
    text = nic_requests.selector(driver, ["b", "a"])
    assert text == f'{attribute}.?{driver.address}.orValue("") in ["a", "b"]'


def test_every_pin_of_a_claim_asks_of_no_device_what_it_may_not_have() -> None:
    requests = admitted.by_templates("1.36.3")[-2]["spec"]["devices"]["requests"]
    pinned = [one["exactly"]["selectors"][0]["cel"]["expression"] for one in requests if one["name"] in admitted.NICS]
    assert len(pinned) == len(admitted.NICS)
    for text in pinned:
        assert re.fullmatch(r'device\.attributes\["[^"]+"\]\.\?\w+\.orValue\(""\) in \[.*\]', text), text


def test_a_pin_is_a_selector_that_no_text_breaks_out_of_and_that_is_read_back() -> None:
    for driver in (DRANET, SRIOV):
        for listed in ([], ["0000:18:00.0"], ['"] || true || "" in ["', "\\", "\u2028"]):
            text = nic_requests.selector(driver, listed)
            assert nic_requests.addresses(text) == tuple(sorted(listed))
            assert json.loads(text.partition(" in ")[2]) == sorted(listed)
    for other in (
        "",
        'device.attributes["dra.net"].?pciAddress.orValue("") in [1]',
        nic_requests.selector(DRANET, ["b"])[:-1],
    ):
        assert nic_requests.addresses(other) is None
    assert nic_requests.addresses('device.attributes["dra.net"].?pciAddress.orValue("") in ["b", "a"]') is None, (
        "not as written"
    )


def test_a_claim_of_ours_tells_which_nics_it_is_pinned_to_and_its_author_what_he_wrote() -> None:
    made = admitted.by_templates("1.36.3")[-2]
    pin = pins.pin(msgspec.json.decode(msgspec.json.encode(made), type=Claim))
    assert pin is not None
    assert pin.nics == admitted.NICS
    assert list(pin.uuids) == ["gpu"]
    template = msgspec.json.decode(admitted.next_to_nics().spec or b"")["spec"]["devices"]
    devices = made["spec"]["devices"]
    assert devices["constraints"] == template["constraints"]
    assert devices["config"][:-1] == template["config"]
    for own, theirs in zip(devices["requests"][1:], template["requests"][1:], strict=True):
        selectors = own["exactly"].get("selectors", [])
        if theirs["name"] in admitted.NICS:
            assert nic_requests.addresses(selectors.pop(0)["cel"]["expression"]) == admitted.NICS[theirs["name"]]
        if not selectors:
            own["exactly"].pop("selectors", None)
        assert own == theirs


def test_a_claim_whose_gpus_are_asked_for_by_a_class_of_nics_is_no_promise() -> None:
    made = admitted.by_templates("1.36.3")[-2]
    made["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "dranet.net"
    assert pins.pin(msgspec.json.decode(msgspec.json.encode(made), type=Claim)) is None
