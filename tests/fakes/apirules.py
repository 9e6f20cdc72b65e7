"""What the API server refuses of new and changed objects, as far as anybody here relies on it.

Source: ``ValidatePodUpdate``, ``ValidateResourceClaimUpdate`` and ``ValidateObjectMeta`` of Kubernetes 1.36; the tests
in ``tests/contract`` hold these rules against a real server.
"""

from __future__ import annotations

import copy
from typing import Any

Object = dict[str, Any]

MOST_ANNOTATIONS = 256 * 1024
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class Refused(Exception):  # noqa: N818 - it is an answer
    """An answer that is a Status object."""

    def __init__(self, status: int, reason: str, message: str, details: Object | None = None) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        self.details = details
        super().__init__(message)


def check_new(plural: str, obj: Object) -> None:
    """Refuse what the server would not create."""
    _check_metadata(obj)
    if plural == "pods" and (spec := obj.get("spec", {})).get("nodeName") and spec.get("schedulingGates"):
        raise _invalid("spec.nodeName: Forbidden: nodeName cannot be set until all schedulingGates have been cleared")


def check_change(plural: str, old: Object, new: Object) -> None:
    """Refuse what the server would not change."""
    _check_metadata(new)
    finalizers = [set(obj["metadata"].get("finalizers") or ()) for obj in (old, new)]
    if old["metadata"].get("deletionTimestamp") and finalizers[1] - finalizers[0]:
        raise _invalid("metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted")
    before, after = old.get("spec", {}), new.get("spec", {})
    if plural == "resourceclaims" and before != after:
        raise _invalid("spec: Invalid value: field is immutable")
    if plural == "pods":
        _check_pod(before, after)


def _check_metadata(obj: Object) -> None:
    texts = [obj["metadata"].get(key) or {} for key in ("labels", "annotations")]
    if not all(isinstance(value, str) for words in texts for value in words.values()):
        raise Refused(400, "BadRequest", "json: cannot unmarshal into Go struct field ObjectMeta of type string")
    if sum(len(key.encode()) + len(value.encode()) for key, value in texts[1].items()) > MOST_ANNOTATIONS:
        raise _invalid(f"metadata.annotations: Too long: may not be more than {MOST_ANNOTATIONS} bytes")


def _check_pod(old: Object, new: Object) -> None:
    gates = old.get("schedulingGates") or []
    if any(gate not in gates for gate in new.get("schedulingGates") or ()):
        raise _invalid("spec.schedulingGates: Forbidden: only deletion is allowed")
    before, after = copy.deepcopy(old), copy.deepcopy(new)
    for spec in (before, after):
        spec.pop("schedulingGates", None)
    if gates:
        selector, wanted = (spec.pop("nodeSelector", None) or {} for spec in (before, after))
        if not selector.items() <= wanted.items():
            raise _invalid("spec.nodeSelector: Invalid value: only additions are allowed")
        if not _narrowed(*(_take_terms(spec) for spec in (before, after))):
            raise _invalid("spec.affinity.nodeAffinity: Invalid value: only additions are allowed")
    if before != after:
        raise _invalid(
            "spec: Forbidden: pod updates may not change fields other than image, tolerations and a few more"
        )


def _take_terms(spec: Object) -> list[Object]:
    """Take the required terms of a node affinity out of a spec, and what is empty then."""
    affinity = spec.get("affinity") or {}
    node = affinity.get("nodeAffinity") or {}
    terms: list[Object] = (node.pop(REQUIRED, None) or {}).get("nodeSelectorTerms") or []
    if not node:
        affinity.pop("nodeAffinity", None)
    if not affinity:
        spec.pop("affinity", None)
    return terms


def _narrowed(old: list[Object], new: list[Object]) -> bool:
    def added(before: Object, after: Object) -> bool:
        parts = [(before.get(key) or [], after.get(key) or []) for key in ("matchExpressions", "matchFields")]
        if not any(was for was, _ in parts):  # an empty term selects nothing, and stays so
            return not any(now for _, now in parts)
        return all(now[: len(was)] == was for was, now in parts)

    return not old or (len(old) == len(new) and all(map(added, old, new)))


def _invalid(message: str) -> Refused:
    return Refused(422, "Invalid", message)
