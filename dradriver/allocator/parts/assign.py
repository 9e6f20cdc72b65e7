"""Several parts of one pod over a node's GPUs: exact, at the least cost.

Parts of a kind are alike, so what matters is how many of each kind a GPU takes: GPU after GPU, and for each number of
parts that are placed the cheapest way there. Beyond some hundred such numbers, which few pods have, parts are dealt
out one after the other, each where it costs least; then a place may be missed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dradriver.allocator.parts.part_requests import Ask, Counts, Left

OPENING = 1 << 32  # what an empty GPU costs beside all that parts can cost
MOST_EXACT = 256


def assign(ask: Ask, gpus: Sequence[Left], *, used: int) -> tuple[int, tuple[Counts, ...]] | None:
    """Return the cheapest way to spread several parts over a node's GPUs, with its cost; None if there is none.

    Args:
        ask: What is wanted.
        gpus: What is left of each GPU: of those in use, then of empty ones, the one first that should go first.
        used: How many are in use.
    """
    opening = [0 if at < used else OPENING + at for at in range(len(gpus))]
    if work(ask) > MOST_EXACT:
        return _dealt(ask, gpus, opening)
    none = (0,) * len(ask.wanted)
    reached: dict[Counts, tuple[int, dict[int, Counts]]] = {none: (0, {})}
    for at, (left, price) in enumerate(zip(gpus, opening, strict=True)):
        if at >= used and ask.wanted in reached:
            break
        known = ask.ways(left)
        if len(known) == 1:  # nothing fits
            continue
        ways = [(counts, cost + price if any(counts) else 0) for counts, cost in known.items()]
        then: dict[Counts, tuple[int, dict[int, Counts]]] = {}
        for placed, (cost, taken) in reached.items():
            for counts, more in ways:
                total = _sum(placed, counts)
                if all(map(int.__le__, total, ask.wanted)) and (total not in then or cost + more < then[total][0]):
                    then[total] = cost + more, {**taken, at: counts}
        reached = then
    if ask.wanted not in reached:
        return None
    cost, taken = reached[ask.wanted]
    return cost, tuple(taken.get(at, none) for at in range(len(gpus)))


def work(ask: Ask) -> int:
    """Return how many combinations of parts the assignment to GPUs has to look at."""
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
