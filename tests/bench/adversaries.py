"""Tenants whose workloads can never start, or take what others wait for: rows of ``tests.bench.hostile_tenants``."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterable
from typing import Any, Final

from dradriver.kube.resources import POD_DISRUPTION_BUDGETS, PODS
from tests.fakes.apistore import Object, key_of
from tests.fakes.gpucluster import GpuCluster

HOSTILE: Final = "hostile"
OTHER: Final = "default"  # the namespace of the tenant whose wait is measured
BATCH: Final = "batch"  # the namespace of well-behaved pods of low priority, which end for others
CHURN: Final = "churn"  # a node whose GPUs come and go
SHARED: Final = [f"n{number}" for number in range(4)]  # nodes for the other tenant, which the adversary uses, too
MORE: Final = [f"more-{number}" for number in range(6)]  # further nodes
NOTEBOOKS: Final = [f"{HOSTILE}-{number}" for number in range(6)]  # further namespaces of the adversary
BRIEF_S: Final = 5  # for which pods run that use up evictions
UNKNOWN: Final = "nobody"  # a scheduler that does not run
LOW, MIDDLE, HIGH = -10, 10, 1000  # priorities


class Shared(GpuCluster):
    """A cluster whose pods say when they were created.

    Attributes:
        bound_at: When each pod was bound, seconds since the epoch, by namespace and name.
    """

    def __init__(self, **times: float) -> None:
        self.bound_at: dict[tuple[str, str], float] = {}
        super().__init__(**times)

    def schedule(self) -> None:
        super().schedule()
        bound = {key_of(pod) for pod in self.store.all(PODS) if pod["spec"].get("nodeName")}
        self.bound_at = {key: self.bound_at.get(key, self.time_s()) for key in bound}

    def ran_s(self, name: str, namespace: str) -> float:
        """Return for how long a pod has been bound; 0 if it is not."""
        now = self.time_s()
        return now - self.bound_at.get((namespace, name), now)

    def admitted(self, name: str, gpus: Any = 4, **changes: Any) -> Object:
        owner = changes.pop("owner", "")
        pod = super().admitted(name, gpus, **changes)
        created = datetime.datetime.fromtimestamp(self.time_s(), datetime.UTC)
        pod["metadata"]["creationTimestamp"] = f"{created:%Y-%m-%dT%H:%M:%SZ}"
        if owner:
            made_by = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}
            pod["metadata"]["ownerReferences"] = [made_by]
        return pod

    def end(self, name: str, namespace: str) -> None:
        """Let a pod be gone, and its claim with it."""
        self.remove(PODS, name, namespace)
        self.collect()


def on(nodes: Iterable[str]) -> Object:
    """Return what confines a pod to some nodes."""
    values = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
    required = {"nodeSelectorTerms": [{"matchExpressions": [values]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def put(cluster: Shared, name: str, gpus: int = 8, *, gang_of: tuple[str, int] | None = None, **spec: object) -> None:
    """Create a pod of the adversary, of a gang with so many pods if it is given."""
    wishes = {} if gang_of is None else {"gang": gang_of[0], "gang-size": str(gang_of[1])}
    cluster.pod(name, gpus, namespace=HOSTILE, wishes=wishes, **spec)


def nothing(cluster: Shared, second: int) -> None:
    """Do nothing."""


Act = Callable[[Shared, int], None]
"""What happens in a second; the adversary comes in its second 0."""


@dataclasses.dataclass(frozen=True)
class Adversary:
    """A row.

    Attributes:
        acts: What the adversary does.
        shows: A figure, and what it must be at least: else the adversary has not done what the row is named after.
        calm: What happens in addition, with the adversary and without.
        instead: What happens instead of what the adversary does.
        gpus: GPUs of each of the other tenant's pods.
        priority: Their priority.
        nodes: The nodes that these may use.
        reserves: Whether GPUs are reserved for those that wait for long.
        leader_s: After how many seconds a new leader takes over, again and again; 0 for never.
        per_minute: How many workloads may have to end within a minute.
        gang: How many pods of the adversary get GPUs together.
        more: Whether there are the further nodes, too.
        comes_s: When the adversary comes.
        lasts_s: For how long there are the adversary and new pods of the other tenant.
        back_off_minutes: For how long what replaces a pod that had to end is spared.
    """

    acts: Act = nothing
    shows: tuple[str, float] = ("leaders", 1)
    calm: Act = nothing
    instead: Act = nothing
    gpus: int = 8
    priority: int = 0
    nodes: tuple[str, ...] = tuple(SHARED)
    reserves: bool = False
    leader_s: int = 0
    per_minute: int = 4
    gang: int = 1
    more: bool = False
    comes_s: int = 60
    lasts_s: int = 600
    back_off_minutes: float = 0.5


# Pods that can never start.


def unknown_gangs(cluster: Shared, second: int) -> None:
    """Make forty gangs with one pod each of a scheduler that does not run."""
    for number in range(40 if second == 0 else 0):
        for rank, scheduler in enumerate(("", f"{UNKNOWN}-{number}")):
            put(cluster, f"g{number}-{rank}", gang_of=(f"g{number}", 2), schedulerName=scheduler)


def unknown_pods(cluster: Shared, second: int) -> None:
    """Make forty pods of a scheduler that does not run."""
    for number in range(40 if second == 0 else 0):
        put(cluster, f"p{number}", schedulerName=UNKNOWN)


def bare_member(cluster: Shared, second: int) -> None:
    """Make a gang whose second pod is another scheduler's, has no owner, and is made again every ten seconds."""
    if second == 0:
        put(cluster, "g-0", gang_of=("g", 2))
    if second % 10 == 0:
        if cluster.find(PODS, "g-1", HOSTILE) is not None:
            cluster.end("g-1", HOSTILE)
        put(cluster, "g-1", gang_of=("g", 2), schedulerName=UNKNOWN)


def impossible(cluster: Shared, second: int) -> None:
    """Make two hundred pods and two hundred gangs that fit nowhere, all different."""
    for number in range(200 if second == 0 else 0):
        put(cluster, f"p{number}", requests={"cpu": f"{965_000 + number}m"})
        for rank in range(2):
            cpu = {"cpu": f"{964_000 + number - rank}m"}
            put(cluster, f"g{number}-{rank}", gang_of=(f"g{number}", 2), requests=cpu)


def differ_in_cpu(cluster: Shared, second: int) -> None:
    """Make a hundred gangs for which there are never enough free GPUs at once, and that differ in CPU alone."""
    for number in range(100 if second == 0 else 0):
        for rank in range(3):
            cpu = {"cpu": f"{1000 - number}m"}
            put(cluster, f"g{number}-{rank}", gang_of=(f"g{number}", 3), requests=cpu, **on([*SHARED, CHURN]))


def large_gangs(cluster: Shared, second: int) -> None:
    """Make three gangs of 120 to 140 pods."""
    for number, size in enumerate((120, 130, 140) if second == 0 else ()):
        for rank in range(size):
            put(cluster, f"g{number}-{rank}", 1, gang_of=(f"g{number}", size))


def in_turns(cluster: Shared, second: int) -> None:
    """Make two pods for which GPUs are reserved in turns, on nodes that are never free."""
    for number in range(2 if second == 0 else 0):
        put(cluster, f"p{number}", requests={"cpu": f"{number + 1}"}, **on(SHARED))


def never_free(cluster: Shared, second: int) -> None:
    """Have endless pods on one GPU of each shared node, and on all of one node."""
    for node in SHARED if second == 0 else ():
        put(cluster, f"runs-{node}", 8 if node == SHARED[0] else 1, priority=2 * HIGH, **on([node]))


# Pods of low priority, which end for the other tenant's.


def batch(cluster: Shared, second: int) -> None:
    """Have as many pods of low priority as shared nodes, each with GPUs of a whole node; another for each that ends."""
    _replicas(cluster, second, 4, 8, BATCH, owner="")


def replicas(cluster: Shared, second: int) -> None:
    """Have 32 pods of low priority, all of one ReplicaSet, which replaces each that ends."""
    _replicas(cluster, second, 32, 1, HOSTILE, owner="web")


def alone(cluster: Shared, second: int) -> None:
    """Have the same pods without an owner."""
    _replicas(cluster, second, 32, 1, HOSTILE, owner="")


def _replicas(cluster: Shared, second: int, count: int, gpus: int, namespace: str, *, owner: str) -> None:
    living = sum(pod["metadata"]["name"].startswith("runs-here-") for pod in _pods(cluster, namespace))
    for number in range(count - living):
        name = f"runs-here-{second}-{number}"
        cluster.pod(name, gpus, namespace=namespace, priority=LOW, owner=owner, **on(SHARED))


def _pods(cluster: Shared, namespace: str) -> list[Object]:
    return [pod for pod in cluster.store.all(PODS) if pod["metadata"]["namespace"] == namespace]


def batch_everywhere(cluster: Shared, second: int) -> None:
    """Have the batch pods, and more of them on further nodes."""
    batch(cluster, second)
    _fill_more(cluster, second, dict.fromkeys(MORE, BATCH), LOW)


def notebooks(cluster: Shared, second: int) -> None:
    """Have the batch pods, and on each of further nodes a pod of a lower priority in a namespace of its own."""
    batch(cluster, second)
    _fill_more(cluster, second, dict(zip(MORE, NOTEBOOKS, strict=True)), 2 * LOW)


def _fill_more(cluster: Shared, second: int, namespaces: dict[str, str], priority: int) -> None:
    for node, namespace in namespaces.items():
        if not any(pod["metadata"]["name"].startswith(f"runs-{node}-") for pod in _pods(cluster, namespace)):
            cluster.pod(f"runs-{node}-{second}", 8, namespace=namespace, priority=priority, **on([node]))


def budgets(cluster: Shared, second: int) -> None:
    """Keep each notebook from ending by a budget of its own."""
    for namespace in NOTEBOOKS if second == 0 else ():
        every: Object = {"metadata": {"name": "all", "namespace": namespace}, "spec": {"selector": {}}}
        cluster.put(POD_DISRUPTION_BUDGETS, every | {"status": {"disruptionsAllowed": 0}})


def scarce_evictions(cluster: Shared, second: int) -> None:
    """Have a pod for each of the further nodes, again and again, for which a batch pod ends: no evictions are left."""
    for pod in _pods(cluster, HOSTILE):
        if cluster.ran_s(pod["metadata"]["name"], HOSTILE) >= BRIEF_S:
            cluster.end(pod["metadata"]["name"], HOSTILE)
    for number, node in enumerate(MORE):
        if second % 15 == number and cluster.find(PODS, f"p-{node}", HOSTILE) is None:
            put(cluster, f"p-{node}", priority=MIDDLE, **on([node]))


def batch_and_scarce_evictions(cluster: Shared, second: int) -> None:
    """Have both."""
    batch_everywhere(cluster, second)
    scarce_evictions(cluster, second)


ADVERSARIES: Final = {
    "nobody": Adversary(),
    "unknown_gangs": Adversary(unknown_gangs, ("tentative %", 5), gang=2),
    "unknown_pods": Adversary(unknown_pods, ("tentative %", 5)),
    "bare_member": Adversary(bare_member, ("tentative %", 5), gang=2),
    "impossible": Adversary(impossible, ("parked", 600), lasts_s=120),
    "differ_in_cpu": Adversary(differ_in_cpu, ("parked", 300), lasts_s=120),
    "large_gangs": Adversary(large_gangs, ("parked", 390)),
    "in_turns": Adversary(in_turns, ("reservations", 2), calm=never_free, gpus=4, reserves=True),
    "budgets": Adversary(budgets, ("refusals", 6), calm=notebooks, priority=HIGH, nodes=(*SHARED, *MORE)),
    "scarce_evictions": Adversary(
        scarce_evictions, ("full minutes %", 50), calm=batch_everywhere, priority=HIGH, more=True, comes_s=0
    ),
    "back_off": Adversary(replicas, ("evictions", 32), instead=alone, priority=HIGH, per_minute=40, back_off_minutes=5),
    "new_leader": Adversary(
        shows=("leaders", 10), calm=batch_and_scarce_evictions, priority=HIGH, leader_s=45, more=True
    ),
}
