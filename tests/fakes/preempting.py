"""Small clusters that are full, and what others might be ended for: for tests of preemption."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence

from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Preemption, Queue
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived.workloads import Workload
from dradriver.controller.placing.preemption_search import Scene
from dradriver.controller.placing.running_workloads import RunningWorkloads
from dradriver.kube.resources import PODS
from dradriver.queue.pending import Member
from tests.fakes.gpucluster import GpuCluster

NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC).timestamp()
ON = Policies(queue=Queue(preemption=Preemption(enabled=True, min_run_minutes=0, margin_seconds=60)))
KUBELET = "kubernetes.io/kubelet"  # stands for the grace of a pod that runs


class Contested(GpuCluster):
    """A cluster in which preemption is on, and pods that are told to end take their time."""

    def __init__(self, suspendable: Sequence[str] = ()) -> None:
        self.suspendable = suspendable
        super().__init__()

    def restart(self) -> None:
        super().restart()
        self.client.ends = self.end
        self.worker.follow(ON)

    def end(self, key: tuple[str, str]) -> None:
        self.store.edit(PODS, key, lambda pod: pod["metadata"].setdefault("finalizers", [KUBELET]))
        self.store.remove(PODS, key)

    def gone(self, *pods: str) -> None:
        """Let pods that were told to end be gone, and with them their claims."""
        for name in pods:
            self.store.edit(PODS, ("default", name), lambda pod: pod["metadata"].pop("finalizers", None))
        self.collect()

    def evicted(self) -> list[str]:
        return [name for verb, name in self.client.writes if verb == "evict"]

    def ending(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.all(PODS) if "deletionTimestamp" in pod["metadata"]]

    async def run(self, *pods: tuple[str, int, int], **changes: object) -> None:
        """Let pods run, each given by name, GPUs and priority."""
        for name, gpus, priority in pods:
            self.pod(name, gpus, priority=priority, **changes)
        await self.settle()
        self.schedule()
        await self.settle()
        assert all(self.get_pod(name)["spec"].get("nodeName") for name, _, _ in pods)


async def contested(*pods: tuple[str, int, int], nodes: str = "a") -> Contested:
    cluster = Contested()
    for node in nodes:
        cluster.node(node)
    await cluster.run(*pods)
    return cluster


def runs_since(cluster: GpuCluster, name: str, ago_s: float) -> None:
    """Let a bound pod have run for so long, as the kubelet says it."""
    at = datetime.datetime.fromtimestamp(NOW - ago_s, datetime.UTC)
    cluster.store.edit(PODS, ("default", name), lambda pod: pod["status"].update(startTime=f"{at:%Y-%m-%dT%H:%M:%SZ}"))


async def crowded(rng: random.Random, profiles: Sequence[str], *, most: int = 10, gangs: bool = True) -> GpuCluster:
    """Return a cluster of such nodes in which pods and gangs of several priorities run, for different times."""
    cluster = GpuCluster()
    for number, profile in enumerate(profiles):
        cpu = rng.choice(("8", "16", "64"))
        cluster.node(f"n{number}", profile, allocatable={"cpu": cpu})
    pods = []
    for number in range(rng.randint(most // 2, most)):
        priority, cpu = rng.choice((0, 0, 10, 20)), rng.choice(("0", "1", "4"))
        gpus = rng.choice((1, 1, 2, 2, 4))
        if gangs and rng.random() < 0.25:
            for index in range(2):
                pods.append(f"g{number}-{index}")
                words = {"gang": f"g{number}", "gang-size": "2"}
                cluster.pod(pods[-1], gpus, priority=priority, requests={"cpu": cpu}, wishes=words)
        else:
            pods.append(f"p{number}")
            cluster.pod(pods[-1], gpus, priority=priority, requests={"cpu": cpu})
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    for name in pods:
        pod = cluster.get_pod(name)
        if pod["spec"].get("nodeName"):
            runs_since(cluster, name, rng.choice((700, 5000, 5000, 90000)))
    cluster.deliver()
    return cluster


def scene(picture: Picture, priority: int, *, now: float = NOW) -> Scene:
    """Return who may have to end for somebody of a priority: all that have less."""
    workloads, ending = RunningWorkloads(picture).all()
    return Scene([(workload, workload.priority) for workload in workloads if workload.priority < priority], ending, now)


def waiting(cluster: GpuCluster, name: str) -> Member:
    """Return a pod as the queue has it."""
    picture = cluster.worker.picture
    pod = picture.pods["default", name]
    return Member(pod, picture.templates.of(pod), picture.volumes.of(pod))


def names_of(workloads: Sequence[Workload]) -> list[str]:
    """Return the names of workloads, in order."""
    return sorted(workload.key[1] for workload in workloads)
