"""Placement of gangs: many pods, all or nothing, near each other in the network.

What decides, in this order: what each pod requires, then the highest rung of its ladder that all pods reach; the
number of nodes for ``spread``, which wants many; the narrowest part of the network; the number of nodes otherwise,
which should be few; the bandwidth of the slowest pod; the same number of pods on every node; the same positions
(*rails*) of nodes of one kind; few and equal parts of the next narrower level of the network; the part of the network
that is fullest already; on each node what it leaves to others. Of equal pods all but the last two are exact, as long
as nodes times ways to choose the same positions stay below 131,072 in the domains that are looked at.

Worked example: 4 pods of 8 GPUs, and two leaves of one spine with 3 free nodes each. No leaf holds all, the spine does:
two nodes of either leaf, pods 0 and 1 in one of them, 2 and 3 in the other.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec
import numpy as np

from dradriver.allocator.choice import fallback_criteria
from dradriver.allocator.fleet import gang_refusals
from dradriver.allocator.fleet.fleet import Eligible, Fleet
from dradriver.allocator.fleet.gang_effort import CALL, Effort
from dradriver.allocator.fleet.gang_nodes import GangNodes, node_table
from dradriver.allocator.fleet.gang_search import (
    Found,
    Taken,
    most_pods,
    nothing_taken,
    search,
    unmet,
    with_fabrics,
)
from dradriver.allocator.gang_request import GangChoice, GangRequest, Role
from dradriver.allocator.request import Choice, LazyNoPlaceError, NoPlaceError, check_request
from dradriver.allocator.sets.subsets import Ints
from dradriver.topology.network_levels import CLUSTER, NODE
from dradriver.topology.vendors import VENDORS


class Home(Protocol):
    """GPUs of one node; a ``Choice`` is such."""

    @property
    def node(self) -> str:
        """Return the node of the place that a gang member had before."""

    @property
    def gpus(self) -> Collection[int]:
        """Return the GPU numbers of the place that a gang member had before."""


def place_gang(
    fleet: Fleet,
    request: GangRequest,
    *,
    eligible: Eligible | None = None,
    eligible_by_role: Sequence[Eligible | None] | None = None,
    amounts: Ints | None = None,
    fixed: Mapping[int, Choice] | None = None,
    home: Mapping[int, Home] | None = None,
    effort: Effort | None = None,
) -> GangChoice:
    """Return the placement of a gang: a place for every pod, near each other in the network.

    Args:
        fleet: The cluster.
        request: The gang's request.
        eligible: The nodes that may be taken, as for ``Fleet.rank``; None for all.
        eligible_by_role: The same for each role, in place of ``eligible``.
        amounts: Free resources other than GPUs: (rows, resources), int64, by the rows that ``Fleet.set_node`` was given
            and the columns of ``Role.needs``. No node gets more pods than fit. None where nothing is counted.
        fixed: Members that keep their places, by index. The fleet counts their GPUs as taken, and ``amounts`` the rest
            of what they use. The others are placed near them. If the fleet does not know a member's node, only its node
            and its GPUs count: it is near no other node.
        home: Places that other members would rather have, by index, because they were there before. A member gets its
            place if the GPUs are free and fit the request, and the whole gang then stays within its limits.
        effort: How much the search may do, in this call and in others that are given the same; None for a new one. Once
            it is spent the plan is greedy: preferences do not count, and of each network level only the domain with the
            most free GPUs is tried.

    Raises:
        NoPlaceError: Not all pods have a place; the message says how many would have one. It is made when it is read.
    """
    _check(fleet, request)
    request = with_fabrics(fleet, request)
    by_role = [eligible] * len(request.members) if eligible_by_role is None else eligible_by_role
    effort = Effort() if effort is None else effort
    tables_by_level = _rungs(fleet, request, by_role, amounts)

    # Building the tables of several roles is work, too. A gang of equal pods does not count it.
    if len(tables_by_level[0]) > 1:
        effort.spend(len(tables_by_level) * sum(10 * CALL + 50 * len(nodes.kind) for nodes in tables_by_level[0]))
    kept_places = _kept(request, fixed or {})
    counts = _counts(request.members, kept_places)
    if not any(counts):
        return _described(fleet, request, (None,) * len(counts), kept_places)

    # A gang of equal pods that starts as a whole takes nothing yet.
    taken_by_kept = _taken(fleet, amounts, kept_places) if kept_places or home or len(request.members) > 1 else None
    if taken_by_kept is not None and (broken := unmet(fleet, request, taken_by_kept, whole=False)):
        raise gang_refusals.of_those_that_stay(request, broken)

    # An elastic gang asks for as many pods as the cluster can hold now, if that is enough to start.
    if request.least_pods is not None and not kept_places:
        widest = request.near if request.near_required else CLUSTER
        pods_possible = most_pods(fleet, request, tables_by_level[-1][0], widest)
        if pods_possible >= max(request.least_pods, 1):
            request = msgspec.structs.replace(request, pods=pods_possible, least_pods=None)

    # First with the members at their former places. Half of the effort is kept for the search without that.
    placed_home = None
    if home and taken_by_kept is not None:
        placed_home = _back(fleet, request, tables_by_level[-1], kept_places, home, taken_by_kept.copy())
    if placed_home is not None:
        choice = _placed(fleet, request, tables_by_level, kept_places | placed_home[0], placed_home[1], effort.part(2))
        if choice is not None:
            return choice

    # The search for equal pods of which none has a place is simpler; None asks for it.
    taken_by_others = taken_by_kept if kept_places or len(request.members) > 1 else None
    choice = _placed(fleet, request, tables_by_level, kept_places, taken_by_others, effort)
    if choice is not None:
        return choice
    refusal = partial(gang_refusals.refusal, fleet, tables_by_level[-1], request, counts,
                      taken=taken_by_kept, gave_up=effort.gave_up, effort=effort.rest())  # fmt: skip
    raise LazyNoPlaceError(refusal)


def _check(fleet: Fleet, request: GangRequest) -> None:
    for role in request.members:
        check_request(role.pod)
        if role.pods < 1:
            raise NoPlaceError(f"a gang of {role.pods} pods: ask for at least 1")
        if role.pod.include:
            raise NoPlaceError("a gang's pods cannot name GPUs that must be in their sets: they are on different nodes")
    if request.least_pods is not None and request.roles:
        raise NoPlaceError("a gang whose members differ starts with all of them: give no range of sizes")
    if request.near and request.near_required and request.near not in fleet.sites.reaches:
        raise NoPlaceError(
            f"near {request.near}: this cluster's network has the levels {', '.join(fleet.sites.reaches)}"
        )


def _rungs(
    fleet: Fleet, request: GangRequest, by_role: Sequence[Eligible | None], amounts: Ints | None
) -> list[list[GangNodes]]:
    """The tables of all roles for each rung of their ladders, the best first, what is required last.

    If GPUs may be had in parts, each rung is there twice: first without those.
    """
    ladders = [fallback_criteria.rungs(role.pod) for role in request.members]
    by_spared = [
        [
            node_table(fleet, role, rungs[0], eligible=own, amounts=amounts, is_spared=is_spared)
            for role, rungs, own in zip(request.members, ladders, by_role, strict=True)
        ]
        for is_spared in ((True, False) if fleet.has_parts else (False,))
    ]
    return [
        [
            nodes.changed(criteria=[rungs[min(number, len(rungs) - 1)]] * len(nodes.candidates)) if number else nodes
            for nodes, rungs in zip(tables, ladders, strict=True)
        ]
        for number in range(max(map(len, ladders)))
        for tables in by_spared
    ]


def _placed(
    fleet: Fleet, request: GangRequest, every: Sequence[Sequence[GangNodes]], kept: Mapping[int, Choice],
    taken: Taken | None, effort: Effort,
) -> GangChoice | None:  # fmt: skip
    """Places for all pods of a gang of which some have theirs; None where they have none together."""
    members = request.members
    counts = _counts(members, kept)
    reaches = fleet.sites.reaches
    widest = [request.near] if request.near in reaches else []
    if not (widest and request.near_required):
        widest = list(dict.fromkeys((*widest, CLUSTER)))
    preferred = effort.part(2)  # half is kept for what is required
    for tables in every:
        if any(int(nodes.capacity.sum()) < count for nodes, count in zip(tables, counts, strict=True)):
            continue
        for limit in widest:
            is_last = tables is every[-1] and limit == widest[-1]
            if preferred.is_spent and taken is not None and not is_last:
                continue  # what is preferred does not count any more
            most = effort if is_last else preferred
            found = search(fleet, request, tables, counts, taken=taken, widest=limit, effort=most)
            if found is not None:
                return _described(fleet, request, found, kept)
    return None


def _counts(members: Sequence[Role], kept: Mapping[int, Choice]) -> list[int]:
    """How many pods of each role have no place yet."""
    return [len(own) - sum(index in own for index in kept) for own in _indices(members)]


def _indices(members: Sequence[Role]) -> list[range]:
    """The indices of each role's pods."""
    ends = np.cumsum([role.pods for role in members]).tolist()
    return [range(end - role.pods, end) for end, role in zip(ends, members, strict=True)]


def _kept(request: GangRequest, fixed: Mapping[int, Choice]) -> dict[int, Choice]:
    total = sum(role.pods for role in request.members)
    if strange := [index for index in fixed if not 0 <= index < total]:
        raise NoPlaceError(f"a gang of {total} pods has no member {strange[0]}")
    return dict(fixed)


def _taken(fleet: Fleet, amounts: Ints | None, kept: Mapping[int, Choice]) -> Taken:
    """What is taken by members that keep their places; the fleet and ``amounts`` are without it already."""
    elsewhere = Counter[str]()
    for choice in kept.values():
        if fleet.name_rank(choice.node) is None:
            elsewhere[choice.node] += len(choice.gpus)
    taken = nothing_taken(fleet, amounts, elsewhere)
    for choice in kept.values():
        if (rank := fleet.name_rank(choice.node)) is not None:
            taken.gpus[rank] += len(choice.gpus)
    return taken


def _back(
    fleet: Fleet, request: GangRequest, tables: Sequence[GangNodes], kept: Mapping[int, Choice],
    home: Mapping[int, Home], taken: Taken,
) -> tuple[dict[int, Choice], Taken] | None:  # fmt: skip
    """The members that can have the places that they had rather have, and what is taken then; None where none can."""
    back: dict[int, Choice] = {}
    for role, nodes, indices in zip(request.members, tables, _indices(request.members), strict=True):
        for index in indices:
            place = home.get(index)
            if place is None or index in kept or (rank := fleet.name_rank(place.node)) is None:
                continue
            (own,) = np.nonzero(nodes.name_rank == rank)
            if not len(own):
                continue
            node = taken.left(nodes.only(own), role)
            mask = _set(node, place.gpus)
            if mask and node.room[0] > 0:
                taken.add(rank, int(node.row[0]), mask, role)
                back[index] = _choice(nodes, int(own[0]), mask)
    return (back, taken) if back else None


def _set(node: GangNodes, gpus: Collection[int]) -> int:
    """The positions of GPUs on the one node that is given, if the request may have them; 0 if not."""
    group = node.group(0)
    if not {gpu.index for gpu in group.machine.gpus}.issuperset(gpus):
        return 0
    mask = group.mask_of(gpus)
    fits = mask.bit_count() == node.request.gpus and mask & ~int(node.mask[0]) == 0
    return mask if fits and group.tables.allowed(node.criteria[int(node.kind[0])])[mask] else 0


def _choice(nodes: GangNodes, at: int, mask: int) -> Choice:
    return msgspec.structs.replace(nodes.group(at).describe(mask, nodes.request), node=nodes.name(at))


def _described(fleet: Fleet, request: GangRequest, found: Found, kept: Mapping[int, Choice]) -> GangChoice:
    """Return the gang's choice: the plans of all roles as places of pods, in the order of their indices.

    Args:
        fleet: The cluster.
        request: The gang's request.
        found: By role the plan; None for a role without pods to place.
        kept: Members that keep their places, by index.
    """
    pods = dict(kept)

    # The places of each role in the order of the network, given to the role's pods by index.
    for plan, role_indices in zip(found, _indices(request.members), strict=True):
        if plan is None:
            continue
        indices = [index for index in role_indices if index not in kept]
        nodes = plan.nodes
        places = [
            (rank, number, _choice(nodes, at, mask))
            for rank, at, sets in zip(nodes.name_rank[plan.at].tolist(), plan.at.tolist(), plan.sets(), strict=True)
            for number, mask in enumerate(sets)
        ]
        order = _in_order(fleet, np.array([rank for rank, _, _ in places]))
        pods |= _matched(fleet, [places[at][2] for at in order.tolist()], indices, kept)

    # How near the nodes are to each other. A node that the fleet does not know is near none.
    by_index = tuple(pods[index] for index in sorted(pods))
    ranks = {choice.node: fleet.name_rank(choice.node) for choice in by_index}
    names = [name for name, rank in ranks.items() if rank is not None]
    known_ranks = np.array([rank for rank in ranks.values() if rank is not None], dtype=np.int64)
    unknown_nodes = ranks.keys() - set(names)
    reach = CLUSTER if unknown_nodes else _reach(fleet, known_ranks)

    # The gang counts as having missed what its worst pod has missed.
    missed_preferences = max((choice.fallback for choice in by_index), key=len)
    is_near = reach == NODE or (
        not unknown_nodes and fleet.sites.holds(request.near, fleet.sites_by_name()[known_ranks])
    )
    missed_near = [f"near: {request.near}"] if request.near and not is_near else []
    is_predicted = all(VENDORS[role.pod.vendor].predicted for role in request.members)
    return GangChoice(
        pods=by_index,
        nodes=(*(names[at] for at in _in_order(fleet, known_ranks).tolist()), *sorted(unknown_nodes)),
        reach=reach,
        busbw_gbps=_slowest(fleet, by_index, fleet.sites_by_name()[known_ranks], reach) if is_predicted else 0.0,
        fallback=(*(word.value for word in missed_preferences), *missed_near),
    )


def _reach(fleet: Fleet, ranks: Ints) -> str:
    """The narrowest level that holds some nodes."""
    if len(ranks) < 2:
        return NODE
    sites = fleet.sites_by_name()[ranks]
    of_level = ((level, fleet.sites.domains(level)[sites]) for level in fleet.levels)
    return next((level for level, own in of_level if own[0] >= 0 and (own == own[0]).all()), CLUSTER)


def _in_order(fleet: Fleet, ranks: Ints) -> Ints:
    """Places of nodes in the order that leaves each part of the network once: by its domains, the widest first."""
    sites = fleet.sites_by_name()[ranks]
    return np.lexsort((ranks, *(fleet.sites.domains(level)[sites] for level in fleet.levels)))


def _matched(
    fleet: Fleet, places: Sequence[Choice], indices: Sequence[int], kept: Mapping[int, Choice]
) -> dict[int, Choice]:
    """Return which member gets which place: in order, or near the placed member that is next by index."""
    if not kept:
        return dict(zip(indices, places, strict=True))
    out, members = {}, sorted(kept)
    ranks = np.array([fleet.name_rank(place.node) for place in places])
    left = np.ones(len(places), dtype=np.bool_)
    for index in indices:
        after = bisect.bisect(members, index)
        neighbour = min(members[max(after - 1, 0) : after + 1], key=lambda other: (abs(other - index), other))
        steps = _steps(fleet, kept[neighbour].node, ranks)
        at = int(np.where(left, steps, len(fleet.sites.reaches) + 1).argmin())
        out[index], left[at] = places[at], False
    return out


def _steps(fleet: Fleet, one: str, ranks: Ints) -> Ints:
    """The number in ``reaches`` of the narrowest level that a node shares with each of others: shape of ``ranks``."""
    reaches = fleet.sites.reaches
    steps = np.full(len(ranks), len(reaches))
    if (rank := fleet.name_rank(one)) is None:
        return steps
    every = fleet.sites_by_name()
    for number in range(len(reaches) - 1, 0, -1):
        domain = fleet.sites.domains(reaches[number])
        if (own := int(domain[every[rank]])) >= 0:
            steps[domain[every[ranks]] == own] = number
    steps[ranks == rank] = 0
    return steps


def _slowest(fleet: Fleet, pods: Sequence[Choice], sites: Ints, reach: str) -> float:
    """The bandwidth of the slowest pod, or of the network between nodes where all their NICs are known, GB/s."""
    several = [pod.busbw_gbps for pod in pods if len(pod.gpus) > 1]  # one GPU alone has no bandwidth to be slow
    known = reach != NODE and len(sites) == len({pod.node for pod in pods})
    network = float(fleet.sites.most_gbps(reach)[sites].min()) if known else 0.0
    return min((*several, network) if network else several, default=0.0)
