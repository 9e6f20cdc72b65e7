"""Restricts a gated pod to its nodes, and restores the author's affinity in a copy of the pod.

The controller calls this when it places a pod, and the webhook when a copy of a placed pod is created.

Kubernetes allows only to tighten the required node affinity of a gated pod. The terms of an affinity are ORed, so an
additional term would loosen it. So the driver tightens every existing term. Before that, it keeps the author's affinity
in an annotation of the pod (the *note*). Only a pod without terms gets new terms, one for each node, because
``matchFields metadata.name`` takes exactly one value.
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
    """Return the node affinity that a pod requires; None if it requires none, or no terms."""
    if pod.spec.affinity is None or pod.spec.affinity.node_affinity is None:
        return None
    selector = pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    return selector if selector is not None and selector.node_selector_terms else None


def anywhere(pod: Pod) -> Pod:
    """Return a copy of a pod without its required node affinity, as if any node were allowed."""
    if required(pod) is None or pod.spec.affinity is None:
        return pod
    rest = msgspec.structs.replace(pod.spec.affinity, node_affinity=None)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, affinity=rest))


def narrow(pod: Pod, hostnames: Mapping[str, str], patch: Patch) -> None:
    """Add to a patch the node affinity that keeps the pod on the given nodes.

    Terms of an affinity are alternatives. So each existing term gets the nodes as one more condition; without terms,
    one term for each node is written. An empty term stays unchanged, because it matches no node.

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
    """Return whether the controller has restricted a pod's node affinity to some nodes.

    Args:
        annotations: The pod's annotations.
        selector: The pod's required node affinity; None without one.
    """
    return names.AFFINITY in annotations or (names.ALLOCATED in annotations and _has_only_names(selector))


def authors(annotations: Mapping[str, str]) -> NodeSelector | None:
    """Return the node affinity that the author of a restricted pod required.

    The controller has stored it in an annotation of the pod. The result is None if the author required none, or if the
    pod lacks the annotation.

    Raises:
        WordError: The annotation that stores the author's affinity was changed, and is not a node selector any more.
    """
    text = annotations.get(names.AFFINITY)
    return None if text is None else read_note(text)


def _has_only_names(selector: NodeSelector | None) -> bool:
    """Return whether each term of a selector has only one node name.

    ``narrow`` writes such terms for a pod whose author wrote no required node affinity.
    """
    if selector is None or not selector.node_selector_terms:
        return False
    return all(
        not term.match_expressions
        and [(e.key, e.operator, len(e.values or ())) for e in term.match_fields or ()] == [("metadata.name", "In", 1)]
        for term in selector.node_selector_terms
    )


def note(pod: Pod) -> str | None:
    """Return the author's node affinity as text for the annotation ``names.AFFINITY``.

    The annotation keeps the author's affinity while the controller restricts the pod. So the pod must not be restricted
    yet. The result is None if the pod requires no node affinity.
    """
    selector = required(pod)
    return None if selector is None else msgspec.json.encode(selector).decode()


def read_note(text: str) -> NodeSelector | None:
    """Return the author's node affinity from the text that ``note`` wrote.

    None if the text is the JSON ``null``: the author wrote no affinity.

    Raises:
        WordError: The text was changed and is not a node selector any more.
    """
    if len(text) > _LONGEST:
        raise WordError(
            f"{names.AFFINITY}: the annotation has {len(text)} characters, and at most {_LONGEST} are allowed. Remove "
            f"it."
        )
    try:
        return msgspec.json.decode(text, type=NodeSelector | None)
    except (ValueError, RecursionError) as error:
        raise WordError(f"{names.AFFINITY}: the annotation is not valid: {error}. Remove it.") from None


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
    """Add to a patch the operations that replace a pod's required node affinity.

    Args:
        patch: The patch of the pod.
        affinity: The members of the pod's ``spec.affinity``; None without one.
        node_affinity: The members of its ``nodeAffinity``; None without one.
        value: The new selector as JSON. None removes the selector, and the parent fields that would be empty then.
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
