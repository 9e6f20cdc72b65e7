"""The controller's tests have a time of their own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Give all tests of this folder the mark ``looptime``: on a slow machine deadlines would end in the middle."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and not item.get_closest_marker("real_time"):
            item.add_marker(pytest.mark.looptime)
