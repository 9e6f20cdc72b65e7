"""Stories of the chart's controller and webhook with a real API server and scheduler; each is in a module."""

from __future__ import annotations

from typing import Final

import pytest

from tests.contract import stories
from tests.contract.planes import Planes

pytestmark = [pytest.mark.cluster, pytest.mark.helm]

LIMIT_S: Final = {
    "beside_amd": 240,
    "beside_domains": 240,
    "beside_nics": 300,
    "beside_nvidia": 240,
    "gang_rules": 400,
    "held_claims": 400,
    "node_rules": 400,
    "several_vendors": 240,
    "siblings": 400,
}


@pytest.mark.parametrize("module", LIMIT_S)
def test_a_story(planes: Planes, module: str) -> None:
    with planes.restored("stories") as plane:
        stories.tell(plane, module, timeout_s=LIMIT_S[module])


def test_the_story_of_pod_groups(planes: Planes) -> None:
    """Its control plane has the feature gates on that Kubernetes' own gangs need."""
    with planes.restored("groups") as plane:
        stories.tell(plane, "native_groups", timeout_s=240)
