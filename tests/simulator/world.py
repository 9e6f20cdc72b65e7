"""The cluster of one seed: all its parts, and what its users and its hardware can do to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.claims.claim_builder import uuid_selector
from dradriver.api.policies.policy_sections import Policies
from dradriver.kube.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes.apistore import Key, Object
from tests.fakes.control_plane import fit
from tests.resources import DEVICE_TAINT_RULES
from tests.simulator import machines, sharing
from tests.simulator.caps import CapRules
from tests.simulator.faults import Plan
from tests.simulator.gangs import Gang
from tests.simulator.health import Health
from tests.simulator.housekeeping import Housekeeping
from tests.simulator.loop import VirtualLoop
from tests.simulator.partition_rules import Partitions
from tests.simulator.scheduler import LateScheduler
from tests.simulator.server import Server
from tests.simulator.state import State
from tests.simulator.trace import Trace
from tests.simulator.truth import Truth

LEAF: Final = "network.topology.nvidia.com/leaf"


class Node(msgspec.Struct):
    """What is true of a node."""

    name: str
    profile: str
    cpu: int = 16
    generation: int = 0
    gone: frozenset[int] = frozenset()
    form: str = "whole"
    cordoned: bool = False
    ready: bool = True
    tainted: bool = False
    zone: str = "a"
    wiring: int = 0
    leaf: str = ""
    pool: str = ""


class World:
    """Objects and those who change them.

    Attributes:
        pods: Keys of the pods that the webhook admitted, in the order they came.
        spoiled: Pods that somebody did something to that a controller cannot be held to.
        gangs: The gang of each pod that is of one.
        on_policies: Called when these change.
        queue: Pods of one kind, the oldest first, of whom none may be passed over.
        partitions: Whose GPUs are whose.
        caps: What tenants may have at a time.
        policies: What controllers follow; None for the defaults, without a place to keep reservations.
        watchers: Called as the story begins with its processes, and what is to be told of what does not hold.
        states: Give what may not last, beside what no campaign adds.
    """

    def __init__(self, loop: VirtualLoop, rng: random.Random, trace: Trace) -> None:
        self.loop, self.rng, self.trace = loop, rng, trace
        self.server = Server(lambda: loop.now)
        self.partitions = Partitions(lambda: loop.now)
        self.truth = Truth(self.server, self.partitions.open)
        self.health = Health(lambda: loop.now)
        self.plan = Plan(rng)
        self.scheduler = LateScheduler(self.server, loop, rng, trace)
        self.housekeeping = Housekeeping(self.server, loop, rng)
        self.nodes: dict[str, Node] = {}
        self.pods: list[Key] = []
        self.spoiled: set[Key] = set()
        self.gangs: dict[Key, Gang] = {}
        self.queue: list[Key] = []
        self.caps = CapRules(self)
        self.policies: Policies | None = None
        self.watchers: list[Callable[[Any, Callable[[str, str], None]], None]] = []
        self.states: list[Callable[[], Iterable[State]]] = []
        self.on_policies: Callable[[Policies], None] = lambda _: None
        self._strangers = 0
        self._sets: dict[Key, list[Key]] = {}
        for name in (names.DEVICE_CLASS, names.SHARE_CLASS, names.MIG_CLASS):
            self.server.put(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": {}})

    def follow(self, policies: Policies) -> None:
        """Let these policies be in force."""
        self.policies = policies
        self.on_policies(policies)

    # Nodes and GPUs.

    def add_node(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.truth.homes |= machines.homes(node.profile, node.name)
        self.show_node(node)
        self.publish(node)

    def show_node(self, node: Node) -> None:
        """Write a node as it is now; the node controller taints one that is not ready."""
        taints = [{"key": "tenant.example.com/keep-off", "effect": "NoSchedule"}] if node.tainted else []
        if not node.ready:
            taints.append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
        free = {"cpu": str(node.cpu), "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"}
        labels = {"kubernetes.io/hostname": node.name, "zone": node.zone} | ({LEAF: node.leaf} if node.leaf else {})
        if node.pool:
            labels["pool"] = node.pool
            self.partitions.label(node.name, node.pool)
        ready = [{"type": "Ready", "status": "True" if node.ready else "Unknown"}]
        self.server.put(
            NODES,
            {
                "metadata": {"name": node.name, "labels": labels},
                "spec": {"taints": taints, "unschedulable": node.cordoned},
                "status": {"allocatable": free, "conditions": ready},
            },
        )
        self.trace("node: %s", {field: getattr(node, field) for field in node.__struct_fields__})

    def publish(self, node: Node, *, whole: bool = True) -> None:
        """Publish a node's pool anew; one that is not ``whole`` lacks a slice, and nothing of it is given away."""
        node.generation += 1
        machine = machines.machine(node.profile, node.name, node.gone, node.wiring)
        self.partitions.read(node.name, machine.gpus)
        listed = machines.devices(node.profile, node.name, node.gone, node.form, node.wiring)
        self.truth.pools.pop(node.name, None)
        if whole:
            self.truth.pools[node.name] = machine, listed
        pool = machines.pool(node.profile, node.name, node.gone, node.form, node.generation, node.wiring)
        for built in pool:
            if not whole:
                built["spec"]["pool"]["resourceSliceCount"] = len(pool) + 1
            self.server.put(RESOURCE_SLICES, built)
        self._drop(node, {built["metadata"]["name"] for built in pool})
        self.trace("node %s publishes %d devices, generation %d", node.name, len(listed), node.generation)

    def withdraw_pool(self, node: Node) -> None:
        """Take a node's slices away, as an agent does that loses its driver."""
        self.truth.pools.pop(node.name, None)
        self._drop(node, set())
        self.trace("node %s publishes nothing", node.name)

    def reform(self, node: Node, form: str) -> None:
        """Hand a node's GPUs out in other forms, as an agent does when the policies file changes and nobody has any."""
        given = any(gpu[0] == node.name for gpu in self.truth.allocated())
        if not given and not self.scheduler.reserves(node.name):
            node.form = form
            self.trace("node %s hands out its GPUs %s", node.name, form)
            self.publish(node)

    def rule(self, name: str, pool: str, device: str) -> None:
        """Write an administrator's rule that keeps new claims off a device."""
        selector = {"driver": names.DRIVER, "pool": pool, "device": device}
        spec = {"deviceSelector": selector, "taint": {"key": "admin.example.com/keep-off", "effect": "NoSchedule"}}
        self.trace("rule %s keeps claims off %s of %s", name, device, pool)
        self.server.put(DEVICE_TAINT_RULES, {"metadata": {"name": name}, "spec": spec})

    def _drop(self, node: Node, besides: set[str]) -> None:
        """Take away a node's slices but some."""
        found = [piece["metadata"]["name"] for piece in self.server.all(RESOURCE_SLICES) if _is_agents(piece, node)]
        for name in found:
            if name not in besides:
                self.server.remove(RESOURCE_SLICES, ("", name))

    # Pods.

    def add_pod(self, pod: Object) -> None:
        self.server.put(PODS, pod)
        self.comes(pod)

    def comes(self, pod: Object) -> None:
        """Take in a pod that the webhook admitted."""
        metadata = pod["metadata"]
        key = metadata["namespace"], metadata["name"]
        self.pods.append(key)
        if (shared := sharing.claim_of(pod)) is not None:
            others = self._sets.setdefault(shared, [shared])
            others.append(key)
            self.health.together[key] = others
        spec = {key: value for key, value in pod["spec"].items() if key not in ("containers", "resourceClaims")}
        wishes = {key: value for key, value in metadata["annotations"].items() if key != names.REQUEST}
        self.trace("pod %s/%s comes: %s %s", metadata["namespace"], metadata["name"], wishes, spec)

    def pod(self, key: Key) -> Object | None:
        return self.server.find(PODS, key[1], key[0])

    def existing(self, wanted: Callable[[Object], bool]) -> list[Key]:
        """Return the keys of the admitted pods that exist and are wanted, in order."""
        found = [(key, self.pod(key)) for key in self.pods]
        return [key for key, pod in found if pod is not None and wanted(pod)]

    def delete_pod(self, key: Key) -> None:
        self.trace("pod %s/%s is deleted", *key)
        self.housekeeping.delete_pod(key)

    def finish_pod(self, key: Key) -> None:
        self.trace("pod %s/%s finishes", *key)
        phase = self.rng.choice(("Succeeded", "Failed"))
        self.server.edit(PODS, key, lambda pod: pod["status"].update(phase=phase))

    def annotate(self, key: Key, **values: str | None) -> None:
        """Set annotations under our prefix as somebody with ``kubectl annotate`` does; None takes one away."""

        def change(pod: Object) -> None:
            notes = pod["metadata"].setdefault("annotations", {})
            for word, value in values.items():
                if value is None:
                    notes.pop(names.PREFIX + word, None)
                else:
                    notes[names.PREFIX + word] = value

        self.trace("pod %s/%s is annotated: %s", *key, sorted(values))
        self.server.edit(PODS, key, change)

    # Strangers.

    def name(self, what: str) -> str:
        self._strangers += 1
        return f"{what}-{self._strangers}"

    def take(self, node: Node, count: int) -> str:
        """Let somebody else's claim be given whole GPUs of a node, as many as there are of so many; return its name."""
        gpus = sorted(name for name in self.truth.listed(node.name) if self.truth.homes[name].part is None)
        self.rng.shuffle(gpus)
        requests = [_request(names.DEVICE_CLASS, self.truth.homes[gpu].uuid) for gpu in gpus]
        return self._allocate(node, requests, most=count)

    def take_part(self, node: Node) -> None:
        """Let somebody else's claim, without a word of ours, be given a share or a MIG slice of a node."""
        share = {names.CAPACITY_CORES: "30", names.CAPACITY_MEMORY: "4096Mi"}
        piece = {names.CAPACITY_MEMORY_SLICES: "1", names.CAPACITY_COMPUTE_SLICES: "1"}
        device_class, amounts = self.rng.choice(((names.SHARE_CLASS, share), (names.MIG_CLASS, piece)))
        self._allocate(node, [_request(device_class, None, amounts)], most=1)

    def _allocate(self, node: Node, requests: list[Object], *, most: int) -> str:
        """Make a claim of somebody else's, with as many of these requests as are served; return its name, or none."""
        spec: Object = {"devices": {"requests": []}}
        results: list[Object] = []
        own = {"uid": f"rival-at-{self.server.version}"}
        for number, exactly in enumerate(requests):
            tried = [*spec["devices"]["requests"], {"name": f"r{number}", "exactly": exactly}]
            found = self.scheduler.allocate({"metadata": own, "spec": {"devices": {"requests": tried}}}, node.name)
            if found is not None and len(results) < most:
                spec["devices"]["requests"], results = tried, found
        if results:
            name = self.name("rival")
            status = {"allocation": {"devices": {"results": results}}}
            metadata = {"name": name, "namespace": "default"}
            self.server.put(RESOURCE_CLAIMS, {"metadata": metadata, "spec": spec, "status": status})
            self.trace("%s takes %s", name, [(r["pool"], r["device"], r.get("consumedCapacity")) for r in results])
            return name
        return ""

    def fill_cpu(self, node: Node, cpu: int) -> None:
        """Bind somebody else's pod to a node, if it has the CPU."""
        if fit.used_cpu(self.server.all(PODS), node.name) + 1000 * cpu > 1000 * node.cpu:
            return
        name = self.name("eater")
        self.put_pod(name, nodeName=node.name, containers=[_container(cpu)], phase="Running")
        self.trace("%s takes %d CPU of node %s", name, cpu, node.name)

    def put_pod(self, name: str, *, phase: str = "Pending", metadata: Object | None = None, **spec: Any) -> None:
        """Create a pod that the webhook did not make ours."""
        head = {"name": name, "namespace": "default"} | (metadata or {})
        spec.setdefault("containers", [_container(0)])
        self.server.put(PODS, {"metadata": head, "spec": spec, "status": {"phase": phase}})


def _is_agents(piece: Object, node: Node) -> bool:
    """Return whether a slice is one that a node's agent wrote, and no stranger."""
    return bool(piece["metadata"]["name"].endswith(f"-{names.DRIVER}-{node.name}"))


def _request(device_class: str, uuid: str | None, amounts: dict[str, str] | None = None) -> Object:
    exactly: Object = {"deviceClassName": device_class}
    if uuid is not None:
        exactly["selectors"] = [{"cel": {"expression": uuid_selector([uuid])}}]
    return exactly | ({"capacity": {"requests": amounts}} if amounts else {})


def _container(cpu: int) -> Object:
    return {"name": "main", "image": "example.com/image", "resources": {"requests": {"cpu": str(cpu)}}}
