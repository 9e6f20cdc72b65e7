"""The parts of pods that decisions are made from. As in ``objects``."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.objects import Condition, Metadata, Part

_NO_NODE: Final = re.compile(r"0/\d+ nodes are available")  # FitError of pkg/scheduler/framework/types.go, 1.37.2
GRACE_S: Final = 30  # that containers have to end, where a pod does not say: what the API server fills in


class Gate(Part, frozen=True):
    """One scheduling gate."""

    name: str


class ResourceRequirements(Part, frozen=True):
    """What a container asks for; quantities are text."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class EnvVar(Part, frozen=True):
    """One of a container's own environment variables; its value is not read."""

    name: str = ""


class ContainerPort(Part, frozen=True):
    """One port of a container; ``host_port`` is 0 if it is none of the host."""

    host_port: int = 0
    protocol: str = "TCP"
    host_ip: str = msgspec.field(name="hostIP", default="")


class Container(Part, frozen=True):
    """A container's name and resources. ``restart_policy`` is ``Always`` for a sidecar among the init containers."""

    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None
    env: list[EnvVar] = []
    ports: list[ContainerPort] = []


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


class PodAffinity(Part, frozen=True):
    """Pod affinity, or pod anti-affinity: only what is required."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] = []


class Affinity(Part, frozen=True):
    """Node affinity, pod affinity and pod anti-affinity."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpread(Part, frozen=True):
    """How evenly a pod and others are to be spread over places of one kind."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    match_label_keys: list[str] = []
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


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


class ResourceClaimStatus(Part, frozen=True):
    """Which ResourceClaim Kubernetes made for an entry of a pod's ``spec.resourceClaims`` from a template."""

    name: str = ""
    resource_claim_name: str | None = None


class SchedulingGroup(Part, frozen=True):
    """Which PodGroup a pod is of (KEP-4671); its API server keeps that from 1.36 on, where a gate is on."""

    pod_group_name: str = ""


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
    active_deadline_seconds: int | None = None  # after its start on its node the kubelet ends it
    priority_class_name: str = ""
    preemption_policy: str = ""
    termination_grace_period_seconds: int | None = None
    scheduling_group: SchedulingGroup | None = None


class ContainerStatus(Part, frozen=True):
    """What a node has allocated to a container, and what the container has; None where the node does not say."""

    name: str = ""
    allocated_resources: dict[str, str] | None = None
    resources: ResourceRequirements | None = None


class PodStatus(Part, frozen=True):
    """Where a pod's life stands."""

    phase: str = ""
    start_time: str | None = None
    nominated_node_name: str = ""
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    allocated_resources: dict[str, str] | None = None  # of the pod as a whole, as ``spec.resources``
    resources: ResourceRequirements | None = None
    resource_claim_statuses: list[ResourceClaimStatus] = []


class Pod(Part, frozen=True):
    """A pod."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def finished(self) -> bool:
        """Return whether the pod's phase is a final one: no container will run again, its claims are free."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def gated(self) -> bool:
        """Return whether this driver's scheduling gate is in the pod's spec."""
        return any(gate.name == names.GATE for gate in self.spec.scheduling_gates)

    @property
    def grace_s(self) -> int:
        """Return how long the pod's containers may take to end by its spec, seconds."""
        said = self.spec.termination_grace_period_seconds
        return GRACE_S if said is None else max(said, 0)

    @property
    def held(self) -> bool:
        """Return whether a scheduling gate of another controller is in the pod's spec."""
        return any(gate.name != names.GATE for gate in self.spec.scheduling_gates)

    @property
    def placed(self) -> bool:
        """Return whether the pod's label says that the controller chooses its GPUs."""
        return self.metadata.labels.get(names.LABEL) == names.LABEL_PLACED

    @property
    def static(self) -> bool:
        """Return whether the pod's label says that the scheduler alone places it, by a template of the controller."""
        return self.metadata.labels.get(names.LABEL) == names.LABEL_STATIC

    @property
    def refused(self) -> str | None:
        """Return why the scheduler finds no room for the pod by its status; None where the status does not say so.

        If one pod of a PodGroup finds no room, the scheduler calls all of them unschedulable, and only the message of
        that pod is about nodes (Kubernetes 1.37.2, schedule_one_podgroup.go).
        """
        message = self.unscheduled
        return None if message is None or (self.pod_group and _NO_NODE.match(message) is None) else message

    @property
    def unscheduled(self) -> str | None:
        """Return the scheduler's message that it cannot place the pod, or others of its PodGroup; None without one."""
        for condition in self.status.conditions:
            refused = condition.type == "PodScheduled" and condition.status == "False"
            if refused and condition.reason != "SchedulingGated":
                return condition.message
        return None

    @property
    def preempted(self) -> bool:
        """Return whether kube-scheduler ends the pod for one of higher priority, by its status."""
        return any(
            condition.type == "DisruptionTarget" and condition.reason == "PreemptionByScheduler"
            for condition in self.status.conditions
        )

    @property
    def pod_group(self) -> str:
        """Return the name of the PodGroup by which kube-scheduler places the pod; empty without one."""
        return "" if self.spec.scheduling_group is None else self.spec.scheduling_group.pod_group_name

    @property
    def template(self) -> tuple[str, str] | None:
        """Return the pod's entry of ``spec.resourceClaims`` and the template of its claim; None without a template."""
        entry, slash, name = self.metadata.annotations.get(names.TEMPLATE, "").partition("/")
        return (entry, name) if slash else None

    @property
    def gpu_entry(self) -> str:
        """Return the name of the pod's entry of ``spec.resourceClaims`` that is for its GPUs."""
        return names.POD_CLAIM if self.template is None else self.template[0]

    @property
    def claim_name(self) -> str | None:
        """Return the name of the claim in the pod's spec that our webhook gave it; None without one."""
        entry = self.gpu_entry
        for claim in self.spec.resource_claims:
            if claim.name == entry:
                return claim.resource_claim_name
        return None
