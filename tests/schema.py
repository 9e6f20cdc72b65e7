"""Strict schemas of Kubernetes objects, offline: a field or type that the API does not know fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kubernetes_validate

MINORS = ("1.34", "1.35", "1.36", "1.37")


def check(obj: dict[str, Any], *, minors: Sequence[str] = MINORS) -> None:
    """Fail unless the object is valid in every one of these Kubernetes releases."""
    for minor in minors:
        kubernetes_validate.validate(obj, minor, strict=True)
