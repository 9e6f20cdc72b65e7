"""Narrowing a gated pod to the nodes it was placed on, and undoing that in a copy.

While a pod is gated its required node affinity may only be tightened, and its terms are ORed: a term that is appended
to others weakens them. So every existing term is tightened; only a pod without any gets terms of ours, one a node,
because ``matchFields metadata.name`` takes exactly one value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dradriver.api import names
from dradriver.api.errors import WordError
from dradriver.api.objects import NodeSelector, Pod

HOSTNAME: Final = "kubernetes.io/hostname"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PATH: Final = f"/spec/affinity/nodeAffinity/{_REQUIRED}"


def required(pod: Pod) -> NodeSelector | None:
    """Return the pod's required node affinity; None where any node will do."""
    if pod.spec.affinity is None or pod.spec.affinity.node_affinity is None:
        return None
    selector = pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    return selector if selector is not None and selector.node_selector_terms else None


def narrow(pod: Pod, hostnames: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return JSON Patch operations that keep the pod on the given nodes.

    Args:
        pod: The gated pod.
        hostnames: The nodes' ``kubernetes.io/hostname`` labels by node name; the label can differ from the name.
    """
    selector = required(pod)
    if selector is not None:
        added = {"key": HOSTNAME, "operator": "In", "values": sorted(hostnames.values())}
        return [
            {
                "op": "add",
                "path": f"{_PATH}/nodeSelectorTerms/{i}/matchExpressions/-",
                "value": added,
            }
            if term.match_expressions
            else {
                "op": "add",
                "path": f"{_PATH}/nodeSelectorTerms/{i}/matchExpressions",
                "value": [added],
            }
            for i, term in enumerate(selector.node_selector_terms)
        ]
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in hostnames]
    operations: list[dict[str, Any]] = []
    if pod.spec.affinity is None:
        operations.append({"op": "add", "path": "/spec/affinity", "value": {}})
    if pod.spec.affinity is None or pod.spec.affinity.node_affinity is None:
        operations.append({"op": "add", "path": "/spec/affinity/nodeAffinity", "value": {}})
    return [*operations, {"op": "add", "path": _PATH, "value": {"nodeSelectorTerms": terms}}]


def note(pod: Pod) -> str:
    """Return the author's own required affinity as the text of the ``affinity`` note."""
    return msgspec.json.encode(required(pod)).decode()


def undo(pod: Pod) -> list[dict[str, Any]]:
    """Return JSON Patch operations that give a copy of a narrowed pod its author's affinity back; none without a note.

    Raises:
        WordError: The note was changed into something that is none.
    """
    text = pod.metadata.annotations.get(names.AFFINITY)
    if text is None or required(pod) is None:
        return []
    try:
        selector = msgspec.json.decode(text, type=NodeSelector | None)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise WordError(f"{names.AFFINITY}: {error}; remove this annotation") from None
    if selector is None:
        return [{"op": "remove", "path": _PATH}]
    terms = [
        {
            key: [{"key": e.key, "operator": e.operator, **({"values": e.values} if e.values else {})} for e in found]
            for key, found in (
                ("matchExpressions", term.match_expressions),
                ("matchFields", term.match_fields),
            )
            if found
        }
        for term in selector.node_selector_terms
    ]
    return [{"op": "replace", "path": _PATH, "value": {"nodeSelectorTerms": terms}}]
