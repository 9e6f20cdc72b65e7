"""What outlives a test's namespace: the state of the cluster and its nodes that each module must leave as it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dradriver.api.base import names
from tests import deploy
from tests.cluster import Cluster, Node
from tests.cluster.api import Served

State = Mapping[str, str]

# Kinds without a namespace that the cluster's own parts write at any time. Of slices see `_devices`.
_BUSY: Final = (
    *("apiservices", "certificatesigningrequests", "componentstatuses", "csinodes", "ipaddresses", "resourceslices"),
)
# Kinds that tests can leave in the namespaces that stay.
_OF_NAMESPACES: Final = (
    *("daemonsets", "deployments", "services", "serviceaccounts", "jobs", "roles", "rolebindings", "resourcequotas"),
    *("networkpolicies", "poddisruptionbudgets", "resourceclaims", "resourceclaimtemplates"),
)
_OF_DEFAULT: Final = (*_OF_NAMESPACES, "pods", "configmaps", "secrets", "persistentvolumeclaims")
# Fields that the API server, a kubelet or Helm writes at any time, and those that a new installation has otherwise.
_VOLATILE: Final = (
    *("resourceVersion", "generation", "uid", "creationTimestamp", "managedFields", "annotations", "status"),
    *("caBundle", "clusterIP", "clusterIPs"),
)


def read(cluster: Cluster) -> State:
    """Return a digest of each object that stands in the cluster, and the text of what stands on each node."""
    api = cluster.api
    found = [obj for served in api.served() if _stands(served) for obj in api.objects(served.resource)]
    found += [obj for kind in _OF_NAMESPACES for obj in api.objects(kind, namespace=deploy.NAMESPACE)]
    found += [obj for kind in _OF_DEFAULT for obj in api.objects(kind, namespace="default")]
    found.append(api.object("configmap", f"{deploy.RELEASE}-policies", namespace=deploy.NAMESPACE))
    state = {_name(obj): _digest(obj) for obj in found if not _of_a_test(obj)}
    state |= _devices(api.objects("resourceslices"))
    for node in cluster.nodes.values():
        state[f"{node.name}: mounts"] = "\n".join(_mounts(node))
        state[f"{node.name}: files"] = "\n".join(_files(node))
    return state


def changes(before: State, after: State) -> list[str]:
    """Return what differs, an entry for each object."""
    return [
        f"{name}: {before.get(name, 'not there')!r}, now {after.get(name, 'not there')!r}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def _stands(served: Served) -> bool:
    """Return whether all objects of a kind outlive the namespaces of tests."""
    return not served.resource.namespaced and "list" in served.verbs and served.resource.plural not in _BUSY


def _name(obj: Mapping[str, Any]) -> str:
    metadata = obj["metadata"]
    return " ".join(filter(None, (obj["kind"], metadata.get("namespace"), metadata["name"])))


def _digest(obj: Mapping[str, Any]) -> str:
    content = _steady(obj)
    annotations = obj["metadata"].get("annotations", {})
    content["annotations"] = {key: text for key, text in annotations.items() if key.startswith(names.PREFIX)}
    if obj["kind"] == "Node":
        content["resources"] = sorted(obj["status"]["allocatable"])
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _steady(value: Any) -> Any:
    """Return a value without its volatile fields."""
    if isinstance(value, dict):
        return {key: _steady(field) for key, field in value.items() if key not in _VOLATILE}
    return [_steady(item) for item in value] if isinstance(value, list) else value


def _devices(slices: list[dict[str, Any]]) -> State:
    """Return the devices of each driver on each node with their types and taints."""
    devices: dict[str, list[str]] = {}
    for piece in slices:
        spec = piece["spec"]
        texts = map(_device, spec.get("devices") or ())
        devices.setdefault(f"devices of {spec['driver']} on {spec.get('nodeName', 'no node')}", []).extend(texts)
    return {where: " ".join(sorted(texts)) for where, texts in devices.items()}


def _device(device: Mapping[str, Any]) -> str:
    kind = device.get("attributes", {}).get("type", {}).get("string", "")
    taints = sorted(taint["key"] for taint in device.get("taints", ()))
    return ":".join((device["name"], kind, *taints))


def _of_a_test(obj: Mapping[str, Any]) -> bool:
    """Return whether an object is a test's namespace, which takes some seconds to go."""
    return obj["kind"] == "Namespace" and "deletionTimestamp" in obj["metadata"]


def _mounts(node: Node) -> list[str]:
    """Return the node's mount points without those of pods and containers."""
    lines = Path(f"/proc/{node.sandbox.first_process}/mounts").read_text().splitlines()
    points = [line.split()[1] for line in lines]
    return sorted(point for point in points if not any(part in point for part in ("/pods/", "/containerd/", "/netns/")))


def _files(node: Node) -> list[str]:
    """Return the files by which a test changes the node's simulated hardware, and those that describe devices."""
    hardware = [path for path in (deploy.state_dir(node) / "simulated").glob("*") if path.name != "hardware.json"]
    return sorted(path.name for path in (*hardware, *node.cdi_dir.glob("*")))
