"""NICs of other drivers beside our GPUs, with a real API server and scheduler: pods get those that were chosen."""

from __future__ import annotations

import pytest

from tests.contract import stories

pytestmark = [pytest.mark.cluster, pytest.mark.helm]


def test_pods_get_the_nics_nearest_to_their_gpus_and_never_one_twice() -> None:
    stories.tell("tests.contract.beside_nics", "nics", timeout_s=300)
