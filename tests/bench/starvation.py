"""How many of 1,000 jobs on 64 GPUs wait longer than 30 minutes, by order. ``python -m tests.bench.starvation``.

The workload of arXiv 2512.10980 ("Reducing Fragmentation and Starvation in GPU Clusters through Dynamic Multi-Objective
Scheduling"), as far as it could be read. Only the abstract was readable. It says: 1,000 jobs, 8 nodes of 8 GPUs; static
orders (FIFO, SJF and others) keep 45 to 67 % of the GPUs busy, serve 12.5 to 18.3 jobs per hour, and up to 156 jobs
starve, which means that they wait longer than 30 minutes; the best order (HPS) keeps 78.2 % busy, serves 25.8 jobs per
hour, and 12 jobs starve.

Not known, and assumed here:

* sizes: 1, 2, 4 and 8 GPUs, equally often. A public simulator with the paper's schedulers draws them like this. The
  paper says "a realistic mix of training, inference and research";
* durations: uniform from 5 minutes on, with the mean that follows from the figures of HPS: 0.782 * 64 GPUs * 1 h / 25.8
  jobs = 1.94 GPU hours per job;
* arrivals: by chance (Poisson), at several loads. Orders are told apart by who waits: as long as the load is below what
  an order can serve, each serves the same jobs per hour;
* machines with NVSwitch, on which all sets are equal, and bandwidth changes no duration.

So the figures here are no reproduction of the paper's. They compare the orders of ``gputopo simulate`` with each other
on such a workload.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from typing import Final

from dradriver.cli.simulator import trace
from dradriver.cli.simulator.order_figures import ALL, OrderResult, over_seeds
from dradriver.cli.simulator.order_replay import OrderReplay
from dradriver.cli.simulator.orders import ORDERS
from dradriver.cli.simulator.trace import Job
from dradriver.topology.load import read_machine

NODES: Final = 8
JOBS: Final = 1000
SIZES: Final = (1, 2, 4, 8)
GPU_S: Final = 0.782 * 64 * 3600 / 25.8  # mean of a job, from the paper's figures of HPS
_MEAN_SIZE: Final = sum(SIZES) / len(SIZES)
_SHORTEST_S: Final = 300.0
_LONGEST_S: Final = 2 * GPU_S / _MEAN_SIZE - _SHORTEST_S  # so that the mean is right


def drawn(seed: int, *, gpus: int, load: float, declared: float = 0.0) -> list[Job]:
    """Return the jobs of one seed at a load of a cluster with so many GPUs; a share of them declares a duration."""
    rng = random.Random(seed)  # chance, no secret
    now_s, jobs = 0.0, []
    for number in range(JOBS):
        now_s += rng.expovariate(load * gpus / GPU_S)
        jobs.append(Job(number, now_s, rng.choice(SIZES), rng.uniform(_SHORTEST_S, _LONGEST_S)))
    return trace.assigned(jobs, weights=(1.0,), declared=declared, seed=seed)


def measure(order: str, seeds: Sequence[int], *, load: float, declared: float) -> OrderResult:
    """Replay the jobs of each seed in one order; return the mean of the figures."""
    machines = [read_machine("dgx-h100")] * NODES
    gpus = sum(len(machine.gpus) for machine in machines)
    jobs = {seed: drawn(seed, gpus=gpus, load=load, declared=declared) for seed in seeds}
    return over_seeds(
        [OrderReplay(machines, jobs[seed], order=order, communication=0.0, seed=seed).run() for seed in seeds]
    )


def main() -> None:
    """Print a line for each load and order."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.starvation")
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--loads", type=float, nargs="*", default=[0.8, 0.9, 1.0])
    options.add_argument("--declared", type=float, default=1.0, help="share of jobs that declare a duration")
    options.add_argument("--orders", nargs="*", default=["strict fifo", "fifo", "easy", "ours"], choices=list(ORDERS))
    given = options.parse_args()
    for load in given.loads:
        print(f"load {load:g}, {given.declared:.0%} declared, {given.seeds} seeds", flush=True)
        for order in given.orders:
            result = measure(order, range(1, given.seeds + 1), load=load, declared=given.declared)
            waits = result.of(ALL)
            assert waits is not None
            print(
                f"   {order:12} {waits.starved:6.1f} of {waits.jobs:.0f} jobs starved, "
                f"wait mean {waits.mean_s / 60:5.1f} min, longest {waits.largest_s / 60:6.1f} min; "
                f"utilisation {result.utilisation:.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
