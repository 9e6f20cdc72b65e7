"""Claims are prepared and given back by agents that serve side by side; ``tests.bench.crashes --rolling`` has more."""

from __future__ import annotations

import pytest

from tests.fakes.rolling import Node


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_a_seeded_story(seed: int) -> None:
    Node(seed).play()
