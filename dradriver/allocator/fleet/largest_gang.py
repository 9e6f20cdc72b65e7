"""The largest gang that one part of the network holds now."""

from __future__ import annotations

import msgspec
import numpy as np

from dradriver.allocator.choice import ladder
from dradriver.allocator.choice.choose import check
from dradriver.allocator.fleet.fleet import Eligible, Fleet
from dradriver.allocator.fleet.gang_nodes import GangNodes, node_table
from dradriver.allocator.gang_request import Role
from dradriver.allocator.request import NoPlaceError
from dradriver.allocator.sets.subsets import Ints
from dradriver.topology.levels import CLUSTER, NODE


class LargestGang(msgspec.Struct, frozen=True, kw_only=True):
    """The most pods of a kind that one domain holds.

    Attributes:
        pods: How many.
        nodes: The nodes that have room for some, by name.
        domain: The domain's name, after those around it (``z1/s2/l7``); the node's for ``node``; empty for ``cluster``,
            and where there is none.
    """

    pods: int
    nodes: tuple[str, ...]
    domain: str


def largest_gang(
    fleet: Fleet, role: Role, level: str, *, eligible: Eligible | None = None, amounts: Ints | None = None
) -> LargestGang:
    """The most pods of this kind that some domain of a level has room for at once.

    ``max over domains of the sum over its nodes of the pods that find disjoint sets, CPU and memory there``. Worked
    example: a leaf with three nodes of 8, 5 and 4 free GPUs holds 2 + 1 + 1 pods of four.

    Args:
        fleet: The cluster.
        role: The pod; how many are wanted does not count.
        level: A level of the network: one of ``Fleet.levels``, ``node`` or ``cluster``.
        eligible: The nodes that may be taken, as for ``place_gang``.
        amounts: What is free beside GPUs, as for ``place_gang``.

    Raises:
        NoPlaceError: There is no such level, or such pods make no sense.
    """
    check(role.pod)
    if level not in fleet.sites.reaches:
        raise NoPlaceError(f"{level}: this cluster's network has the levels {', '.join(fleet.sites.reaches)}")
    return largest(fleet, node_table(fleet, role, ladder.required(role.pod), eligible=eligible, amounts=amounts), level)


def largest(fleet: Fleet, nodes: GangNodes, level: str) -> LargestGang:
    """The same of nodes that were looked up already."""
    domain = nodes.name_rank if level == NODE else fleet.sites.domains(level)[nodes.site]
    at = np.flatnonzero((domain >= 0) & (nodes.capacity > 0))
    if not len(at):
        return LargestGang(pods=0, nodes=(), domain="")
    total = np.bincount(domain[at], nodes.capacity[at])
    best = int(total.argmax())
    names = tuple(sorted(nodes.name(own) for own in at[domain[at] == best].tolist()))
    name = "" if level == CLUSTER else names[0] if level == NODE else fleet.sites.domain(level, best)
    return LargestGang(pods=int(total[best]), nodes=names, domain=name)
