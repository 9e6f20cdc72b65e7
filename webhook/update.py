"""UPDATE of a pod by anybody but the controller: what the driver wrote is carried over from the live pod.

A manifest that is applied or replaced unchanged has limits that the live pod lost and lacks fields that it gained, all
of them fields that Kubernetes does not let change. Without this the API server would refuse every such update.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from dradriver.api import annotations as words
from dradriver.api import names
from dradriver.api.errors import WordError
from dradriver.api.objects import NodeSelector
from webhook import containers, mutate, pods

_OURS = (*names.NOTES, *names.RESULTS)
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_KEPT = f"spec.affinity.nodeAffinity.{_REQUIRED}: kept as it is, for it cannot change once a pod has its place"


def update(pod: pods.Object, old: pods.Object) -> tuple[pods.Object, list[str]]:
    """Return the pod as it should be stored, and warnings for whoever sent it.

    Args:
        pod: The pod as sent; ``pods.check`` has passed it; it is not changed.
        old: The live pod; ``pods.check`` has passed it.

    Raises:
        WordError: A word of ours that is unknown was added, or our label to a pod that had none.
    """
    _refuse_new_words(pod, old)
    if pods.labels_of(old).get(names.LABEL) != names.LABEL_PLACED:
        if pods.labels_of(pod).get(names.LABEL) != pods.labels_of(old).get(names.LABEL):
            raise WordError(f"label {names.LABEL} is set when a pod is created, never later; remove it")
        return pod, []
    pod = copy.deepcopy(pod)
    warnings = _carry_affinity(pod, old)
    _carry_metadata(pod, old)
    _carry_containers(pod, old)
    spec, was = pod["spec"], old["spec"]
    for key in ("nodeName", "schedulerName"):
        pods.put(spec, key, was.get(key))
    _carry(spec, was, "resourceClaims", names.POD_CLAIM)
    _carry(spec, was, "schedulingGates", names.GATE)
    return pod, warnings


def _refuse_new_words(pod: pods.Object, old: pods.Object) -> None:
    for key, value in pods.annotations_of(pod).items():
        ours = words.has_wish({key: value})
        if ours and key not in (*pods.annotations_of(old), *names.WISHES, *_OURS):
            words.parse({key: value}, {"container": 1})


def _carry_affinity(pod: pods.Object, old: pods.Object) -> list[str]:
    note = pods.annotations_of(old).get(names.AFFINITY)
    if note is None:
        mutate.undo_affinity(pod)  # the manifest is a copy of a placed pod, and the live pod still waits
        return []
    sent, live = _required(pod), _required(old)
    if sent == live:
        return []
    spec = pod["spec"]
    affinity = dict(spec.get("affinity") or {})
    node = dict(affinity.get("nodeAffinity") or {})
    pods.put(node, _REQUIRED, live)
    pods.put(affinity, "nodeAffinity", node)
    pods.put(spec, "affinity", affinity)
    return [] if sent is None or _same(sent, note) else [_KEPT]


def _required(pod: pods.Object) -> Any:
    return ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)


def _same(sent: Any, note: str) -> bool:
    try:
        return msgspec.convert(sent, NodeSelector) == msgspec.json.decode(note, type=NodeSelector | None)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False


def _carry_metadata(pod: pods.Object, old: pods.Object) -> None:
    metadata = pod["metadata"]
    live = {key: value for key, value in pods.annotations_of(old).items() if key in _OURS}
    sent = {key: value for key, value in pods.annotations_of(pod).items() if key not in _OURS}
    pods.put(metadata, "annotations", sent | live)
    metadata["labels"] = pods.labels_of(pod) | {names.LABEL: names.LABEL_PLACED}


def _carry_containers(pod: pods.Object, old: pods.Object) -> None:
    for key in ("containers", "initContainers"):
        live = {container.get("name"): container for container in pods.items(old["spec"], key)}
        for container in pods.items(pod["spec"], key):
            resources = (live.get(container.get("name")) or {}).get("resources") or {}
            if names.GPU_RESOURCE not in (resources.get("limits") or {}):
                containers.strip(container)
            if container.get("resources") or resources:
                container["resources"] = dict(container.get("resources") or {})
                _carry(container["resources"], resources, "claims", names.POD_CLAIM)


def _carry(parent: pods.Object, was: pods.Object, key: str, name: str) -> None:
    """Make the entry ``name`` of a list what it was, in the place that it had; the others stay as sent."""
    rest = [entry for entry in pods.items(parent, key) if entry.get("name") != name]
    result: list[pods.Object] = []
    for entry in pods.items(was, key):
        same = [e for e in rest if e.get("name") == entry.get("name")]
        result += same or ([entry] if entry.get("name") == name else [])
        rest = [e for e in rest if e not in same]
    if result + rest != pods.items(parent, key):
        pods.put(parent, key, result + rest)
