"""What holds for every test."""

from __future__ import annotations

import asyncio
import os
from typing import Final

import pytest
from hypothesis import settings

from tests import needs
from tests.paths import REPO

# A loaded machine is no failure, and CI tries the same examples every time.
settings.register_profile("steady", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("steady")

# Else pytest-asyncio asks for a default event loop before its first test, which nobody closes.
asyncio.set_event_loop(None)

UNIT_LIMIT_S: Final = 60  # thirty times what the longest takes: a loaded machine is no hang
_UNIT: Final = (REPO / "tests" / "unit", REPO / "tests" / "property")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out together what this machine lacks the means for, and bound how long a unit test may take."""
    items[:], gone = needs.left_out(items)
    if gone:
        config.hook.pytest_deselected(items=gone)
    for item in items:
        bounded = item.get_closest_marker("slow") or item.get_closest_marker("timeout")
        if not bounded and any(item.path.is_relative_to(folder) for folder in _UNIT):
            item.add_marker(pytest.mark.timeout(UNIT_LIMIT_S))
