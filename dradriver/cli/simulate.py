"""``gputopo simulate``: replays the same jobs on the same simulated cluster under each policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import Progress, TaskID

from dradriver.cli import simulate_tables
from dradriver.cli.cluster.cluster_options import output_options
from dradriver.cli.inputs import Number
from dradriver.cli.simulator import mixed_replay, order_figures, policy_replay, shaped_jobs, trace
from dradriver.cli.simulator.job_sizes import JobSizes
from dradriver.cli.simulator.mixed_policies import POLICIES as MIXED
from dradriver.cli.simulator.order_figures import OrderResult
from dradriver.cli.simulator.order_replay import OrderReplay
from dradriver.cli.simulator.orders import ORDERS, SAME_ALONE
from dradriver.cli.simulator.placement_policies import GANGS, POLICIES
from dradriver.cli.simulator.policy_replay import Replay, Result
from dradriver.cli.simulator.published_shapes import SHAPES
from dradriver.cli.simulator.trace import Job
from dradriver.counted import counted
from dradriver.errors import DriverError
from dradriver.topology.load import read_machine
from dradriver.topology.machine import Machine
from dradriver.topology.vendors import NVIDIA, VENDORS, Vendor
from dradriver.view import svg
from dradriver.view.document import Document
from dradriver.view.output import show_as

_POLICY_NAMES: Final = list(dict.fromkeys((*POLICIES, *MIXED)))
_ALL: Final = "all"

R = TypeVar("R")


class SimulationError(DriverError):
    """The simulation cannot run with these options."""

    reason = "BadSimulation"


@click.command()
@click.option(
    "-m", "--machine", "sources", multiple=True, default=("dgx1-v100",), show_default=True, metavar="FILE|PROFILE",
    help="The profile of the nodes. If it is repeated, the nodes take turns.",
)  # fmt: skip
@click.option("--nodes", type=click.IntRange(1, 10_000), default=16, show_default=True)
@click.option(
    "--jobs", type=click.IntRange(1, 1_000_000), default=2000, show_default=True, help="The number of jobs to draw."
)
@click.option(
    "--load",
    type=Number(0.01, 10),
    default=0.9,
    show_default=True,
    help="Requested GPU time as a share of the cluster's GPU time.",
)
@click.option(
    "--trace", "file", type=click.Path(path_type=Path), help="Read the jobs from a CSV file: arrival_s,gpus,duration_s."
)
@click.option("--shape", type=click.Choice(list(SHAPES)), help="Draw the jobs from published figures of an operator.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="The number of runs, with seeds from --seed. The figures are means.",
)
@click.option(
    "--communication", type=Number(0, 0.99), default=0.2, show_default=True,
    help="The share of a job's time that is all-reduce on the best set. It grows as the bandwidth shrinks.",
)  # fmt: skip
@click.option(
    "--fractions", "parts", type=Number(0.0, 1.0),
    help="Draw requests of whole GPUs, shares and MIG slices instead of jobs. The value is the share of requests for "
         "fractions.",
)  # fmt: skip
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(_POLICY_NAMES),
    help="Only these policies. Default: all.",
)
@click.option(
    "--order", "orders", multiple=True, type=click.Choice([*ORDERS, _ALL]),
    help="Compare these orders of waiting jobs instead of policies.",
)  # fmt: skip
@click.option(
    "--declared", type=Number(0, 1), help="With --order: the share of jobs that declare a duration. [default: 0]"
)
@click.option(
    "--tenants",
    metavar="WEIGHTS",
    help="With --order: the weights of the tenants that own the jobs, for example 4,2,1,1. [default: 1]",
)
@click.option("--plot", "picture", type=click.Path(path_type=Path), help="Write the figures as an SVG picture.")
@output_options
def simulate(
    sources: tuple[str, ...],
    nodes: int,
    jobs: int,
    load: float,
    file: Path | None,
    shape: str | None,
    seed: int,
    seeds: int,
    communication: float,
    parts: float | None,
    policies: tuple[str, ...],
    orders: tuple[str, ...],
    declared: float | None,
    tenants: str | None,
    picture: Path | None,
    output: str,
    no_color: bool,
) -> None:
    """Print figures of placement policies, or of queue orders, on a simulated cluster.

    "best set" is the share of the jobs with two GPUs or more whose set is as good as the best set of any machine here.
    "bandwidth" is the bandwidth of these jobs relative to that best set. "fragmented" is the share of the free GPUs
    that are in no free set of four as good as the best set of four of the machine. "gangs released" counts how often a
    job released the GPUs of some of its pods because its other pods found no place. "utilisation" and "fragmented" are
    measured until the last job arrives. A model of NCCL predicts the bandwidth, and the driver's own policies choose
    sets by the same model. For vendors other than NVIDIA there is no model, and the links of a set are compared
    instead.

    All machines are of one vendor. If a product does not allow every number of GPUs, a job gets the next larger
    possible number.

    With --shape, sizes, durations and arrivals of jobs follow the figures that Acme (seren, kalos), Microsoft (philly),
    SenseTime (helios) and Alibaba (pai) published. Jobs that are larger than the cluster are cut to its size.

    With --order, a job starts with all of its pods or not at all. One placement policy is used for all orders (by
    default "ours, gangs"). "fifo" tries the oldest job first, and skips jobs without a place. "strict fifo" starts no
    other job while the oldest one has no place. "easy" reserves GPUs for the first job without a place. Other jobs use
    reserved GPUs only if they end before these are needed. "kueue strict" and "kueue best effort" have a ClusterQueue
    of Kueue for each tenant. "ours" tries the tenant with the least GPU time for its weight first, and reserves GPUs
    for a job that was blocked for half an hour. "fair easy" is "easy" with the job order of "ours". "reserved fifo" is
    "fifo" with the reservations of "ours".

    "contended" is the share of the time in which all tenants had jobs waiting. For this time, "unfair" is the largest
    difference between a tenant's share of GPU time and its weight. "one job" is the share of GPU time that the largest
    job had. The tenants' shares cannot come closer to the weights than "one job". "ended" counts the jobs that were
    ended because they had run for as long as they had declared.

    With --fractions, jobs are requests for whole GPUs, shares and MIG slices. A request that finds no place at once is
    refused. "fractions served", "slices served" and "whole GPUs served" are the shares of such requests that found a
    place. "GPU time served" is the share of the requested GPU time that was served. "empty GPUs" is the share of GPUs
    without any request, averaged over time. "empty quads" is the same for sets of four such GPUs that NVLink joins. The
    policy "slices by count" does what the scheduler does if MIG instances are created on demand.
    """
    # 1. The cluster. ``parts``: the share of requests for fractions (--fractions), or None for jobs of whole GPUs.
    known_policies = POLICIES if parts is None else MIXED
    for policy in policies:
        if policy not in known_policies:
            raise SimulationError(f"policy {policy!r} is unknown. Write one of {', '.join(known_policies)}.")
    node_types = [read_machine(source) for source in sources]
    machines = [node_types[number % len(node_types)] for number in range(nodes)]
    gpus = sum(len(machine.gpus) for machine in machines)
    if not gpus:
        raise SimulationError("these machines have no GPUs")
    vendor = _vendor(machines)
    if not orders and (declared is not None or tenants is not None):
        raise SimulationError("--declared and --tenants need --order. Add --order, or remove them.")

    # 2. With --fractions, replay requests for fractions.
    if parts is not None:
        if file is not None or picture is not None or orders or shape is not None or seeds > 1:
            raise SimulationError(
                "--fractions excludes --trace, --shape, --order, --seeds and --plot, which are "
                "for jobs of whole GPUs. Remove them."
            )
        if not vendor.parts:
            raise SimulationError(
                f"--fractions: GPUs of {vendor.word} have no shares and no MIG slices. Remove --fractions, or "
                f"name machines of {NVIDIA.word}."
            )
        requests = mixed_replay.drawn(jobs, machines, load=load, parts=parts, seed=seed)
        part_results = [mixed_replay.replay(machines, requests, policy=policy) for policy in policies or tuple(MIXED)]
        _show(part_results, simulate_tables.of_parts(part_results), output=output, no_color=no_color)
        return

    # 3. Else, jobs of whole GPUs: of a trace, of a published shape, or random ones.
    if file is not None and shape is not None:
        raise SimulationError("--trace and --shape exclude each other, because both give the jobs. Remove one.")
    # The numbers of GPUs that a pod can have on these machines. Some vendors do not give every number.
    sizes = JobSizes(machines)
    if not sizes.most:
        raise SimulationError("no pod can get GPUs of these machines. Check blocks.counts of their profiles.")
    trace_jobs = None if file is None else _fitting(trace.read(file), sizes, gpus=gpus)

    def draw_jobs(job_seed: int) -> list[Job]:
        """Return the jobs to simulate.

        Jobs of a trace file are the same for each seed.
        """
        if trace_jobs is not None:
            return trace_jobs
        if shape is not None:
            return shaped_jobs.drawn(shape, jobs, gpus=gpus, load=load, seed=job_seed, cut=sizes.cut)
        return trace.drawn(jobs, gpus=gpus, load=load, seed=job_seed, mix=sizes.mixed(trace.MIX))

    seed_range = range(seed, seed + seeds)
    job_count = jobs if trace_jobs is None else len(trace_jobs)
    source = "" if shape is None else f" of {shape}"
    average = "" if seeds == 1 else f", mean of {seeds} seeds"
    title = f"{counted(job_count, 'job')}{source} on {nodes} x {', '.join(sources)}{average}"

    # 4. Replay them in each order of the queue (--order), or else under each placement policy.
    if orders:
        weights = _weights(tenants or "1")
        order_results = _in_orders(
            machines, draw_jobs, seed_range, orders=orders, policies=policies, weights=weights,
            declared=declared or 0.0, communication=communication,
        )  # fmt: skip
        if picture is not None:
            _write(picture, simulate_tables.picture_of_orders(order_results, title=title))
        _show(
            order_results,
            simulate_tables.of_orders(order_results, tenants=len(weights)),
            output=output,
            no_color=no_color,
        )
        return

    results = _under_policies(machines, draw_jobs, seed_range, policies=policies, communication=communication)
    if picture is not None:
        _write(picture, simulate_tables.picture_of_policies(results, title=title))
    _show(results, simulate_tables.of_policies(results), output=output, no_color=no_color)


def _vendor(machines: Sequence[Machine]) -> Vendor:
    """Return the one GPU vendor of all machines.

    Raises:
        SimulationError: There are two vendors. A pod gets GPUs of one vendor, and all pods of a job are alike.
    """
    words = sorted({machine.vendor.word for machine in machines if machine.gpus})
    if len(words) > 1:
        raise SimulationError(
            f"--machine: a job has GPUs of one vendor, and these machines are of {' and '.join(words)}. Name the "
            "machines of one vendor, and simulate the others separately."
        )
    return VENDORS[words[0]]


def _fitting(jobs: Sequence[Job], sizes: JobSizes, *, gpus: int) -> list[Job]:
    """Return a trace's jobs, each raised to the next possible number of GPUs.

    ``sizes`` has the possible numbers on these machines.

    Raises:
        SimulationError: A job is too large for the cluster of ``gpus`` GPUs.
    """
    for job in jobs:
        if job.gpus > gpus:
            raise SimulationError(
                f"job {job.number} requests {counted(job.gpus, 'GPU')}, and the "
                f"cluster has {gpus}. Write a larger --nodes, or remove the job."
            )
        if job.gpus > sizes.most:
            raise SimulationError(
                f"job {job.number} requests {counted(job.gpus, 'GPU')}, and the largest job that fits on these "
                f"machines has {sizes.most}. Write a smaller size, or name other machines."
            )
    return [msgspec.structs.replace(job, gpus=sizes.fitting(job.gpus)) for job in jobs]


def _under_policies(
    machines: Sequence[Machine],
    draw_jobs: Callable[[int], list[Job]],
    seeds: range,
    *,
    policies: Sequence[str],
    communication: float,
) -> list[Result]:
    """Replay the jobs under each placement policy.

    Returns one result per policy, the mean over all seeds.

    Args:
        machines: The nodes.
        draw_jobs: Returns the jobs of a seed.
        seeds: The seeds to replay.
        policies: Names of placement policies; all if empty.
        communication: Share of a job's time that is all-reduce, 0 to 1.
    """

    def replay(policy: str, seed: int, progress: Callable[[int], None]) -> Result:
        return Replay(machines, draw_jobs(seed), policy=policy, communication=communication, seed=seed).run(
            progress=progress
        )

    results_by_policy = _replay_each(policies or tuple(POLICIES), seeds, replay, len(draw_jobs(seeds[0])))
    return [policy_replay.over_seeds(results) for results in results_by_policy]


def _in_orders(
    machines: Sequence[Machine],
    draw_jobs: Callable[[int], list[Job]],
    seeds: range,
    *,
    orders: Sequence[str],
    policies: Sequence[str],
    weights: Sequence[float],
    declared: float,
    communication: float,
) -> list[OrderResult]:
    """Replay the jobs in each order of the queue.

    Returns one result per order, the mean over all seeds.

    Args:
        machines: The nodes.
        draw_jobs: Returns the jobs of a seed.
        seeds: The seeds to replay.
        orders: Names of queue orders, or ``all``.
        policies: The placement policy of all orders; at most one.
        weights: The weight of each tenant.
        declared: Share of jobs that declare a duration, 0 to 1.
        communication: Share of a job's time that is all-reduce, 0 to 1.

    Raises:
        SimulationError: There are several policies.
    """
    if len(policies) > 1:
        raise SimulationError("--order: give one --policy, which all of them have")
    if _ALL in orders:
        # With one tenant some orders are the same as others: they would be rows that repeat.
        orders = [order for order in ORDERS if len(weights) > 1 or order not in SAME_ALONE]

    def replay(order: str, seed: int, progress: Callable[[int], None]) -> OrderResult:
        order_replay = OrderReplay(
            machines,
            trace.assigned(draw_jobs(seed), weights=weights, declared=declared, seed=seed),
            order=order,
            policy=policies[0] if policies else GANGS,
            communication=communication,
            weights=weights,
            seed=seed,
        )
        return order_replay.run(progress=progress)

    results_by_order = _replay_each(orders, seeds, replay, len(draw_jobs(seeds[0])))
    return [order_figures.over_seeds(results) for results in results_by_order]


def _replay_each(
    names: Sequence[str], seeds: range, replay: Callable[[str, int, Callable[[int], None]], R], jobs: int
) -> list[list[R]]:
    """Return for each policy or order its results, one per seed.

    The function shows a progress bar.

    Args:
        names: The policies or orders.
        seeds: The seeds to replay.
        replay: Replays one name with one seed. The function calls its third argument with the number of jobs that have
            left.
        jobs: Number of jobs of one seed.
    """
    # The bar counts the jobs of all seeds of a name. ``transient`` removes it at the end.
    results_by_name: list[list[R]] = []
    with Progress(console=Console(stderr=True), transient=True) as bar:
        for name in names:
            task = bar.add_task(name, total=jobs * len(seeds))
            results = []
            for seeds_done, seed in enumerate(seeds):
                progress = partial(_advance, bar, task, seeds_done * jobs)
                results.append(replay(name, seed, progress))
            results_by_name.append(results)
    return results_by_name


def _advance(bar: Progress, task: TaskID, jobs_before: int, jobs_done: int) -> None:
    bar.update(task, completed=jobs_before + jobs_done)


def _weights(text: str) -> list[float]:
    try:
        weights = [float(word) for word in text.split(",")]
    except ValueError:
        weights = []
    if not weights or not all(0 < weight < math.inf for weight in weights):
        raise SimulationError(f"--tenants {text!r}: give weights above 0, such as 4,2,1,1")
    return weights


def _show(results: Sequence[msgspec.Struct], document: Document, *, output: str, no_color: bool) -> None:
    show_as(output, document=lambda: document, data=lambda: msgspec.to_builtins(results), no_color=no_color)


def _write(path: Path, document: Document) -> None:
    try:
        path.write_text(svg.render(document), encoding="utf-8")
    except OSError as error:
        raise SimulationError(f"{path}: cannot be written: {error}") from error
