"""What objects of NVIDIA's ComputeDomains say, and what odd ones do not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dradriver.api.base.dra_objects import ResourceClaim, ResourceSlice
from dradriver.api.claims import compute_domains
from tests.fakes import domains

Object = dict[str, Any]
DOMAIN = "8f1c2d7e-52c4-4b0e-9f0e-0d6c3a0b7a11"
TEMPLATE: Object = domains.template("t", DOMAIN)["spec"]
(CONFIG,) = TEMPLATE["spec"]["devices"]["config"]


def domain(spec: object) -> str | None:
    return compute_domains.domain_of(msgspec.Raw(msgspec.json.encode(spec)))


def having(**devices: Any) -> Object:
    return {"spec": {"devices": TEMPLATE["spec"]["devices"] | devices}}


@pytest.mark.parametrize("mode", ["Single", "All"])
def test_a_template_of_theirs_names_its_domain(mode: str) -> None:
    assert domain(domains.template("t", DOMAIN, mode=mode)["spec"]) == DOMAIN


@pytest.mark.parametrize(
    "config",
    [
        None,
        [],
        [{}],
        [{"opaque": None}],
        [CONFIG | {"opaque": {"driver": "gpu.topology", "parameters": CONFIG["opaque"]["parameters"]}}],
        [CONFIG | {"opaque": {"driver": domains.DRIVER, "parameters": 7}}],
        [CONFIG | {"opaque": {"driver": domains.DRIVER, "parameters": {"kind": "other", "domainID": DOMAIN}}}],
        *(
            [
                CONFIG
                | {
                    "opaque": {
                        "driver": domains.DRIVER,
                        "parameters": CONFIG["opaque"]["parameters"] | {"domainID": said},
                    }
                }
            ]
            for said in (None, 7, ["x"], "x" * 64)
        ),
    ],
    ids=str,
)
def test_one_that_does_not_say_which_is_of_no_known_domain(config: object) -> None:
    assert domain(having(config=config)) == ""


@pytest.mark.parametrize(
    "spec",
    [
        {},
        None,
        7,
        {"spec": {"devices": None}},
        {"spec": {"devices": {"requests": [{"name": domains.CLASS}]}}},
        {"spec": {"devices": {"requests": [{"name": "d", "exactly": {"deviceClassName": "x." + domains.CLASS}}]}}},
        {"spec": {"devices": {"requests": domains.CLASS}}},
        {"metadata": {"labels": {"class": domains.CLASS}}},
    ],
    ids=str,
)
def test_any_other_template_asks_for_no_channel(spec: object) -> None:
    assert domain(spec) is None


def test_nesting_without_end_is_no_template_of_theirs() -> None:
    deep = "[" * 100_000 + f'"{domains.CLASS}"' + "]" * 100_000
    text = '{"spec": {"devices": {"requests": [], "config": [{"opaque": {"parameters": ' + deep + "}}]}}}"
    assert compute_domains.domain_of(msgspec.Raw(text.encode())) is None
    assert compute_domains.domain_of(msgspec.Raw(b'{"spec": "\xff' + domains.CLASS.encode() + b'"}')) is None


def node(**spec: Any) -> str | None:
    one = domains.resource_slice("n")
    one["spec"] |= spec
    return compute_domains.node_of(msgspec.convert(one, ResourceSlice))


def test_a_slice_offers_its_own_nodes_first_channel() -> None:
    assert node() == "n"
    assert node(driver="gpu.nvidia.com") is None
    assert node(nodeName="other") is None
    assert node(devices=[domains.device("daemon")]) is None
    assert node(devices=[domains.device("channel") | {"name": "channel-7"}]) is None
    tainted = domains.device("channel") | {"taints": [{"key": "k", "effect": "NoSchedule"}]}
    assert node(devices=[tainted]) is None


def test_a_claim_has_the_channels_that_it_was_given() -> None:
    claim = domains.claim("c", "n")
    assert compute_domains.held(msgspec.convert(claim, ResourceClaim)) == ("n",)
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    for other in ({"driver": "gpu.nvidia.com"}, {"device": "daemon-0"}, {"adminAccess": True}):
        claim["status"]["allocation"]["devices"]["results"] = [result | other]
        assert compute_domains.held(msgspec.convert(claim, ResourceClaim)) == ()
    del claim["status"]
    assert compute_domains.held(msgspec.convert(claim, ResourceClaim)) == ()
