"""Whether a pod may run on a node by kube-scheduler's rules: labels, taints, CPU. Not the controller's own code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dradriver.api import names
from tests.fakes.apistore import Object


def milli(text: str) -> int:
    """Return an amount of CPU in thousandths; what only strangers write counts as none."""
    number = text.removesuffix("m")
    return (int(number) * (1 if text.endswith("m") else 1000)) if number.isdigit() else 0


def cpu_of(pod: Object) -> int:
    """Return what a pod requests, in thousandths."""
    asked = (c.get("resources", {}).get("requests", {}).get("cpu", "0") for c in pod["spec"].get("containers", ()))
    return sum(milli(text) for text in asked)


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


def used_cpu(pods: Iterable[Object], node: str) -> int:
    """Return the CPU that the living pods bound to a node take."""
    return sum(cpu_of(pod) for pod in pods if pod["spec"].get("nodeName") == node and not finished(pod))


def allowed(pod: Object, node: Object) -> bool:
    """Return whether labels, cordon and taints let a pod onto a node; one that is not ready has a taint soon."""
    conditions = node.get("status", {}).get("conditions", ())
    if not any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions):
        return False
    spec = node.get("spec", {})
    tolerations = pod["spec"].get("tolerations") or []
    if spec.get("unschedulable") and not _tolerated("node.kubernetes.io/unschedulable", tolerations):
        return False
    taints = [t["key"] for t in spec.get("taints") or () if t["effect"] in ("NoSchedule", "NoExecute")]
    return all(_tolerated(key, tolerations) for key in taints) and _selected(pod, node)


def repelled(pod: Object, node: str, pods: Iterable[Object]) -> bool:
    """Return whether required anti-affinity keeps a pod off a node: one of those is there, or was lifted for it."""
    affinity = (pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or []
    return bool(terms) and any(
        _there(other) == node
        and other["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and other["metadata"]["name"] != pod["metadata"]["name"]
        and not finished(other)
        and any(_labelled(other, term["labelSelector"]["matchLabels"]) for term in terms)
        for other in pods
    )


def _there(pod: Object) -> str:
    bound: str = pod["spec"].get("nodeName") or ""
    return bound or ("" if gates(pod) else notes_of(pod).get(names.NODE, ""))


def _labelled(pod: Object, wanted: dict[str, str]) -> bool:
    return wanted.items() <= (pod["metadata"].get("labels") or {}).items()


def _tolerated(key: str, tolerations: list[Object]) -> bool:
    return any(t.get("operator") == "Exists" and t.get("key", key) == key for t in tolerations)


def _selected(pod: Object, node: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
        return False
    required = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if required is None:
        return True
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(_term(term, labels, fields) for term in required["nodeSelectorTerms"])


def _term(term: Object, labels: dict[str, str], fields: dict[str, str]) -> bool:
    expressions, by_field = term.get("matchExpressions") or [], term.get("matchFields") or []
    return bool(expressions or by_field) and (
        all(_holds(e, labels) for e in expressions) and all(_holds(e, fields) for e in by_field)
    )


def _holds(expression: Object, values: dict[str, Any]) -> bool:
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
        case "Gt":
            return value is not None and value.isdigit() and int(value) > int(listed[0])
        case _:
            return value is not None and value.isdigit() and int(value) < int(listed[0])
