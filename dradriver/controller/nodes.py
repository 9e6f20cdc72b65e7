"""Which nodes kube-scheduler would let a pod run on, by its own rules: a pod that is lifted onto another is stuck."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dradriver.api import affinity
from dradriver.api.objects import Node, NodeRequirement, NodeSelectorTerm, Pod, Taint, Toleration

_UNSCHEDULABLE: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_LARGEST: Final = 2**63

# Why a node was left out, as people read it in the reason on a pod.
NOT_READY: Final = "not ready"
CORDONED: Final = "unschedulable"
TAINTED: Final = "tainted"
UNSELECTED: Final = "not selected by the pod"


def why_not(node: Node, pod: Pod) -> str | None:
    """Return why a pod cannot run on a node, free resources aside; None where it can."""
    if not any(c.type == "Ready" and c.status == "True" for c in node.status.conditions):
        return NOT_READY
    if node.spec.unschedulable and not tolerates(pod.spec.tolerations, _UNSCHEDULABLE):
        return CORDONED
    if any(t.blocks and not tolerates(pod.spec.tolerations, t) for t in node.spec.taints):
        return TAINTED
    if not selects(pod, node):
        return UNSELECTED
    return None


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Return whether one of the tolerations covers a taint, as ``ToleratesTaint`` of core/v1 does.

    An empty effect or key covers all of them; ``Exists`` covers every value.
    """
    return any(
        t.effect in ("", taint.effect)
        and t.key in ("", taint.key)
        and (t.operator == "Exists" or (t.operator in ("", "Equal") and t.value == taint.value))
        for t in tolerations
    )


def selects(pod: Pod, node: Node) -> bool:
    """Return whether a pod's node selector and required node affinity hold for a node."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    required = affinity.required(pod)
    return required is None or any(_term_holds(term, node) for term in required.node_selector_terms)


def _term_holds(term: NodeSelectorTerm, node: Node) -> bool:
    """An empty term matches nothing (core/v1 ``NodeSelectorTerm``)."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.metadata.name}
    return all(_holds(e, node.metadata.labels) for e in term.match_expressions) and all(
        _holds(e, fields) for e in term.match_fields
    )


def _holds(expression: NodeRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(expression.key)
    match expression.operator:
        case "In":
            return value in expression.values
        case "NotIn":  # a missing label counts as different
            return value not in expression.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            left = _integer(value)
            right = _integer(expression.values[0]) if len(expression.values) == 1 else None
            if left is None or right is None:
                return False
            return left > right if expression.operator == "Gt" else left < right
        case _:
            return False


def _integer(text: str | None) -> int | None:
    """Read a number as Go's ``ParseInt`` does: ASCII digits with an optional sign, 64 bits."""
    if text is None or not text.isascii() or len(text) > 20 or not text.removeprefix("-").removeprefix("+").isdigit():
        return None
    if text[:2] in ("-+", "+-"):
        return None
    number = int(text)
    return number if -_LARGEST <= number < _LARGEST else None
