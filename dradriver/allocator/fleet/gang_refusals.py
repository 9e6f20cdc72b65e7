"""Refusals of gangs: why a gang has no place, and the nearest thing that does. What was not looked at is not said."""

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
from dradriver.allocator.gang_request import GangRequest
from dradriver.allocator.request import NoPlaceError
from dradriver.counted import counted
from dradriver.reason import Cause
from dradriver.topology.network_levels import CLUSTER, FABRIC, NODE

_NOT_FOUND = "no place was found for all of them at once"
_GAVE_UP = "The search ended at its limit before it had tried every plan."


def of_those_that_stay(request: GangRequest, broken: str) -> NoPlaceError:
    """Return the refusal of further members of a gang whose others violate its limits: ``broken`` says how."""
    stable = f"{_wanted(request)}: no; those that keep their places are not so: {broken}"
    return NoPlaceError(stable, cause=Cause.GANG)


def refusal(
    fleet: Fleet, nodes_by_role: Sequence[GangNodes], request: GangRequest, counts: Sequence[int], *,
    taken: Taken | None, gave_up: bool, effort: Effort,
) -> NoPlaceError:  # fmt: skip
    """Return the refusal of a gang: the error that says why it finds no place.

    The reason is searched for with ``effort``. If that is spent, the message says less.

    Args:
        fleet: The cluster.
        nodes_by_role: For each role the nodes that could be taken, with the required properties alone.
        request: The gang's request.
        counts: For each role the number of pods that needed a place. It is less than the role's pods if some are
            placed.
        taken: What placed members use; None for a gang of equal pods of which none is placed.
        gave_up: Whether the search ended before it had tried every way.
        effort: How many evaluations of nodes the search for the reason may spend.
    """
    wanted_gang = _wanted(request)

    # Some members have their places already: only the others are refused.
    if (without_place := sum(counts)) < sum(role.pods for role in request.members):
        stable = f"{wanted_gang}, of which {without_place} {'has' if without_place == 1 else 'have'} no place now"
        reason = _of_late_ones(fleet, nodes_by_role, request, counts, taken=taken, gave_up=gave_up, effort=effort)
        return NoPlaceError(f"{stable}: {reason}", stable=stable, cause=Cause.GPUS)

    # Can the gang ever have a place? If not, waiting does not help, and the stable text says so: it is the text that
    # does not change with the free GPUs. An elastic gang is refused if its smallest size has no place.
    smallest = request if request.least_pods is None else msgspec.structs.replace(request, pods=request.least_pods)
    is_possible, reason = _could_hold(fleet, smallest, effort)
    if is_possible:
        stable = _unknown(request, gave_up) if request.roles else "eligible nodes have no place for all of them at once"
        reason = _nearest(fleet, nodes_by_role, smallest, gave_up=gave_up, effort=effort)
    else:
        stable = reason or "this cluster has no place for all of them even when all its GPUs are free"
        reason = reason or _nearest(fleet, nodes_by_role, smallest, gave_up=gave_up, effort=effort)
    return NoPlaceError(
        f"{wanted_gang}: no; {reason}",
        stable=f"{wanted_gang}: no; {stable}",
        cause=Cause.GPUS if is_possible else Cause.NEVER,
    )


def _wanted(request: GangRequest) -> str:
    what = " and ".join(f"{counted(role.pods, 'pod')} with {phrases.wanted(role.pod)} each" for role in request.members)
    if request.least_pods is not None:
        what = f"{request.least_pods} to {what}"
    return ", ".join((what, *_limits(request).values()))


def _limits(request: GangRequest) -> dict[str, str]:
    """The gang's limits in words, by the field that sets each."""
    limits = {}
    if request.max_nodes is not None:
        limits["max_nodes"] = f"on at most {counted(request.max_nodes, 'node')}"
    if request.min_gpus_per_node:
        limits["min_gpus_per_node"] = f"at least {counted(request.min_gpus_per_node, 'GPU')} a node"
    if request.min_network_gbps:
        limits["min_network_gbps"] = f"at least {request.min_network_gbps:g} GB/s of network"
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
        return f"{'at most ' if most else ''}{most} would find one"
    return _without(fleet, nodes_by_role, request, counts, taken=taken, effort=effort) or _unknown(request, gave_up)


def _unknown(request: GangRequest, gave_up: bool, more: str = "") -> str:
    """That no place was found, and ``more``; if the search gave up, also that it did, and what needs less search."""
    if not gave_up:
        return f"{_NOT_FOUND}{more}"
    wider = "" if request.max_nodes is None else ", or a larger max-nodes,"
    return f"{_NOT_FOUND}{more}. {_GAVE_UP} Fewer different requests{wider} need less search"


def _without(
    fleet: Fleet, nodes_by_role: Sequence[GangNodes], request: GangRequest, counts: Sequence[int], *,
    taken: Taken | None, effort: Effort,
) -> str:  # fmt: skip
    """Without which one of its limits the gang would have a place; empty where that is not known of any."""
    for field, words in _limits(request).items():
        if effort.is_spent:
            break
        wider = msgspec.structs.replace(request, **{field: _NO_LIMIT[field]})
        widest = wider.near if wider.near_required and wider.near else CLUSTER
        if search(fleet, wider, nodes_by_role, counts, taken=taken, widest=widest, effort=effort) is not None:
            return f'there would be a place without "{words}"'
    return ""


def _could_hold(fleet: Fleet, request: GangRequest, effort: Effort) -> tuple[bool, str]:
    """Return whether all pods may have a place when all GPUs are free.

    If not, this returns the reason if it is known.

    True is also the answer if ``effort`` is spent before the search has ended.
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
            pods_text = "them" if not request.roles else f"the {role.pods} with {phrases.wanted(role.pod)}"
            return False, f"{domain_text} holds {largest_domain.pods} of {pods_text} when it is empty"
    return False, f"no {near_level} holds all of them even when it is empty"


def _nearest_level(fleet: Fleet, request: GangRequest) -> str:
    """The widest level that may hold all of a gang."""
    near = request.near if request.near_required else CLUSTER
    all_levels = fleet.sites.all_levels
    return FABRIC if request.one_fabric and all_levels.index(near) > all_levels.index(FABRIC) else near


def _nearest(
    fleet: Fleet, nodes_by_role: Sequence[GangNodes], request: GangRequest, *, gave_up: bool, effort: Effort
) -> str:  # fmt: skip
    for role, nodes in zip(request.members, nodes_by_role, strict=True):
        most = int(nodes.capacity.sum())
        if most < role.pods:
            which = "them" if not request.roles else f"the {role.pods} with {phrases.wanted(role.pod)}"
            by_gpus = int(nodes.by_gpus_alone().capacity.sum())
            by_gpus_alone = f", by their GPUs alone {by_gpus}" if by_gpus > most else ""
            return f"{most} of {which} would find a place in the whole cluster{by_gpus_alone}"
    if request.roles:
        counts = [role.pods for role in request.members]
        found = _without(fleet, nodes_by_role, request, counts, taken=nothing_taken(fleet, None), effort=effort)
        return found or _unknown(request, gave_up, _each_alone(fleet, nodes_by_role, request))
    return _nearest_of_equal_ones(fleet, nodes_by_role[0], request, effort)


def _each_alone(fleet: Fleet, nodes_by_role: Sequence[GangNodes], request: GangRequest) -> str:
    """That each role would have places if the others were not there, where that is so."""
    if request.min_gpus_per_node:  # which they reach together
        return ""
    for role, nodes in zip(request.members, nodes_by_role, strict=True):
        of_role = msgspec.structs.replace(request, pod=role.pod, pods=role.pods, needs=role.needs, roles=())
        widest = request.near if request.near_required else CLUSTER
        if most_pods(fleet, of_role, nodes, widest) < role.pods:
            return f"; the {role.pods} with {phrases.wanted(role.pod)} have none even without the others"
    return "; each kind would have places without the others"


def _nearest_of_equal_ones(fleet: Fleet, nodes: GangNodes, request: GangRequest, effort: Effort) -> str:
    if request.max_nodes is not None:
        most = int(np.sort(nodes.capacity)[::-1][: request.max_nodes].sum())
        if most < request.pods:
            return f"{request.max_nodes} nodes hold {most} of them"
    if request.min_network_gbps:
        known_gbps = fleet.sites.gbps()[nodes.site]
        fast = int(nodes.capacity[known_gbps >= request.min_network_gbps].sum())
        if fast < request.pods:
            unknown = int(np.count_nonzero(known_gbps == 0))
            more = f"; the network's bandwidth of {unknown} nodes is not known" if unknown else ""
            return f"nodes with such a network hold {fast} of them{more}"
        if slow := _slow(fleet, request.min_network_gbps):
            return f"{slow}, and nothing narrower holds all of them"
    if (near := _nearest_level(fleet, request)) != CLUSTER:
        largest_domain = largest(fleet, nodes, near)
        if largest_domain.pods < request.pods:
            where = largest_domain.domain if near != NODE else largest_domain.nodes[0] if largest_domain.nodes else ""
            named = f"the {near} with most room" + (f", {where}," if where else "")
            return f"{named} holds {largest_domain.pods} of them now"
    return _without(fleet, [nodes], request, [request.pods], taken=None, effort=effort) or _NOT_FOUND


def _slow(fleet: Fleet, wanted_gbps: float) -> str:
    """What to say of the narrowest level that does not carry so much, as far as is known; empty where all do."""
    for level in fleet.sites.all_levels[1:]:
        within = "within the cluster" if level == CLUSTER else f"within a {level}"
        if not fleet.sites.is_known(level):
            return f"{within} it is not known what the network carries"
        if (carries := fleet.sites.gbps_of.get(level, np.inf)) < wanted_gbps:
            return f"{within} the network carries {carries:g} GB/s"
    return ""
