"""The pods and claims that an object creates: the object is a pod, or has pod templates anywhere in it.

The same code reads Deployments, Jobs, CronJobs, JobSets, LeaderWorkerSets, PyTorchJobs, RayClusters and unknown kinds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from dradriver.api.base.errors import WordError
from dradriver.cli.linter.manifest_documents import Document
from webhook import gpu_limits, pod_view

Path = tuple[str | int, ...]

CLAIMS: Final = ("ResourceClaim", "ResourceClaimTemplate")
_RAY: Final = "ray.io"
_RAY_LABEL: Final = "ray.io/cluster"  # KubeRay puts it on all pods of a cluster
_RAY_GROUPS: Final = frozenset(("headGroupSpec", "workerGroupSpecs"))
_MOST: Final = 100_000  # values of one object that are looked through


class PodOf(msgspec.Struct, frozen=True):
    """A pod that an object is, or creates.

    Attributes:
        path: The place of the pod template in the object; empty for a pod.
        manifest: The pod as a controller would create it.
    """

    path: Path
    manifest: dict[str, Any]


def pods(document: Document) -> Iterator[PodOf]:
    """Yield the pods and claims that an object's pod templates make, in their order in the manifest."""
    data = document.data
    if data.get("kind") == "Pod":
        yield PodOf((), data)
        return
    name = _metadata(data).get("name")
    is_ray = str(data.get("apiVersion")).partition("/")[0] == _RAY
    for path, template in _templates(data):
        metadata = dict(_metadata(template))
        if is_ray and not _RAY_GROUPS.isdisjoint(path):
            labels = metadata.get("labels")
            metadata["labels"] = (labels if isinstance(labels, dict) else {}) | {_RAY_LABEL: str(name)}
        metadata.setdefault("generateName", f"{name if isinstance(name, str) else 'pod'}-")
        if (namespace := _metadata(data).get("namespace")) is not None:
            metadata.setdefault("namespace", namespace)
        yield PodOf(path, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})


def asks_by_limits(manifest: dict[str, Any]) -> bool:
    """Return whether a limit of a pod's container requests GPUs or fractions of them.

    The result is False if the limit cannot be read.
    """
    try:
        return gpu_limits.have_limits(pod_view.read(msgspec.Raw(msgspec.json.encode(manifest))))
    except WordError:
        return False


def _metadata(data: dict[str, Any]) -> dict[str, Any]:
    metadata = data.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _templates(data: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield every mapping that looks like a pod template: it has a spec with containers.

    The inside of a template is not searched for further templates.
    """
    todo: list[tuple[Path, Any]] = [((), data)]
    seen = 0
    while todo and seen < _MOST:
        seen += 1
        path, value = todo.pop()
        if isinstance(value, list):
            todo += [((*path, number), item) for number, item in reversed(list(enumerate(value)))]
        elif isinstance(value, dict):
            spec = value.get("spec")
            if path and isinstance(spec, dict) and _has_containers(spec):
                yield path, value
            else:
                todo += [((*path, str(key)), item) for key, item in reversed(list(value.items()))]


def _has_containers(spec: dict[str, Any]) -> bool:
    containers = spec.get("containers")
    return isinstance(containers, list) and any(isinstance(each, dict) and "name" in each for each in containers)
