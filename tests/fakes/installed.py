"""Objects that the chart installs, as commands and the page find them."""

from __future__ import annotations

from dradriver.kube.resources import CONFIG_MAPS
from tests.fakes.apistore import Object, Store

DRIVER_NAMESPACE = "gpu-topology"


def policies_map(text: str, *, namespace: str = DRIVER_NAMESPACE) -> Object:
    """Return the ConfigMap with a policies file."""
    metadata = {"name": "any-policies", "namespace": namespace, "labels": _labels("policies")}
    return {"metadata": metadata, "data": {"policies.yaml": text}}


def install(store: Store) -> None:
    """Put the ConfigMap of a chart without policies into a cluster, unless there is one of this namespace."""
    policies = policies_map("{}\n")
    if store.find(CONFIG_MAPS, policies["metadata"]["name"], DRIVER_NAMESPACE) is None:
        store.put(CONFIG_MAPS, policies)


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
