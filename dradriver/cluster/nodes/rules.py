"""Whether one node takes one pod, by kube-scheduler's own rules, as plainly as can be.

Decisions ask ``NodeTable``, which answers for all nodes at once and must always say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dradriver.api import affinity
from dradriver.api.objects import Node, NodeRequirement, NodeSelectorTerm, Pod, Taint, Toleration

UNSCHEDULABLE: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_LARGEST: Final = 2**63
_DIGITS: Final = 19

# Why a node was left out, as people read it in the reason on a pod.
NOT_READY: Final = "not ready"
CORDONED: Final = "unschedulable"
TAINTED: Final = "tainted"
UNSELECTED: Final = "not selected by the pod"


def why_not(node: Node, pod: Pod) -> str | None:
    """Return why a pod cannot run on a node, free resources aside; None where it can."""
    if not ready(node):
        return NOT_READY
    if node.spec.unschedulable and not tolerates(pod.spec.tolerations, UNSCHEDULABLE):
        return CORDONED
    if any(t.blocks and not tolerates(pod.spec.tolerations, t) for t in node.spec.taints):
        return TAINTED
    if not selects(pod, node):
        return UNSELECTED
    return None


def ready(node: Node) -> bool:
    """Return whether a node's kubelet says that it can run pods."""
    return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)


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
    return holds(labels.get(expression.key), expression.operator, expression.values)


def holds(value: str | None, operator: str, values: Sequence[str]) -> bool:
    """Return whether an expression holds for a label's value, None for a label that is not there."""
    match operator:
        case "In":
            return value in values
        case "NotIn":  # a missing label counts as different
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            left = integer(value)
            right = integer(values[0]) if len(values) == 1 else None
            if left is None or right is None:
                return False
            return left > right if operator == "Gt" else left < right
        case _:
            return False


def integer(text: str | None) -> int | None:
    """Return a number as Go's ``ParseInt`` reads it: ASCII digits with an optional sign, 64 bits; else None."""
    if text is None or not text.isascii():
        return None
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits.isdigit() or len(digits.lstrip("0")) > _DIGITS:
        return None
    number = -int(digits.lstrip("0") or "0") if text[0] == "-" else int(digits.lstrip("0") or "0")
    return number if -_LARGEST <= number < _LARGEST else None
