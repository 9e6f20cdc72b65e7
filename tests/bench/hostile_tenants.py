"""`python -m tests.bench.hostile_tenants`: what tenants whose workloads can never start cost others.

Each row has an adversary on 11 nodes. GPUs of one node become free and are taken again twice a second. The columns:

* evaluations, CPU: what 99 of 100 looks at a workload for a place cost, in evaluations of nodes and in milliseconds
* looks: how many there were in a minute
* wait: after how many simulated seconds the last of another tenant's three pods and gang of two is bound
* ratio: this wait, divided by the wait without an adversary
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple
from unittest.mock import patch

import looptime
import msgspec

from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Queue, Reservation, Tenant
from dradriver.cluster.nodes.columns import Bools
from dradriver.kube.resources import POD_DISRUPTION_BUDGETS, PODS
from dradriver.queue.pending import PendingWorkload
from dradriver.reason import Reason
from tests.fakes.apistore import Object
from tests.fakes.gang_pods import gang
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.preempting import ON
from tests.fakes.troubles import working

HOSTILE = "hostile"
CHURN = "churn"  # a node whose GPUs come and go
OWN = [f"n{number}" for number in range(6)]  # nodes that an adversary may fill
OTHERS = [f"n{number}" for number in range(6, 10)]  # room for the other tenant's pods
WARM_UP_S = 10
LONGEST_S = 300
MINUTE_S = 60
IDLE_ROUNDS = 2  # as in tests/conftest.py

PREEMPTION = msgspec.structs.replace(ON.queue.preemption, units_per_minute=4)
RESERVATION = Reservation(after_minutes=0.1, idle_minutes=0.5)


def on(nodes: Iterable[str]) -> Object:
    """Return what confines a pod to some nodes."""
    values = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
    required = {"nodeSelectorTerms": [{"matchExpressions": [values]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def put(cluster: GpuCluster, name: str, gpus: int, *, gang_of: tuple[str, int] | None = None, **spec: object) -> None:
    """Create a pod of the adversary, of a gang with so many pods if it is given."""
    wishes = {} if gang_of is None else {"gang": gang_of[0], "gang-size": str(gang_of[1])}
    cluster.pod(name, gpus, namespace=HOSTILE, wishes=wishes, **spec)


def fill(cluster: GpuCluster, gpus: int, priority: int = 0) -> None:
    """Have the adversary's pods run on its nodes."""
    for node in OWN:
        for number in range(8 // gpus):
            put(cluster, f"runs-{node}-{number}", gpus, priority=priority, **on([node]))


def nobody(cluster: GpuCluster) -> None:
    """No adversary."""


def unknown_gangs(cluster: GpuCluster) -> None:
    """Make forty gangs with one pod each of a scheduler that nobody runs."""
    for number in range(40):
        for rank, scheduler in enumerate(("", f"nobody-{number}")):
            put(cluster, f"g{number}-{rank}", 8, gang_of=(f"g{number}", 2), schedulerName=scheduler)


def unknown_pods(cluster: GpuCluster) -> None:
    """Make forty pods of a scheduler that nobody runs."""
    for number in range(40):
        put(cluster, f"p{number}", 8, schedulerName="nobody")


def impossible(cluster: GpuCluster) -> None:
    """Make two hundred pods and two hundred gangs that fit nowhere, all different."""
    for number in range(200):
        put(cluster, f"p{number}", 8, requests={"cpu": f"{965_000 + number}m"})
        for rank in range(2):
            cpu = {"cpu": f"{964_000 + number - rank}m"}
            put(cluster, f"g{number}-{rank}", 8, gang_of=(f"g{number}", 2), requests=cpu)


def differ_in_cpu(cluster: GpuCluster) -> None:
    """Make a hundred gangs that find no GPUs on the adversary's nodes, and differ in CPU alone."""
    fill(cluster, 4)
    for number in range(100):
        for rank in range(2):
            cpu = {"cpu": f"{1000 - number}m"}
            put(cluster, f"g{number}-{rank}", 8, gang_of=(f"g{number}", 2), requests=cpu, **on([*OWN, CHURN]))


def large_gangs(cluster: GpuCluster) -> None:
    """Make three gangs of 120 to 140 pods."""
    for number, size in enumerate((120, 130, 140)):
        for rank in range(size):
            put(cluster, f"g{number}-{rank}", 1, gang_of=(f"g{number}", size))


def budgets(cluster: GpuCluster) -> None:
    """Make six pods that budgets keep from ending, and one of a high priority that can have GPUs of these alone."""
    fill(cluster, 8)
    every: Object = {"metadata": {"name": "all", "namespace": HOSTILE}, "spec": {"selector": {}}}
    cluster.put(POD_DISRUPTION_BUDGETS, every | {"status": {"disruptionsAllowed": 0}})
    put(cluster, "urgent", 8, priority=1000, **on(OWN))


def scarce_evictions(cluster: GpuCluster) -> None:
    """Make a gang for which eight pods have to end, and pods that use up the evictions of each minute."""
    fill(cluster, 4)
    for rank in range(4):
        put(cluster, f"urgent-{rank}", 8, gang_of=("urgent", 4), priority=1000, **on(OWN))
    for number in range(13):
        put(cluster, f"p{number}", 4, priority=10, **on(OWN))


def in_turns(cluster: GpuCluster) -> None:
    """Make two pods for which GPUs are reserved in turns, on nodes that are never free."""
    for node in OWN:
        put(cluster, f"runs-{node}", 1, priority=2000, **on([node]))
    for number in range(2):
        put(cluster, f"p{number}", 8, **on(OWN))


ADVERSARIES: tuple[Callable[[GpuCluster], None], ...] = (
    nobody, unknown_gangs, unknown_pods, impossible, differ_in_cpu, large_gangs, budgets, scarce_evictions, in_turns,
)  # fmt: skip


class Figures(NamedTuple):
    """What came of one story.

    Attributes:
        work: Evaluations of nodes of each look.
        cpu_s: CPU time of each look, in seconds.
        looks: How many looks there were in a minute.
        wait_s: Simulated seconds until the other tenant's last pod was bound.
    """

    work: list[int]
    cpu_s: list[float]
    looks: float
    wait_s: float


def watched(cluster: GpuCluster, work: list[int], cpu_s: list[float]) -> None:
    """Have each look at a workload for a place write down what it cost."""
    queue, began = cluster.worker.queue, 0.0
    next_of, block, leave = queue.next, queue.block, queue.leave

    def seen_next() -> tuple[PendingWorkload, Bools | None] | None:
        nonlocal began
        due = next_of()
        began = time.thread_time()
        return due

    def looked(evaluations: int) -> None:
        work.append(evaluations)
        cpu_s.append(time.thread_time() - began)

    def seen_block(
        workload: PendingWorkload, reason: Reason | None, *, work: int = 0, by_limit: bool = False
    ) -> list[tuple[PendingWorkload, Reason]]:
        looked(work)
        return block(workload, reason, work=work, by_limit=by_limit)

    def seen_leave(workload: PendingWorkload, *, work: int = 0) -> None:
        looked(work)
        leave(workload, work=work)

    queue.next, queue.block, queue.leave = seen_next, seen_block, seen_leave  # type: ignore[method-assign]


async def story(adversary: Callable[[GpuCluster], None]) -> Figures:
    """Run one adversary next to another tenant."""
    cluster = GpuCluster(promise_s=30, unschedulable_s=5)
    for node in (*OWN, *OTHERS, CHURN):
        cluster.node(node)
    cluster.barrier()
    tenants = {"new": Tenant(namespaces=(HOSTILE,)), "old": Tenant(namespaces=("default",))}
    policies = Policies(tenants=tenants, queue=Queue(preemption=PREEMPTION, reservation=RESERVATION))
    cluster.worker.follow(policies)
    cluster.features.reservations.follow(policies)
    cluster.worker.tenants.shares.restart({"default": 1e6}, {})
    cluster.rival("taken", CHURN, range(8))
    work: list[int] = []
    cpu_s: list[float] = []
    watched(cluster, work, cpu_s)
    clock = asyncio.get_running_loop().time
    async with working(cluster, see_s=0.05):
        reserving = asyncio.create_task(cluster.features.reservations.run(None))
        adversary(cluster)
        names: list[str] = []
        bound_at: float | None = None
        ticks = 0
        while clock() < WARM_UP_S + LONGEST_S and (bound_at is None or clock() < WARM_UP_S + MINUTE_S):
            if not names and clock() >= WARM_UP_S:
                names = [*gang(cluster, 2, name="good"), "a", "b", "c"]
                for name in names[2:]:
                    cluster.pod(name, 4, **on(OTHERS))
            await asyncio.sleep(0.1)
            ticks += 1
            if ticks % 5 == 0:
                cluster.rival("taken", CHURN, range(8 if ticks % 10 else 4))
            cluster.schedule()
            pods = [cluster.find(PODS, name, "default") for name in names]
            if names and bound_at is None and all(pod is not None and pod["spec"].get("nodeName") for pod in pods):
                bound_at = clock()
        reserving.cancel()
        await asyncio.gather(reserving, return_exceptions=True)
    wait_s = LONGEST_S if bound_at is None else bound_at - WARM_UP_S
    return Figures(work, cpu_s, len(work) / clock() * MINUTE_S, wait_s)


def told(adversary: Callable[[GpuCluster], None]) -> Figures:
    """Run a story in simulated time."""
    loop = asyncio.new_event_loop()
    assert isinstance(loop, asyncio.BaseEventLoop)
    looptime.patch_event_loop(loop, noop_cycles=IDLE_ROUNDS)
    began = time.time()
    try:
        with patch.object(time, "time", lambda: began + loop.time()):
            return loop.run_until_complete(story(adversary))
    finally:
        loop.close()


def late(values: list[float] | list[int]) -> float:
    """Return the 99th percentile; 0 for no values."""
    return sorted(values)[len(values) * 99 // 100] if values else 0.0


def main() -> None:
    """Print a row for each adversary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[adversary.__name__ for adversary in ADVERSARIES], help="next to nobody")
    given = parser.parse_args()
    head = f"{'adversary':<18}{'looks/min':>10}{'evaluations p99':>17}{'CPU p99 ms':>12}{'wait s':>8}{'ratio':>7}"
    print(head, flush=True)
    alone_s = 0.0
    for adversary in ADVERSARIES:
        if given.only not in (None, adversary.__name__) and adversary is not nobody:
            continue
        found = told(adversary)
        alone_s = alone_s or found.wait_s
        print(
            f"{adversary.__name__:<18}{found.looks:>10.0f}{late(found.work):>17,.0f}{late(found.cpu_s) * 1e3:>12.1f}"
            f"{found.wait_s:>8.1f}{found.wait_s / alone_s:>7.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
