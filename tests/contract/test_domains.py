"""Beside NVIDIA's ComputeDomains, with a real API server and scheduler: where the channel is free, in one fabric."""

from __future__ import annotations

import pytest

from tests.contract import stories

pytestmark = [pytest.mark.cluster, pytest.mark.helm]


def test_pods_and_gangs_get_nodes_whose_channel_is_free() -> None:
    stories.tell("tests.contract.beside_domains", "domains", timeout_s=240)
