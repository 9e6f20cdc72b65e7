"""A day of whole GPUs, shares and MIG slices on a simulated cluster: what each policy has a place for.

Requests that find no place at once are turned away, so that every policy meets the same requests at the same time.
"""

from __future__ import annotations

import heapq
import random
import time
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


class Arrival(msgspec.Struct, frozen=True):
    """One request: when it comes, what it asks for, how long it stays, and how many GPUs that is."""

    at_s: float
    request: Request
    duration_s: float
    gpus: float


class Result(msgspec.Struct, kw_only=True):
    """What became of the requests under one policy.

    Attributes:
        policy: Its name.
        parts_served: Share of the requests of parts that had a place, 0-1.
        slices_served: The same of MIG slices alone.
        wholes_served: The same of whole GPUs.
        gpu_time_served: Share of the GPU time asked for that was served, parts by their size, 0-1.
        empty_gpus: GPUs that nothing was on, mean over time, share of all.
        empty_quads: Disjoint sets of four such GPUs of one node, mean over time, share of all.
        decision_s: Median time of one decision, seconds.
    """

    policy: str
    parts_served: float
    slices_served: float
    wholes_served: float
    gpu_time_served: float
    empty_gpus: float
    empty_quads: float
    decision_s: float


def drawn(
    count: int, machines: Sequence[Machine], *, load: float, parts: float, seed: int, sliced: float = 0.7
) -> list[Arrival]:
    """Return requests for whole GPUs and parts that come by chance (Poisson), with log-normal durations.

    Args:
        count: How many.
        machines: The cluster's; slices are asked for by the profiles of the first one.
        load: Share of the cluster that they would keep busy if all were served.
        parts: Share of them that are of parts.
        seed: The same seed gives the same requests.
        sliced: Share of the parts that are MIG slices, where the machines have MIG.
    """
    rng = random.Random(seed)  # noqa: S311  # chance, no secret
    profiles = _profiles(machines[0])
    asked = [_asked(rng, profiles, parts=parts, sliced=sliced if profiles else 0.0) for _ in range(count)]
    mean_s = _MEDIAN_S * 2.718281828 ** (_SPREAD**2 / 2)
    total = sum(len(machine.gpus) for machine in machines)
    rate = load * total / (sum(gpus for _, gpus in asked) / count * mean_s)
    now = 0.0
    arrivals = []
    for request, gpus in asked:
        now += rng.expovariate(rate)
        arrivals.append(Arrival(now, request, _MEDIAN_S * rng.lognormvariate(0, _SPREAD), gpus))
    return arrivals


def _profiles(machine: Machine) -> dict[tuple[int, int], MigProfile]:
    plain = [profile for profile in machine.gpus[0].profiles if not set("+-") & set(profile.name)]
    by_size = {(profile.compute, profile.size): profile for profile in plain}
    return {size: by_size[size] for size in SLICES if size in by_size}


def _asked(
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
    """Replay whole GPUs, shares and MIG slices under one of ``POLICIES``, or one that keeps these books."""
    books = books or POLICIES[policy](machines)
    quads = [_quads(machine) for machine in machines]
    leaving: list[tuple[float, int, Taken]] = []
    served = {kind: [0, 0] for kind in (Whole, Share, Mig)}
    gpu_time, times = [0.0, 0.0], []
    empty = free_quads = now = 0.0
    for number, arrival in enumerate(arrivals):
        while leaving and leaving[0][0] <= arrival.at_s:
            books.give_back(heapq.heappop(leaving)[2])
        if number % 16 == 0:
            passed, now = arrival.at_s - now, arrival.at_s
            left = books.empty()
            empty += passed * sum(map(len, left))
            free_quads += passed * sum(count(gpus) for count, gpus in zip(quads, left, strict=True))
        begun = time.perf_counter()
        taken = books.place(arrival.request)
        times.append(time.perf_counter() - begun)
        counts = served[type(arrival.request)]
        counts[0] += 1
        gpu_time[0] += arrival.gpus * arrival.duration_s
        if taken is not None:
            counts[1] += taken.served
            gpu_time[1] += arrival.gpus * arrival.duration_s * taken.served
            heapq.heappush(leaving, (arrival.at_s + arrival.duration_s, number, taken))
    every = [tuple(gpu.index for gpu in machine.gpus) for machine in machines]
    asked, had = (served[Share][n] + served[Mig][n] for n in (0, 1))
    return Result(
        policy=policy,
        parts_served=had / max(asked, 1),
        slices_served=served[Mig][1] / max(served[Mig][0], 1),
        wholes_served=served[Whole][1] / max(served[Whole][0], 1),
        gpu_time_served=gpu_time[1] / gpu_time[0],
        empty_gpus=empty / now / sum(map(len, every)),
        empty_quads=free_quads / now / max(sum(count(gpus) for count, gpus in zip(quads, every, strict=True)), 1),
        decision_s=sorted(times)[len(times) // 2],
    )


def _quads(machine: Machine) -> Callable[[Sequence[int]], int]:
    """Gives how many disjoint sets of four GPUs joined by NVLink there are among some GPUs of the machine."""
    capacity = pod_capacity(tables_of(machine), 4, Criteria(constraints=frozenset({Constraint.NVLINK})))
    return lambda gpus: int(capacity[mask_of_gpus(machine, gpus)])
