"""Places gangs: many pods, all or none, near each other in the network.

The controller and the CLI call this module. A place is a node with GPUs for one pod. A *role* is all pods of a gang
that are equal. A *network domain* is a part of the network, such as all nodes below one leaf switch. A *level* has all
domains of one kind. The criteria in their order:

1. the required constraints of each pod
2. the preferred constraint that comes first in the request and that all pods can meet (the best *fallback level*)
3. with ``spread``: the most nodes
4. the narrowest network domain
5. without ``spread``: the fewest nodes
6. the bandwidth of the slowest pod
7. the same number of pods on every node
8. the same GPU positions (*rails*) on nodes of one kind
9. few domains of the next narrower level, with equal numbers of nodes
10. the network domain that has the least room
11. the sets of GPUs that remain on each node for later pods

If all pods are equal, all criteria but the last two are exact. That holds while, in the searched domains, the number of
nodes times the number of sets of GPU positions stays below 131,072.

Worked example: 4 pods of 8 GPUs, and two leaves of one spine with 3 free nodes each. No leaf can hold all pods, but the
spine can. The gang gets two nodes of each leaf: pods 0 and 1 in one leaf, 2 and 3 in the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from dradriver.allocator.choice import fallback_criteria
from dradriver.allocator.fleet import gang_refusals
from dradriver.allocator.fleet.domain_capacity import no_level
from dradriver.allocator.fleet.fleet import Eligible, Fleet
from dradriver.allocator.fleet.gang_choice import choice_of, gang_choice, indices_of
from dradriver.allocator.fleet.gang_effort import CALL, Effort
from dradriver.allocator.fleet.gang_nodes import GangNodes, node_table
from dradriver.allocator.fleet.gang_search import most_pods, search, violated_limit, with_fabrics
from dradriver.allocator.fleet.gang_taken import Taken, nothing_taken
from dradriver.allocator.gang_request import GangChoice, GangRequest, Role
from dradriver.allocator.request import Choice, LazyNoPlaceError, NoPlaceError, check_request
from dradriver.allocator.sets.subsets import Ints
from dradriver.topology.network_levels import CLUSTER


class Home(Protocol):
    """The place that a gang's pod had before: some GPUs of one node.

    The pod gets it again if possible. A ``Choice`` can be used as a ``Home``.
    """

    @property
    def node(self) -> str:
        """Return the node on which the gang's pod was before."""

    @property
    def gpus(self) -> Collection[int]:
        """Return the numbers of the GPUs that the gang's pod had before."""


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
        eligible: The nodes that may be taken: names, or a bool for each row of the caller's arrays; None for all.
        eligible_by_role: The same for each role, in place of ``eligible``.
        amounts: Free resources other than GPUs: (rows, resources), int64, by the rows that ``Fleet.set_node`` was given
            and the columns of ``Role.needs``. No node gets more pods than fit. None if only GPUs count.
        fixed: Members that keep their places, by index. The fleet does not count their GPUs as free, and ``amounts``
            does not count their other resources as free. The other members are placed near them. If the fleet does not
            know a member's node, only the node's name and GPUs count: it is near no other node.
        home: By index, the former places of members without a place. A member gets its former place on two conditions:
            the GPUs are free and fit the request, and the gang stays within its limits.
        effort: How much work the search may do; None for a new full effort. Calls with the same object share it. When
            it is spent, the plan is greedy: preferences do not count, and in each network level only the domain with
            the most free GPUs is tried.

    Raises:
        NoPlaceError: Not all pods have a place, the request is invalid, or the members of ``fixed`` violate a limit of
            it. The message says what would be possible, and is computed when it is read.
    """
    _check(fleet, request)
    request = with_fabrics(fleet, request)  # no limit to one NVLink fabric if no node is known to be in one
    by_role = [eligible] * len(request.members) if eligible_by_role is None else eligible_by_role
    effort = Effort() if effort is None else effort

    # For each fallback level one table of nodes a role; the last level has the required properties alone.
    tables_by_fallback = _tables_by_fallback(fleet, request, by_role, amounts)
    required_tables = tables_by_fallback[-1]

    # Building the tables of several roles is work, too. A gang of equal pods does not count it.
    if len(required_tables) > 1:
        effort.spend(len(tables_by_fallback) * sum(map(_table_cost, required_tables)))
    kept_places = _kept_places(request, fixed or {})

    # An elastic gang (``least_pods``) is placed with as many pods as the cluster can hold now.
    if request.least_pods is not None and not kept_places:
        request = _as_large_as_possible(fleet, request, required_tables[0])
    counts = _counts(request.members, kept_places)  # by role, the pods that need a place
    if not any(counts):
        return gang_choice(fleet, request, (None,) * len(counts), kept_places)

    # What members use that have their places. They must not violate a limit of the gang already. A gang of equal pods
    # that starts as a whole uses nothing yet.
    taken_by_kept = _taken_by(fleet, amounts, kept_places) if kept_places or home or len(request.members) > 1 else None
    if taken_by_kept is not None and (broken := violated_limit(fleet, request, taken_by_kept, has_all=False)):
        raise gang_refusals.of_those_that_stay(request, broken)

    # First with the members at their former places. Half of the effort is kept for the search without former places.
    at_home = None
    if home and taken_by_kept is not None:
        at_home = _at_home(fleet, request, required_tables, kept_places, home, taken_by_kept.copy())
    if at_home is not None:
        choice = _search_all(fleet, request, tables_by_fallback, at_home.places, at_home.taken, effort.fraction(2))
        if choice is not None:
            return choice

    # Then without former places. None stands for equal pods without any place: ``search`` plans them all at once.
    taken = taken_by_kept if kept_places or len(request.members) > 1 else None
    choice = _search_all(fleet, request, tables_by_fallback, kept_places, taken, effort)
    if choice is not None:
        return choice

    # The refusal searches for its reason when its text is read: many refusals are never read.
    refusal = partial(gang_refusals.refusal, fleet, required_tables, request, counts,
                      taken=taken_by_kept, gave_up=effort.gave_up, effort=effort.for_refusal())  # fmt: skip
    raise LazyNoPlaceError(refusal)


def _check(fleet: Fleet, request: GangRequest) -> None:
    for role in request.members:
        check_request(role.pod)
        if role.pods < 1:
            raise NoPlaceError(f"A gang of {role.pods} pods is not possible. Request at least 1 pod")
        if role.pod.include:
            raise NoPlaceError(
                "Pods of a gang cannot name GPUs that their sets must include: the pods use different nodes"
            )
    if request.least_pods is not None and request.roles:
        raise NoPlaceError("A gang whose pods differ starts with all of them. Give one size, not a range")
    if request.near and request.near_required and request.near not in fleet.sites.all_levels:
        raise no_level(fleet, request.near)


def _as_large_as_possible(fleet: Fleet, request: GangRequest, required_table: GangNodes) -> GangRequest:
    """Return an elastic gang's request with as many pods as the cluster can hold now.

    An elastic gang can start with fewer pods than it requests. If the cluster holds too few pods even for that, the
    request stays unchanged. ``fleet`` is the cluster. ``required_table`` has the nodes that meet the required
    constraints.
    """
    assert request.least_pods is not None, "only an elastic gang has several sizes"
    widest = request.near if request.near_required else CLUSTER
    pods_possible = most_pods(fleet, request, required_table, widest)
    if pods_possible < max(request.least_pods, 1):
        return request
    return msgspec.structs.replace(request, pods=pods_possible, least_pods=None)


def _table_cost(nodes: GangNodes) -> int:
    """Return the cost of finding the nodes for one role, in evaluations of nodes.

    The cost is an estimate from measurements. It is subtracted from the work that the search may do (``Effort``).
    """
    return 10 * CALL + 50 * len(nodes.kind)


def _tables_by_fallback(
    fleet: Fleet, request: GangRequest, by_role: Sequence[Eligible | None], amounts: Ints | None
) -> list[list[GangNodes]]:
    """Return for each fallback level the nodes that each role of the gang may use.

    The nodes of a role are one ``GangNodes`` table. A fallback level is a preferred constraint of the request, the best
    first; the last level has the required constraints alone. If some GPUs can be used as fractions, each level occurs
    twice: first without these GPUs, then with them. ``by_role`` are the eligible nodes, ``amounts`` the free resources
    other than GPUs.
    """
    levels_by_role = [fallback_criteria.fallback_levels(role.pod) for role in request.members]
    by_spared = [
        [
            node_table(fleet, role, levels[0], eligible=eligible, amounts=amounts, is_spared=is_spared)
            for role, levels, eligible in zip(request.members, levels_by_role, by_role, strict=True)
        ]
        for is_spared in ((True, False) if fleet.has_parts else (False,))
    ]
    return [
        [
            nodes.changed(criteria=[levels[min(number, len(levels) - 1)]] * len(nodes.candidates)) if number else nodes
            for nodes, levels in zip(tables, levels_by_role, strict=True)
        ]
        for number in range(max(map(len, levels_by_role)))
        for tables in by_spared
    ]


def _search_all(
    fleet: Fleet, request: GangRequest, tables_by_fallback: Sequence[Sequence[GangNodes]],
    kept: Mapping[int, Choice], taken: Taken | None, effort: Effort,
) -> GangChoice | None:  # fmt: skip
    """Return places for all of a gang's pods on the best fallback level that has them.

    The result is None if no level has places for all.

    Args:
        fleet: The cluster.
        request: The gang's request.
        tables_by_fallback: For each fallback level, by role, the nodes that its pods may use.
        kept: Members that have their places, by index.
        taken: The resources that the members in ``kept`` use; None for a gang of equal pods that all need a place.
        effort: How many evaluations of nodes the search may spend.
    """
    counts = _counts(request.members, kept)  # by role, the pods that need a place

    # The widest network level that may hold the gang: ``near`` first, then any, unless ``near`` is required.
    widest_levels = [request.near] if request.near in fleet.sites.all_levels else []
    if not (widest_levels and request.near_required):
        widest_levels = list(dict.fromkeys((*widest_levels, CLUSTER)))
    for_preferred = effort.fraction(2)  # the other half is kept for the last search, with required properties alone
    for nodes_by_role in tables_by_fallback:
        # Not even the whole cluster has room for some role.
        if any(int(nodes.capacity.sum()) < count for nodes, count in zip(nodes_by_role, counts, strict=True)):
            continue
        for widest in widest_levels:
            is_last = nodes_by_role is tables_by_fallback[-1] and widest == widest_levels[-1]
            # The effort for preferences is spent: only the last search is made. Equal pods (``taken`` is None) cost no
            # effort.
            if for_preferred.is_spent and taken is not None and not is_last:
                continue
            effort_of_search = effort if is_last else for_preferred
            plans = search(fleet, request, nodes_by_role, counts, taken=taken, widest=widest, effort=effort_of_search)
            if plans is not None:
                return gang_choice(fleet, request, plans, kept)
    return None


def _counts(members: Sequence[Role], kept: Mapping[int, Choice]) -> list[int]:
    """Return how many pods of each role have no place yet.

    ``members`` are the roles. ``kept`` are the members with a place, by their indices.
    """
    return [len(indices) - sum(index in indices for index in kept) for indices in indices_of(members)]


def _kept_places(request: GangRequest, fixed: Mapping[int, Choice]) -> dict[int, Choice]:
    """Return the places that members of a gang keep, after a check of their indices.

    ``fixed`` has these places by the members' indices; a place is a node and GPUs.

    Raises:
        NoPlaceError: ``fixed`` has an index that no member of the gang has.
    """
    total = sum(role.pods for role in request.members)
    if strange := [index for index in fixed if not 0 <= index < total]:
        raise NoPlaceError(f"A gang of {total} pods has no pod {strange[0]}")
    return dict(fixed)


def _taken_by(fleet: Fleet, amounts: Ints | None, kept: Mapping[int, Choice]) -> Taken:
    """Return the GPUs and resources that members with kept places use.

    The fleet and ``amounts`` already leave these out of what is free.
    """
    elsewhere = Counter[str]()
    for choice in kept.values():
        if fleet.name_rank(choice.node) is None:
            elsewhere[choice.node] += len(choice.gpus)
    taken = nothing_taken(fleet, amounts, elsewhere)
    for choice in kept.values():
        if (rank := fleet.name_rank(choice.node)) is not None:
            taken.gpus[rank] += len(choice.gpus)
    return taken


class _AtHome(NamedTuple):
    """The members of a gang that have a place (node and GPUs) without a search.

    These members keep their places, or return to their former places.

    Attributes:
        places: Their places, by index.
        taken: The GPUs and resources that they use.
    """

    places: dict[int, Choice]
    taken: Taken


def _at_home(
    fleet: Fleet, request: GangRequest, nodes_by_role: Sequence[GangNodes], kept: Mapping[int, Choice],
    home: Mapping[int, Home], taken: Taken,
) -> _AtHome | None:  # fmt: skip
    """Let members return to their former places; return all members that have a place then.

    A member returns if its former place is free and fits the request. The result is None if no member can return.
    Otherwise it also has the members in ``kept``.

    Args:
        fleet: The cluster.
        request: The gang's request.
        nodes_by_role: For each role the nodes that meet the required constraints.
        kept: Members that keep their places, by index.
        home: The former places of other members, by index.
        taken: The GPUs and resources that the kept members use. What the returned members use is added to this record.
    """
    back: dict[int, Choice] = {}
    for role, nodes, indices in zip(request.members, nodes_by_role, indices_of(request.members), strict=True):
        for index in indices:
            place = home.get(index)
            if place is None or index in kept or (rank := fleet.name_rank(place.node)) is None:
                continue
            # The node's index in the role's table; empty if the role may not use the node.
            (node_at,) = np.nonzero(nodes.name_rank == rank)
            if not len(node_at):
                continue
            node = taken.subtracted_from(nodes.only(node_at), role)
            mask = _set(node, place.gpus)
            if mask and node.room[0] > 0:
                taken.add(rank, int(node.row[0]), mask, role)
                back[index] = choice_of(nodes, int(node_at[0]), mask)
    return _AtHome({**kept, **back}, taken) if back else None


def _set(node: GangNodes, gpus: Collection[int]) -> int:
    """Return the bit mask of these GPUs if a pod may have them as a set; else 0.

    ``node`` is a table with a single node and the pod's request, ``gpus`` are the machine's own GPU numbers.
    """
    group = node.group(0)
    if not {gpu.index for gpu in group.machine.gpus}.issuperset(gpus):
        return 0
    mask = group.mask_of(gpus)
    fits = mask.bit_count() == node.request.gpus and mask & ~int(node.mask[0]) == 0
    return mask if fits and group.tables.allowed(node.criteria[int(node.kind[0])])[mask] else 0
