"""The pods of KServe's InferenceService: each component is a Deployment that gets the annotations of the whole object.

KServe copies these annotations to predictor, transformer and explainer alike; annotations of a component override them.
So an annotation that only the predictor can have belongs in ``spec.predictor.annotations``. Source: kserve/kserve
0217bdab, pkg/controller/v1beta1/inferenceservice/components/transformer.go, ``Reconcile``, and the files of the other
components.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dradriver.cli.linter.manifest_documents import Document
from dradriver.cli.linter.pod_templates import PodOf

COPIED: Final = (
    "KServe copies annotations of an InferenceService to predictor, transformer and explainer. Write them in "
    "spec.predictor.annotations"
)
_COMPONENTS: Final = ("predictor", "transformer", "explainer")
_PREDICTOR: Final = "predictor"
_POD_FIELDS: Final = ("initContainers", "nodeSelector", "affinity", "tolerations", "schedulerName", "resourceClaims")


def is_inference_service(document: Document) -> bool:
    """Return whether a manifest's object is an InferenceService of KServe's."""
    return (
        document.data["kind"] == "InferenceService"
        and str(document.data.get("apiVersion")).partition("/")[0] == "serving.kserve.io"
    )


def components(document: Document) -> Iterator[PodOf]:
    """Yield a pod for each component of an InferenceService whose containers are known.

    A predictor with a ``model`` but without resources gets the resources of its ServingRuntime, which are not known
    here. Such a predictor is left out.
    """
    spec, metadata = document.data.get("spec"), _object(document.data.get("metadata"))
    for name in _COMPONENTS:
        component = spec.get(name) if isinstance(spec, dict) else None
        if not isinstance(component, dict):
            continue
        containers = _containers(name, component)
        if not containers:
            continue
        pod_metadata: dict[str, Any] = {
            key: _object(metadata.get(key)) | _object(component.get(key)) for key in ("annotations", "labels")
        }
        pod_metadata["generateName"] = f"{metadata.get('name')}-{name}-"
        if (namespace := metadata.get("namespace")) is not None:
            pod_metadata["namespace"] = namespace
        pod_spec = {key: component[key] for key in _POD_FIELDS if key in component} | {"containers": containers}
        yield PodOf(("spec", name), {"apiVersion": "v1", "kind": "Pod", "metadata": pod_metadata, "spec": pod_spec})


def _containers(name: str, component: dict[str, Any]) -> list[Any]:
    """Return the containers of a component, its model server first.

    The result is empty for a predictor without limits, whose resources a ServingRuntime sets.
    """
    listed = component.get("containers")
    containers = list(listed) if isinstance(listed, list) else []
    servers = [field for field in component.values() if isinstance(field, dict) and _is_server(field)]
    resources = [_object(server.get("resources")) for server in servers]
    if servers and name == _PREDICTOR and not any("limits" in each for each in resources):
        return []
    return [{"name": "kserve-container", "resources": each} for each in resources[:1]] + containers


def _is_server(value: dict[str, Any]) -> bool:
    """Return whether a component's field, such as ``model`` or ``sklearn``, is a model server.

    ``value`` is the field's value.
    """
    return "modelFormat" in value or "storageUri" in value or "protocolVersion" in value


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
