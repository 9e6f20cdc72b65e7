"""Pod Security Standards: whether the driver's namespace forbids the node agent, whose container is privileged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ENFORCE: Final = "pod-security.kubernetes.io/enforce"
_FORBIDDING: Final = ("baseline", "restricted")


def forbidding_level(labels: Mapping[str, str]) -> str:
    """Return the Pod Security Standard that forbids the node agent; empty if none does.

    Args:
        labels: The labels of the namespace.
    """
    level = labels.get(ENFORCE, "")
    return level if level in _FORBIDDING else ""


def problem(namespace: str, level: str) -> str:
    """Return the message about a namespace whose Pod Security Standard forbids the node agent.

    ``level`` is this standard, as ``forbidding_level`` returns it.
    """
    return (
        f'namespace {namespace} enforces the Pod Security Standard "{level}", which forbids the privileged container '
        "of the node agent. Kubernetes creates no new node agent there, and a node without one has no GPUs for pods"
    )


def cure(namespace: str) -> str:
    """Return the command that allows the node agent in a namespace."""
    return f"kubectl label namespace {namespace} {ENFORCE}=privileged --overwrite"
