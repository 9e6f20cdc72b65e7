"""The sets that the machine's maker allows, and the best block of GPUs to take a set from.

``facts`` and ``set_order`` use it. ``Blocks`` of a machine says which GPUs one pod may have together. One example is
the rings of an Ascend 910A: between them there is no data path that a job could use. Another is the modules of an A3,
which are allocated as a whole.
"""

from __future__ import annotations

import numpy as np

from dradriver.allocator.sets.subsets import Bools, Ints
from dradriver.topology.machine import Blocks


def possible(blocks: Blocks) -> Bools:
    """Return whether the machine's maker allows one pod to have each set of GPUs.

    ``blocks`` has the maker's rule. The shape is (2**g,) for g GPUs, bool; the index is the bit mask of the set. Worked
    example: with two rings of four GPUs, {0, 1} is allowed and {3, 4} is not; the set of all eight GPUs is allowed.
    """
    inside = _inside(blocks)
    size, count = int(inside.max()), inside.sum(axis=0)
    touched = (inside > 0).sum(axis=0)
    if blocks.whole:
        out = (touched * size == count) | (count == 1)
    else:
        out = (touched * inside.max(axis=0) == count) & (touched == -(-count // size))
    if blocks.counts:
        out &= np.isin(count, (0, *blocks.counts))
    given: Bools = out
    return given


def spoilt(blocks: Blocks, gpus: int) -> Ints:
    """Return for each mask of remaining free GPUs how bad it is for later sets.

    The lowest number is best. ``Blocks.order`` says from which block a set of ``gpus`` GPUs should be taken: the block
    whose number of free GPUs has the best (lowest) rank. This function turns the rule into a number that depends on the
    remaining GPUs alone. The number of a mask is the sum of ``g(n)`` over its blocks, where ``n`` is the number of free
    GPUs that the block has. The function ``g`` satisfies ``g(n - gpus) = g(n) + rank(n)``. So if a set is taken from a
    block with a low rank, the number increases least.

    Worked example: a single GPU is taken from one of two rings with 1 and 3 free GPUs. A ring with 1, 2 or 3 free GPUs
    has rank 0, 2 or 1. If the first ring gives the GPU, 0 and 3 GPUs remain: ``g(0) + g(3) = 0 - 3``. If the second
    ring gives it, 1 and 2 remain: ``g(1) + g(2) = 0 - 2``. The first number is lower, so the first ring gives the GPU.

    Returns:
        (2**g,) for g GPUs, int64.
    """
    # (blocks, masks): how many GPUs of each block a mask has.
    inside = _inside(blocks)
    size = int(inside.max())
    if gpus > size or (blocks.whole and gpus > 1):
        return np.zeros(inside.shape[1], dtype=np.int64)

    # By number of free GPUs of a block: how well it suits a set of this size, and then the sums of these ranks (g).
    order = blocks.order[gpus - 1] if gpus <= len(blocks.order) else ()
    others = [free for free in range(gpus, size + 1) if free not in order]
    rank = {free: at for at, free in enumerate((*order, *others))}
    worth = [0] * gpus
    for free in range(gpus, size + 1):
        worth.append(worth[free - gpus] - rank[free])
    total = np.array(worth)[inside].sum(axis=0)
    out: Ints = total - total.min()
    return out


def _inside(blocks: Blocks) -> Ints:
    """Return how many GPUs of each block each set has: (blocks, 2**g), int64.

    A block is a group of GPUs that the machine's maker allocates together, such as a ring. The second index is the bit
    mask of the set; g is the number of GPUs.
    """
    masks = np.arange(1 << len(blocks.of))
    own = [sum(1 << at for at, other in enumerate(blocks.of) if other == number) for number in sorted(set(blocks.of))]
    out: Ints = np.bitwise_count(masks & np.array(own)[:, None]).astype(np.int64)
    return out
