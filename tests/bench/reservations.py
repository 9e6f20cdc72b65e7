"""`python -m tests.bench.reservations`: a decision with GPUs reserved for another beside one without, and the search.

CPU milliseconds on a cluster of full nodes but one in ten, which has four GPUs free.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable

from dradriver.allocator.request import NoPlaceError
from dradriver.api.claims import reservation_config_map as stored
from dradriver.controller.placing.decide import decide
from dradriver.controller.placing.reservable import Reservable
from dradriver.queue import reservation_access, reservation_rules
from dradriver.queue.limits import Allowance
from dradriver.queue.pending import PendingWorkload
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.preempting import waiting

TIMES = 200


async def full(nodes: int) -> GpuCluster:
    """Return a cluster on which two pods wait: ``small`` has a place, ``big`` has none."""
    cluster = GpuCluster()
    for number in range(nodes):
        cluster.node(f"n{number:04}")
        cluster.rival(f"r{number}", f"n{number:04}", range(4 if number % 10 == 0 else 8))
    cluster.pod("small", 4)
    cluster.pod("ends", 4, activeDeadlineSeconds=60)
    cluster.pod("big", 8)
    cluster.deliver()
    return cluster


def spent(work: Callable[[], object]) -> float:
    """Return the median of what one call takes, CPU milliseconds."""
    seconds = []
    for _ in range(TIMES):
        begun = time.thread_time()
        work()
        seconds.append(time.thread_time() - begun)
    return statistics.median(seconds) * 1e3


async def measured(nodes: int) -> None:
    """Print all figures for so many nodes."""
    cluster = await full(nodes)
    worker = cluster.worker
    picture, workloads = (
        worker.picture,
        {name: PendingWorkload(waiting(cluster, name)) for name in ("small", "ends", "big")},
    )

    def place(workload: PendingWorkload) -> None:
        try:
            decide(worker.limits.offer(workload).snapshot, workload.lead.wish)
        except NoPlaceError:
            return

    print(f"{nodes} nodes, none reserved: {spent(lambda: place(workloads['small'])):.2f} ms a decision")
    reservable = Reservable(picture, time.time)
    begun = time.thread_time()
    found = await reservable.best(workloads["big"], Allowance((workloads["big"].lead,)))
    took = time.thread_time() - begun
    assert found is not None
    print(f"{nodes} nodes: {took * 1e3:.0f} ms to find a set, others having the loop meanwhile")
    blocked = reservation_rules.Blocked(who=workloads["big"].who, since=0.0)
    kept = reservation_access.write(reservation_rules.reserve(blocked, found, time.time()), 0)
    cluster.features.reservations.restore(stored.Written(kept=[kept]))
    assert len(cluster.features.reservations.all()) == 1
    _ = picture.inventory.fleet
    print(f"{nodes} nodes, 8 GPUs reserved for another: {spent(lambda: place(workloads['small'])):.2f} ms")
    print(f"{nodes} nodes, for one that may have them: {spent(lambda: place(workloads['ends'])):.2f} ms")


def main() -> None:
    """Measure clusters of several sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[50, 200])
    for nodes in parser.parse_args().nodes:
        asyncio.run(measured(nodes))


if __name__ == "__main__":
    main()
