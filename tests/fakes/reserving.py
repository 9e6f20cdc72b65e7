"""A cluster whose controller reserves GPUs, and whose pods say for how long they run."""

from __future__ import annotations

import datetime
from typing import Any, cast

from dradriver.controller.features.reservations import LOOK_S
from dradriver.controller.writing.reservation_store import ReservationStore
from dradriver.kube.client import Client
from dradriver.kube.resources import CONFIG_MAPS, PODS, RESOURCE_CLAIMS
from dradriver.queue.reservation_rules import Reservation, Terms
from tests.fakes.apistore import Object
from tests.fakes.gpucluster import GpuCluster, claim_of

OURS = "gpu-topology"
START = 1_800_000_000.0
HOUR_S = 3600
WAIT_S = Terms().bounded_wait_s + 60  # after which somebody is passed by for too long


class Reserving(GpuCluster):
    """The cluster; time goes on only by ``later``."""

    def __init__(self, **times: float) -> None:
        self.now = START
        super().__init__(**times)

    def time_s(self) -> float:
        return self.now

    def restart(self) -> None:
        super().restart()
        self.kept = ReservationStore(cast("Client", self.client), namespace=OURS)

    async def fail_over(self) -> None:
        """Let another controller lead."""
        self.restart()
        self.deliver()
        self.features.reservations.restore(await self.kept.load())
        await self.settle()

    async def later(self, seconds: float) -> None:
        """Let time pass, a minute at a time, and the controller look."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(self.now + 60, until)
            self.deliver()
            await self.features.reservations.step()
            await self.features.reservations.save(self.kept)
            await self.settle()

    async def look(self) -> None:
        """Let so much time pass that the controller looks again at all who wait."""
        await self.later(LOOK_S)

    async def run(self, name: str, gpus: int = 4, **changes: Any) -> None:
        """Create a pod and have it run, if There is a place for the pod."""
        self.pod(name, gpus, **changes)
        await self.settle()
        await self.start()

    async def start(self) -> None:
        """Let the scheduler and the kubelets do what they can."""
        self.schedule()
        said = datetime.datetime.fromtimestamp(self.now, datetime.UTC).isoformat().replace("+00:00", "Z")
        for pod in self.all(PODS):
            if pod["spec"].get("nodeName") and "startTime" not in pod["status"]:
                key = pod["metadata"]["namespace"], pod["metadata"]["name"]
                self.store.edit(PODS, key, lambda pod: pod["status"].update(startTime=said))
        for claim in self.all(RESOURCE_CLAIMS):
            allocation = claim.get("status", {}).get("allocation")
            if allocation and "allocationTimestamp" not in allocation:
                allocation["allocationTimestamp"] = said
                self.put(RESOURCE_CLAIMS, claim)
        await self.settle()

    async def end(self, *pods: str) -> None:
        """Let pods be gone."""
        for name in pods:
            self.remove(PODS, name, "default")
        self.collect()
        await self.settle()

    def runs(self, name: str) -> bool:
        """Return whether a pod has GPUs, or was promised some."""
        return self.find(RESOURCE_CLAIMS, claim_of(name), "default") is not None

    @property
    def held(self) -> tuple[Reservation, ...]:
        """What is reserved now."""
        return self.features.reservations.all()

    @property
    def map(self) -> Object | None:
        """The ConfigMap."""
        return self.find(CONFIG_MAPS, "gpu-topology-reservations", OURS)


async def passed_by(*nodes: str, **declared: int) -> Reserving:
    """Return a cluster in which eight GPUs were asked for in vain for as long as anybody has to wait.

    On each node two pods have four GPUs each; those of ``declared`` say after how many seconds they are ended.
    """
    cluster = Reserving()
    for node in nodes or ("a",):
        cluster.node(node)
    await cluster.settle()
    for number in range(2 * len(nodes or ("a",))):
        name = f"s{number}"
        ends = {"activeDeadlineSeconds": declared[name]} if name in declared else {}
        await cluster.run(name, 4, **ends)
    cluster.pod("big", 8)
    await cluster.settle()
    await cluster.later(WAIT_S)
    return cluster
