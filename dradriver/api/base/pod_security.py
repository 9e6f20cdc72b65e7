"""Pod Security Standards: whether the driver's namespace forbids the node agent, whose container is privileged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ENFORCE: Final = "pod-security.kubernetes.io/enforce"
_FORBIDDING: Final = ("baseline", "restricted")


def forbidding_level(labels: Mapping[str, str]) -> str:
    """Return the standard that a namespace with these labels enforces, if it forbids the node agent; else empty."""
    level = labels.get(ENFORCE, "")
    return level if level in _FORBIDDING else ""


def problem(namespace: str, level: str) -> str:
    """Return what is wrong in a namespace that enforces such a standard."""
    return (
        f'namespace {namespace} enforces the Pod Security Standard "{level}". It forbids the node agent, whose '
        "container is privileged: no new agent is created, and nodes without one have no GPUs"
    )


def cure(namespace: str) -> str:
    """Return the command that allows the node agent in a namespace."""
    return f"kubectl label namespace {namespace} {ENFORCE}=privileged --overwrite"
