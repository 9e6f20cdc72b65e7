"""A week of a cluster that tenants share: what each order makes of it. ``python -m tests.bench.week``.

16 nodes of eight GPUs, all jobs of one priority, tenants of weights 4, 2, 1, 1. First everybody always has work
waiting: all ask for 1.8 times the cluster, those of little weight for most beyond their share, and each begins with a
backlog of half a day. Then shares of GPU time should be the weights, but for one job's size. Second all ask for their
share of 0.95 of the cluster: then what counts is how long jobs wait that want a whole node; once more as one tenant's
jobs, so that the order is age and reservations alone are compared. ``fair easy`` and ``reserved fifo`` tell what of
that is due to shares and what to reservations.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from dradriver.cli.simulator import trace
from dradriver.cli.simulator.order_figures import OrderResult, over_seeds
from dradriver.cli.simulator.order_replay import OrderReplay
from dradriver.cli.simulator.orders import ORDERS
from dradriver.cli.simulator.trace import Job
from dradriver.topology.load import read_machine

WEEK_S: Final = 7 * 86_400.0
WEIGHTS: Final = (4.0, 2.0, 1.0, 1.0)
DEMAND: Final = (0.6, 0.4, 0.4, 0.4)  # of the cluster, by tenant
BACKLOG_S: Final = 43_200.0
_ALLOWED: Final = 0.02


class Week(msgspec.Struct, frozen=True, kw_only=True):
    """A week that is replayed.

    Attributes:
        title: What it is.
        always: Whether all have work waiting all the time.
        alone: Whether all jobs are one tenant's.
    """

    title: str
    always: bool = False
    alone: bool = False


WEEKS: Final[Mapping[str, Week]] = {
    "waiting": Week(title="everybody has work waiting", always=True),
    "busy": Week(title="load 0.95"),
    "alone": Week(title="one tenant", alone=True),
}


def contended(gpus: int, seed: int, declared: float) -> list[Job]:
    """Return the jobs of tenants that always have work waiting; those of the backlog come at the first moment."""
    found = []
    for tenant, load in enumerate(DEMAND):
        jobs = _until(WEEK_S + BACKLOG_S, gpus, load=load, seed=1000 * seed + tenant)
        for job in trace.assigned(jobs, weights=(1.0,), declared=declared, seed=1000 * seed + tenant):
            at = max(job.arrival_s - BACKLOG_S, 0.0)
            found.append(msgspec.structs.replace(job, arrival_s=at, tenant=tenant))
    return _numbered(found)


def busy(gpus: int, seed: int, declared: float, *, weights: Sequence[float] = WEIGHTS) -> list[Job]:
    """Return the jobs of tenants that ask for 0.95 of the cluster, each for its share."""
    jobs = _until(WEEK_S, gpus, load=0.95, seed=seed)
    return trace.assigned(jobs, weights=weights, declared=declared, seed=seed)


def _until(end_s: float, gpus: int, *, load: float, seed: int) -> list[Job]:
    jobs = trace.drawn(20_000, gpus=gpus, load=load, seed=seed)
    assert jobs[-1].arrival_s > end_s
    return [job for job in jobs if job.arrival_s <= end_s]


def _numbered(jobs: list[Job]) -> list[Job]:
    jobs.sort(key=lambda job: (job.arrival_s, job.number, job.tenant))
    return [msgspec.structs.replace(job, number=number) for number, job in enumerate(jobs)]


def measure(order: str, seeds: range, *, nodes: int, machine: str, declared: float, week: Week) -> list[OrderResult]:
    """Replay a week for each seed."""
    machines = [read_machine(machine)] * nodes
    gpus = sum(len(each.gpus) for each in machines)
    weights = WEIGHTS[:1] if week.alone else WEIGHTS
    draw = contended if week.always else partial(busy, weights=weights)
    return [
        OrderReplay(machines, draw(gpus, seed, declared), order=order, weights=weights, until_s=WEEK_S).run()
        for seed in seeds
    ]


def tell(results: Sequence[OrderResult], *, always: bool) -> str:
    """Return a line of what one order made of all seeds."""
    one = over_seeds(results)
    eight = one.of("5-8")
    assert eight is not None
    hours = (
        f"8 GPUs wait mean {eight.mean_s / 3600:.2f}, p99 {eight.p99_s / 3600:.2f}, max {eight.largest_s / 3600:.2f} h"
    )
    line = f"{one.order:18} utilisation {one.utilisation:.1%}; {hours}; idle reserved {one.reserved_idle:.1%}"
    if (more := one.of(">8")) is not None:
        line += f"; more than 8: {more.began:.1f} of {more.jobs:.1f} began, at most {more.largest_s / 3600:.2f} h"
    away = [(result.unfairness, result.one_job) for result in results]
    if always:
        kept = sum(1 for far, job in away if far is not None and job is not None and far <= _ALLOWED + job)
        far = [each or 0.0 for each, _ in away]
        line += f"; shares off by mean {sum(far) / len(far):.2%}, most {max(far):.2%}"
        line += f" (one job {one.one_job or 0:.2%}); within 2 % beside one job: {kept} of {len(results)} seeds"
        line += f"; all had work waiting {one.contended:.0%} of the time"
    return line


def main() -> None:
    """Print a line for each week, share of declared durations and order."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.week")
    options.add_argument("--seeds", type=int, default=20)
    options.add_argument("--nodes", type=int, default=16)
    options.add_argument("--machine", default="dgx-h100")
    options.add_argument("--declared", type=float, nargs="*", default=[0.0, 0.5, 1.0])
    options.add_argument("--orders", nargs="*", default=["fifo", "easy", "ours"], choices=list(ORDERS))
    options.add_argument("--weeks", nargs="*", default=list(WEEKS), choices=list(WEEKS))
    given = options.parse_args()
    for week in (WEEKS[name] for name in given.weeks):
        for declared in given.declared:
            print(f"{week.title}, {declared:.0%} declared, {given.seeds} seeds", flush=True)
            for order in given.orders:
                results = measure(
                    order, range(1, given.seeds + 1), nodes=given.nodes, machine=given.machine, declared=declared,
                    week=week,
                )  # fmt: skip
                print("   " + tell(results, always=week.always), flush=True)


if __name__ == "__main__":
    main()
