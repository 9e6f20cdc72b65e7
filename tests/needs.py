"""What some tests cannot do without: they are skipped where it is missing, and fail in CI, which must have it."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

from tests.cluster import why_not


def real_cluster() -> None:
    """Skip the test where no cluster can run."""
    if reason := why_not():
        missing(f"the real cluster cannot run here: {reason}")


def missing(what: str) -> NoReturn:
    """Skip the test for want of something; in CI it fails."""
    if os.environ.get("CI"):
        pytest.fail(f"part of CI: {what}")
    pytest.skip(what)
