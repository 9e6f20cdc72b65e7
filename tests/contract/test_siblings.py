"""What only the scheduler sees, with a real one: no pod stays on a node that it refuses, siblings keep apart, and pods
come to where their volumes are."""

from __future__ import annotations

import pytest

from tests.contract import stories

pytestmark = [pytest.mark.cluster, pytest.mark.helm]


def test_refused_pods_come_to_another_node_and_siblings_to_nodes_of_their_own() -> None:
    stories.tell("tests.contract.siblings", "siblings", timeout_s=400)
