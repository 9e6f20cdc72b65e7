"""In which order the nodes of a cluster are filled, and why none can be."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from dradriver.allocator import demands
from dradriver.allocator.alike import Looked
from dradriver.allocator.demands import Demand
from dradriver.allocator.picks import picks
from dradriver.allocator.refusals import shortfall
from dradriver.allocator.request import Request, Strategy
from dradriver.allocator.subsets import Array, Bools, Ints
from dradriver.allocator.tastes import keep_order
from dradriver.errors import DriverError

_MOST_MASKS = 512  # of a value, of which the set is looked up; beyond, those with the fewest GPUs free


class StaleMaskError(DriverError):
    """A mask of nodes that belongs to another set of nodes."""

    reason = "StaleNodeMask"


class Place(NamedTuple):
    """What to take of all nodes of a kind that have one free mask."""

    looked: Looked
    mask: int
    taken: int


Group: TypeAlias = list[Place]


def ordered(looked: list[Looked], request: Request, *, rung: Demand, passed: list[Demand]) -> Iterator[Group]:
    """Free masks that reach this rung and none above, best first, with the set to take; equal ones together.

    The most bandwidth goes first. Among equals, by strategy:

    * ``best-fit``: what taking the set costs those who come later (best set of 8, 4, 2, all disjoint sets of 4, of 2
      that the node can still offer, GB/s lost), then the fewest free GPUs;
    * ``pack``: the fewest free GPUs, then that cost;
    * ``spread``: the most free GPUs, then that cost;
    * ``first-fit``: nothing; names decide.

    Worked example: one GPU is wanted, node a has a whole NVLink pair free, b a pair and a single one. best-fit takes
    the single one of b, pack breaks the pair of a, spread takes b's, first-fit goes to a.
    """
    kinds: list[int] = []
    masks: list[Ints] = []
    values: list[Array] = []
    demand_of: list[Demand] = []
    for number, each in enumerate(looked):
        tables, gpus = each.alike.tables, request.gpus
        include = each.alike.include(request)
        demand_of.append(_including(rung, include or 0))
        if gpus > tables.size or include is None:
            continue
        reach: Bools = tables.has(gpus, demand_of[-1])[each.masks]
        for above in passed:
            reach = reach & ~tables.has(gpus, _including(above, include))[each.masks]
        own = each.masks[reach]
        kinds += [number] * len(own)
        masks.append(own)
        values.append(tables.best(gpus, demand_of[-1])[own].astype(np.float64).round(2))
    if not kinds:
        return
    kind, mask, value = np.array(kinds), np.concatenate(masks), np.concatenate(values)
    for most in np.unique(value)[::-1]:
        same = np.flatnonzero(value == most)
        yield from _groups(looked, request, kind[same], mask[same], demand_of)


def _groups(looked: list[Looked], request: Request, kind: Ints, mask: Ints, demand_of: list[Demand]) -> Iterator[Group]:
    """Masks of one bandwidth in groups of equal cost."""
    strategy, gpus = request.strategy, request.gpus
    count = np.bitwise_count(mask).astype(np.float64)
    if len(mask) > _MOST_MASKS:
        near = np.argsort(-count if strategy is Strategy.SPREAD else count, kind="stable")
        first, others = np.sort(near[:_MOST_MASKS]), np.sort(near[_MOST_MASKS:])
        yield from _groups(looked, request, kind[first], mask[first], demand_of)
        yield from _groups(looked, request, kind[others], mask[others], demand_of)
        return
    taste = demands.taste(request)
    taken = np.zeros(len(mask), dtype=np.int64)
    lost = np.zeros((len(mask), 5))
    rows = list(keep_order(gpus))
    for number in np.unique(kind).tolist():
        own = np.flatnonzero(kind == number)
        tables = looked[number].alike.tables
        taken[own] = picks(tables, mask[own], gpus=gpus, demand=demand_of[number], taste=taste)
        keep = tables.keep[rows]
        lost[own] = (keep[:, mask[own]] - keep[:, mask[own] ^ taken[own]]).T.round(2)
    cost = {
        Strategy.BEST_FIT: [*lost.T, count],
        Strategy.PACK: [count, *lost.T],
        Strategy.SPREAD: [-count, *lost.T],
        Strategy.FIRST_FIT: [np.zeros_like(count)],
    }[strategy]
    order = np.lexsort(cost[::-1])
    table = np.array(cost)[:, order]
    step = np.concatenate(([0], np.cumsum((table[:, 1:] != table[:, :-1]).any(axis=0)))).tolist()
    for _, equal in itertools.groupby(zip(step, order.tolist(), strict=True), key=lambda entry: entry[0]):
        yield [Place(looked[int(kind[at])], int(mask[at]), int(taken[at])) for _, at in equal]


def refusal(looked: list[Looked], request: Request, *, empty: bool) -> str:
    """Why no node fits, and the nearest thing that does."""
    what = demands.words(request)
    if not looked:
        return f"{what}: no; no node has GPUs" if empty else f"{what}: no; no node is eligible"
    size, biggest = min((-each.alike.tables.size, each.alike.first_names(each.all_slots(), 1)[0]) for each in looked)
    if request.gpus > -size:
        return f"{what}: no; the largest machine, {biggest}, has {-size}"
    most = _largest(looked, request.gpus, demand=None, request=request)
    kind = demands.kind_words(request)
    if most is None:
        return f"{what}: no; no GPU{' ' + kind if kind else ''} is free"
    if most[0] < request.gpus:
        return f"{what}: no; most GPUs{' ' + kind if kind else ''} free on one node: {most[0]} on {most[1]}"
    words, demand = demands.set_words(request), demands.demand(request)
    if (short := _shortfall(looked, request, demand)) is not None:
        nearest = f"the most {short[1]} that so many free GPUs of a node have is {short[0]:g} GB/s on {short[2]}"
    else:
        fitting = _largest(looked, request.gpus - 1, demand=demand, request=request)
        nearest = f"largest free {words} set is {fitting[0]} on {fitting[1]}" if fitting else f"no free GPU has {words}"
    return f"{what}: no; {nearest}; without {words} there is a place on {most[1]}"


def _including(demand: Demand, include: int) -> Demand:
    if not include:
        return demand
    return Demand(demand.constraints, demand.min_bandwidth_gbps, demand.max_cross, include, demand.min_busbw_gbps)


def _largest(looked: list[Looked], most: int, *, demand: Demand | None, request: Request) -> tuple[int, str] | None:
    """Size of the largest free set of at most ``most`` GPUs, and the first node by name that has it."""
    for gpus in range(most, 0, -1):
        names = []
        for each in looked:
            include = each.alike.include(request)
            if gpus > each.alike.tables.size or include is None:
                continue
            reach = each.alike.tables.has(gpus, _including(demand or Demand(), include if demand else 0))[each.masks]
            for mask in each.masks[reach].tolist():
                names += each.first_names(mask, 1)
        if names:
            return gpus, min(names)
    return None


def _shortfall(looked: list[Looked], request: Request, demand: Demand) -> tuple[float, str, str] | None:
    """The most bandwidth there is where that alone is missing, of which kind, and on which node."""
    best: tuple[float, str, str] | None = None
    for each in looked:
        include = each.alike.include(request)
        if request.gpus > each.alike.tables.size or include is None:
            continue
        for mask in each.masks[-_MOST_MASKS:].tolist():
            found = shortfall(each.alike.tables, mask, gpus=request.gpus, demand=_including(demand, include))
            if found is not None and (best is None or found[0] > best[0]):
                best = found[0], found[1], each.first_names(mask, 1)[0]
    return best
