"""The common fields of Kubernetes objects that the driver reads, and the fields of nodes.

The structs have only the fields that are used. msgspec skips all others, so a list of 5,000 pods costs milliseconds.
Never send one of these structs back as an update: fields that it does not have would be lost. Send a patch instead.
"""

from __future__ import annotations

import datetime
from typing import Final

import msgspec

_HASH: Final = "pod-template-hash"  # the label with which a Deployment marks the pods of a ReplicaSet
_LONGEST_TIME: Final = len("2026-01-02T03:04:05.123456+00:00")


class Part(msgspec.Struct, rename="camel", frozen=True, gc=False, kw_only=True):
    """Base class of the structs for Kubernetes objects and their parts.

    Field names are written as in Kubernetes (camel case).
    """


class OwnerReference(Part, frozen=True):
    """The owner of an object."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(Part, frozen=True):
    """The fields of metadata that the driver reads, of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []

    @property
    def bare(self) -> Metadata:
        """Return a copy of an object's metadata without labels, annotations and owners, to save memory.

        In objects of other programs these fields can have 512 KiB.
        """
        return msgspec.structs.replace(self, labels={}, annotations={}, owner_references=[])

    @property
    def replacing_owner(self) -> str:
        """Return the object that replaces a pod which ends, such as ``Job/train``; empty without one.

        For a pod of a Deployment's ReplicaSet, this is the Deployment. The text is as the pod's author wrote it.
        """
        for owner in self.owner_references:
            if owner.controller:
                revision = f"-{self.labels.get(_HASH, '')}"
                if owner.kind == "ReplicaSet" and len(revision) > 1 and owner.name.endswith(revision):
                    return f"Deployment/{owner.name.removesuffix(revision)}"
                return f"{owner.kind}/{owner.name}"
        return ""


class MetadataOnly(Part, frozen=True):
    """An object of which only the metadata is read."""

    metadata: Metadata


class Condition(Part, frozen=True):
    """One condition of a pod or node."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class Taint(Part, frozen=True):
    """A node's or a device's taint."""

    key: str = ""
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        """Return the taint as kubectl writes it: ``key=value:effect``."""
        return f"{self.named}:{self.effect}"

    @property
    def named(self) -> str:
        """Return the taint without its effect, as ``key=value``, or as ``key`` if it has no value."""
        return f"{self.key}{'=' if self.value else ''}{self.value}"

    @property
    def blocks(self) -> bool:
        """Return whether a taint of a Kubernetes object keeps away pods that do not tolerate it."""
        return self.effect in ("NoSchedule", "NoExecute")


class NodeSpec(Part, frozen=True):
    """The fields of a node's spec that keep pods away from the node."""

    unschedulable: bool = False
    taints: list[Taint] = []


class NodeInfo(Part, frozen=True):
    """The software versions that the kubelet reports, such as ``containerd://2.1.4``."""

    container_runtime_version: str = ""


class NodeStatus(Part, frozen=True):
    """The resources of a node, its conditions and its software; quantities are text."""

    allocatable: dict[str, str] = {}
    conditions: list[Condition] = []
    node_info: NodeInfo = NodeInfo()


class Node(Part, frozen=True):
    """The fields of a node that the driver reads."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


def seconds(text: str | None) -> float | None:
    """Return a Kubernetes time such as ``2026-01-31T12:00:00Z`` as seconds since the epoch.

    None for any other text, and for None.
    """
    if not text or len(text) > _LONGEST_TIME:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
