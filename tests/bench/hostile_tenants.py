"""`python -m tests.bench.hostile_tenants`: what tenants whose workloads can never start cost others.

Each row has an adversary of ``tests.bench.adversaries``. Another tenant has a pod each 20 seconds, on nodes that the
adversary uses, too. Each pod runs for 55 seconds. The adversary comes when the first three run, or
before them. GPUs of one node become
free and are taken again every two seconds. Time is simulated. Where a policy has minutes, they are a sixtieth of the
default unless a row says otherwise, because the pods run for a minute and not for an hour. The columns:

* looks, evaluations, CPU: looks at a workload for a place in a minute, and what 99 of 100 of them cost at most, in
  evaluations of nodes and in milliseconds; CPU s/min: what all of them cost in a minute
* wait: how long the other tenant's pods waited until they were bound, the median and the 90th percentile, in seconds;
  ``>`` if some were never bound, which counts as the time until the end
* ratio: the same two divided by those without the adversary
* fair: the same, but without it well-behaved pods of its tenant use as many GPU-seconds as it kept from others, and as
  many of them start together
* shows: the figure that says that the adversary did what the row is named after; below its least the row fails
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import functools
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple, cast
from unittest.mock import patch

import looptime

from dradriver.api.base import gang_barrier_device, names
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Preemption, Queue, Reservation, Tenant
from dradriver.cluster.nodes.columns import Bools
from dradriver.controller.writing.reservation_store import ReservationStore
from dradriver.kube.client import Client
from dradriver.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dradriver.queue.pending import PendingWorkload
from dradriver.reason import Reason
from tests.bench.adversaries import (
    ADVERSARIES,
    BATCH,
    CHURN,
    HOSTILE,
    MORE,
    NOTEBOOKS,
    OTHER,
    Adversary,
    Shared,
    nothing,
    on,
)
from tests.fakes.control_plane.devices import pinned
from tests.fakes.gpucluster import claim_of
from tests.fakes.troubles import working
from tests.scraped import sample

ARRIVES_S: Final = 20  # between two pods of the other tenant
RUNS_S: Final = 55  # of each; then its GPUs are free for 5 s
FIRST_S: Final = 10  # when the first one comes
AFTER_S: Final = 120  # for the last pods
TICK_S: Final = 0.5  # between two looks of the scheduler
MINUTE_S: Final = 60
IDLE_ROUNDS: Final = 2  # as in tests/conftest.py

RESERVATION: Final = Reservation(after_minutes=0.5, idle_minutes=1, short_minutes=1 / 12)
REFUSALS: Final = "gpu_topology_preemption_refusals_total"
IDLE: Final = "gpu_topology_reserved_idle_gpu_seconds_total"


class NotReachedError(Exception):
    """An adversary does not do what its row is named after."""


class Figures(NamedTuple):
    """What came of one story.

    Attributes:
        work: Evaluations of nodes of each look.
        cpu_s: CPU time of each look, in seconds.
        waits_s: How long each of the other tenant's pods waited, in order.
        unbound: How many of them were never bound.
        lasted_s: How long the story was, in simulated seconds.
        kept_gpu_s: GPU-seconds that the adversary kept from others by tentative placements, pods and reservations.
        seen: What the adversary brought about, by name.
    """

    work: list[int]
    cpu_s: list[float]
    waits_s: list[float]
    unbound: int
    lasted_s: float
    kept_gpu_s: float
    seen: dict[str, float]


class Looks:
    """What each look at a workload for a place cost."""

    def __init__(self) -> None:
        """Begin with no look."""
        self.work: list[int] = []
        self.cpu_s: list[float] = []

    def watch(self, cluster: Shared) -> None:
        """Have the leader's looks written down."""
        queue, began = cluster.worker.queue, 0.0
        next_of, block, leave = queue.next, queue.block, queue.leave

        def seen_next() -> tuple[PendingWorkload, Bools | None] | None:
            nonlocal began
            due = next_of()
            began = time.thread_time()
            return due

        def looked(evaluations: int) -> None:
            self.work.append(evaluations)
            self.cpu_s.append(time.thread_time() - began)

        def seen_block(
            workload: PendingWorkload, reason: Reason | None, *, work: int = 0, by_limit: bool = False
        ) -> list[tuple[PendingWorkload, Reason]]:
            looked(work)
            return block(workload, reason, work=work, by_limit=by_limit)

        def seen_leave(workload: PendingWorkload, *, work: int = 0) -> None:
            looked(work)
            leave(workload, work=work)

        queue.next, queue.block, queue.leave = seen_next, seen_block, seen_leave  # type: ignore[method-assign]


class Story:
    """One adversary next to another tenant, or the same without it."""

    def __init__(self, row: Adversary, *, is_hostile: bool, gangs: int) -> None:
        """Begin with a cluster without pods; so many well-behaved pods or gangs come instead of the adversary."""
        self._row, self._is_hostile, self._gangs = row, is_hostile, gangs
        self._looks = Looks()
        self._cluster = Shared(promise_s=30, unschedulable_s=5)
        for node in dict.fromkeys((*row.nodes, *(MORE if row.more else ()), CHURN)):
            self._cluster.node(node)
        self._cluster.put(DEVICE_CLASSES, {"metadata": {"name": gang_barrier_device.CLASS}, "spec": {}})
        self._cluster.put(RESOURCE_SLICES, gang_barrier_device.resource_slice())
        self._cluster.rival("taken", CHURN, range(8))
        self._created: dict[str, float] = {}  # by pod of the other tenant that counts: when it was created
        self._waits: dict[str, float] = {}  # by such a pod that was bound: for how long it waited
        self._evicted_at: list[float] = []
        self._reserved_for: set[str] = set()
        self._seen: collections.Counter[str] = collections.Counter()

    async def run(self) -> Figures:
        """Let it happen."""
        refusals, idle_gpu_s, second = sample(REFUSALS), sample(IDLE), 0
        leader_s = self._row.leader_s if self._is_hostile else 0
        while not self._is_over(second):
            async with self._leading():
                self._seen["leaders"] += 1
                while not self._is_over(second):
                    await self._pass(second)
                    second += 1
                    if leader_s and second % leader_s == 0:
                        break
        idle_gpu_s = sample(IDLE) - idle_gpu_s
        seen = {name: float(count) for name, count in self._seen.items()}
        return Figures(
            work=self._looks.work,
            cpu_s=self._looks.cpu_s,
            waits_s=sorted(self._waits.get(name, self._now - at) for name, at in self._created.items()),
            unbound=len(self._created) - len(self._waits),
            lasted_s=second,
            kept_gpu_s=self._seen["kept"] + idle_gpu_s,
            seen={
                **seen,
                "tentative %": 100 * seen.get("tentative", 0) / (second - self._row.comes_s),
                "reserved %": 100 * seen.get("reserved", 0) / (second - self._row.comes_s),
                "full minutes %": 100 * seen.get("full", 0) / (second - self._row.comes_s),
                "reservations": len(self._reserved_for),
                "refusals": sample(REFUSALS) - refusals,
                "evictions": len(self._evicted_at),
            },
        )

    @property
    def _now(self) -> float:
        return self._cluster.time_s()

    def _is_over(self, second: int) -> bool:
        is_bound = len(self._waits) == len(self._created)
        return second >= self._row.comes_s + self._row.lasts_s + (0 if is_bound else AFTER_S)

    @contextlib.asynccontextmanager
    async def _leading(self) -> AsyncIterator[None]:
        """Have a new leader work."""
        cluster = self._cluster
        cluster.restart()
        cluster.client.ends = self._evict
        reservation = RESERVATION if self._row.reserves else Reservation(after_minutes=0)
        preemption = Preemption(
            enabled=True,
            min_run_minutes=0,
            workloads_per_minute=self._row.per_minute,
            back_off_minutes=self._row.back_off_minutes,
        )
        tenants = {name: Tenant(namespaces=(name,)) for name in (OTHER, BATCH)}
        tenants[HOSTILE] = Tenant(namespaces=(HOSTILE, *NOTEBOOKS))
        policies = Policies(tenants=tenants, queue=Queue(preemption=preemption, reservation=reservation))
        cluster.worker.follow(policies)
        cluster.features.reservations.follow(policies)
        cluster.worker.tenants.shares.restart({OTHER: 1e6, BATCH: 1e6}, {})  # the adversary has had nothing yet
        self._looks.watch(cluster)
        store = ReservationStore(cast("Client", cluster.client), namespace="gpu-topology")
        reserving = asyncio.create_task(cluster.features.reservations.run(store))
        await cluster.features.reservations.first_load()
        try:
            async with working(cluster, see_s=TICK_S / 2):
                yield
        finally:
            reserving.cancel()
            await asyncio.gather(reserving, return_exceptions=True)

    def _well_behaved(self, second: int) -> None:
        """Create pods that come instead of the adversary."""
        row = self._row
        wishes = {"gang": f"good-{second}", "gang-size": str(row.gang)} if row.gang > 1 else {}
        for rank in range(row.gang):
            name = f"good-{second}-{rank}"
            self._cluster.pod(name, row.gpus, namespace=HOSTILE, wishes=wishes, **on(row.nodes))

    def _evict(self, key: tuple[str, str]) -> None:
        self._evicted_at.append(self._now)
        self._cluster.end(key[1], key[0])

    async def _pass(self, second: int) -> None:
        """Let a second pass."""
        cluster, row = self._cluster, self._row
        cluster.rival("taken", CHURN, range(8 if second % 4 < 2 else 4))
        row.calm(cluster, second)
        if (since := second - self._row.comes_s) >= 0:
            (row.acts if self._is_hostile else row.instead)(cluster, since)
        lasts_s, gangs = row.lasts_s, self._gangs
        if 0 <= since < lasts_s and since * gangs // lasts_s != (since - 1) * gangs // lasts_s:
            self._well_behaved(second)
        if second % ARRIVES_S == FIRST_S and since < self._row.lasts_s:
            cluster.pod(f"good-{second}", row.gpus, priority=row.priority, **on(row.nodes))
            if since >= 0:
                self._created[f"good-{second}"] = self._now
        for namespace, name in list(cluster.bound_at):
            if name.startswith("good-") and cluster.ran_s(name, namespace) >= RUNS_S:
                cluster.end(name, namespace)
        for _ in range(round(1 / TICK_S)):
            await asyncio.sleep(TICK_S)
            cluster.schedule()
            for name in self._created.keys() - self._waits.keys():
                if (OTHER, name) in cluster.bound_at:
                    self._waits[name] = self._now - self._created[name]
        if since >= 0:
            self._look()

    def _look(self) -> None:
        """Note what the adversary brings about now."""
        cluster = self._cluster
        hostile = {
            pod["metadata"]["name"]: pod
            for pod in cluster.store.all(PODS)
            if pod["metadata"]["namespace"] == HOSTILE and not pod["metadata"]["name"].startswith("runs-")
        }
        claims = {name: claim for name in hostile if (claim := cluster.find(RESOURCE_CLAIMS, claim_of(name), HOSTILE))}
        self._seen["kept"] += sum(len(pinned(claim)) for claim in claims.values())
        self._seen["tentative"] += any(not hostile[name]["spec"].get("nodeName") for name in claims)
        self._seen["parked"] = sum(
            names.REASON in pod["metadata"]["annotations"] for name, pod in hostile.items() if name not in claims
        )
        reserved_for = {reservation.who for reservation in cluster.features.reservations.all()}
        self._reserved_for |= reserved_for
        self._seen["reserved"] += bool(reserved_for)
        in_a_minute = sum(at > self._now - MINUTE_S for at in self._evicted_at)
        self._seen["full"] += in_a_minute >= self._row.per_minute
        self._seen["evictions in a minute"] = max(self._seen["evictions in a minute"], in_a_minute)


@functools.cache
def told(row: Adversary, *, is_hostile: bool = False, gangs: int = 0) -> Figures:
    """Run a story in simulated time."""
    loop = asyncio.new_event_loop()
    assert isinstance(loop, asyncio.BaseEventLoop)
    looptime.patch_event_loop(loop, noop_cycles=IDLE_ROUNDS)
    began = 1_800_000_000.0

    async def run() -> Figures:
        return await Story(row, is_hostile=is_hostile, gangs=gangs).run()

    try:
        with patch.object(time, "time", lambda: began + loop.time()):
            return loop.run_until_complete(run())
    finally:
        loop.close()


def without(row: Adversary, gangs: int = 0) -> Figures:
    """Return the figures of a story without the adversary, which several rows share."""
    return told(dataclasses.replace(row, acts=nothing, shows=("", 0), leader_s=0), gangs=gangs)


def check(name: str, row: Adversary, figures: Figures) -> None:
    """Raise an error if an adversary has not done what its row is named after, or too many pods ended for others."""
    shown, least = row.shows
    if figures.seen.get(shown, 0) < least:
        raise NotReachedError(f"{name}: {shown} is {figures.seen.get(shown, 0):g}, and must be {least:g} at least")
    if (most := figures.seen["evictions in a minute"]) > row.per_minute:
        raise NotReachedError(f"{name}: {most:g} workloads ended within a minute, and {row.per_minute} may")


def late(values: Sequence[float], percent: int) -> float:
    """Return a percentile; 0 for no values."""
    return sorted(values)[len(values) * percent // 100] if values else 0.0


def ratios(figures: Figures, others: Figures) -> str:
    """Return the ratios of the medians and of the 90th percentiles of waits."""
    return "".join(f"{late(figures.waits_s, part) / late(others.waits_s, part):>6.1f}" for part in (50, 90))


def waits(figures: Figures) -> str:
    """Return the median and the 90th percentile of waits."""
    return "".join(f"{'>' * bool(figures.unbound)}{late(figures.waits_s, part):.1f}".rjust(7) for part in (50, 90))


def main() -> None:
    """Print a row for each adversary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=ADVERSARIES, nargs="*")
    chosen = parser.parse_args().only or ADVERSARIES
    print(
        f"{'':<17}{'looks':>6}{'evaluations':>13}{'CPU':>6}{'CPU s':>7}{'wait s':>14}{'without':>14}{'ratio':>12}"
        f"{'fair':>12}\n{'adversary':<17}{'/min':>6}{'p99':>13}{'p99 ms':>6}{'/min':>7}{'p50    p90':>14}"
        f"{'p50    p90':>14}{'p50   p90':>12}{'p50   p90':>12}  shows",
        flush=True,
    )
    for name in chosen:
        row = ADVERSARIES[name]
        figures, others = told(row, is_hostile=True), without(row)
        gangs = round(figures.kept_gpu_s / row.gpus / row.gang / RUNS_S)
        minutes = figures.lasted_s / MINUTE_S
        print(
            f"{name:<17}{len(figures.work) / minutes:>6.0f}{late(figures.work, 99):>13,.0f}"
            f"{late(figures.cpu_s, 99) * 1e3:>6.1f}{sum(figures.cpu_s) / minutes:>7.2f}{waits(figures)}{waits(others)}"
            f"{ratios(figures, others)}{ratios(figures, without(row, gangs))}"
            f"  {row.shows[0]} {figures.seen.get(row.shows[0], 0):g}, kept {figures.kept_gpu_s / 60:.0f} GPU min",
            flush=True,
        )
        check(name, row, figures)


if __name__ == "__main__":
    main()
