"""What the chart lets the controller's account create claims for, next to what the code writes."""

from __future__ import annotations

import json
import re

import pytest

from dradriver.allocator.request import MigPart
from dradriver.api.base.allocating_driver import LEDGERS, bound
from dradriver.api.claims import claim_builder
from dradriver.api.vocabulary import nic_requests
from tests.fakes.chart import objects

pytestmark = pytest.mark.helm

UUIDS = ["GPU-00000000-0000-0000-0000-000000000001", 'odd " \\ \u00e9, "']


def expressions(*settings: str) -> str:
    policy = objects(*settings)["ValidatingAdmissionPolicy", "gpu-topology-claim-writes"]["spec"]
    return "\n".join(validation["expression"] for validation in policy["validations"])


def classes(*settings: str) -> set[str]:
    (listed,) = re.findall(r"deviceClassName in (\[.*?\])", expressions(*settings))
    return set(json.loads(listed))


@pytest.mark.parametrize("driver", LEDGERS)
def test_a_selector_that_the_code_writes_names_gpus(driver: str) -> None:
    (pattern,) = re.findall(r"matches\(r'(.*)'\)", expressions(f"allocatingDriver={driver}"))
    with bound(LEDGERS[driver]):
        for uuids in (UUIDS[:1], UUIDS):
            for written in (claim_builder.uuid_selector(uuids), claim_builder.address_selector(uuids)):
                assert re.search(pattern, written)
                assert len(written.split('", "')) == len(uuids)
        placement = claim_builder.placement_selector(UUIDS[0], MigPart(gpu=0, profile="1g.10gb+me", start=4, size=1))
        assert re.search(pattern, placement)
        assert not re.search(pattern, f"{placement} || true")
        part = MigPart(gpu=0, profile="1g.10gb", start=4, size=1)
        for nameless in ("", *UUIDS[:1]), ("",):  # what a device without the attribute has
            assert not re.search(pattern, claim_builder.uuid_selector(nameless))
            assert not re.search(pattern, claim_builder.address_selector(nameless))
        assert not re.search(pattern, claim_builder.placement_selector("", part))


def test_claims_may_ask_for_nics_of_the_classes_that_the_controller_knows() -> None:
    assert classes() == set(nic_requests.CLASSES)
    assert classes("policies.nics.classes.rail-nics=dranet") == {*nic_requests.CLASSES, "rail-nics"}
