"""Narrowing a gated pod to the nodes it was placed on, and giving a copy its author's affinity back.

While a pod is gated its required node affinity may only be tightened, and its terms are ORed: a term that is appended
to others weakens them. So every existing term is tightened; only a pod without any gets terms of ours, one a node,
because ``matchFields metadata.name`` takes exactly one value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.base.jsonpatch import Patch
from dradriver.api.base.pods import NodeSelector, Pod

HOSTNAME: Final = "kubernetes.io/hostname"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_NODE_AFFINITY_PATH: Final = ("spec", "affinity", "nodeAffinity")
_LONGEST: Final = 1 << 18  # characters of a note; no annotation is longer


def required(pod: Pod) -> NodeSelector | None:
    """Return a pod's required node affinity; None if any node will do."""
    if pod.spec.affinity is None or pod.spec.affinity.node_affinity is None:
        return None
    selector = pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    return selector if selector is not None and selector.node_selector_terms else None


def anywhere(pod: Pod) -> Pod:
    """Return a pod without its required node affinity."""
    if required(pod) is None or pod.spec.affinity is None:
        return pod
    rest = msgspec.structs.replace(pod.spec.affinity, node_affinity=None)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, affinity=rest))


def narrow(pod: Pod, hostnames: Mapping[str, str], patch: Patch) -> None:
    """Add to a patch the node affinity that keeps the pod on the given nodes.

    Terms of an affinity are alternatives. So each existing term gets the nodes as one more condition; without terms,
    one term for each node is written.

    Args:
        pod: The gated pod.
        hostnames: The nodes' ``kubernetes.io/hostname`` labels by node name; the label can differ from the name.
        patch: The patch of the pod.
    """
    selector = required(pod)  # None if the pod has no required terms

    # 1. Existing terms: add the nodes to each of them. All conditions in a term must hold.
    if selector is not None:
        node_condition = {"key": HOSTNAME, "operator": "In", "values": sorted(hostnames.values())}
        for number, term in enumerate(selector.node_selector_terms):
            # An empty term matches no node; with a condition it would begin to match.
            if not term.match_expressions and not term.match_fields:
                continue
            path = (*_NODE_AFFINITY_PATH, REQUIRED, "nodeSelectorTerms", number, "matchExpressions")
            if term.match_expressions:
                patch.add(*path, "-", value=node_condition)
            else:
                patch.add(*path, value=[node_condition])
        return

    # 2. No terms: one for each node, because ``matchFields metadata.name`` takes exactly one value. A JSON Patch
    # creates no parents, so they are added first.
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in hostnames]
    if pod.spec.affinity is None:
        patch.add("spec", "affinity", value={})
    if pod.spec.affinity is None or pod.spec.affinity.node_affinity is None:
        patch.add(*_NODE_AFFINITY_PATH, value={})
    patch.add(*_NODE_AFFINITY_PATH, REQUIRED, value={"nodeSelectorTerms": terms})


def is_narrowed(annotations: Mapping[str, str], selector: NodeSelector | None) -> bool:
    """Return whether the controller has narrowed a pod's node affinity to some nodes.

    Args:
        annotations: The pod's.
        selector: The pod's required node affinity.
    """
    return names.AFFINITY in annotations or (names.ALLOCATED in annotations and _has_only_names(selector))


def authors(annotations: Mapping[str, str]) -> NodeSelector | None:
    """Return the required node affinity that the author of a narrowed pod wrote; None without one.

    Raises:
        WordError: The note was changed into something that is none.
    """
    text = annotations.get(names.AFFINITY)
    return None if text is None else read_note(text)


def _has_only_names(selector: NodeSelector | None) -> bool:
    """Return whether each term is one that ``narrow`` gives to a pod without terms of its own."""
    if selector is None or not selector.node_selector_terms:
        return False
    return all(
        not term.match_expressions
        and [(e.key, e.operator, len(e.values or ())) for e in term.match_fields or ()] == [("metadata.name", "In", 1)]
        for term in selector.node_selector_terms
    )


def note(pod: Pod) -> str | None:
    """Return the required affinity of the pod's author as the text of the ``affinity`` note; None without one."""
    selector = required(pod)
    return None if selector is None else msgspec.json.encode(selector).decode()


def read_note(text: str) -> NodeSelector | None:
    """Return the required affinity of the pod's author from the text of the note; None where there was none.

    Raises:
        WordError: The note was changed into something that is none.
    """
    if len(text) > _LONGEST:
        raise WordError(f"{names.AFFINITY}: {len(text)} characters; remove this annotation")
    try:
        return msgspec.json.decode(text, type=NodeSelector | None)
    except (ValueError, RecursionError) as error:
        raise WordError(f"{names.AFFINITY}: {error}; remove this annotation") from None


def plain(selector: NodeSelector) -> dict[str, Any]:
    """Return the node selector of an affinity as JSON, without empty fields."""
    return {
        "nodeSelectorTerms": [
            {
                key: [
                    {"key": e.key, "operator": e.operator} | ({"values": e.values} if e.values else {})
                    for e in expressions
                ]
                for key, expressions in (
                    ("matchExpressions", term.match_expressions),
                    ("matchFields", term.match_fields),
                )
                if expressions
            }
            for term in selector.node_selector_terms
        ]
    }


def put_required(
    patch: Patch, affinity: Mapping[str, Any] | None, node_affinity: Mapping[str, Any] | None, value: Any
) -> None:
    """Add to a patch what replaces a pod's required node affinity.

    Args:
        patch: The patch of the pod.
        affinity: The members of the pod's ``spec.affinity``; None without one.
        node_affinity: The members of its ``nodeAffinity``; None without one.
        value: The selector as JSON; None takes it away, and with it what would be left empty.
    """
    full_path = (*_NODE_AFFINITY_PATH, REQUIRED)
    # A JSON Patch can only add below parents that exist: add at the first one that is missing, with the others inside.
    if value is not None:
        depth = 4 if node_affinity is not None else 3 if affinity is not None else 2
        for key in reversed(full_path[depth:]):
            value = {key: value}
        patch.add(*full_path[:depth], value=value)
    elif affinity is not None and node_affinity is not None and REQUIRED in node_affinity:
        # Remove the topmost object that would be left empty.
        depth = 2 if len(affinity) == len(node_affinity) == 1 else 3 if len(node_affinity) == 1 else 4
        patch.remove(*full_path[:depth])
