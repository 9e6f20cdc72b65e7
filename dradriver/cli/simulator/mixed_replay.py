"""The replay of a simulated day of mixed requests: whole GPUs, shares, MIG slices (``gputopo simulate --fractions``).

A request that finds no place at once is rejected, so that every policy meets the same requests at the same time.
"""

from __future__ import annotations

import heapq
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from dradriver.allocator import Amount, Constraint, Mig, Request, Share, Whole, tables_of
from dradriver.allocator.choice.numbering import mask_of_gpus
from dradriver.allocator.fleet.gang_nodes import pod_capacity
from dradriver.allocator.sets.criteria import Criteria
from dradriver.cli.simulator.mixed_policies import POLICIES, Policy, Taken
from dradriver.topology.machine import Machine, MigProfile

# What is asked for, in the shape that operators publish of inference clusters; the figures themselves are assumed.
SHARES: Final = {10: 0.25, 25: 0.45, 50: 0.30}  # percent
SLICES: Final = {(1, 1): 0.40, (1, 2): 0.10, (2, 2): 0.25, (3, 4): 0.20, (4, 4): 0.05}  # compute and memory slices
WHOLES: Final = {1: 0.50, 2: 0.20, 4: 0.20, 8: 0.10}
_MEDIAN_S: Final = 1800.0
_SPREAD: Final = 1.2
_MEASURED_EVERY: Final = 16  # arrivals: looking at all GPUs costs more than a decision


class Arrival(msgspec.Struct, frozen=True):
    """One request: its arrival time, what it requests, its duration, and how many GPUs it counts as in the load.

    A share or MIG slice counts as a fraction of a GPU.
    """

    at_s: float
    request: Request
    duration_s: float
    gpus: float


class Result(msgspec.Struct, kw_only=True):
    """The figures of the mixed requests under one policy.

    Attributes:
        policy: The name of the policy.
        fractions_served: Share of the requests for fractions that found a place, 0-1.
        slices_served: The same for MIG slices alone.
        whole_gpus_served: The same for whole GPUs.
        gpu_time_served: Share of the requested GPU time that was served, 0-1; fractions count by their size.
        empty_gpus: GPUs on which nothing was placed, mean over time, share of all GPUs.
        empty_quads: Disjoint sets of four such GPUs of one node, mean over time, share of all.
        decision_s: Median time of one decision, seconds.
    """

    policy: str
    fractions_served: float
    slices_served: float
    whole_gpus_served: float
    gpu_time_served: float
    empty_gpus: float
    empty_quads: float
    decision_s: float


def drawn(
    count: int, machines: Sequence[Machine], *, load: float, parts: float, seed: int, sliced: float = 0.7
) -> list[Arrival]:
    """Draw mixed requests to replay, for whole GPUs and fractions: random arrivals (Poisson), log-normal durations.

    Args:
        count: Number of requests.
        machines: The nodes; MIG slices are requested by the profiles of the first.
        load: Share of the cluster that the requests would keep busy if all were served.
        parts: Share of the requests that are for a fraction of a GPU.
        seed: The same seed gives the same requests.
        sliced: Share of the fractions that are MIG slices, if the machines have MIG.
    """
    rng = random.Random(seed)  # noqa: S311  # chance, no secret
    profiles = _profiles(machines[0])
    requests = [_draw_request(rng, profiles, parts=parts, sliced=sliced if profiles else 0.0) for _ in range(count)]

    # The rate of arrivals per second that gives the load: GPUs of the cluster by the mean GPU time of a request.
    mean_duration_s = _MEDIAN_S * 2.718281828 ** (_SPREAD**2 / 2)  # of a log-normal distribution
    mean_gpus = sum(gpus for _, gpus in requests) / count
    cluster_gpus = sum(len(machine.gpus) for machine in machines)
    arrivals_per_s = load * cluster_gpus / (mean_gpus * mean_duration_s)

    now_s = 0.0
    arrivals = []
    for request, gpus in requests:
        now_s += rng.expovariate(arrivals_per_s)
        arrivals.append(Arrival(now_s, request, _MEDIAN_S * rng.lognormvariate(0, _SPREAD), gpus))
    return arrivals


def _profiles(machine: Machine) -> dict[tuple[int, int], MigProfile]:
    plain = [profile for profile in machine.gpus[0].profiles if not set("+-") & set(profile.name)]
    by_size = {(profile.compute, profile.size): profile for profile in plain}
    return {size: by_size[size] for size in SLICES if size in by_size}


def _draw_request(
    rng: random.Random, profiles: dict[tuple[int, int], MigProfile], *, parts: float, sliced: float
) -> tuple[Request, float]:
    if rng.random() >= parts:
        gpus = rng.choices(list(WHOLES), list(WHOLES.values()))[0]
        return Whole(containers=(gpus,)), float(gpus)
    if rng.random() < sliced:
        size = rng.choices(list(profiles), [SLICES[size] for size in profiles])[0]
        return Mig(profiles=((profiles[size].name,),)), size[1] / 8
    percent = rng.choices(list(SHARES), list(SHARES.values()))[0]
    return Share(amounts=(Amount(cores=percent),)), percent / 100


def replay(
    machines: Sequence[Machine], arrivals: Sequence[Arrival], *, policy: str, books: Policy | None = None
) -> Result:
    """Replay mixed requests (whole GPUs, shares, MIG slices) under one policy; without a place they are rejected.

    Args:
        machines: The nodes.
        arrivals: The requests, by arrival.
        policy: The name of the placement policy, also in the result; one of ``POLICIES`` unless ``books`` is given.
        books: A policy object that is not one of ``POLICIES``; None for ``policy``.
    """
    books = books or POLICIES[policy](machines)  # places requests, and knows what runs where
    # A quad is a set of four GPUs of a machine that are joined by NVLink. By machine: a function that counts the quads
    # in some of its GPUs.
    quad_counters = [_quad_counter(machine) for machine in machines]

    def count_quads(gpus_of_machines: Sequence[Sequence[int]]) -> int:
        return sum(count(gpus) for count, gpus in zip(quad_counters, gpus_of_machines, strict=True))

    # A heap of the requests that run: end in seconds, number of the arrival (to break ties), what they use.
    running: list[tuple[float, int, Taken]] = []
    requested: Counter[type] = Counter()
    served: Counter[type] = Counter()
    requested_gpu_s = served_gpu_s = 0.0
    decision_times_s = []
    empty_gpu_s = empty_quad_s = measured_at = 0.0
    for number, arrival in enumerate(arrivals):
        # Requests that have ended leave before the next one comes.
        while running and running[0][0] <= arrival.at_s:
            books.give_back(heapq.heappop(running)[2])
        if number % _MEASURED_EVERY == 0:
            passed_s, measured_at = arrival.at_s - measured_at, arrival.at_s
            empty_gpus = books.empty()  # by machine: the numbers of GPUs with nothing on them
            empty_gpu_s += passed_s * sum(map(len, empty_gpus))
            empty_quad_s += passed_s * count_quads(empty_gpus)

        started = time.perf_counter()
        taken = books.place(arrival.request)  # the GPUs, or None if there is no place
        decision_times_s.append(time.perf_counter() - started)

        kind = type(arrival.request)
        requested[kind] += 1
        requested_gpu_s += arrival.gpus * arrival.duration_s
        if taken is not None:
            # Some policies place a MIG slice where its instance cannot be made. The request is not served then, but
            # holds its GPU.
            served[kind] += taken.served
            served_gpu_s += arrival.gpus * arrival.duration_s * taken.served
            heapq.heappush(running, (arrival.at_s + arrival.duration_s, number, taken))
    all_gpus = [tuple(gpu.index for gpu in machine.gpus) for machine in machines]
    return Result(
        policy=policy,
        fractions_served=(served[Share] + served[Mig]) / max(requested[Share] + requested[Mig], 1),
        slices_served=served[Mig] / max(requested[Mig], 1),
        whole_gpus_served=served[Whole] / max(requested[Whole], 1),
        gpu_time_served=served_gpu_s / requested_gpu_s,
        empty_gpus=empty_gpu_s / measured_at / sum(map(len, all_gpus)),
        empty_quads=empty_quad_s / measured_at / max(count_quads(all_gpus), 1),
        decision_s=statistics.median_high(decision_times_s),
    )


def _quad_counter(machine: Machine) -> Callable[[Sequence[int]], int]:
    """Return a function that counts the disjoint sets of four GPUs joined by NVLink among some GPUs."""
    capacity = pod_capacity(tables_of(machine), 4, Criteria(constraints=frozenset({Constraint.NVLINK})))
    return lambda gpus: int(capacity[mask_of_gpus(machine, gpus)])
