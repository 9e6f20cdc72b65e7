"""Beside NVIDIA's driver, with a real API server and scheduler: the right GPUs, also after their names have shifted."""

from __future__ import annotations

import pytest

from tests.contract import stories

pytestmark = [pytest.mark.cluster, pytest.mark.helm]


def test_pods_get_the_gpus_that_were_chosen_also_after_a_shift() -> None:
    stories.tell("tests.contract.beside_nvidia", "addon", timeout_s=240)
