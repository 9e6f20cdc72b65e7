"""A queue, and what stands in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dradriver.api.base import names

Object = dict[str, Any]
QUEUE = "team"
_LABELS = {"kueue.x-k8s.io/queue-name": QUEUE}
_NONE: Mapping[str, str] = {}


def queue(*, gpus: int, namespace: str = "default", **spec: Any) -> list[Object]:
    """Return a ClusterQueue with so many GPUs and ``spec``, its flavor, and a LocalQueue in a namespace."""
    group = {
        "coveredResources": [names.GPU_RESOURCE],
        "flavors": [{"name": "any", "resources": [{"name": names.GPU_RESOURCE, "nominalQuota": gpus}]}],
    }
    return [
        _kueue("ResourceFlavor", "any", {}),
        _kueue("ClusterQueue", "gpus", {"namespaceSelector": {}, "resourceGroups": [group]} | spec),
        _kueue("LocalQueue", QUEUE, {"clusterQueue": "gpus"}, namespace=namespace),
    ]


def _kueue(kind: str, name: str, spec: Object, **metadata: str) -> Object:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": kind,
        "metadata": {"name": name} | metadata,
        "spec": spec,
    }


def pod(name: str, *, gpus: int = 0, words: Mapping[str, str] = _NONE) -> Object:
    """Return a plain pod in the queue."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(name, words), "spec": _spec(gpus)}


def job(name: str, *, gpus: int = 0, words: Mapping[str, str] = _NONE, template: str | None = None) -> Object:
    """Return a Job in the queue, with the words above; its pod's GPUs are a limit's, or a claim's by a template."""
    spec = _spec(gpus) | {"restartPolicy": "Never"}
    if template is not None:
        spec["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": template}]
        spec["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(name, words),
        "spec": {"template": {"spec": spec}},
    }


def set_of(kind: str, name: str, *, gpus: int, replicas: int, words: Mapping[str, str]) -> Object:
    """Return a Deployment or StatefulSet in the queue, with the words above."""
    labels = {"app": name}
    spec: Object = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": _spec(gpus)},
    }
    if kind == "StatefulSet":
        spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": _metadata(name, words), "spec": spec}


def template(name: str, gpus: int) -> Object:
    """Return a ResourceClaimTemplate of so many GPUs."""
    request = {"name": "gpus", "exactly": {"deviceClassName": names.DEVICE_CLASS, "count": gpus}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def _metadata(name: str, words: Mapping[str, str]) -> Object:
    return {"name": name, "labels": dict(_LABELS)} | ({"annotations": dict(words)} if words else {})


def _spec(gpus: int) -> Object:
    limits = {"limits": {names.GPU_RESOURCE: str(gpus)}} if gpus else {}
    return {"containers": [{"name": "main", "image": "busybox", "resources": limits}]}
