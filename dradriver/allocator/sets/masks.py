"""Sets of GPUs as bit masks: bit ``i`` of a mask stands for position ``i`` of a machine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dradriver.allocator.sets.subsets import Bools, Ints


def positions_of(mask: int) -> tuple[int, ...]:
    """Return the positions of a mask, ascending."""
    return tuple(position for position in range(mask.bit_length()) if mask >> position & 1)


def mask_of(members: tuple[int, ...]) -> int:
    """Return the mask of some positions."""
    return sum(1 << position for position in members)


class Sets(NamedTuple):
    """Some sets of GPUs.

    Attributes:
        masks: (m,) int64.
        member: (g, m) bool, whether a GPU is in each of them.
        size: (m,) int64, how many are.
    """

    masks: Ints
    member: Bools
    size: Ints


def sets_of(masks: Ints, gpus: int) -> Sets:
    """Return the sets of these masks, with the members and the size of each."""
    return Sets(masks, (masks >> np.arange(gpus)[:, None] & 1) != 0, np.bitwise_count(masks).astype(np.int64))
