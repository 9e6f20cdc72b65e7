"""The fields of PersistentVolumes, PersistentVolumeClaims and StorageClasses that restrict where a pod can run.

As the structs of ``objects``, they have only the fields that are used. Never send one of them back as an update.
"""

from __future__ import annotations

from dradriver.api.base.objects import Metadata, Part
from dradriver.api.base.pods import NodeSelector


class VolumeClaimSpec(Part, frozen=True):
    """The PersistentVolume of a PersistentVolumeClaim, and the StorageClass that creates one."""

    volume_name: str = ""
    storage_class_name: str = ""


class VolumeClaimStatus(Part, frozen=True):
    """The phase of a PersistentVolumeClaim: ``Bound`` if it has a volume."""

    phase: str = ""


class PersistentVolumeClaim(Part, frozen=True):
    """A claim of storage."""

    metadata: Metadata
    spec: VolumeClaimSpec = VolumeClaimSpec()
    status: VolumeClaimStatus = VolumeClaimStatus()


class TopologyRequirement(Part, frozen=True):
    """A label that a node must have, with one of several values."""

    key: str = ""
    values: list[str] = []


class TopologyTerm(Part, frozen=True):
    """Labels of a node that must all match."""

    match_label_expressions: list[TopologyRequirement] = []


class StorageClass(Part, frozen=True):
    """A StorageClass: its binding mode, and the nodes where its volumes can be.

    By its binding mode, Kubernetes creates a volume at once, or only when a pod that uses it is scheduled. If
    ``allowed_topologies`` is not empty, only nodes that match one of its terms can have volumes of the class.
    """

    metadata: Metadata
    provisioner: str = ""
    volume_binding_mode: str = ""
    allowed_topologies: list[TopologyTerm] = []


class VolumeNodeAffinity(Part, frozen=True):
    """The nodes that can reach a volume; all nodes if nothing is required."""

    required: NodeSelector | None = None


class PersistentVolumeSpec(Part, frozen=True):
    """The fields of a volume's spec that placement needs."""

    node_affinity: VolumeNodeAffinity | None = None


class PersistentVolume(Part, frozen=True):
    """The fields of a PersistentVolume that the driver reads."""

    metadata: Metadata
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
