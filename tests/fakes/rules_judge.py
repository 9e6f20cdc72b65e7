"""What kube-scheduler says of a pod's rules about other pods, written after its plugins and not after the driver.

Kubernetes 1.35, pkg/scheduler/framework/plugins: interpodaffinity, podtopologyspread and nodeports.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

Object = Mapping[str, Any]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOSTNAME = "kubernetes.io/hostname"


class On(NamedTuple):
    """A pod on a node."""

    pod: Object
    node: Object


def refusal(
    pod: Object,
    node: Object,
    there: Sequence[On],
    nodes: Collection[Object],
    usable: Collection[Object] | None = None,
) -> str:
    """Return which plugin refuses a pod on a node; empty if none does.

    Args:
        pod: The pod. It tolerates no taint.
        node: The node.
        there: The pods that are placed already.
        nodes: All nodes.
        usable: The nodes that the pod's node affinity selects; None for those that its node selector selects.
    """
    if usable is None:
        usable = [each for each in nodes if _is_selected(pod, each)]
    if node not in usable or _is_tainted(node):
        return "node"
    if any(_ports(pod) & _ports(other.pod) for other in there if other.node == node):
        return "ports"
    if any(not _apart(pod, node, on) or not _apart(on.pod, on.node, On(pod, node)) for on in there):
        return "anti-affinity"
    if not _together(pod, node, there):
        return "affinity"
    return (
        ""
        if all(_even(pod, node, there, _compared(pod, nodes, usable, rule), rule) for rule in spreads(pod))
        else "spread"
    )


def terms(pod: Object, kind: str) -> list[Object]:
    """Return the required terms of ``podAffinity`` or ``podAntiAffinity``."""
    return list(((pod["spec"].get("affinity") or {}).get(kind) or {}).get(REQUIRED) or ())


def spreads(pod: Object) -> list[Object]:
    """Return the topology spread constraints that must be kept."""
    return [c for c in pod["spec"].get("topologySpreadConstraints") or () if c["whenUnsatisfiable"] == "DoNotSchedule"]


def keeps_even(pod: Object, node: Object, there: Sequence[On], nodes: Collection[Object]) -> bool:
    """Return whether the spread of a pod that is placed holds among all pods."""
    others, usable = [on for on in there if on.pod is not pod], [each for each in nodes if _is_selected(pod, each)]
    return all(_even(pod, node, others, _compared(pod, nodes, usable, rule), rule) for rule in spreads(pod))


def _is_selected(pod: Object, node: Object) -> bool:
    return all(_label(node, key) == value for key, value in (pod["spec"].get("nodeSelector") or {}).items())


def _is_tainted(node: Object) -> bool:
    return any(taint["effect"] in ("NoSchedule", "NoExecute") for taint in node["spec"].get("taints") or ())


def _compared(pod: Object, nodes: Collection[Object], usable: Collection[Object], rule: Object) -> list[Object]:
    """Return the nodes whose domains a spread constraint of a pod compares, and whose pods it counts."""
    some = nodes if rule.get("nodeAffinityPolicy") == "Ignore" else usable
    if rule.get("nodeTaintsPolicy") == "Honor":
        some = [each for each in some if not _is_tainted(each)]
    keys = [each["topologyKey"] for each in spreads(pod)]
    return [each for each in some if all(_label(each, key) is not None for key in keys)]


def _ports(pod: Object) -> set[tuple[int, str]]:
    ports = (port for container in pod["spec"]["containers"] for port in container.get("ports") or ())
    return {(port["hostPort"], port.get("protocol", "TCP")) for port in ports if port.get("hostPort")}


def _label(node: Object, key: str) -> str | None:
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    return labels.get(key)


def _selects(rule: Object, pod: Object) -> bool:
    wanted = rule["labelSelector"]["matchLabels"]
    return bool(wanted.items() <= (pod["metadata"].get("labels") or {}).items())


def _apart(pod: Object, node: Object, other: On) -> bool:
    return not any(
        _selects(term, other.pod)
        and _label(node, term["topologyKey"]) is not None
        and _label(node, term["topologyKey"]) == _label(other.node, term["topologyKey"])
        for term in terms(pod, "podAntiAffinity")
    )


def _together(pod: Object, node: Object, there: Sequence[On]) -> bool:
    rules = terms(pod, "podAffinity")
    if any(_label(node, rule["topologyKey"]) is None for rule in rules):
        return False
    near = [on for on in there if all(_selects(rule, on.pod) for rule in rules)]
    counts = {
        (rule["topologyKey"], value) for on in near for rule in rules if (value := _label(on.node, rule["topologyKey"]))
    }
    if all((rule["topologyKey"], _label(node, rule["topologyKey"])) in counts for rule in rules):
        return True
    return not counts and all(_selects(rule, pod) for rule in rules)


def _even(pod: Object, node: Object, there: Sequence[On], nodes: Collection[Object], rule: Object) -> bool:
    key = rule["topologyKey"]
    counts = {value: 0 for other in nodes if (value := _label(other, key)) is not None}
    if _label(node, key) not in counts:
        return False
    for on in there:
        if on.node in nodes and (value := _label(on.node, key)) is not None:
            counts[value] += _selects(rule, on.pod)
    own = counts[str(_label(node, key))] + _selects(rule, pod)
    least = 0 if len(counts) < rule.get("minDomains", 1) else min(counts.values())
    return bool(own - least <= rule["maxSkew"])
