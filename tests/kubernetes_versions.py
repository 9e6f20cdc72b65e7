"""The Kubernetes versions that a fixture or a test is repeated on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.cluster.settings import EVERYDAY_VERSIONS, KUBERNETES_VERSIONS


def params(versions: Sequence[str] = KUBERNETES_VERSIONS) -> list[Any]:
    """Return the versions as parameters of a fixture; those that are not tested every day have the mark `extended`."""
    return [
        pytest.param(version, marks=() if version in EVERYDAY_VERSIONS else pytest.mark.extended)
        for version in versions
    ]
