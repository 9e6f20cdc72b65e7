"""Why a gang has no place, and the nearest thing that does."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from dradriver.allocator.choice import ladder, phrases
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.gang_nodes import GangNodes, node_table
from dradriver.allocator.fleet.gang_search import nothing_taken, search
from dradriver.allocator.fleet.largest_gang import largest
from dradriver.allocator.gang_request import GangRequest
from dradriver.allocator.request import NoPlaceError
from dradriver.topology.levels import CLUSTER, NODE


def refusal(fleet: Fleet, tables: Sequence[GangNodes], request: GangRequest, counts: Sequence[int]) -> NoPlaceError:
    """The refusal of a gang.

    Args:
        fleet: The cluster.
        tables: For each role the nodes that could be taken, with what is required alone.
        request: What was wanted.
        counts: For each role the pods that were to find a place; fewer than it has where some have theirs.
    """
    what = " and ".join(f"{role.pods} pods with {phrases.wanted(role.pod)} each" for role in request.members)
    if request.least_pods is not None:
        what = f"{request.least_pods} to {what}"
    limits = []
    if request.max_nodes is not None:
        limits.append(f"on at most {request.max_nodes} nodes")
    if request.min_gpus_per_node:
        limits.append(f"at least {request.min_gpus_per_node} GPUs a node")
    if request.min_network_gbps:
        limits.append(f"at least {request.min_network_gbps:g} GB/s of network")
    if request.near and request.near_required:
        limits.append(f"near {request.near}")
    what = ", ".join((what, *limits))
    if (lost := sum(counts)) < sum(role.pods for role in request.members):
        most = sum(min(int(nodes.capacity.sum()), count) for nodes, count in zip(tables, counts, strict=True))
        reason = f"{most} would find one" if most < lost else "none of their places is near enough to the others"
        stable = f"{what}, of which {lost} {'has' if lost == 1 else 'have'} no place now"
        return NoPlaceError(f"{stable}: {reason}", stable=stable)
    smallest = request if request.least_pods is None else msgspec.structs.replace(request, pods=request.least_pods)
    could, reason = _could_hold(fleet, smallest)
    if could:
        stable = "eligible nodes have no place for all of them at once"
        reason = _nearest(fleet, tables, smallest)
    else:
        stable = reason or "this cluster has no place for all of them even when all its GPUs are free"
        reason = reason or _nearest(fleet, tables, smallest)
    return NoPlaceError(f"{what}: no; {reason}", stable=f"{what}: no; {stable}")


def _could_hold(fleet: Fleet, request: GangRequest) -> tuple[bool, str]:
    """Whether the cluster has a place for all pods when all its GPUs are free; if not, why, where that is known."""
    members = request.members
    tables = [node_table(fleet, role, ladder.required(role.pod)).all_free() for role in members]
    counts = [role.pods for role in members]
    if any(int(nodes.capacity.sum()) < count for nodes, count in zip(tables, counts, strict=True)):
        return False, ""
    taken = nothing_taken(fleet, None) if len(members) > 1 else None
    near = request.near if request.near_required else CLUSTER
    if search(fleet, request, tables, counts, taken=taken, widest=near) is not None:
        return True, ""
    if near == CLUSTER:
        return False, ""
    if search(fleet, request, tables, counts, taken=taken, widest=CLUSTER) is None:
        return False, ""
    if len(members) > 1:
        return False, f"no {near} holds all of them even when it is empty"
    most = largest(fleet, tables[0], near)
    named = f"the largest {near}" + (f", {most.domain}," if most.domain else "")
    return False, f"{named} holds {most.pods} of them when it is empty"


def _nearest(fleet: Fleet, tables: Sequence[GangNodes], request: GangRequest) -> str:
    for role, nodes in zip(request.members, tables, strict=True):
        most = int(nodes.capacity.sum())
        if most < role.pods:
            which = "them" if not request.roles else f"the {role.pods} with {phrases.wanted(role.pod)}"
            by_gpus = int(nodes.by_gpus_alone().capacity.sum())
            alone = f", by their GPUs alone {by_gpus}" if by_gpus > most else ""
            return f"{most} of {which} would find a place in the whole cluster{alone}"
    nodes = tables[0]
    if request.max_nodes is not None:
        most = int(np.sort(nodes.capacity)[::-1][: request.max_nodes].sum())
        if most < request.pods:
            return f"{request.max_nodes} nodes hold {most} of them"
    if request.min_network_gbps:
        known = fleet.sites.gbps()[nodes.site]
        fast = int(nodes.capacity[known >= request.min_network_gbps].sum())
        if fast < request.pods:
            unknown = int(np.count_nonzero(known == 0))
            more = f"; the network's bandwidth of {unknown} nodes is not known" if unknown else ""
            return f"nodes with such a network hold {fast} of them{more}"
        if slow := _slow(fleet, request.min_network_gbps):
            return f"{slow}, and nothing narrower holds all of them"
    if request.near_required and request.near:
        most_here = largest(fleet, nodes, request.near)
        if most_here.pods < request.pods:
            where = most_here.domain if request.near != NODE else most_here.nodes[0] if most_here.nodes else ""
            named = f"the {request.near} with most room" + (f", {where}," if where else "")
            return f"{named} holds {most_here.pods} of them now"
    if request.roles:
        return "each would have places without the others"
    return "without the limits on nodes there would be a place"


def _slow(fleet: Fleet, wanted_gbps: float) -> str:
    """What to say of the narrowest level that does not carry so much, as far as is known; empty where all do."""
    for level in fleet.sites.reaches[1:]:
        within = "within the cluster" if level == CLUSTER else f"within a {level}"
        if not fleet.sites.is_known(level):
            return f"{within} it is not known what the network carries"
        if (carries := fleet.sites.gbps_of.get(level, np.inf)) < wanted_gbps:
            return f"{within} the network carries {carries:g} GB/s"
    return ""
