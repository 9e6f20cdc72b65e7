"""The parts of Kubernetes objects that decisions are made from.

The structs name only the fields used: msgspec skips the others, which is what makes a list of 5,000 pods cost
milliseconds. Never send one of these back as an update: fields it does not name would be lost. Patch instead.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dradriver.api import names


class _Object(msgspec.Struct, rename="camel", frozen=True, gc=False, kw_only=True):
    pass


class OwnerReference(_Object):
    """Who an object belongs to."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(_Object):
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


class Gate(_Object):
    """One scheduling gate."""

    name: str


class ResourceRequirements(_Object):
    """What a container asks for; quantities are text."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class EnvVar(_Object):
    """One of a container's own environment variables; what it holds is nobody's business."""

    name: str = ""


class Container(_Object):
    """A container's name and resources. ``restart_policy`` is ``Always`` for a sidecar among the init containers."""

    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None
    env: list[EnvVar] = []


class Toleration(_Object):
    """A toleration, as the scheduler reads it."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class PodClaim(_Object):
    """One entry of a pod's ``spec.resourceClaims``."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class NodeRequirement(_Object):
    """One expression of a node selector term."""

    key: str = ""
    operator: str = ""
    values: list[str] = []


class NodeSelectorTerm(_Object):
    """Expressions that must all hold."""

    match_expressions: list[NodeRequirement] = []
    match_fields: list[NodeRequirement] = []


class NodeSelector(_Object):
    """Terms of which one must hold."""

    node_selector_terms: list[NodeSelectorTerm] = []


class NodeAffinity(_Object):
    """Only what is required: preferences do not restrict."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class Affinity(_Object):
    """Only the part about nodes."""

    node_affinity: NodeAffinity | None = None


class PodSpec(_Object):
    """What placement needs of a pod's spec."""

    node_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: list[Toleration] = []
    containers: list[Container] = []
    init_containers: list[Container] = []
    overhead: dict[str, str] = {}
    scheduling_gates: list[Gate] = []
    resource_claims: list[PodClaim] = []
    priority: int | None = None


class Condition(_Object):
    """One condition of a pod or node."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(_Object):
    """Where a pod's life stands."""

    phase: str = ""
    nominated_node_name: str = ""
    conditions: list[Condition] = []


class Pod(_Object):
    """A pod."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def finished(self) -> bool:
        """True once no container will run again: its resources and claims are free."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def gated(self) -> bool:
        """True while our gate holds the pod."""
        return any(gate.name == names.GATE for gate in self.spec.scheduling_gates)

    @property
    def placed(self) -> bool:
        """True for a pod whose GPUs the controller chooses."""
        return self.metadata.labels.get(names.LABEL) == names.LABEL_PLACED

    @property
    def claim_name(self) -> str | None:
        """The name of the claim that our webhook gave the pod."""
        for claim in self.spec.resource_claims:
            if claim.name == names.POD_CLAIM:
                return claim.resource_claim_name
        return None


class Taint(_Object):
    """A node's taint."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(_Object):
    """What keeps pods off a node."""

    unschedulable: bool = False
    taints: list[Taint] = []


class NodeStatus(_Object):
    """What a node has to give; quantities are text."""

    allocatable: dict[str, str] = {}
    conditions: list[Condition] = []


class Node(_Object):
    """A node."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Pool(_Object):
    """A slice's place in its pool; consumers use only the highest generation, once all its slices are there."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class Device(_Object):
    """A device: attributes stay as the API writes them, ``{"uuid": {"string": "…"}}``."""

    name: str = ""
    attributes: dict[str, dict[str, Any]] = {}
    taints: list[Taint] = []


class SliceSpec(_Object):
    """A slice's content."""

    driver: str = ""
    node_name: str = ""
    pool: Pool = Pool()
    devices: list[Device] = []


class ResourceSlice(_Object):
    """A part of a node's pool of devices."""

    metadata: Metadata
    spec: SliceSpec = SliceSpec()


class Opaque(_Object):
    """A driver's own configuration inside a claim."""

    driver: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class DeviceConfig(_Object):
    """One configuration of an allocation and the requests it is for (none: all)."""

    source: str = ""
    requests: list[str] = []
    opaque: Opaque | None = None


class AllocationResult(_Object):
    """One allocated device. ``request`` is ``main`` or ``main/sub``."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(name="shareID", default=None)


class DeviceAllocation(_Object):
    """All devices of a claim."""

    results: list[AllocationResult] = []
    config: list[DeviceConfig] = []


class Allocation(_Object):
    """What the scheduler gave a claim."""

    devices: DeviceAllocation = DeviceAllocation()


class Consumer(_Object):
    """Who may use a claim."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class ClaimStatus(_Object):
    """Where a claim's life stands."""

    allocation: Allocation | None = None
    reserved_for: list[Consumer] = []


class ResourceClaim(_Object):
    """A claim. Its spec is read by no part: what was wished stands in annotations and opaque configuration."""

    metadata: Metadata
    status: ClaimStatus = ClaimStatus()

    @property
    def results(self) -> list[AllocationResult]:
        """This driver's allocated devices; empty while the claim is not allocated."""
        if self.status.allocation is None:
            return []
        return [r for r in self.status.allocation.devices.results if r.driver == names.DRIVER]

    def owned_by(self, pod_uid: str) -> bool:
        """True when the pod of this uid is the claim's controller: a claim of the same name may be somebody else's."""
        return any(owner.uid == pod_uid and owner.controller for owner in self.metadata.owner_references)
