"""Says why a gang has no place, and what would be possible instead.

``gang_placement`` calls this module. A *role* is all pods of a gang that are equal. If the search skipped some
possibilities, the message says nothing about these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from dradriver.allocator.choice import fallback_criteria, phrases
from dradriver.allocator.fleet.domain_capacity import largest
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.fleet_refusals import never
from dradriver.allocator.fleet.gang_effort import Effort
from dradriver.allocator.fleet.gang_nodes import GangNodes, node_table
from dradriver.allocator.fleet.gang_search import most_pods, search
from dradriver.allocator.fleet.gang_taken import Taken, nothing_taken
from dradriver.allocator.gang_request import GangRequest, Role
from dradriver.allocator.request import NoPlaceError
from dradriver.counted import counted
from dradriver.reason import Cause, sentences
from dradriver.topology.network_levels import CLUSTER, FABRIC, NODE

_NOT_FOUND = "no place was found for all of them at once"
_GAVE_UP = "The search ended at its limit before it had tried every plan"


def of_those_that_stay(request: GangRequest, broken: str) -> NoPlaceError:
    """Return the error for a gang whose placed members already violate a limit.

    No further member can be placed then. ``request`` is the gang's request, ``broken`` the limit as text.
    """
    why = f"the pods of the gang that keep their places do not meet this: {broken}"
    return NoPlaceError(why, request=_wanted(request), cause=Cause.GANG)


def refusal(
    fleet: Fleet, nodes_by_role: Sequence[GangNodes], request: GangRequest, counts: Sequence[int], *,
    taken: Taken | None, gave_up: bool, effort: Effort,
) -> NoPlaceError:  # fmt: skip
    """Return the error that says why a gang finds no place.

    The search for the reason spends ``effort``. If it is used up, the message says less.

    Args:
        fleet: The cluster.
        nodes_by_role: For each role the nodes that meet the required constraints.
        request: The gang's request.
        counts: For each role the number of pods that needed a place. The number is less than all pods of the role if
            some are placed.
        taken: What placed members use; None for a gang of equal pods of which none is placed.
        gave_up: Whether the search ended before it had tried every way.
        effort: How many evaluations of nodes the search for the reason may spend.
    """
    wanted_gang = _wanted(request)

    # Some members have their places already: only the others are refused.
    if (without_place := sum(counts)) < sum(role.pods for role in request.members):
        nearest = _of_late_ones(fleet, nodes_by_role, request, counts, taken=taken, gave_up=gave_up, effort=effort)
        return NoPlaceError(
            f"there is no place now for {without_place} of the pods",
            request=wanted_gang,
            nearest=nearest,
            cause=Cause.GPUS,
        )

    # Can the gang ever have a place? If not, waiting does not help, and the reason without figures says so. An elastic
    # gang is refused if its smallest size has no place.
    smallest = request if request.least_pods is None else msgspec.structs.replace(request, pods=request.least_pods)
    is_possible, why = _could_hold(fleet, smallest, effort)
    if is_possible:
        why = "eligible nodes have no place for all of them at once"
        if request.roles:
            why = sentences(_NOT_FOUND, _about_search(request, gave_up)) if gave_up else _NOT_FOUND
    nearest = "" if why and not is_possible else _nearest(fleet, nodes_by_role, smallest, effort)
    return NoPlaceError(
        why or "this cluster has no place for all of them, even if all its GPUs are free",
        request=wanted_gang,
        nearest=nearest,
        cause=Cause.GPUS if is_possible else Cause.NEVER,
    )


def _wanted(request: GangRequest) -> str:
    what = " and ".join(f"{counted(role.pods, 'pod')} with {phrases.wanted(role.pod)} each" for role in request.members)
    if request.least_pods is not None:
        what = f"{request.least_pods} to {what}"
    return ", ".join((what, *_limits(request).values()))


def _limits(request: GangRequest) -> dict[str, str]:
    """Return the gang's limits as texts, by the field of the request that sets each limit.

    Limits that the request does not set are left out.
    """
    limits = {}
    if request.max_nodes is not None:
        limits["max_nodes"] = f"on at most {counted(request.max_nodes, 'node')}"
    if request.min_gpus_per_node:
        limits["min_gpus_per_node"] = f"at least {counted(request.min_gpus_per_node, 'GPU')} per node"
    if request.min_network_gbps:
        limits["min_network_gbps"] = f"at least {request.min_network_gbps:g} GB/s of network bandwidth"
    if request.near and request.near_required:
        limits["near_required"] = f"near {request.near}"
    if request.one_fabric:
        limits["one_fabric"] = "in one NVLink fabric"
    return limits


_NO_LIMIT: dict[str, Any] = {
    "max_nodes": None, "min_gpus_per_node": 0, "min_network_gbps": 0.0, "near_required": False, "one_fabric": False,
}  # fmt: skip


def _of_late_ones(
    fleet: Fleet, nodes_by_role: Sequence[GangNodes], request: GangRequest, counts: Sequence[int], *,
    taken: Taken | None, gave_up: bool, effort: Effort,
) -> str:  # fmt: skip
    most = sum(min(int(nodes.capacity.sum()), count) for nodes, count in zip(nodes_by_role, counts, strict=True))
    if most < sum(counts):
        return f"At most {most} of these would find a place" if most else ""
    return _without(fleet, nodes_by_role, request, counts, taken=taken, effort=effort) or _about_search(
        request, gave_up
    )


def _about_search(request: GangRequest, gave_up: bool) -> str:
    """Return a text that the search gave up, and what would make it cheaper.

    ``gave_up`` says whether it gave up; if not, the text is empty. ``request`` is the gang's.
    """
    if not gave_up:
        return ""
    wider = "" if request.max_nodes is None else ", or a larger max-nodes,"
    return sentences(_GAVE_UP, f"Fewer different requests{wider} need less search")


def _without(
    fleet: Fleet, nodes_by_role: Sequence[GangNodes], request: GangRequest, counts: Sequence[int], *,
    taken: Taken | None, effort: Effort,
) -> str:  # fmt: skip
    """Return a text that names the first limit of the gang that prevents its placement.

    The text says that the gang would have a place if only this limit were dropped. The text is empty if no single limit
    prevents the placement. ``nodes_by_role`` has the nodes that each role may use; ``taken`` is what placed members
    use; ``counts`` is how many pods of each role need a place. ``effort`` limits the search.
    """
    for field, words in _limits(request).items():
        if effort.is_spent:
            break
        wider = msgspec.structs.replace(request, **{field: _NO_LIMIT[field]})
        widest = wider.near if wider.near_required and wider.near else CLUSTER
        if search(fleet, wider, nodes_by_role, counts, taken=taken, widest=widest, effort=effort) is not None:
            return f'Without "{words}", there is a place'
    return ""


def _could_hold(fleet: Fleet, request: GangRequest, effort: Effort) -> tuple[bool, str]:
    """Return whether all pods could have a place if all GPUs were free, and why not.

    The reason is empty if it is not known. The answer is also True if ``effort`` is spent before the search has ended.
    """
    members = request.members
    # ``capacity`` of a node table: how many pods of the role each node holds, here when all its GPUs are free.
    nodes_by_role = [node_table(fleet, role, fallback_criteria.required(role.pod)).all_free() for role in members]
    counts = [role.pods for role in members]
    for role, nodes, count in zip(members, nodes_by_role, counts, strict=True):
        if int(nodes.capacity.sum()) < count:
            return False, never(fleet.groups, role.pod)

    # ``search`` plans equal pods all at once if it is given None for what is taken.
    taken = nothing_taken(fleet, None) if len(members) > 1 else None
    near_level = _nearest_level(fleet, request)
    if effort.is_spent:
        return True, ""

    # Within the required network level.
    if (
        search(fleet, request, nodes_by_role, counts, taken=taken, widest=near_level, effort=effort) is not None
        or effort.gave_up
    ):
        return True, ""

    # Is the required level the cause? Then the whole cluster has a place without it, and the figures can be named.
    without_fabric = msgspec.structs.replace(request, one_fabric=False)
    if near_level == CLUSTER or search(
        fleet, without_fabric, nodes_by_role, counts, taken=taken, widest=CLUSTER, effort=effort
    ) is None:  # fmt: skip
        return False, ""
    for role, nodes in zip(members, nodes_by_role, strict=True):
        largest_domain = largest(fleet, nodes, near_level)
        if largest_domain.pods < role.pods:
            domain_text = f"the largest {near_level}" + (f", {largest_domain.domain}," if largest_domain.domain else "")
            pods_text = "them" if not request.roles else _pods_of(role)
            return False, f"{domain_text} has room for {largest_domain.pods} of {pods_text}, even if it is empty"
    return False, f"no {near_level} has room for all of them, even if it is empty"


def _nearest_level(fleet: Fleet, request: GangRequest) -> str:
    """Return the widest network level over which the gang's limits let its pods spread.

    All pods must be in one domain of this level or of a narrower one. ``cluster`` if the gang has no such limit.
    """
    near = request.near if request.near_required else CLUSTER
    all_levels = fleet.sites.all_levels
    return FABRIC if request.one_fabric and all_levels.index(near) > all_levels.index(FABRIC) else near


def _pods_of(role: Role) -> str:
    return f"the {counted(role.pods, 'pod')} with {phrases.wanted(role.pod)}"


def _nearest(fleet: Fleet, nodes_by_role: Sequence[GangNodes], request: GangRequest, effort: Effort) -> str:
    for role, nodes in zip(request.members, nodes_by_role, strict=True):
        most = int(nodes.capacity.sum())
        if most < role.pods:
            which = "them" if not request.roles else _pods_of(role)
            by_gpus = int(nodes.by_gpus_alone().capacity.sum())
            by_gpus_alone = f"The free GPUs alone are enough for {by_gpus}" if by_gpus > most else ""
            return sentences(f"The whole cluster has room for {most} of {which}", by_gpus_alone)
    if request.roles:
        counts = [role.pods for role in request.members]
        found = _without(fleet, nodes_by_role, request, counts, taken=nothing_taken(fleet, None), effort=effort)
        return found or _each_alone(fleet, nodes_by_role, request)
    return _nearest_of_equal_ones(fleet, nodes_by_role[0], request, effort)


def _each_alone(fleet: Fleet, nodes_by_role: Sequence[GangNodes], request: GangRequest) -> str:
    """Return as text which role has no places even without the gang's other roles.

    The text names the first such role. If there is none, the text says that each role alone has places. It is empty if
    the gang has a least number of GPUs per node, because the roles reach that number together.
    """
    if request.min_gpus_per_node:  # which they reach together
        return ""
    for role, nodes in zip(request.members, nodes_by_role, strict=True):
        of_role = msgspec.structs.replace(request, pod=role.pod, pods=role.pods, needs=role.needs, roles=())
        widest = request.near if request.near_required else CLUSTER
        if most_pods(fleet, of_role, nodes, widest) < role.pods:
            return f"There is no place for {_pods_of(role)}, even without the others"
    return "Pods with the same request have places without the others"


def _nearest_of_equal_ones(fleet: Fleet, nodes: GangNodes, request: GangRequest, effort: Effort) -> str:
    if request.max_nodes is not None:
        most = int(np.sort(nodes.capacity)[::-1][: request.max_nodes].sum())
        if most < request.pods:
            return f"The {counted(request.max_nodes, 'node')} with most room can take {most} of them"
    if request.min_network_gbps:
        known_gbps = fleet.sites.gbps()[nodes.site]
        fast = int(nodes.capacity[known_gbps >= request.min_network_gbps].sum())
        if fast < request.pods:
            unknown = int(np.count_nonzero(known_gbps == 0))
            more = f"The network bandwidth of {counted(unknown, 'node')} is not known" if unknown else ""
            return sentences(f"Nodes with this network bandwidth have room for {fast} of them", more)
        if slow := _slow(fleet, request.min_network_gbps):
            return f"{slow}, and no smaller part of the network has room for all of them"
    if (near := _nearest_level(fleet, request)) != CLUSTER:
        largest_domain = largest(fleet, nodes, near)
        if largest_domain.pods < request.pods:
            where = largest_domain.domain if near != NODE else largest_domain.nodes[0] if largest_domain.nodes else ""
            named = f"The {near} with most room" + (f", {where}," if where else "")
            return f"{named} can take {largest_domain.pods} of them now"
    return _without(fleet, [nodes], request, [request.pods], taken=None, effort=effort)


def _slow(fleet: Fleet, wanted_gbps: float) -> str:
    """Return a text about the narrowest network level that is too slow for the gang.

    A level is too slow if its bandwidth is unknown or below ``wanted_gbps``. The text is empty if there is no such
    level.
    """
    for level in fleet.sites.all_levels[1:]:
        within = "Within the cluster" if level == CLUSTER else f"Within a {level}"
        if not fleet.sites.is_known(level):
            return f"{within} the network bandwidth is not known"
        if (carries := fleet.sites.gbps_of.get(level, np.inf)) < wanted_gbps:
            return f"{within} the network carries {carries:g} GB/s"
    return ""
