"""The parts of Kubernetes objects that decisions are made from.

The structs name only the fields used: msgspec skips the others, which is what makes a list of 5,000 pods cost
milliseconds. Never send one of these back as an update: fields it does not name would be lost. Patch instead.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dradriver.api import names


class Part(msgspec.Struct, rename="camel", frozen=True, gc=False, kw_only=True):
    """An object, or a part of one, as Kubernetes writes its fields."""


class OwnerReference(Part, frozen=True):
    """Who an object belongs to."""

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


class Gate(Part, frozen=True):
    """One scheduling gate."""

    name: str


class ResourceRequirements(Part, frozen=True):
    """What a container asks for; quantities are text."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class EnvVar(Part, frozen=True):
    """One of a container's own environment variables; what it holds is nobody's business."""

    name: str = ""


class Container(Part, frozen=True):
    """A container's name and resources. ``restart_policy`` is ``Always`` for a sidecar among the init containers."""

    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None
    env: list[EnvVar] = []


class Toleration(Part, frozen=True):
    """A toleration, as the scheduler reads it."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class PodClaim(Part, frozen=True):
    """One entry of a pod's ``spec.resourceClaims``."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class NodeRequirement(Part, frozen=True):
    """One expression of a node selector term."""

    key: str = ""
    operator: str = ""
    values: list[str] = []


class NodeSelectorTerm(Part, frozen=True):
    """Expressions that must all hold."""

    match_expressions: list[NodeRequirement] = []
    match_fields: list[NodeRequirement] = []


class NodeSelector(Part, frozen=True):
    """Terms of which one must hold."""

    node_selector_terms: list[NodeSelectorTerm] = []


class NodeAffinity(Part, frozen=True):
    """Only what is required: preferences do not restrict."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class LabelSelector(Part, frozen=True):
    """Which objects a rule is about, by their labels; an empty one chooses all."""

    match_labels: dict[str, str] = {}
    match_expressions: list[NodeRequirement] = []


class PodAffinityTerm(Part, frozen=True):
    """Pods in places of one kind: on one node, in one zone."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] = []
    namespace_selector: LabelSelector | None = None


class PodAntiAffinity(Part, frozen=True):
    """Only what is required."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] = []


class Affinity(Part, frozen=True):
    """The parts about nodes, and about pods that a pod is not to be beside."""

    node_affinity: NodeAffinity | None = None
    pod_anti_affinity: PodAntiAffinity | None = None


class TopologySpread(Part, frozen=True):
    """How evenly a pod and others are to be spread over places of one kind."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    match_label_keys: list[str] = []


class VolumeClaimName(Part, frozen=True):
    """Which PersistentVolumeClaim of its namespace a volume is."""

    claim_name: str = ""


class EphemeralVolume(Part, frozen=True):
    """A volume with a claim of the pod's own, which Kubernetes makes and names after both."""


class Volume(Part, frozen=True):
    """One volume of a pod, of the kinds that can be on some nodes only."""

    name: str = ""
    persistent_volume_claim: VolumeClaimName | None = None
    ephemeral: EphemeralVolume | None = None


class PodSpec(Part, frozen=True):
    """What placement needs of a pod's spec."""

    node_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    topology_spread_constraints: list[TopologySpread] = []
    tolerations: list[Toleration] = []
    containers: list[Container] = []
    init_containers: list[Container] = []
    overhead: dict[str, str] = {}
    resources: ResourceRequirements = ResourceRequirements()  # of the pod as a whole, instead of its containers'
    scheduling_gates: list[Gate] = []
    scheduler_name: str = ""
    resource_claims: list[PodClaim] = []
    volumes: list[Volume] = []
    priority: int | None = None


class Condition(Part, frozen=True):
    """One condition of a pod or node."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(Part, frozen=True):
    """Where a pod's life stands."""

    phase: str = ""
    nominated_node_name: str = ""
    conditions: list[Condition] = []


class Pod(Part, frozen=True):
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
    def static(self) -> bool:
        """True for a pod that the scheduler alone places, by a template that the controller makes."""
        return self.metadata.labels.get(names.LABEL) == names.LABEL_STATIC

    @property
    def refused(self) -> str | None:
        """What the scheduler says of a pod that it finds no room for; None where it has not said so."""
        for condition in self.status.conditions:
            refused = condition.type == "PodScheduled" and condition.status == "False"
            if refused and condition.reason != "SchedulingGated":
                return condition.message
        return None

    @property
    def template(self) -> tuple[str, str] | None:
        """The entry of ``spec.resourceClaims`` and the template that its claim is made by; None without a template."""
        entry, slash, name = self.metadata.annotations.get(names.TEMPLATE, "").partition("/")
        return (entry, name) if slash else None

    @property
    def claim_name(self) -> str | None:
        """The name of the claim that our webhook gave the pod."""
        entry = names.POD_CLAIM if self.template is None else self.template[0]
        for claim in self.spec.resource_claims:
            if claim.name == entry:
                return claim.resource_claim_name
        return None


class Taint(Part, frozen=True):
    """A node's or a device's taint."""

    key: str = ""
    value: str = ""
    effect: str = ""

    @property
    def blocks(self) -> bool:
        """Whether it keeps away whoever does not tolerate it."""
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


class Pool(Part, frozen=True):
    """A slice's place in its pool; consumers use only the highest generation, once all its slices are there."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class Device(Part, frozen=True):
    """A device: attributes stay as the API writes them, ``{"uuid": {"string": "…"}}``."""

    name: str = ""
    attributes: dict[str, dict[str, Any]] = {}
    taints: list[Taint] = []
    allow_multiple_allocations: bool = False
    capacity: dict[str, dict[str, Any]] = {}
    consumes_counters: list[Any] = []

    @property
    def blocked(self) -> bool:
        """Whether a taint keeps new claims off it."""
        return any(taint.blocks for taint in self.taints)

    def text(self, attribute: str) -> str:
        """Return an attribute that is text; empty where it is not there, or something else."""
        text = self.attributes.get(attribute, {}).get("string", "")
        return text if isinstance(text, str) else ""

    def number(self, attribute: str) -> int | None:
        """Return an attribute that is a number; None where it is not there, or something else."""
        number = self.attributes.get(attribute, {}).get("int")
        return number if isinstance(number, int) else None


class SliceSpec(Part, frozen=True):
    """A slice's content."""

    driver: str = ""
    node_name: str = ""
    pool: Pool = Pool()
    devices: list[Device] = []


class ResourceSlice(Part, frozen=True):
    """A part of a node's pool of devices."""

    metadata: Metadata
    spec: SliceSpec = SliceSpec()


class Opaque(Part, frozen=True):
    """A driver's own configuration inside a claim."""

    driver: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class DeviceConfig(Part, frozen=True):
    """One configuration of an allocation and the requests it is for (none: all)."""

    source: str = ""
    requests: list[str] = []
    opaque: Opaque | None = None


class AllocationResult(Part, frozen=True):
    """One allocated device. ``request`` is ``main`` or ``main/sub``."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: dict[str, str] = {}  # of a device that several claims share; empty: the whole device
    admin_access: bool | None = None  # for monitoring: takes no device from anybody


class DeviceAllocation(Part, frozen=True):
    """All devices of a claim."""

    results: list[AllocationResult] = []
    config: list[DeviceConfig] = []


class Allocation(Part, frozen=True):
    """What the scheduler gave a claim."""

    devices: DeviceAllocation = DeviceAllocation()


class Consumer(Part, frozen=True):
    """Who may use a claim."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class DeviceStatus(Part, frozen=True):
    """What the driver said of an allocated device; ``data`` is any JSON, by whoever may write claims' status."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(name="shareID", default=None)
    data: msgspec.Raw = msgspec.Raw(b"{}")


class ClaimStatus(Part, frozen=True):
    """Where a claim's life stands."""

    allocation: Allocation | None = None
    reserved_for: list[Consumer] = []
    devices: list[DeviceStatus] = []


class ResourceClaim(Part, frozen=True):
    """A claim, without its spec: what was allocated is what counts."""

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
