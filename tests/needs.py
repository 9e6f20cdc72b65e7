"""What some tests cannot do without: they are skipped where it is missing, and fail in CI, which must have it."""

from __future__ import annotations

import os

import pytest

from tests.cluster import why_not


def real_cluster() -> None:
    """Skip the test where no cluster can run."""
    if reason := why_not():
        if os.environ.get("CI"):
            pytest.fail(f"the real cluster is part of CI and cannot run here: {reason}")
        pytest.skip(f"left out, the real cluster: {reason}")
