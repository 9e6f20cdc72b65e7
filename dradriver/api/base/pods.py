"""The fields of pods that the driver reads.

As the structs of ``objects``, they have only the fields that are used. Never send one of them back as an update.
"""

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
    """The resource requests and limits of a container; quantities are text."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class EnvVar(Part, frozen=True):
    """An environment variable in a container's ``env``; its value is not read."""

    name: str = ""


class ContainerPort(Part, frozen=True):
    """One port of a container; ``host_port`` is 0 if it uses no host port."""

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
    """Expressions of a node selector that must all be true."""

    match_expressions: list[NodeRequirement] = []
    match_fields: list[NodeRequirement] = []


class NodeSelector(Part, frozen=True):
    """Terms of a node selector; a node must match at least one of them."""

    node_selector_terms: list[NodeSelectorTerm] = []


class NodeAffinity(Part, frozen=True):
    """The required part of a node affinity; preferences do not restrict placement."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class LabelSelector(Part, frozen=True):
    """A selector of objects by their labels; an empty selector selects all objects."""

    match_labels: dict[str, str] = {}
    match_expressions: list[NodeRequirement] = []


class PodAffinityTerm(Part, frozen=True):
    """A term of a pod affinity: which other pods count, and the topology key, such as node or zone."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] = []
    namespace_selector: LabelSelector | None = None


class PodAffinity(Part, frozen=True):
    """The required part of a pod affinity or of a pod anti-affinity."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] = []


class Affinity(Part, frozen=True):
    """Node affinity, pod affinity and pod anti-affinity."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpread(Part, frozen=True):
    """A topology spread constraint: how evenly pods are spread over nodes or zones."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    match_label_keys: list[str] = []
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


class VolumeClaimName(Part, frozen=True):
    """The reference of a volume to a PersistentVolumeClaim in the pod's namespace."""

    claim_name: str = ""


class EphemeralVolume(Part, frozen=True):
    """A volume with a generated PersistentVolumeClaim, which Kubernetes names after the pod and the volume."""


class Volume(Part, frozen=True):
    """A volume of a pod, of the types that can restrict the pod to some nodes."""

    name: str = ""
    persistent_volume_claim: VolumeClaimName | None = None
    ephemeral: EphemeralVolume | None = None


class ResourceClaimStatus(Part, frozen=True):
    """The ResourceClaim that Kubernetes created from a template for an entry of ``spec.resourceClaims``."""

    name: str = ""
    resource_claim_name: str | None = None


class SchedulingGroup(Part, frozen=True):
    """The PodGroup of a pod (KEP-4671).

    API servers keep the field from Kubernetes 1.36 on, if its feature gate is on.
    """

    pod_group_name: str = ""


class PodSpec(Part, frozen=True):
    """The fields of a pod's spec that placement needs."""

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
    """The resources of a container that its node reports: allocated, and in use.

    Allocated resources and those in use can differ while the kubelet resizes a running container. A field is None if
    the node does not report it.
    """

    name: str = ""
    allocated_resources: dict[str, str] | None = None
    resources: ResourceRequirements | None = None


class PodStatus(Part, frozen=True):
    """The status of a pod: phase, conditions, containers, resources and claims."""

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
    """The fields of a pod that the driver reads."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def finished(self) -> bool:
        """Return whether the pod has a final phase: ``Succeeded`` or ``Failed``.

        No container runs again, and the pod does not use its claims any more.
        """
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def gated(self) -> bool:
        """Return whether this driver's scheduling gate is in the pod's spec."""
        return any(gate.name == names.GATE for gate in self.spec.scheduling_gates)

    @property
    def grace_s(self) -> int:
        """Return the termination grace period in the pod's spec, seconds."""
        said = self.spec.termination_grace_period_seconds
        return GRACE_S if said is None else max(said, 0)

    @property
    def held(self) -> bool:
        """Return whether the pod has a scheduling gate that is not this driver's.

        Another controller, such as Kueue, must remove that gate first.
        """
        return any(gate.name != names.GATE for gate in self.spec.scheduling_gates)

    @property
    def placed(self) -> bool:
        """Return whether the controller chooses this pod's GPUs, by the label that the webhook sets."""
        return self.metadata.labels.get(names.LABEL) == names.LABEL_PLACED

    @property
    def static(self) -> bool:
        """Return whether only the scheduler chooses this pod's GPUs, by the label value ``static``.

        Kubernetes creates the pod's claim from a template, and this driver's controller creates that template.
        """
        return self.metadata.labels.get(names.LABEL) == names.LABEL_STATIC

    @property
    def refused(self) -> str | None:
        """Return the scheduler's message that no node has room for this pod; None without one.

        If one pod of a PodGroup finds no room, the scheduler reports all pods of the group as unschedulable. Only the
        message on the pod that found no room mentions nodes, and only that message is returned (Kubernetes 1.37.2,
        schedule_one_podgroup.go).
        """
        message = self.unscheduled
        return None if message is None or (self.pod_group and _NO_NODE.match(message) is None) else message

    @property
    def unscheduled(self) -> str | None:
        """Return the scheduler's message that it cannot place the pod; None without one.

        The message can be about another pod of the same PodGroup.
        """
        for condition in self.status.conditions:
            refused = condition.type == "PodScheduled" and condition.status == "False"
            if refused and condition.reason != "SchedulingGated":
                return condition.message
        return None

    @property
    def preempted(self) -> bool:
        """Return whether the pod's status says that kube-scheduler preempts it for a higher priority."""
        return any(
            condition.type == "DisruptionTarget" and condition.reason == "PreemptionByScheduler"
            for condition in self.status.conditions
        )

    @property
    def pod_group(self) -> str:
        """Return the name of the pod's PodGroup, which kube-scheduler uses; empty without one."""
        return "" if self.spec.scheduling_group is None else self.spec.scheduling_group.pod_group_name

    @property
    def template(self) -> tuple[str, str] | None:
        """Return the name of the pod's entry in ``spec.resourceClaims`` and of its claim template.

        None if no entry names a template.
        """
        entry, slash, name = self.metadata.annotations.get(names.TEMPLATE, "").partition("/")
        return (entry, name) if slash else None

    @property
    def gpu_entry(self) -> str:
        """Return the name of the entry of the pod's ``spec.resourceClaims`` that is for its GPUs.

        If the pod brings its own claim template (``template``), this is the entry with that template. Otherwise it is
        the entry that the webhook adds.
        """
        return names.POD_CLAIM if self.template is None else self.template[0]

    @property
    def claim_name(self) -> str | None:
        """Return the claim name that the driver's webhook wrote into the pod's spec; None without one."""
        entry = self.gpu_entry
        for claim in self.spec.resource_claims:
            if claim.name == entry:
                return claim.resource_claim_name
        return None
