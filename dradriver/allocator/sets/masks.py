"""Sets of GPUs as bit masks: bit ``i`` of a mask stands for position ``i`` of a machine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dradriver.allocator.sets.subsets import Bools, Ints


def positions_of(mask: int) -> tuple[int, ...]:
    """Return the positions of the GPUs in a bit mask, ascending: the bits that are 1."""
    return tuple(position for position in range(mask.bit_length()) if mask >> position & 1)


def mask_of(members: tuple[int, ...]) -> int:
    """Return the bit mask of the positions in ``members``."""
    return sum(1 << position for position in members)


class Sets(NamedTuple):
    """Some sets of GPUs, as arrays.

    Attributes:
        masks: (m,) int64, the mask of each set.
        member: (g, m) bool, whether a GPU is in each of the sets.
        size: (m,) int64, the number of GPUs in each set.
    """

    masks: Ints
    member: Bools
    size: Ints


def sets_of(masks: Ints, gpus: int) -> Sets:
    """Return sets of GPUs as arrays, with the members and the size of each.

    ``masks`` are the bit masks of the sets, ``gpus`` is the number of the machine's GPUs.
    """
    return Sets(masks, (masks >> np.arange(gpus)[:, None] & 1) != 0, np.bitwise_count(masks).astype(np.int64))
