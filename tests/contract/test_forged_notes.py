"""What the driver wrote on a pod stays, on a real API server of each version: with the webhook, and without it."""

from __future__ import annotations

import pytest

from tests import kubernetes_versions
from tests.contract import stories
from tests.contract.planes import Planes

pytestmark = [pytest.mark.cluster, pytest.mark.helm]

LIMIT_S = 240


@pytest.mark.parametrize("version", kubernetes_versions.params())
def test_only_the_webhook_and_the_controller_change_what_is_ours(planes: Planes, version: str) -> None:
    with planes.restored("contract", version) as plane:
        stories.tell(plane, "forged_notes", timeout_s=LIMIT_S)
