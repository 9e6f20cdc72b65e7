"""A pod as decoded JSON: which parts of it are read here, and how.

The whole pod stays as the API server sent it, so that nothing unknown to this program is lost; the parts that are read
are checked once against the structs below, and plain dictionary access is safe from then on.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dradriver.api import names
from dradriver.api.errors import WordError

Object = dict[str, Any]
Quantity = str | int | float  # the API server sends text; people write numbers


class _Part(msgspec.Struct, rename="camel"):
    pass


class _Named(_Part):
    name: str


class _Claim(_Named):
    resource_claim_name: str | None = None
    request: str | None = None


class _Resources(_Part):
    limits: dict[str, Quantity] | None = None
    requests: dict[str, Quantity] | None = None
    claims: list[_Claim] | None = None


class _EnvVar(_Named):
    value: str | None = None


class _SecurityContext(_Part):
    privileged: bool | None = None


class _Container(_Named):
    resources: _Resources | None = None
    env: list[_EnvVar] | None = None
    restart_policy: str | None = None
    security_context: _SecurityContext | None = None


class _Metadata(_Part):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _NodeAffinity(_Part):
    required_during_scheduling_ignored_during_execution: dict[str, Any] | None = None


class _Affinity(_Part):
    node_affinity: _NodeAffinity | None = None


class _Spec(_Part):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    resource_claims: list[_Claim] | None = None
    scheduling_gates: list[_Named] | None = None
    affinity: _Affinity | None = None
    node_name: str | None = None
    scheduler_name: str | None = None


class _Pod(_Part):
    metadata: _Metadata
    spec: _Spec


def check(pod: object) -> Object:
    """Return the pod itself, once the parts of it that are read here are known to have their types.

    Raises:
        WordError: It is no pod.
    """
    try:
        msgspec.convert(pod, _Pod)
    except msgspec.ValidationError as error:
        raise WordError(f"this is no pod: {error}") from None
    assert isinstance(pod, dict)
    return pod


def annotations_of(pod: Object) -> dict[str, str]:
    """Return the pod's annotations; an empty dictionary of no consequence where it has none."""
    return pod["metadata"].get("annotations") or {}


def labels_of(pod: Object) -> dict[str, str]:
    """Return the pod's labels; an empty dictionary of no consequence where it has none."""
    return pod["metadata"].get("labels") or {}


def items(parent: Object, key: str) -> list[Object]:
    """Return the list under ``key``; an empty list of no consequence where there is none."""
    return parent.get(key) or []


def containers(pod: Object) -> list[Object]:
    """Return the containers that run side by side for the pod's life: its containers, then its sidecars.

    A sidecar is an init container with ``restartPolicy: Always`` (KEP-753).
    """
    sidecars = [c for c in items(pod["spec"], "initContainers") if c.get("restartPolicy") == "Always"]
    return items(pod["spec"], "containers") + sidecars


def init_containers(pod: Object) -> list[Object]:
    """Return the containers that run to their end before the others start."""
    return [c for c in items(pod["spec"], "initContainers") if c.get("restartPolicy") != "Always"]


def own_claim(pod: Object) -> Object | None:
    """Return the entry of ``spec.resourceClaims`` under the driver's name, whoever wrote it; None without one."""
    return next((c for c in items(pod["spec"], "resourceClaims") if c.get("name") == names.POD_CLAIM), None)


def put(parent: Object, key: str, value: Any) -> None:
    """Set ``key``, or take it away where the value is empty: what is empty the API server does not keep either."""
    if value:
        parent[key] = value
    else:
        parent.pop(key, None)
