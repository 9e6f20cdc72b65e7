"""Chooses the same GPU positions on all nodes of a gang. ``gang_domains`` and ``role_plan`` call it.

The *position* of a GPU is its index in its machine. On rail-optimised networks, the NICs of one position of all nodes
are connected to a switch of their own: a *rail*. NCCL sends to another node through the local NIC at the position of
the remote GPU (``ncclTopoGetNetDev``). So if all nodes use equal positions, traffic stays on its rail.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dradriver.allocator.choice.set_order import preference, set_order
from dradriver.allocator.fleet.gang_nodes import GangNodes, pod_capacity
from dradriver.allocator.sets.subsets import Bools, Ints

_MOST_PATTERNS = 128  # all of up to 8 GPUs; of more those that most nodes have free


class Pattern(NamedTuple):
    """A set of GPU positions that is free on enough nodes of one kind.

    Attributes:
        kind: The kind of the nodes, as an index into ``GangNodes.candidates``.
        mask: The bit mask of the positions.
        exact: How many nodes have exactly these positions free, and no others.
        cost: What later pods lose if these positions are taken; lower is better.
    """

    kind: int
    mask: int
    exact: int
    cost: int


def patterns(nodes: GangNodes, at: Ints, *, number: int, count: int) -> list[Pattern]:
    """Return the sets of GPU positions that are free on enough nodes of one kind, the best first.

    If a gang's pods use the same positions on all nodes, they use the same network rails. For each kind, only the 128
    sets that are free on the most nodes are returned. Among equally good patterns, the pattern whose first node comes
    first by name wins. The numbers of kinds cannot decide, because they depend on the order in which nodes were read.

    Worked example: two of three nodes with eight GPUs have 0-3 free, the third has 4-7 free. For pods of four GPUs on
    two nodes there is one pattern, 0-3.

    Args:
        nodes: The nodes of the gang's pods.
        at: The usable nodes, as indices into ``nodes``.
        number: How many nodes the gang uses.
        count: The number of pods on each of them.
    """
    ranked_patterns: list[tuple[tuple[int, ...], Pattern]] = []
    for kind in np.unique(nodes.kind[at]).tolist():
        of_kind = at[nodes.kind[at] == kind]
        if len(of_kind) < number:  # nodes of two kinds never have a pattern together
            continue
        free_masks, first_name_rank = nodes.mask[of_kind], int(nodes.name_rank[of_kind].min())
        tables, gpus = nodes.candidates[kind].group.tables, nodes.request.gpus

        # By mask: how many nodes have exactly these positions free.
        exact = np.bincount(free_masks, minlength=1 << tables.size)

        # Sums over supersets: the number of nodes that have at least these positions free, by mask.
        nodes_with = exact.copy()
        for position in range(tables.size):
            without_and_with = nodes_with.reshape(-1, 2, 1 << position)  # masks without the position, and with it
            without_and_with[:, 0] += without_and_with[:, 1]

        # Candidates: masks of the right size that enough nodes have free and that hold ``count`` allowed sets.
        masks = tables.members(gpus * count)
        masks = masks[nodes_with[masks] >= number]
        masks = masks[pod_capacity(tables, gpus, nodes.criteria[kind])[masks] >= count]

        # The cost by what remains of an empty machine without the pattern: lower is better.
        cost_by_remaining = set_order(tables, preference(nodes.request), gpus=gpus).rest
        most_common = masks[np.argsort(-nodes_with[masks], kind="stable")[:_MOST_PATTERNS]]
        for mask in most_common.tolist():
            cost = int(cost_by_remaining[tables.everything ^ mask])
            pattern = Pattern(kind, mask, min(int(exact[mask]), number), cost)
            ranked_patterns.append(((-pattern.exact, pattern.cost, first_name_rank, mask), pattern))
    return [pattern for _, pattern in sorted(ranked_patterns)]


def have(nodes: GangNodes, at: Ints, pattern: Pattern) -> Bools:
    """Return for each node whether all GPU positions of a pattern are free there.

    A pattern is a set of GPU positions that all pods of a gang use. ``at`` are the nodes, as indices into ``nodes``.
    The result is bool, with the shape of ``at``.
    """
    out: Bools = (nodes.kind[at] == pattern.kind) & (nodes.mask[at] & pattern.mask == pattern.mask)
    return out
