"""Objects that the chart installs, as commands and the page find them."""

from __future__ import annotations

from typing import Any

from dradriver.kube.resources import CONFIG_MAPS, DAEMON_SETS
from tests.fakes.apistore import Object, Store

DRIVER_NAMESPACE = "gpu-topology"


def policies_map(text: str, *, namespace: str = DRIVER_NAMESPACE) -> Object:
    """Return the ConfigMap with a policies file."""
    metadata = {"name": "any-policies", "namespace": namespace, "labels": _labels("policies")}
    return {"metadata": metadata, "data": {"policies.yaml": text}}


def agents(*, wanted: int = 0, namespace: str = DRIVER_NAMESPACE) -> Object:
    """Return the DaemonSet of node agents, which wants so many pods."""
    status: dict[str, Any] = {"desiredNumberScheduled": wanted}
    return {"metadata": {"name": "any-node", "namespace": namespace, "labels": _labels("node")}, "status": status}


def install(store: Store) -> None:
    """Put the objects of a chart without policies into a cluster, unless they are there."""
    for resource, made in ((CONFIG_MAPS, policies_map("{}\n")), (DAEMON_SETS, agents())):
        if store.find(resource, made["metadata"]["name"], DRIVER_NAMESPACE) is None:
            store.put(resource, made)


def uninstall(store: Store) -> None:
    """Remove these objects, as ``helm uninstall`` does."""
    for resource, made in ((CONFIG_MAPS, policies_map("")), (DAEMON_SETS, agents())):
        store.remove(resource, (DRIVER_NAMESPACE, made["metadata"]["name"]))


def webhook_configuration(namespace: str) -> Object:
    """Return the webhook's configuration of a chart that is installed in a namespace."""
    hooks = [{"name": "create.pods.gpu.topology", "clientConfig": {"service": {"namespace": namespace, "name": "any"}}}]
    return {"metadata": {"name": "any-webhook", "labels": _labels("webhook")}, "webhooks": hooks}


def _labels(part: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "gpu-topology-dra",
        "app.kubernetes.io/instance": "any",
        "app.kubernetes.io/component": part,
        "app.kubernetes.io/part-of": "gpu-topology",
    }
