"""Kinds of Kubernetes objects that tests touch and the driver does not."""

from __future__ import annotations

from typing import Final

from dradriver.kube import resources
from dradriver.kube.resources import Resource

PRIORITY_CLASSES: Final = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
DEVICE_TAINT_RULES: Final = next(kind for kind in resources.DEVICE_TAINT_RULES if kind.version == "v1beta2")
RESOURCE_CLAIM_TEMPLATES: Final = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True
)
