"""Places for gangs: many equal pods, all or nothing, near each other in the network.

What decides, in this order: what each pod requires, then the highest rung of its ladder that all pods reach; the
number of nodes for ``spread``, which wants many; the narrowest part of the network; the number of nodes otherwise,
which should be few; the bandwidth of the slowest pod; the part of the network that is fullest already; on each node
what it leaves to others. All but the last two are exact.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec
import numpy as np

from dradriver.allocator.choice import ladder, phrases
from dradriver.allocator.choice.choose import check
from dradriver.allocator.fleet import packing
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.network import REACHES
from dradriver.allocator.fleet.packing import GangNodes
from dradriver.allocator.request import Choice, Constraint, GangChoice, GangRequest, NoPlaceError, Strategy
from dradriver.allocator.sets import tours
from dradriver.allocator.sets.subsets import Bools, Ints
from dradriver.topology.levels import Step


class Plan(NamedTuple):
    """How many pods on which nodes.

    Attributes:
        reach: What holds the nodes together, of ``REACHES``.
        at: (n,) int64, which nodes of ``NodeTable``.
        pods: (n,) int64, pods on each.
    """

    reach: Step | None
    at: Ints
    pods: Ints


def place_gang(fleet: Fleet, request: GangRequest, *, eligible: Collection[str] | Bools | None = None) -> GangChoice:
    """A place for every pod of the gang.

    Args:
        fleet: The cluster.
        request: What is wanted.
        eligible: The nodes that may be taken, as for ``Fleet.rank``; None for all.

    Raises:
        NoPlaceError: Not all pods have a place; the message says how many would have one.
    """
    check(request.pod)
    if request.pods < 1:
        raise NoPlaceError(f"a gang of {request.pods} pods: ask for at least 1")
    if request.pod.include:
        raise NoPlaceError("a gang's pods cannot name GPUs that must be in their sets: they are on different nodes")
    candidates = fleet.candidates(request.pod, eligible)
    for rung in ladder.rungs(request.pod):
        nodes = packing.node_table(fleet, candidates, request.pod, rung)
        best = plan(fleet, nodes, request)
        if best is not None:
            return _described(fleet, *_fastest(fleet, nodes, request, best), request=request)
    raise _refusal(fleet, packing.node_table(fleet, candidates, request.pod, ladder.required(request.pod)), request)


def plan(fleet: Fleet, nodes: GangNodes, request: GangRequest) -> Plan | None:
    """The plan for all pods that is best by reach and number of nodes; None where there is none."""
    spread = request.pod.strategy is Strategy.SPREAD
    best: Plan | None = None
    for reach in REACHES:
        here = _within(fleet, nodes, request, reach)
        if here is None:
            continue
        if not spread:
            return here
        if best is None or len(here.at) > len(best.at):
            best = here
    return best


def _within(fleet: Fleet, nodes: GangNodes, request: GangRequest, reach: Step | None) -> Plan | None:
    """The plan for all pods in the best network domain of this reach; None where none holds them."""
    least = max(1, -(-request.min_gpus_per_node // request.pod.gpus))  # pods on a node that has any
    most = request.pods // least
    if request.max_nodes is not None:
        most = min(most, request.max_nodes)
    domain = np.arange(len(nodes.capacity)) if reach is None else fleet.sites.domains(reach)[nodes.site]
    usable = (nodes.capacity >= least) & (domain >= 0)
    if reach is not None and request.min_network_gbps:
        usable &= fleet.sites.gbps()[nodes.site] >= request.min_network_gbps
    at = np.flatnonzero(usable)
    if not len(at) or most < 1:
        return None
    # Within each domain the nodes that hold most come first; of equal ones those with the fewest free GPUs.
    order = at[np.lexsort((nodes.name_rank[at], nodes.free[at], -nodes.capacity[at], domain[at]))]
    capacity, owner = nodes.capacity[order], domain[order]
    starts = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))
    sizes = np.diff(np.append(starts, len(order)))
    before = np.concatenate(([0], np.cumsum(capacity)))
    start_of = np.repeat(starts, sizes)
    so_far = before[1:] - before[start_of]  # pods that find room on the nodes of the domain up to here
    number_in = np.arange(len(order)) - start_of + 1
    enough = (so_far >= request.pods) & (number_in <= most)
    if not enough.any():
        return None
    total = before[starts + sizes] - before[starts]
    fewest = np.full(len(starts), np.iinfo(np.int64).max)
    group = np.repeat(np.arange(len(starts)), sizes)
    np.minimum.at(fewest, group[enough], number_in[enough])
    fits = np.flatnonzero(fewest <= most)
    if request.pod.strategy is Strategy.SPREAD:
        wide = np.minimum(sizes, most)
        chosen = int(fits[np.lexsort((total[fits], -wide[fits]))[0]])
        number = int(wide[chosen])
    else:
        chosen = int(fits[np.lexsort((total[fits], fewest[fits]))[0]])
        number = int(fewest[chosen])
    own = order[starts[chosen] : starts[chosen] + sizes[chosen]]
    if request.pod.strategy is Strategy.SPREAD:
        own = own[:number]
        return Plan(reach, own, packing.evenly(nodes.capacity[own], request.pods, least=least))
    own = packing.tightest(nodes, own, request.pods, number=number, least=least)
    return Plan(reach, own, packing.fullest(nodes.capacity[own], request.pods, least=least))


def _fastest(fleet: Fleet, nodes: GangNodes, request: GangRequest, best: Plan) -> tuple[GangNodes, Plan]:
    """The plan of the same reach and as many nodes whose slowest pod is fastest."""
    values = nodes.bandwidths(request.pod.gpus)
    low, high = -1, len(values) - 1  # values[low] is possible (-1: whatever the bandwidth), values[high + 1] is not
    while low < high:
        middle = (low + high + 1) // 2
        faster = nodes.with_busbw(float(values[middle]))
        attempt = plan(fleet, faster, request)
        if attempt is not None and attempt.reach == best.reach and len(attempt.at) == len(best.at):
            low, nodes, best = middle, faster, attempt
        else:
            high = middle - 1
    return nodes, best


def _described(fleet: Fleet, nodes: GangNodes, chosen: Plan, *, request: GangRequest) -> GangChoice:
    names = [nodes.name(at) for at in chosen.at.tolist()]
    by_name = dict(zip(names, zip(chosen.at.tolist(), chosen.pods.tolist(), strict=True), strict=True))
    names.sort()
    sites = nodes.site[[by_name[name][0] for name in names]]
    gain = -fleet.sites.distances(sites).astype(np.float64)
    ring = [names[at] for at in tours.best(gain)]
    pods: list[Choice] = []
    for name in ring:
        at, count = by_name[name]
        group = nodes.group(at)
        pods += [
            msgspec.structs.replace(group.describe(taken, request.pod), node=name)
            for taken in packing.disjoint_sets(nodes, at, count, request=request.pod)
        ]
    slowest = min(pod.busbw_gbps for pod in pods)
    known = fleet.sites.gbps()[sites]
    network = float(known[known > 0].min()) if known.any() else 0.0
    if len(ring) > 1 and network:
        slowest = min(slowest, network) if request.pod.gpus > 1 else network
    return GangChoice(
        pods=tuple(pods),
        nodes=tuple(ring),
        reach=REACHES[chosen.reach],
        busbw_gbps=slowest,
        fallback=_missed(pods),
    )


def _missed(pods: list[Choice]) -> tuple[Constraint, ...]:
    """The preferred constraints that some pod misses: the longest list, which begins with every other."""
    return max((pod.fallback for pod in pods), key=len)


def _refusal(fleet: Fleet, nodes: GangNodes, request: GangRequest) -> NoPlaceError:
    what = f"{request.pods} pods with {phrases.wanted(request.pod)} each"
    limits = []
    if request.max_nodes is not None:
        limits.append(f"on at most {request.max_nodes} nodes")
    if request.min_gpus_per_node:
        limits.append(f"at least {request.min_gpus_per_node} GPUs a node")
    if request.min_network_gbps:
        limits.append(f"at least {request.min_network_gbps:g} GB/s of network")
    what = ", ".join((what, *limits))
    if _could_hold(fleet, request):
        stable = "eligible nodes have no place for all of them at once"
    else:
        stable = "this cluster has no place for all of them even when all its GPUs are free"
    return NoPlaceError(f"{what}: no; {_nearest(fleet, nodes, request)}", stable=f"{what}: no; {stable}")


def _could_hold(fleet: Fleet, request: GangRequest) -> bool:
    """Whether the cluster has a place for all pods when all its GPUs are free."""
    every = fleet.candidates(request.pod)
    nodes = packing.node_table(fleet, every, request.pod, ladder.required(request.pod)).all_free()
    return int(nodes.capacity.sum()) >= request.pods and plan(fleet, nodes, request) is not None


def _nearest(fleet: Fleet, nodes: GangNodes, request: GangRequest) -> str:
    most = int(nodes.capacity.sum())
    if most < request.pods:
        return f"{most} of them would find a place in the whole cluster"
    if request.max_nodes is not None:
        most = int(np.sort(nodes.capacity)[::-1][: request.max_nodes].sum())
        if most < request.pods:
            return f"{request.max_nodes} nodes hold {most} of them"
    if request.min_network_gbps:
        fast = nodes.capacity[fleet.sites.gbps()[nodes.site] >= request.min_network_gbps].sum()
        if fast < request.pods:
            return f"nodes with such a network hold {int(fast)} of them"
    return "without the limits on nodes there would be a place"
