"""What the controller may create in a namespace with a partition, on a real API server of each version."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.api.claims import claim_builder
from dradriver.kube.resources import RESOURCE_CLAIMS
from tests.contract.test_gang_policies import CONTROLLER, as_account
from tests.contract.test_policies import BOUND, IN_FORCE_S, TEAM, Guarded, guarded, said
from tests.deploy import NAMESPACE as OURS

__all__ = ["guarded"]
pytestmark = [pytest.mark.cluster, pytest.mark.helm]

Object = dict[str, Any]


def claim(label: str, **annotations: str) -> Object:
    """Return a claim that the controller makes, of one GPU."""
    selectors = [{"cel": {"expression": claim_builder.uuid_selector(["GPU-1"])}}]
    requests = [{"name": "main", "exactly": {"deviceClassName": names.DEVICE_CLASS, "selectors": selectors}}]
    noted = {names.PREFIX + key: text for key, text in annotations.items()}
    owners = [claim_builder.owner("p", "00000000-0000-4000-8000-000000000001")]
    marks = {"labels": {names.LABEL: label}, "annotations": noted}
    metadata = {"name": f"claim-{label}", "ownerReferences": owners, **marks}
    return {"metadata": metadata, "spec": {"devices": {"requests": requests}}}


async def test_the_controller_hands_no_pod_of_a_partition_to_the_scheduler(guarded: Guarded) -> None:
    handed_over = claim(names.LABEL_HANDED_OVER, **{"handed-over": "a digest"})
    placed = claim(names.LABEL_PLACED, choice="{}")
    async with as_account(guarded, OURS, CONTROLLER) as controller:
        async with asyncio.timeout(IN_FORCE_S):
            while not (
                refusal := await said(controller.create(RESOURCE_CLAIMS, handed_over, namespace=BOUND, dry_run=True))
            ):
                await asyncio.sleep(0.2)
        assert "has a partition" in refusal
        assert names.WHEN_FULL in refusal
        for namespace, body in ((TEAM, handed_over), (BOUND, placed)):
            assert not await said(controller.create(RESOURCE_CLAIMS, body, namespace=namespace)), namespace
