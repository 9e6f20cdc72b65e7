"""Which sets a machine gives at all, where its maker bounds that, and from which of its blocks they are best taken.

``Blocks`` of a machine says which GPUs may be had together: the rings of an Ascend 910A, between which there is no
data path that a job could use, the modules of an A3, which go whole.
"""

from __future__ import annotations

import numpy as np

from dradriver.allocator.sets.subsets import Bools, Ints
from dradriver.topology.machine import Blocks


def possible(blocks: Blocks) -> Bools:
    """Return per mask whether the machine's blocks, a rule of its maker, allow such a set: shape (2**g,), bool.

    Worked example: of two rings of four {0, 1} is given, {3, 4} is not, and of eight GPUs all or none.
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
    """Return how much taking sets of ``gpus`` GPUs spoilt the blocks, by the mask left; less is better: (2**g,), int64.

    The block that a set is taken from is the best by ``Blocks.order``. Which that was follows from what remains: taking
    ``k`` of ``n`` free GPUs of a block turns ``g(n)`` into ``g(n - k) = g(n) + rank(n)``, and a mask is worth the sum
    over its blocks. Worked example: a single GPU of two rings with 1 and 3 free, ranks 0 and 1: taking the first leaves
    ``g(0) + g(3) = 0 - 3``, the second ``g(1) + g(2) = 0 - 2``.
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
    """How many members each mask has in each block: (blocks, 2**g), int64."""
    masks = np.arange(1 << len(blocks.of))
    own = [sum(1 << at for at, other in enumerate(blocks.of) if other == number) for number in sorted(set(blocks.of))]
    out: Ints = np.bitwise_count(masks & np.array(own)[:, None]).astype(np.int64)
    return out
