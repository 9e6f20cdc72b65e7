"""The same positions on every node of a gang: its *rails*.

On rail-optimised networks the NIC of one position has a switch of its own, and NCCL sends to the local NIC that stands
where the remote GPU's does (``ncclTopoGetNetDev``): equal positions on all nodes stay on their rails.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dradriver.allocator.choice.set_order import preference, set_order
from dradriver.allocator.fleet.gang_nodes import GangNodes
from dradriver.allocator.fleet.packing import pod_capacity
from dradriver.allocator.sets.subsets import Bools, Ints

_MOST_PATTERNS = 128  # all of up to 8 GPUs; of more those that most nodes have free


class Pattern(NamedTuple):
    """Positions that enough nodes of one kind have free.

    Attributes:
        kind: Of the nodes.
        mask: The positions.
        exact: How many nodes have just these free.
        cost: What taking them costs others: lower is better.
    """

    kind: int
    mask: int
    exact: int
    cost: int


def patterns(nodes: GangNodes, at: Ints, *, number: int, count: int) -> list[Pattern]:
    """Positions for ``count`` pods that at least ``number`` of some nodes have free, all of one kind; best first.

    Equally good ones stand by the first node's name: the kinds' numbers are those in which nodes were read.

    Worked example: two of three nodes of eight GPUs have 0-3 free, the third 4-7: for pods of four GPUs on two nodes
    there is one pattern, 0-3.
    """
    found: list[tuple[tuple[int, ...], Pattern]] = []
    for kind in np.unique(nodes.kind[at]).tolist():
        of_kind = at[nodes.kind[at] == kind]
        if len(of_kind) < number:
            continue
        own, first = nodes.mask[of_kind], int(nodes.name_rank[of_kind].min())
        tables, gpus = nodes.candidates[kind].group.tables, nodes.request.gpus
        exact = np.bincount(own, minlength=1 << tables.size)
        have = exact.copy()  # nodes that have at least these positions free
        for position in range(tables.size):
            split = have.reshape(-1, 2, 1 << position)
            split[:, 0] += split[:, 1]
        masks = tables.members(gpus * count)
        masks = masks[have[masks] >= number]
        masks = masks[pod_capacity(tables, gpus, nodes.criteria[kind])[masks] >= count]
        rest = set_order(tables, preference(nodes.request), gpus=gpus).rest
        for mask in masks[np.argsort(-have[masks], kind="stable")[:_MOST_PATTERNS]].tolist():
            pattern = Pattern(kind, mask, min(int(exact[mask]), number), int(rest[tables.everything ^ mask]))
            found.append(((-pattern.exact, pattern.cost, first, mask), pattern))
    return [pattern for _, pattern in sorted(found)]


def have(nodes: GangNodes, at: Ints, pattern: Pattern) -> Bools:
    """Which of some nodes have a pattern's positions free: shape of ``at``."""
    out: Bools = (nodes.kind[at] == pattern.kind) & (nodes.mask[at] & pattern.mask == pattern.mask)
    return out
