"""What Kubernetes objects have in common, as decisions need it, and nodes.

The structs name only the fields used: msgspec skips the others, which is what makes a list of 5,000 pods cost
milliseconds. Never send one of these back as an update: fields it does not name would be lost. Patch instead.
"""

from __future__ import annotations

import datetime
from typing import Final

import msgspec

_LONGEST_TIME: Final = len("2026-01-02T03:04:05.123456+00:00")


class Part(msgspec.Struct, rename="camel", frozen=True, gc=False, kw_only=True):
    """An object, or a part of one, as Kubernetes writes its fields."""


class OwnerReference(Part, frozen=True):
    """The owner of an object."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(Part, frozen=True):
    """The fields of every object's metadata that are read anywhere."""

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
        """Return an object's metadata without labels, annotations and owners.

        Of foreign objects these can be 512 KiB.
        """
        return msgspec.structs.replace(self, labels={}, annotations={}, owner_references=[])


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

    @property
    def blocks(self) -> bool:
        """Return whether a taint of a Kubernetes object keeps away pods that do not tolerate it."""
        return self.effect in ("NoSchedule", "NoExecute")


class NodeSpec(Part, frozen=True):
    """What keeps pods off a node."""

    unschedulable: bool = False
    taints: list[Taint] = []


class NodeInfo(Part, frozen=True):
    """What the kubelet says of its software: ``containerd://2.1.4``."""

    container_runtime_version: str = ""


class NodeStatus(Part, frozen=True):
    """What a node has to give, and what runs there; quantities are text."""

    allocatable: dict[str, str] = {}
    conditions: list[Condition] = []
    node_info: NodeInfo = NodeInfo()


class Node(Part, frozen=True):
    """A node."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


def seconds(text: str | None) -> float | None:
    """Return a time in a Kubernetes object as seconds since the epoch; None for anything else."""
    if not text or len(text) > _LONGEST_TIME:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
