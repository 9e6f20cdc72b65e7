"""Situations that pods and nodes get into, side by side on one cluster, and what each tool is to say of them.

Each situation has nodes of its own, which its pods select, so that it keeps its figures next to all others.
``tests/fakes/answers.py`` asks the tools, ``tests/unit/cli/test_contradictions.py`` compares what they say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from dradriver.allocator.request import Amount
from dradriver.api.base import names
from dradriver.api.claims import reservation_config_map
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import lost_gpus, resource_slices
from dradriver.kube.resources import (
    CONFIG_MAPS,
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from dradriver.node.discovery.simulated_machine import without
from dradriver.reason import Cause
from tests.fakes import nics
from tests.fakes.apistore import Object
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.fakes.installed import DRIVER_NAMESPACE

POLICIES: Final = """\
tenants:
  vision: {namespaces: [vision], cap: [{gpus: 6}]}
  language: {namespaces: [language], partition: {nodes: [partition-1]}, exclusive: true}
queue: {preemption: {enabled: true, minRunMinutes: 0}}
"""
_SITUATION: Final = "example.com/situation"


class Waits(msgspec.Struct, frozen=True):
    """What all tools are to say of a pod that waits: the cause as the metric has it, and a part of the text."""

    cause: Cause
    says: str


class Node(msgspec.Struct, frozen=True):
    """What all tools are to say of a node: how many of its GPUs are in which state of the controller's metric."""

    states: Mapping[str, int]


class Site:
    """The nodes and pods of one situation.

    Attributes:
        cluster: The cluster with all situations.
        name: The situation's.
        waits: What is expected of its pods that wait, by namespace and name.
        nodes: What is expected of its nodes, by name.
    """

    def __init__(self, cluster: GpuCluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.waits: dict[tuple[str, str], Waits] = {}
        self.nodes: dict[str, Node] = {}

    def node(self, profile: str | None = "dgx1-v100", *, number: int = 1, **changes: Any) -> str:
        """Add a node of the situation, and return its name."""
        name = f"{self.name}-{number}"
        labels = {_SITUATION: self.name} | changes.pop("labels", {})
        self.cluster.node(name, profile, labels=labels, **changes)
        return name

    def pod(self, name: str, gpus: Any = 4, *, namespace: str = "default", **changes: Any) -> str:
        """Create a pod that only fits on the situation's nodes, and return its name."""
        full = f"{self.name}-{name}"
        self.cluster.pod(full, gpus, namespace=namespace, nodeSelector={_SITUATION: self.name}, **changes)
        return full

    def waiting(
        self, name: str, gpus: Any = 4, *, cause: Cause, says: str, namespace: str = "default", **changes: Any
    ) -> str:
        """Create a pod that is to wait for this cause, with these words in its reason."""
        full = self.pod(name, gpus, namespace=namespace, **changes)
        self.waits[namespace, full] = Waits(cause, says)
        return full

    def gang(self, *pods: str, size: int, gpus: int, waits: Waits | None = None, **wishes: str) -> None:
        """Create pods of one gang."""
        words = {"gang": self.name, "gang-size": str(size)} | wishes
        for name in pods:
            full = self.pod(name, gpus, wishes=words)
            if waits is not None:
                self.waits["default", full] = waits

    def has(self, node: str, **states: int) -> None:
        """Expect so many GPUs of a node in each state."""
        self.nodes[node] = Node(states)

    def change(self, node: str, change: Callable[[Object], object]) -> None:
        """Change the first slice of a node."""
        piece = self.cluster.find(RESOURCE_SLICES, resource_slices.slice_name(0, node))
        assert piece is not None
        change(piece)
        self.cluster.put(RESOURCE_SLICES, piece)


Situation = Callable[[Site], Iterator[None]]
SITUATIONS: Final[dict[str, Situation]] = {}


def situation(function: Situation) -> Situation:
    """Add a situation to the table. At each ``yield`` controller and scheduler do all that they can."""
    SITUATIONS[function.__name__.replace("_", "-")] = function
    return function


@situation
def capped(site: Site) -> Iterator[None]:
    """Its tenant may have no more GPUs now, and of a larger pod never so many."""
    node = site.node()
    site.pod("holder", 3, namespace="vision")
    yield
    site.waiting("more", 4, namespace="vision", cause=Cause.CAP, says="this pod requests 4. In use: 3 ")
    site.waiting("never", 7, namespace="vision", cause=Cause.CAP, says="Refused by quota: tenant ")
    site.has(node, allocated=3, free=5)


@situation
def partition(site: Site) -> Iterator[None]:
    """The tenant's own node is full, and nobody else may use it."""
    node = site.node()
    site.pod("holder", 6, namespace="language")
    yield
    site.waiting("inside", 4, namespace="language", cause=Cause.GPUS, says="no eligible node has such a free set")
    site.waiting("outside", 2, cause=Cause.RESERVED, says="GPUs in the exclusive partition of another tenant")
    site.has(node, allocated=6, free=2)


@situation
def reserved(site: Site) -> Iterator[None]:
    """Free GPUs are kept for a pod that has waited long."""
    cluster, node = site.cluster, site.node()
    cluster.rival("reserved-holder", node, range(4))
    patient = site.waiting("patient", 8, cause=Cause.ENDING, says="8 GPUs on reserved-1 are reserved for this workload")
    pod = cluster.get_pod(patient)
    devices = [resource_slices.device_name(gpu.uuid) for gpu in cluster.machines[node].gpus]
    kept = reservation_config_map.Kept(
        who=f"default/{patient}/{pod['metadata']['uid']}", gpus={node: devices},
        expected_at=time.time() + 3600, counted_at=time.time(),
    )  # fmt: skip
    cluster.put(CONFIG_MAPS, reservation_config_map.config_map([kept], [], namespace=DRIVER_NAMESPACE))
    cluster.deliver()
    cluster.features.reservations.restore(reservation_config_map.Written(kept=[kept]))
    yield
    site.waiting("hasty", 4, cause=Cause.RESERVED, says="GPUs that are reserved for a workload that has waited")
    site.gang("a", "b", size=2, gpus=2, waits=Waits(Cause.RESERVED, "GPUs that are reserved for a workload"))
    site.has(node, allocated=4, reserved=4)


@situation
def shares(site: Site) -> Iterator[None]:
    """Every GPU that is handed out in shares has too little left."""
    node = site.node(mode=Mode(shared="time-slicing"))
    site.cluster.rival("shares-holder", node, range(7))
    site.pod("first", Amount(cores=60))
    yield
    site.waiting("more", Amount(cores=50), cause=Cause.GPUS, says="no eligible node has room for it")
    site.has(node, allocated=8)


@situation
def mig(site: Site) -> Iterator[None]:
    """No MIG slice of that size has room."""
    node = site.node("dgx-h100", mode=Mode(mig="dynamic"))
    site.cluster.rival("mig-holder", node, range(7))
    site.pod("first", ("7g.80gb",))
    yield
    site.waiting("more", ("3g.40gb",), cause=Cause.GPUS, says="no eligible node has room for it")
    site.has(node, allocated=8)


@situation
def shares_only(site: Site) -> Iterator[None]:
    """Every GPU is free for shares, and no pod gets one whole."""
    node = site.node(mode=Mode(shared="time-slicing", fractions_only=True))
    site.waiting("p", 1, cause=Cause.GPUS, says="no eligible node has such a free set")
    yield
    site.has(node, fractions=8)


@situation
def mig_placements(site: Site) -> Iterator[None]:
    """Every GPU is published as its possible MIG slices, and no pod gets one whole; a pod has a slice of one."""
    node = site.node("dgx-a100", mode=Mode(mig="placements", fractions_only=True))
    site.pod("first", ("1g.5gb",))
    yield
    site.waiting("p", 1, cause=Cause.GPUS, says="no eligible node has such a free set")
    site.has(node, allocated=1, fractions=7)


@situation
def mode_changes(site: Site) -> Iterator[None]:
    """The node agent is about to change the mode of two GPUs."""
    node = site.node()

    def taint(piece: Object) -> None:
        for device in piece["spec"]["devices"][:2]:
            device["taints"] = [{"key": "gpu.topology/mode-changes", "effect": "NoSchedule"}]

    site.change(node, taint)
    site.waiting("p", 8, cause=Cause.GPUS, says="no eligible node has such a free set")
    yield
    site.has(node, blocked=2, free=6)


@situation
def unaccounted(site: Site) -> Iterator[None]:
    """Processes that belong to no claim run on a GPU."""
    node = site.node()

    def taint(piece: Object) -> None:
        piece["spec"]["devices"][0]["taints"] = [{"key": "gpu.topology/held", "value": "1", "effect": "NoSchedule"}]

    site.change(node, taint)
    site.waiting("p", 8, cause=Cause.GPUS, says="no eligible node has such a free set")
    yield
    site.has(node, unhealthy=1, free=7)


@situation
def exclusive_to(site: Site) -> Iterator[None]:
    """Another namespace uses the only GPU with room for a share."""
    node = site.node(mode=Mode(shared="time-slicing", exclusive_to="namespace"))
    site.cluster.rival("exclusive-to-holder", node, range(1, 8))
    site.pod("first", Amount(cores=25), namespace="other")
    yield
    site.waiting("mine", Amount(cores=50), cause=Cause.RESERVED, says="Another namespace uses fractions of")
    site.has(node, allocated=8)


@situation
def gang_that_fits(site: Site) -> Iterator[None]:
    """All pods of the gang run."""
    node = site.node()
    site.gang("a", "b", size=2, gpus=3)
    yield
    site.has(node, allocated=6, free=2)


@situation
def gang_too_large(site: Site) -> Iterator[None]:
    """Only a part of the gang has room."""
    for number in (1, 2):
        site.node(number=number)
    site.cluster.rival("gang-too-large-holder", f"{site.name}-2", range(5))
    waits = Waits(Cause.GPUS, "have no place for all of them at once")
    site.gang("a", "b", size=2, gpus=8, waits=waits)
    yield
    site.has(f"{site.name}-1", free=8)
    site.has(f"{site.name}-2", allocated=5, free=3)


@situation
def gang_half_there(site: Site) -> Iterator[None]:
    """Pods of the gang are not created yet."""
    site.node()
    site.gang(
        "a", "b", size=4, gpus=2, waits=Waits(Cause.GANG, "Waiting for more pods of the gang: 2 of 4 pods exist.")
    )
    yield


@situation
def nic_missing(site: Site) -> Iterator[None]:
    """No node publishes a NIC that the pod's template asks for."""
    cluster = site.cluster
    site.node("hgx-h100")
    cluster.put(DEVICE_CLASSES, nics.device_class())
    asked = [("gpu", "gpu.topology"), ("nic", nics.DRANET_CLASS)]
    requests = [{"name": name, "exactly": {"deviceClassName": wanted}} for name, wanted in asked]
    content = {"metadata": {"name": "t", "namespace": "default"}, "spec": {"spec": {"devices": {"requests": requests}}}}
    cluster.put(RESOURCE_CLAIM_TEMPLATES, content)
    claims = [{"name": "gpus", "resourceClaimName": claim_of(f"{site.name}-p")}]
    site.waiting(
        "p", 1, cause=Cause.GPUS, says="no eligible node has enough free NICs",
        wishes={"template": "gpus/t"}, resourceClaims=claims,
    )  # fmt: skip
    yield


@situation
def unhealthy(site: Site) -> Iterator[None]:
    """A GPU has a fault, and is given to nobody."""
    node = site.node()

    def fault(piece: Object) -> None:
        for number in range(5):
            piece["spec"]["devices"][number]["taints"] = [
                {"key": "gpu.topology/xid", "value": "79", "effect": "NoSchedule"}
            ]

    site.change(node, fault)
    site.waiting("p", 4, cause=Cause.GPUS, says="no eligible node has such a free set")
    yield
    site.has(node, unhealthy=5, free=3)


@situation
def lost(site: Site) -> Iterator[None]:
    """Two GPUs fell off the bus."""
    node = site.node()
    machine = site.cluster.machines[node]
    built = resource_slices.build(without(machine, {"2", "5"}), node=node, node_uid="n")
    lost_gpus.note(built, [lost_gpus.of(machine.gpus[index]) for index in (2, 5)])
    for piece in built:
        piece["spec"]["pool"]["generation"] = 2
        site.cluster.put(RESOURCE_SLICES, piece)
    site.waiting("p", 8, cause=Cause.GPUS, says="no eligible node has such a free set")
    yield
    site.has(node, free=6)


@situation
def drained(site: Site) -> Iterator[None]:
    """Its only node is cordoned."""
    node = site.node(unschedulable=True)
    site.waiting("p", 4, cause=Cause.NODES, says="No node with GPUs can run this pod")
    yield
    site.has(node, unavailable=8)


@situation
def not_ready(site: Site) -> Iterator[None]:
    """Its only node is not ready."""
    node = site.node(ready="False")
    site.waiting("p", 4, cause=Cause.NODES, says="not ready")
    yield
    site.has(node, unavailable=8)


@situation
def agent_gone(site: Site) -> Iterator[None]:
    """The node agent is gone while pods use the GPUs."""
    node = site.node()
    site.cluster.rival("agent-gone-holder", node, [0, 1])
    yield
    site.cluster.remove(RESOURCE_SLICES, resource_slices.slice_name(0, node))
    site.waiting("p", 4, cause=Cause.NODES, says="No node with GPUs can run this pod")
    yield


@situation
def other_scheduler(site: Site) -> Iterator[None]:
    """The pod has a tentative placement, and a scheduler that has not bound it yet."""
    node = site.node()
    site.pod("p", 4, schedulerName="example-scheduler")
    yield
    site.has(node, tentative=4, free=4)


@situation
def preemption(site: Site) -> Iterator[None]:
    """A pod of lower priority ends for one of higher priority."""
    node = site.node()
    victim = site.pod("victim", 8)
    yield
    kubelet = "kubernetes.io/kubelet"
    site.cluster.store.edit(PODS, ("default", victim), lambda pod: pod["metadata"].setdefault("finalizers", [kubelet]))
    site.waiting("urgent", 8, priority=10, cause=Cause.ENDING, says=f"preemption of default/{victim} (priority 0)")
    site.has(node, allocated=8)


@situation
def suspended_owner(site: Site) -> Iterator[None]:
    """The Job of a waiting pod was suspended: the pod is being deleted."""
    node = site.node()
    site.cluster.rival("suspended-owner-holder", node, range(8))
    name = site.pod("p", 4)
    yield
    pod = site.cluster.get_pod(name)
    pod["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    site.cluster.put(PODS, pod)
    site.cluster.remove(PODS, name, "default")
    site.has(node, allocated=8)
    yield


@situation
def too_large_a_machine(site: Site) -> Iterator[None]:
    """The machine has more GPUs than sets are searched for."""
    site.node("gb200-nvl72-rack")
    site.waiting("p", 4, cause=Cause.NODES, says="GPUs that the controller cannot place pods on")
    yield


@situation
def fallback(site: Site) -> Iterator[None]:
    """What the pod prefers is not there: it runs on the next best set."""
    node = site.node("rtx4090-x8")
    site.pod("p", 4, wishes={"preferred": "nvlink"})
    yield
    site.has(node, allocated=4, free=4)


@situation
def foreign_gate(site: Site) -> Iterator[None]:
    """Another controller holds the pod."""
    node = site.node()
    gates = [{"name": names.GATE}, {"name": "example.com/other"}]
    site.waiting("p", cause=Cause.GATE, says="removes scheduling gate example.com/other", schedulingGates=gates)
    yield
    site.has(node, free=8)


@situation
def without_cpu(site: Site) -> Iterator[None]:
    """GPUs are free on a node that has too little CPU."""
    node = site.node()
    site.waiting("p", 1, cause=Cause.NODES, says="too little cpu", requests={"cpu": "1000"})
    yield
    site.has(node, free=8)


@situation
def without_volume(site: Site) -> Iterator[None]:
    """A volume of the pod does not exist."""
    site.node()
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    site.waiting("p", cause=Cause.STORAGE, says="Waiting for PersistentVolumeClaim", volumes=volumes)
    yield


@situation
def other_vendor(site: Site) -> Iterator[None]:
    """The nodes have GPUs of another vendor."""
    node = site.node("mi210-x8")
    site.waiting("p", cause=Cause.GPUS, says="no eligible node has such a free set")
    yield
    site.has(node, free=8)


@situation
def foreign_claim(site: Site) -> Iterator[None]:
    """The claim's name belongs to somebody else's claim."""
    site.node()
    metadata = {"name": claim_of(f"{site.name}-p"), "namespace": "default"}
    site.cluster.put(RESOURCE_CLAIMS, {"metadata": metadata, "spec": {}})
    site.waiting("p", cause=Cause.POD, says="does not belong to this pod")
    yield


@situation
def impossible(site: Site) -> Iterator[None]:
    """No machine that the pod may use has such a set, whatever is free."""
    node = site.node("rtx4090-x8")
    site.waiting("p", 4, cause=Cause.GPUS, says="no eligible node has such a free set", wishes={"required": "nvlink"})
    yield
    site.has(node, free=8)


def next_to_nvidias_driver(site: Site) -> Iterator[None]:
    """Another driver hands out the GPUs, and this one chooses them; the cluster is an ``AddOnCluster``."""
    node = site.node()
    site.pod("holder", 6)
    yield
    site.waiting("more", 4, cause=Cause.GPUS, says="no eligible node has such a free set")
    site.has(node, allocated=6, free=2)
    yield


ADD_ON: Final[dict[str, Situation]] = {"next-to-nvidias-driver": next_to_nvidias_driver}
