"""The kinds of Kubernetes objects that the driver reads or writes, and their paths on the API server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object. ``group`` is empty for the core API."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """Return the ``apiVersion`` of objects of this kind of resource."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_path(self) -> str:
        """Return the API server's path of the resource's group and version, which lists its kinds."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """Return the API server's path of an object; without a name, the path of a collection.

        Without a namespace, the collection covers all namespaces.

        Raises:
            ValueError: The name is empty (it would address the whole collection) or not a single path segment, an
                object of a namespaced kind has no namespace, or a namespace is given for a kind that has none.
        """
        if name is not None and (name in ("", ".", "..") or "/" in name):
            raise ValueError(f"{self.kind}: {name!r} is no object's name")
        if namespace and not self.namespaced:
            raise ValueError(f"{self.kind} {name or ''} has no namespace, but {namespace!r} was given")
        if name is not None and self.namespaced and not namespace:
            raise ValueError(f"{self.kind} {name} needs a namespace")
        parts = ["namespaces", namespace] if namespace else []
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        return f"{self.group_path}/{'/'.join(quote(part, safe=':') for part in parts)}"


PODS: Final = Resource("", "v1", "pods", "Pod", namespaced=True)
NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)
PERSISTENT_VOLUME_CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", namespaced=True)
PERSISTENT_VOLUMES: Final = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
STORAGE_CLASSES: Final = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
EVENTS: Final = Resource("", "v1", "events", "Event", namespaced=True)
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)
SECRETS: Final = Resource("", "v1", "secrets", "Secret", namespaced=True)
POD_DISRUPTION_BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", namespaced=True)
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True)
RESOURCE_CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", namespaced=True)
RESOURCE_CLAIM_TEMPLATES: Final = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True
)
RESOURCE_SLICES: Final = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
DEVICE_CLASSES: Final = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
# The newest version first: of Kubernetes 1.37, of 1.36 and of 1.33. Only the first is on by default.
DEVICE_TAINT_RULES: Final = tuple(
    Resource("resource.k8s.io", version, "devicetaintrules", "DeviceTaintRule", namespaced=False)
    for version in ("v1", "v1beta2", "v1alpha3")
)
# The newest version first, of Kueue 0.14 and of those before.
KUEUE_TOPOLOGIES: Final = tuple(
    Resource("kueue.x-k8s.io", version, "topologies", "Topology", namespaced=False)
    for version in ("v1beta2", "v1beta1", "v1alpha1")
)
MUTATING_WEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_WEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)

PLURALS: Final = tuple(
    sorted(
        one.plural
        for one in (*vars().values(), DEVICE_TAINT_RULES[0], KUEUE_TOPOLOGIES[0])
        if isinstance(one, Resource)
    )
)

# No reflector follows them, so they need no word in a metric's label. Only gputopo verify lists DaemonSets.
DAEMON_SETS: Final = Resource("apps", "v1", "daemonsets", "DaemonSet", namespaced=True)
CLUSTER_ROLES: Final = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
