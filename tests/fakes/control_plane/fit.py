"""Whether a pod may run on a node, devices aside, by kube-scheduler's filters, as plainly as can be.

Not the product's own code: the arrays of ``dradriver.cluster.nodes`` are held against it. Of the filters there are
NodeUnschedulable, TaintToleration, NodeAffinity with node selectors, NodeResourcesFit for CPU, and InterPodAffinity for
required anti-affinity on one host. It knows nothing of volumes, ports and spread.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dradriver.api.base import names, quantity
from dradriver.api.base.errors import WordError
from dradriver.cluster.nodes.node_table import NOT_READY
from dradriver.cluster.nodes.selector_classes import CORDONED, TAINTED, UNSELECTED
from tests.fakes.apistore import Object

_CORDON: Final = {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}
_INTEGER: Final = re.compile(r"([+-]?)0*([0-9]{1,19})", re.ASCII)
_LARGEST: Final = 2**63
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


# What a pod says.


def finished(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def gates(pod: Object) -> list[str]:
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]


def notes_of(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("annotations") or {}


def placed(pod: Object) -> bool:
    """Return whether a pod has our label."""
    labels: dict[str, str] = pod["metadata"].get("labels") or {}
    return labels.get(names.LABEL) == names.LABEL_PLACED


def claim_names(pod: Object) -> list[str]:
    return [c["resourceClaimName"] for c in pod["spec"].get("resourceClaims") or () if c.get("resourceClaimName")]


def unschedulable(pod: Object) -> str | None:
    """Return the message of the condition that the scheduler wrote, or None."""
    for condition in pod.get("status", {}).get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", "")) if condition.get("reason") == "Unschedulable" else None
    return None


@functools.cache
def milli(text: str) -> int:
    """Return an amount of CPU in thousandths; what is none counts as none."""
    try:
        return quantity.milli(text)
    except WordError:
        return 0


def cpu_of(pod: Object) -> int:
    """Return what a pod requests, in thousandths."""
    asked = (c.get("resources", {}).get("requests", {}).get("cpu", "0") for c in pod["spec"].get("containers", ()))
    return sum(milli(text) for text in asked)


def used_cpu(pods: Iterable[Object], node: str) -> int:
    """Return the CPU that the living pods bound to a node take."""
    return sum(cpu_of(pod) for pod in pods if pod["spec"].get("nodeName") == node and not finished(pod))


# What a node lets in.


def why_not(pod: Object, node: Object) -> str | None:
    """Return why a pod cannot run on a node, free resources aside, in the controller's words; None where it can."""
    conditions = node.get("status", {}).get("conditions", ())
    if not any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions):
        return NOT_READY  # it has a taint soon
    spec = node.get("spec", {})
    tolerations = pod["spec"].get("tolerations") or []
    if spec.get("unschedulable") and not tolerated(_CORDON, tolerations):
        return CORDONED
    taints = [taint for taint in spec.get("taints") or () if taint["effect"] in ("NoSchedule", "NoExecute")]
    if not all(tolerated(taint, tolerations) for taint in taints):
        return TAINTED
    return None if selected(pod, node) else UNSELECTED


def repelled(pod: Object, node: str, pods: Iterable[Object]) -> bool:
    """Return whether required anti-affinity keeps a pod off a node."""
    affinity = (pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
    terms = affinity.get(REQUIRED) or []
    return bool(terms) and any(
        other["spec"].get("nodeName") == node
        and other["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and other["metadata"]["name"] != pod["metadata"]["name"]
        and not finished(other)
        and any(_labelled(other, term["labelSelector"]["matchLabels"]) for term in terms)
        for other in pods
    )


def _labelled(pod: Object, wanted: dict[str, str]) -> bool:
    return wanted.items() <= (pod["metadata"].get("labels") or {}).items()


def tolerated(taint: Mapping[str, str], tolerations: Iterable[Mapping[str, str]]) -> bool:
    """Return whether one of the tolerations covers a taint, as ``ToleratesTaint`` of core/v1 does."""
    return any(
        t.get("effect", "") in ("", taint["effect"])
        and t.get("key", "") in ("", taint["key"])
        and (
            t.get("operator") == "Exists"
            or (t.get("operator", "") in ("", "Equal") and t.get("value", "") == taint.get("value", ""))
        )
        for t in tolerations
    )


def selected(pod: Object, node: Object) -> bool:
    """Return whether a pod's node selector and required node affinity hold for a node: terms are ORed."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
        return False
    required = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED) or {}
    terms = required.get("nodeSelectorTerms") or ()
    fields = {"metadata.name": node["metadata"]["name"]}
    return not terms or any(_term(term, labels, fields) for term in terms)


def _term(term: Object, labels: dict[str, str], fields: dict[str, str]) -> bool:
    """An empty term matches nothing (core/v1 ``NodeSelectorTerm``)."""
    expressions, by_field = term.get("matchExpressions") or [], term.get("matchFields") or []
    return bool(expressions or by_field) and (
        all(holds(e, labels) for e in expressions) and all(holds(e, fields) for e in by_field)
    )


def holds(expression: Object, values: Mapping[str, Any]) -> bool:
    """Return whether an expression holds for labels: to ``NotIn`` one that is not there is different."""
    value, listed = values.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in listed
        case "NotIn":
            return value not in listed
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator if len(listed) == 1:
            left, right = _integer(value), _integer(listed[0])
            if left is None or right is None:
                return False
            return left > right if operator == "Gt" else left < right
        case _:
            return False


def _integer(text: str | None) -> int | None:
    """A number as Go's ``ParseInt`` reads it, in 64 bits."""
    found = _INTEGER.fullmatch(text or "")
    number = None if found is None else int(found[1] + found[2])
    return number if number is not None and -_LARGEST <= number < _LARGEST else None
