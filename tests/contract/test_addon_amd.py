"""Beside AMD's driver, with a real API server and scheduler: one hive by addresses, also after names have shifted."""

from __future__ import annotations

import pytest

from tests.contract import stories

pytestmark = [pytest.mark.cluster, pytest.mark.helm]


def test_pods_get_one_hive_by_the_addresses_of_its_gpus() -> None:
    stories.tell("tests.contract.beside_amd", "addon-amd", timeout_s=240)
