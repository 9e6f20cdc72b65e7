"""Assigns several fractions of one pod to a node's GPUs, at the least cost.

``part_sets`` calls it. Fractions of one kind are equal, so only the number of each kind on each GPU matters. The search
goes from GPU to GPU. For each combination of placed fractions it keeps the cheapest way so far. So the result is exact.
A few pods have more than 256 combinations. For such a pod the search is greedy: it places one fraction after another
where it costs least, and can miss a place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dradriver.allocator.parts.part_requests import Ask, Counts, Left

OPENING = 1 << 32  # what an empty GPU costs beside all that parts can cost
MOST_EXACT = 256


def assign(ask: Ask, gpus: Sequence[Left], *, used: int) -> tuple[int, tuple[Counts, ...]] | None:
    """Return the cheapest assignment of fractions to a node's GPUs, with its cost.

    The result is None if the fractions do not fit. The search is a dynamic program over the GPUs: for each combination
    of placed fractions, the cheapest way so far is kept. The fractions of a large request are placed one after another
    instead, each where it costs least.

    Args:
        ask: The request for fractions.
        gpus: The free capacity of each GPU: first the GPUs in use, then empty ones in the order in which they should be
            used.
        used: How many GPUs are in use.

    Returns:
        The cost, and for each GPU the number of fractions of each kind.
    """
    # ``ask.wanted`` is how many fractions of each kind are requested. An empty GPU costs more than all fractions can.
    opening_costs = [0 if gpu < used else OPENING + gpu for gpu in range(len(gpus))]
    if work(ask) > MOST_EXACT:
        return _dealt(ask, gpus, opening_costs)
    nothing = (0,) * len(ask.wanted)

    # By number of placed fractions of each kind: the least cost, and by GPU what it takes.
    reached: dict[Counts, tuple[int, dict[int, Counts]]] = {nothing: (0, {})}
    for gpu, (free_capacity, opening_cost) in enumerate(zip(gpus, opening_costs, strict=True)):
        # All fractions fit into the GPUs so far: opening another one only costs more.
        if gpu >= used and ask.wanted in reached:
            break

        # By number of fractions of each kind that fit on this GPU, what they cost; none of them costs 0.
        cost_of_counts = ask.ways(free_capacity)
        if len(cost_of_counts) == 1:  # nothing fits
            continue
        ways = [(counts, cost + opening_cost if any(counts) else 0) for counts, cost in cost_of_counts.items()]
        reached_next: dict[Counts, tuple[int, dict[int, Counts]]] = {}
        for placed, (cost, taken) in reached.items():
            for counts, extra_cost in ways:
                new_total = _sum(placed, counts)
                if all(map(int.__le__, new_total, ask.wanted)) and (
                    new_total not in reached_next or cost + extra_cost < reached_next[new_total][0]
                ):
                    reached_next[new_total] = cost + extra_cost, {**taken, gpu: counts}
        reached = reached_next
    if ask.wanted not in reached:
        return None
    cost, taken = reached[ask.wanted]
    return cost, tuple(taken.get(gpu, nothing) for gpu in range(len(gpus)))


def work(ask: Ask) -> int:
    """Return the number of combinations of fractions that ``assign`` would have to compare.

    ``ask`` has the fractions. Callers use it to decide between the exact and the greedy search.
    """
    return math.prod(count + 1 for count in ask.wanted)


def _dealt(ask: Ask, gpus: Sequence[Left], opening: Sequence[int]) -> tuple[int, tuple[Counts, ...]] | None:
    none = (0,) * len(ask.wanted)
    taken, costs = [none] * len(gpus), [0] * len(gpus)
    for kind in ask.largest_first():
        one_more = tuple(int(kind == other) for other in range(len(ask.wanted)))
        for _ in range(ask.wanted[kind]):
            options = [
                (cost + (0 if any(taken[at]) else opening[at]) - costs[at], at, cost)
                for at, left in enumerate(gpus)
                if (cost := ask.cost(left, _sum(taken[at], one_more))) is not None
            ]
            if not options:
                return None
            _, at, cost = min(options)
            taken[at] = _sum(taken[at], one_more)
            costs[at] = cost
    opened = sum(opening[at] for at, counts in enumerate(taken) if any(counts))
    return sum(costs) + opened, tuple(taken)


def _sum(one: Counts, other: Counts) -> Counts:
    return tuple(map(int.__add__, one, other))
