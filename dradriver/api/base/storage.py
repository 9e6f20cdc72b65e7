"""The parts of claims of storage, volumes and their classes that say where a pod can run. As in ``objects``."""

from __future__ import annotations

from dradriver.api.base.objects import Metadata, Part
from dradriver.api.base.pods import NodeSelector


class VolumeClaimSpec(Part, frozen=True):
    """Which volume a PersistentVolumeClaim has, and which class makes one."""

    volume_name: str = ""
    storage_class_name: str = ""


class VolumeClaimStatus(Part, frozen=True):
    """Whether it has it already: ``Bound``."""

    phase: str = ""


class PersistentVolumeClaim(Part, frozen=True):
    """A claim of storage."""

    metadata: Metadata
    spec: VolumeClaimSpec = VolumeClaimSpec()
    status: VolumeClaimStatus = VolumeClaimStatus()


class TopologyRequirement(Part, frozen=True):
    """A label that a node must have, with one of some values."""

    key: str = ""
    values: list[str] = []


class TopologyTerm(Part, frozen=True):
    """Labels that a node must all have."""

    match_label_expressions: list[TopologyRequirement] = []


class StorageClass(Part, frozen=True):
    """A class of storage: whether its volumes are made at once, or where the first pod is to run.

    Only nodes that match one of the ``allowed_topologies`` can have volumes of the class; all nodes if there are none.
    """

    metadata: Metadata
    provisioner: str = ""
    volume_binding_mode: str = ""
    allowed_topologies: list[TopologyTerm] = []


class VolumeNodeAffinity(Part, frozen=True):
    """Which nodes reach a volume; all where nothing is required."""

    required: NodeSelector | None = None


class PersistentVolumeSpec(Part, frozen=True):
    """What placement needs of a volume's spec."""

    node_affinity: VolumeNodeAffinity | None = None


class PersistentVolume(Part, frozen=True):
    """Storage."""

    metadata: Metadata
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
