"""GPUs that refuse each other peer access although links between them are up: no pod may have both.

NCCL asks for the peer access of every pair that it sees linked, whether or not a ring joins the two, and ends the job
with "unhandled cuda error" (``ncclTopoCheckP2p`` in ``paths.cc``). The scheduler cannot be told that two devices do not
go together, so one of them is kept from pods. The node agent taints it, and ``gputopo plan`` leaves it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import combinations

from dradriver.topology.machine import Machine

Pair = tuple[int, int]


def kept_off(machine: Machine) -> dict[int, tuple[int, ...]]:
    """Return the positions of GPUs to keep off pods, each with those to which it has no peer access.

    Of direct links the machine does not say whether a pair without any lost its peer access: it is taken for unlinked.
    """
    switched = [i for i, gpu in enumerate(machine.gpus) if gpu.switch_links and gpu.mig is None]
    refused = [(i, j) for i, j in combinations(switched, 2) if not machine.links[i][j]]
    return fewest(faulty(refused, switched=switched))


def faulty(refused: Iterable[Pair], *, switched: Collection[int]) -> set[Pair]:
    """Return those pairs without peer access that are a fault: links are up, and nothing else explains it.

    Two things explain it for GPUs on switches. A fabric manager that does not run lets no pair reach each other. One
    with partitions lets the GPUs of each reach each other, and no others. A partition has two GPUs or more here: the
    links of one alone are down. So a GPU that reaches no other is at fault, and so is a pair within a partition.

    Args:
        refused: Pairs of positions of GPUs that are used whole, whose links are up, and that have no peer access.
        switched: Positions of those GPUs whose links end in switches; all other pairs of them have peer access.
    """
    # By position of a GPU behind switches, the number of its partition: the GPUs that it reaches.
    pairs = set(refused)
    partition_of = _partitions(pairs, switched)
    sizes = Counter(partition_of.values())

    # No GPU reaches any other: the fabric manager does not run, which explains all pairs behind switches.
    if sizes and max(sizes.values()) == 1:
        return {(i, j) for i, j in pairs if i not in partition_of or j not in partition_of}
    return {
        (i, j)
        for i, j in pairs
        if i not in partition_of
        or j not in partition_of
        or partition_of[i] == partition_of[j]
        or 1 in (sizes[partition_of[i]], sizes[partition_of[j]])
    }


def _partitions(refused: set[Pair], switched: Collection[int]) -> dict[int, int]:
    """Return for each GPU on switches the first that it reaches, directly or through others."""
    first_of: dict[int, int] = {}
    for first in switched:
        reached = [] if first in first_of else [first]
        for i in reached:
            first_of[i] = first
            reached += [
                j for j in switched if j not in first_of and j not in reached and not {(i, j), (j, i)} & refused
            ]
    return first_of


def fewest(pairs: Collection[Pair]) -> dict[int, tuple[int, ...]]:
    """Return few GPUs such that each pair without peer access has one of them, with the other ones.

    GPUs of most pairs are chosen first, then the last.
    """
    chosen: dict[int, tuple[int, ...]] = {}
    left = set(pairs)
    while left:
        count = Counter(i for pair in left for i in pair)
        most = max(count, key=lambda i: (count[i], i))
        chosen[most] = tuple(sorted(i + j - most for i, j in left if most in (i, j)))
        left = {pair for pair in left if most not in pair}
    return chosen
