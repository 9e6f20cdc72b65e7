"""GPUs that refuse each other peer access although links between them are up: no pod may have both.

NCCL requests the peer access of every pair that it sees linked, even if no ring joins the two. Without access it ends
the job with "unhandled cuda error" (``ncclTopoCheckP2p`` in ``paths.cc``). The scheduler has no rule that two devices
exclude each other. So one GPU of the pair is kept off pods: the node agent taints it, and ``gputopo plan`` leaves it
out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import combinations

from dradriver.topology.machine import Machine

Pair = tuple[int, int]


def kept_off(machine: Machine) -> dict[int, tuple[int, ...]]:
    """Return the GPUs that no pod should get, each with the GPUs to which it has no peer access.

    All are positions. Only GPUs on switches that are not in MIG mode are considered. For direct links the machine does
    not show whether a pair without links lost its peer access, so the pair counts as unlinked.
    """
    switched = [i for i, gpu in enumerate(machine.gpus) if gpu.switch_links and gpu.mig is None]
    refused = [(i, j) for i, j in combinations(switched, 2) if not machine.links[i][j]]
    return fewest(faulty(refused, switched=switched))


def faulty(refused: Iterable[Pair], *, switched: Collection[int]) -> set[Pair]:
    """Return the pairs of GPUs without peer access for which the fabric manager is not the reason.

    For GPUs on switches, the fabric manager can be the reason in two ways:

    * It does not run. Then no pair has peer access.
    * It has partitions. Then only GPUs of the same partition have peer access. A partition has two GPUs or more here,
      because the links of a partition with one GPU are down.

    So a pair on switches is faulty if one of its GPUs reaches no other GPU while other GPUs do, or if both GPUs are in
    one partition. A pair of directly linked GPUs is always faulty.

    Args:
        refused: Pairs of positions of GPUs that are used whole, whose links are up, and that have no peer access.
        switched: Positions of the GPUs whose links end in switches. Pairs of these GPUs that are not in ``refused``
            have peer access.
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
    """Return for each GPU on switches the first GPU of its partition.

    So two GPUs with the same result are in one partition. The GPUs of a partition reach each other by peer access,
    directly or through others. ``refused`` are the pairs without peer access, ``switched`` the GPUs on switches.
    """
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
    """Return few GPUs, so that each pair without peer access contains at least one of them.

    Each GPU comes with its partners in these pairs. The GPU that is in the most pairs is chosen first; among equals the
    one with the highest position.
    """
    chosen: dict[int, tuple[int, ...]] = {}
    left = set(pairs)
    while left:
        count = Counter(i for pair in left for i in pair)
        most = max(count, key=lambda i: (count[i], i))
        chosen[most] = tuple(sorted(i + j - most for i, j in left if most in (i, j)))
        left = {pair for pair in left if most not in pair}
    return chosen
